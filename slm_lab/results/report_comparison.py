"""The comparison of runs in a report; a separate module, since importing its statistics takes a second."""

from collections.abc import Sequence

from slm_lab.lib.data import Document
from slm_lab.results import aggregate
from slm_lab.results.comparison import ComparisonRow, build_rows, format_estimate
from slm_lab.results.metrics import MA_WINDOW
from slm_lab.results.page import NOTHING, format_interval, format_number
from slm_lab.results.report import name_runs
from slm_lab.results.run import Run, find_common_kind
from slm_lab.results.statistics import describe_improvement

SCORES = {
    "final": "return of the deterministic policy at the end",
    "eval": "return of the deterministic policy when it was last evaluated",
    "train": f"mean return of the last {MA_WINDOW} episodes of training",
}


def compare_runs(runs: Sequence[Run], labels: Sequence[str] | None = None) -> Document | None:
    """The table of several runs, each compared with the first one in its env; None for a single run.

    `labels` replaces the names of the algorithms.
    """
    if len(runs) < 2:
        return None
    has_envs = len({run.env_name for run in runs}) > 1
    rows, verdicts = [], []
    table = build_rows(runs, name_runs(runs), labels)
    for row in table:
        spread, result = row.spread, row.comparison
        difference = improvement = NOTHING
        if not row.scores:
            verdicts.append(f"{row.run}: no score")
        elif result is not None:
            difference, improvement = format_estimate(result.difference, "+,.2f"), format_estimate(result.improvement)
            verdicts.append(f"{row.run}: {describe_improvement(result)}")
        cells = [row.run, row.algorithm, *([row.env] if has_envs else []), str(len(row.scores))]
        cells += [format_number(row.frame), format_number(spread.mean)]
        cells += [format_interval(spread.low, spread.high), format_number(spread.iqm), difference, improvement]
        rows.append(cells)
    head = ["run", "algorithm", *(["env"] if has_envs else []), "sessions", "frames", "score", "95 % interval", "IQM"]
    head += ["difference", "probability of improvement"]
    return {
        "head": head,
        "rows": rows,
        "verdicts": verdicts,
        "score": SCORES[find_common_kind(runs)],
        "aggregates": _build_aggregates(table),
    }


def _build_aggregates(table: Sequence[ComparisonRow]) -> Document | None:
    """The table of algorithms over all envs; None if there is nothing to aggregate."""
    found = aggregate.aggregate_rows(table)
    if found is None or not found.rows:
        return None
    return {"head": list(aggregate.HEAD), "rows": [row.cells for row in found.rows], "notes": found.notes}
