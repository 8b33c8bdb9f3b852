"""Runs beside each other in a report. A module of its own, since the statistics it needs take a second to load."""

import math
from collections.abc import Sequence

from slm_lab.experiment.report import NOTHING, get_scores
from slm_lab.experiment.results import Run
from slm_lab.experiment.statistics import compare, describe_improvement


def compare_runs(runs: Sequence[Run]) -> list[list[str]]:
    """For each run the difference to the first one in its env, and what to think of it."""
    first: dict[str, list[float]] = {}
    verdicts = []
    for run in runs:
        scores = [score for score in get_scores(run).values() if math.isfinite(score)]
        if not scores:
            verdicts.append([NOTHING, "no score"])
        elif run.env_name not in first:
            first[run.env_name] = scores
            verdicts.append([NOTHING, "what the others are compared with"])
        else:
            comparison = compare(scores, first[run.env_name])
            value = comparison.difference
            interval = f" [{value.low:+,.2f}, {value.high:+,.2f}]" if math.isfinite(value.low) else ""
            verdicts.append([f"{value.value:+,.2f}{interval}", describe_improvement(comparison)])
    return verdicts
