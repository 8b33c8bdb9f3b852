"""Runs beside each other in a report. A module of its own, since the statistics it needs take a second to load."""

import math
from collections.abc import Sequence

from slm_lab.results.report import Verdict
from slm_lab.results.run import Run, find_common_kind
from slm_lab.results.statistics import Estimate, compare, describe_improvement


def compare_runs(runs: Sequence[Run]) -> list[Verdict]:
    """What to think of each run beside the first one in its env."""
    first: dict[str, list[float]] = {}
    verdicts = []
    kind = find_common_kind(runs)
    for run in runs:
        scores = [score for score in run.get_scores(kind).values() if math.isfinite(score)]
        if not scores:
            verdicts.append(Verdict(text="no score"))
        elif run.env_name not in first:
            first[run.env_name] = scores
            verdicts.append(Verdict())
        else:
            result = compare(scores, first[run.env_name])
            difference, improvement = _format(result.difference, "+,.2f"), _format(result.improvement, ".2f")
            verdicts.append(Verdict(difference, improvement, describe_improvement(result)))
    return verdicts


def _format(estimate: Estimate, form: str) -> str:
    if not math.isfinite(estimate.low):
        return f"{estimate.value:{form}}"
    return f"{estimate.value:{form}} [{estimate.low:{form}}, {estimate.high:{form}}]"
