"""Metrics, graphs and report of a run made anew from its tables; needs no torch."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from slm_lab.lib.io import to_finite, write_json
from slm_lab.results.folder import RunFolder
from slm_lab.results.metrics import calc_session_metrics, calc_trial_metrics
from slm_lab.results.plot import plot_run
from slm_lab.results.report import write_report
from slm_lab.results.run import Run

# what tables do not tell
KEPT = ("num_session", "failed", "is_complete", "final_eval")


def recompute(run: Run, tell: Callable[[str], None]) -> dict[str, Any]:
    """Write a run's metrics, graphs and report again, and return the metrics; what else they held is kept."""
    folder = RunFolder(run.path, run.name)
    random_return = run.random_return
    if random_return is None:
        tell(f"no random baseline of {run.env_name} is known, so strength counts from 0")
        random_return = 0.0
    counted = run.counted_tables
    known = {key: run.metrics[key] for key in KEPT if key in run.metrics}
    metrics = calc_trial_metrics(list(counted.values()), random_return) | known
    metrics["session_index"] = list(counted)
    # a failed session is not in the trial's score, but has figures of its own
    sessions: dict[int, dict[str, Any]] = {}
    for session, table in run.tables.items():
        old = run.session_metrics.get(session, {})
        new = asdict(calc_session_metrics(table, random_return))
        sessions[session] = {"session": session, **old, **new}
        write_json(folder.session_metrics_file(run.trial, session), sessions[session])
    write_json(folder.trial_metrics_file(run.trial), metrics)
    # as they are read back, without reading the tables again
    run = replace(run, metrics=to_finite(metrics), session_metrics=to_finite(sessions))
    plot_run(run)
    write_report([run], folder.report_file)
    return metrics
