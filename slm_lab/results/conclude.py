"""Conclude a trial: write metrics, graphs and report, and find symptoms, from tables that are read once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loguru import logger

from slm_lab.lib.errors import RunFolderError, StorageError
from slm_lab.results.doctor import Symptom, find_symptoms
from slm_lab.results.folder import RunFolder
from slm_lab.results.metrics import SessionFile, SessionResult, TrialMetrics, calc_final_eval, calc_trial_metrics
from slm_lab.results.plot import plot_run, plot_run_curve
from slm_lab.results.report import write_report
from slm_lab.results.run import Run, read_run


@dataclass(frozen=True)
class Conclusion:
    """A run with its metrics, symptoms and report."""

    run: Run
    metrics: TrialMetrics
    symptoms: tuple[Symptom, ...]
    # None if it was not drawn, or could not be written
    report: Path | None = None


def conclude(
    run: Run,
    ended: Sequence[SessionResult],
    failed: Sequence[int],
    random_return: float,
    num_session: int,
    is_drawn: bool = True,
    reward_threshold: float | None = None,
) -> Conclusion:
    """Write the results of a trial; `ended` are the sessions with a result, at least one of them with a table."""
    tables = {result.session: run.tables[result.session] for result in ended if result.session in run.tables}
    metrics = calc_trial_metrics(tables, random_return).model_copy(
        update={
            "num_session": num_session,
            "failed": tuple(failed),
            "reward_threshold": reward_threshold,
            "final_eval": calc_final_eval([result.final_eval for result in ended]),
            "is_complete": len(ended) == num_session and all(result.is_done for result in ended),
        }
    )
    files = {
        result.session: SessionFile(
            session=result.session,
            is_done=result.is_done,
            ended_early=result.ended_early,
            final_eval=tuple(result.final_eval),
            phases=result.phases,
        )
        for result in ended
        if result.session in tables
    }
    return _write(run, metrics, files, is_drawn)


def recompute(run: Run, random_return: float) -> Conclusion:
    """Write the results of an ended run again, from its tables; keeps metrics that tables do not contain."""
    tables = run.counted_tables
    metrics = calc_trial_metrics(tables, random_return)
    if (old := run.metrics) is not None:
        kept = {
            "num_session": old.num_session,
            "failed": old.failed,
            "reward_threshold": old.reward_threshold,
            "final_eval": old.final_eval,
            "is_complete": old.is_complete,
        }
        metrics = metrics.model_copy(update=kept)
    files = {session: run.session_metrics.get(session, SessionFile(session=session)) for session in tables}
    return _write(run, metrics, files, is_drawn=True)


def read_conclusion(run: Run) -> Conclusion | None:
    """What was written of a run when its last session ended; None if it is not complete or has not been drawn since."""
    if run.metrics is None or not run.metrics.is_complete:
        return None
    folder = RunFolder(run.path, run.name)
    page, metrics = folder.report_file, folder.trial_metrics_file(run.trial)
    # who is stopped in a hurry leaves the drawing for later
    if not page.exists() or page.stat().st_mtime < metrics.stat().st_mtime:
        return None
    return Conclusion(run, run.metrics, tuple(find_symptoms(run)), page)


def _write(run: Run, metrics: TrialMetrics, files: dict[int, SessionFile], is_drawn: bool) -> Conclusion:
    folder = RunFolder(run.path, run.name)
    for (session, file), numbers in zip(files.items(), metrics.sessions or (), strict=True):
        files[session] = file.model_copy(update=dict(numbers))
        files[session].write(folder.session_metrics_file(run.trial, session))
    metrics.write(folder.trial_metrics_file(run.trial))
    # the run as it would be read back, without reading its tables again
    run = replace(run, metrics=metrics, session_metrics={**run.session_metrics, **files})
    symptoms = tuple(find_symptoms(run))
    report = _draw(run, symptoms, folder.report_file) if is_drawn else None
    return Conclusion(run, metrics, symptoms, report)


def _draw(run: Run, symptoms: Sequence[Symptom], page: Path) -> Path | None:
    """Write graphs and report; an error in the page is only a warning."""
    plot_run(run)
    try:
        write_report([run], page, symptoms=[symptoms])
    except Exception as error:
        logger.warning(f"No report: {type(error).__name__}: {error}")
        return None
    return page


def update_curve(folder: RunFolder, trial: int) -> None:
    """Plot the curve of a running trial."""
    try:
        plot_run_curve(read_run(folder.path, trial))
    except StorageError as error:
        # a full disk ends the session when a checkpoint does not fit; a missing curve is no reason to stop
        logger.warning(f"No curve: {error}")
    except RunFolderError:
        pass  # no session has a row yet
