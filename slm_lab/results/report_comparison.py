"""Runs side by side in a report. A separate module, since importing its statistics takes a second."""

import math
from collections.abc import Sequence

from slm_lab.lib.data import Document
from slm_lab.results.metrics import MA_WINDOW, calc_spread
from slm_lab.results.page import NOTHING, format_interval, format_number
from slm_lab.results.report import find_furthest, name_runs
from slm_lab.results.run import Run, find_common_kind
from slm_lab.results.statistics import Interval, compare, describe_improvement

SCORES = {
    "final": "return of the deterministic policy at the end",
    "eval": "return of the deterministic policy when it was last evaluated",
    "train": f"mean return of the last {MA_WINDOW} episodes of training",
}


def compare_runs(runs: Sequence[Run]) -> Document | None:
    """The table of several runs, each compared with the first one in its env; None for a single run."""
    if len(runs) < 2:
        return None
    kind = find_common_kind(runs)
    has_envs = len({run.env_name for run in runs}) > 1
    first: dict[str, list[float]] = {}
    rows, verdicts = [], []
    for run, name in zip(runs, name_runs(runs), strict=True):
        scores = list(run.get_scores(kind).values())
        spread = calc_spread(scores)
        known = [score for score in scores if math.isfinite(score)]
        difference = improvement = NOTHING
        if not known:
            verdicts.append(f"{name}: no score")
        elif run.env_name in first:
            result = compare(known, first[run.env_name])
            difference, improvement = _format(result.difference, "+,.2f"), _format(result.improvement, ".2f")
            verdicts.append(f"{name}: {describe_improvement(result)}")
        else:
            first[run.env_name] = known
        row = [name, run.label, *([run.env_name] if has_envs else []), str(len(scores))]
        row += [format_number(find_furthest(run, "frame")), format_number(spread.mean)]
        row += [format_interval(spread.low, spread.high), format_number(spread.iqm), difference, improvement]
        rows.append(row)
    head = ["run", "algorithm", *(["env"] if has_envs else []), "sessions", "frames", "score", "95 % interval", "IQM"]
    head += ["difference", "probability of improvement"]
    return {"head": head, "rows": rows, "verdicts": verdicts, "score": SCORES[kind]}


def _format(number: Interval, form: str) -> str:
    if not math.isfinite(number.low):
        return f"{number.value:{form}}"
    return f"{number.value:{form}} [{number.low:{form}}, {number.high:{form}}]"
