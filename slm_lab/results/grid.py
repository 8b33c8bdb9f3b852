"""The results of an experiment: a table, aggregates over envs, figures, and a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slm_lab.lib.io import write_text
from slm_lab.results.aggregate import Aggregates, aggregate_rows
from slm_lab.results.comparison import ComparisonRow, build_rows, format_csv, format_latex
from slm_lab.results.figure import Point
from slm_lab.results.folder import REPORT_NAME
from slm_lab.results.plot import RETURN, Drawing, name_figures, plot_runs, to_drawn
from slm_lab.results.report import name_runs, write_report
from slm_lab.results.report_comparison import compare_runs
from slm_lab.results.run import Run


@dataclass(frozen=True)
class GridFiles:
    """The rows of the table, the aggregates if there are several envs and algorithms, and the files written."""

    rows: tuple[ComparisonRow, ...]
    aggregates: Aggregates | None
    table: Path
    latex: Path
    figures: tuple[Path, ...]
    page: Path


def write_grid(folder: Path, runs: Sequence[Run], labels: Sequence[str]) -> GridFiles:
    """Write the results of an experiment into its folder."""
    rows = build_rows(runs, name_runs(runs), labels)
    table, latex, page = folder / "table.csv", folder / "table.tex", folder / REPORT_NAME
    write_text(table, format_csv(rows))
    write_text(latex, format_latex(rows))
    panels = {
        env: [to_drawn(run, label) for run, label in zip(runs, labels, strict=True) if run.env_name == env]
        for env in dict.fromkeys(run.env_name for run in runs)
    }
    drawing = Drawing(column=RETURN, algorithms=tuple(run.label for run in runs))
    figures: list[Path] = []
    # a figure for each env, and one with all of them for a paper
    for env, name in name_figures(list(panels)).items():
        figures += plot_runs({env: panels[env]}, folder / "figure" / name, "", drawing, ("png", "pdf"))
    aggregates = aggregate_rows(rows)
    if len(panels) > 1:
        known = aggregates.rows if aggregates is not None else ()
        points = [Point(row.algorithm, row.iqm.value, row.iqm.low, row.iqm.high) for row in known]
        figures += plot_runs(panels, folder / "figure" / "all", "", drawing, ("png", "pdf"), points)
    write_report(runs, page, compare_runs(runs, labels))
    return GridFiles(tuple(rows), aggregates, table, latex, tuple(figures), page)
