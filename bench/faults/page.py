"""Writes docs/RELIABILITY.md: figures from the result files, text from page.md."""

from pathlib import Path
from string import Template
from typing import Any

from bench.faults.row import QUICK_RESULTS, RESULTS, ROOT, Row, count_passed, list_failures, read_result
from bench.faults.rows import ROWS
from slm_lab.lib.io import write_text

TEMPLATE = Path(__file__).with_name("page.md")
PAGE = ROOT / "docs" / "RELIABILITY.md"
NOT_RUN = "not run in full yet"


def build_table(results: Path, quick: Path) -> str:
    """A line per row: the fault, the criterion, and how many passed."""
    lines = ["| row | fault | passes when | passed | run |", "|---|---|---|---|---|"]
    for row in ROWS:
        cells = [f"`{row.name}`", row.fault, row.passes, *describe(row, results, quick)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def describe(row: Row, results: Path, quick: Path) -> tuple[str, str]:
    """How many passed, and when; a quick run is called so."""
    result = read_result(row, results)
    if result is not None and result.get("is_whole"):
        passed, planted = count_passed(result)
        return f"**{passed} of {planted}**", f"{result['run_at']}, {format_seconds(result['seconds'])}"
    told = NOT_RUN
    if result is not None:
        told += " (started: {} of {})".format(*count_passed(result))
    look = read_result(row, quick)
    if look is not None:
        told += "; quick run: {} of {}".format(*count_passed(look))
    return told, NONE if look is None else f"quick run: {look['run_at']}"


NONE = ""


def format_seconds(seconds: float) -> str:
    """A time in the unit that fits."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def build_failures(results: Path) -> str:
    """The failures, a line each."""
    lines = []
    for row in ROWS:
        result = read_result(row, results)
        lines += [f"- `{row.name}`, {failure}" for failure in (list_failures(result) if result else [])]
    return "\n".join(lines) if lines else "None in the completed rows."


def build_notes(results: Path) -> str:
    """Notes that counts do not show."""
    return "\n".join(f"- `{row.name}`: {row.note}{_tell(row, results)}" for row in ROWS if row.note or row.told)


def _tell(row: Row, results: Path) -> str:
    """The verdicts of a row that the page lists one by one."""
    result = read_result(row, results)
    if row.told is None or result is None:
        return ""
    names = [verdict["name"] for found in result["batches"].values() for verdict in found]
    return f" Measured: {'; '.join(name for name in names if row.told in name)}."


def describe_conditions(results: Path) -> str:
    """Machine and code of the rows."""
    seen: dict[str, list[str]] = {}
    for row in ROWS:
        result = read_result(row, results)
        if result is not None and result.get("is_whole"):
            seen.setdefault(describe_facts(result), []).append(f"`{row.name}`")
    return "\n".join(f"- {', '.join(names)}: {facts}." for facts, names in seen.items()) or f"- {NOT_RUN}."


def describe_facts(result: dict[str, Any]) -> str:
    """Machine, code and versions of a row."""
    versions = ", ".join(
        f"{name} {result['versions'][name]}"
        for name in ("slm-lab", "python", "torch", "gymnasium")
        if name in result["versions"]
    )
    machine = f"{result['machine'].get('processor', 'unknown')}, {result['machine'].get('cores', '?')} cores"
    return f"{machine}; commit {str(result['commit'])[:10]}; {versions}"


def write_page(results: Path = RESULTS, quick: Path = QUICK_RESULTS, page: Path = PAGE) -> Path:
    """Writes the page from the existing results."""
    text = Template(TEMPLATE.read_text()).substitute(
        table=build_table(results, quick),
        failures=build_failures(results),
        notes=build_notes(results),
        conditions=describe_conditions(results),
    )
    write_text(page, text)
    return page
