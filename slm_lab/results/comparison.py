"""Compare runs in a table: on the terminal, as CSV and as LaTeX."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from slm_lab.results.metrics import Spread, calc_spread
from slm_lab.results.page import NOTHING
from slm_lab.results.run import Run, find_common_kind
from slm_lab.results.statistics import Interval, ScoreComparison, compare

HEAD = ("run", "algorithm", "env", "score", "IQM", "95 % interval", "sessions", "P(improvement)")
# the columns of HEAD that are text
NUM_NAME = 3
_CSV_HEAD = (
    *("run", "algorithm", "env", "score", "iqm", "low", "high", "sessions"),
    *("improvement", "improvement_low", "improvement_high"),
)
_LATEX = {char: f"\\{char}" for char in "&%$#_{}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", NOTHING: "--"}


@dataclass(frozen=True)
class ComparisonRow:
    """A run, compared with the first run in its env."""

    run: str
    algorithm: str
    env: str
    frame: int
    # of the sessions that have a score
    scores: tuple[float, ...]
    # return of random play, if known
    random_return: float | None
    # with the first run in the env that has a score; None for that run, and for runs without a score
    comparison: ScoreComparison | None

    @cached_property
    def spread(self) -> Spread:
        """Mean, IQM and interval of the scores; NaN without scores."""
        return calc_spread(self.scores or (math.nan,))

    @property
    def cells(self) -> list[str]:
        """The row as text, a cell for each name in HEAD."""
        spread, improvement = self.spread, self.comparison.improvement if self.comparison is not None else None
        cells = [self.run, self.algorithm, self.env, format_score(spread.mean), format_score(spread.iqm)]
        cells.append(f"[{spread.low:.2f}, {spread.high:.2f}]" if math.isfinite(spread.low) else NOTHING)
        return [*cells, str(len(self.scores)), format_estimate(improvement)]


def build_rows(
    runs: Sequence[Run], names: Sequence[str], algorithms: Sequence[str] | None = None
) -> list[ComparisonRow]:
    """A row per run, grouped by env; `algorithms` replaces the names of the algorithms."""
    labels = algorithms if algorithms is not None else [run.label for run in runs]
    kind = find_common_kind(runs)
    rows = []
    for env in dict.fromkeys(run.env_name for run in runs):
        first: tuple[float, ...] = ()
        for run, name, label in zip(runs, names, labels, strict=True):
            if run.env_name != env:
                continue
            scores = tuple(score for score in run.get_scores(kind).values() if math.isfinite(score))
            result = compare(scores, first) if scores and first else None
            first = first or scores
            rows.append(ComparisonRow(name, label, env, run.frame, scores, run.random_return, result))
    return rows


def format_score(value: float) -> str:
    """A score with two decimals, or a dash."""
    return f"{value:.2f}" if math.isfinite(value) else NOTHING


def format_estimate(value: Interval | None, form: str = ".2f") -> str:
    """A number with its interval, if it has one, or a dash."""
    if value is None:
        return NOTHING
    interval = f" [{value.low:{form}}, {value.high:{form}}]" if math.isfinite(value.low) else ""
    return f"{value.value:{form}}{interval}"


def format_csv(rows: Sequence[ComparisonRow]) -> str:
    """The rows with a number per cell, at full precision; a cell without a value is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_HEAD)
    for row in rows:
        spread = row.spread
        numbers = [spread.mean, spread.iqm, spread.low, spread.high, len(row.scores)]
        if row.comparison is not None:
            improvement = row.comparison.improvement
            numbers += [improvement.value, improvement.low, improvement.high]
        cells = [repr(value) if math.isfinite(value) else "" for value in numbers]
        writer.writerow([row.run, row.algorithm, row.env, *cells, *[""] * (len(_CSV_HEAD) - NUM_NAME - len(cells))])
    return text.getvalue()


def format_latex(rows: Sequence[ComparisonRow]) -> str:
    """The rows as a table of LaTeX with the rules of booktabs, a rule between envs."""
    groups: dict[str, list[list[str]]] = {}
    for row in rows:
        groups.setdefault(row.env, []).append(row.cells)
    return format_tabular(HEAD, list(groups.values()), NUM_NAME)


def format_tabular(head: Sequence[str], groups: Sequence[Sequence[Sequence[str]]], num_name: int) -> str:
    """Groups of rows as a tabular, any text escaped: the first `num_name` columns are names, the rest numbers."""
    lines = [f"\\begin{{tabular}}{{{'l' * num_name}{'r' * (len(head) - num_name)}}}", "\\toprule", _join(head)]
    for group in groups:
        lines += ["\\midrule", *(_join(row) for row in group)]
    return "\n".join(["% needs \\usepackage{booktabs}", *lines, "\\bottomrule", "\\end{tabular}", ""])


def _join(cells: Sequence[str]) -> str:
    line = " & ".join(map(escape_latex, cells)) + " \\\\"
    # the preceding line break would take these as its options
    return f"{{}}{line}" if line.startswith(("[", "*")) else line


def escape_latex(text: str) -> str:
    """Text for LaTeX, with special characters escaped."""
    return "".join(_LATEX.get(char, char) for char in text)
