"""The result of a search: the table of its trials, the importance of keys, and the spec of the best."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loguru import logger

from slm_lab.lib.errors import RunFolderError
from slm_lab.lib.io import write_json, write_text, write_yaml
from slm_lab.results.folder import RunFolder
from slm_lab.results.metrics import METRICS
from slm_lab.results.report_search import write_search_report
from slm_lab.results.run import NoResultsError, Run, name_algorithm, read_run
from slm_lab.results.search_axis import SearchedKey
from slm_lab.results.search_plot import DrawnTrial, plot_search
from slm_lab.results.search_trial import TrialRow, calc_importance, rank
from slm_lab.spec.candidate import apply_values
from slm_lab.spec.loading import dump_spec
from slm_lab.spec.schema import Spec
from slm_lab.spec.search_space import Dimension, read_dimensions


@dataclass(frozen=True)
class SearchResult:
    """A search that has ended, or was stopped."""

    folder: Path
    rows: list[TrialRow]
    best: TrialRow | None
    best_spec: Path | None
    # how much of the ranking each key explains, largest first
    importance: dict[str, float]
    graphs: list[Path]
    # None if it could not be written
    report: Path | None
    # of the search; a validation uses another
    seed: int
    stop_code: int

    def count(self, *states: str) -> int:
        """Trials in one of some states."""
        return sum(row.state in states for row in self.rows)

    @property
    def exit_code(self) -> int:
        """0 when there is a result."""
        return self.stop_code or (0 if self.best is not None else 1)


def write_result(spec: Spec, folder: RunFolder, rows: Sequence[TrialRow], stop_code: int = 0) -> SearchResult:
    """Write table, graphs and best spec of the trials so far."""
    ranked = rank(rows)
    best = next((row for row in ranked if row.state == "done"), None)
    dimensions = read_dimensions(spec)
    importance = calc_importance(rows, dimensions)
    runs = {row.trial: run for row in rows if (run := _read_run(folder, row.trial)) is not None}
    write_text(folder.experiment_table_file, _format_table(ranked, dimensions, runs))
    if best is not None:
        best_spec = apply_values(spec, best.values).replace(meta={"max_trial": 1, "search_scheduler": None})
        write_yaml(folder.best_spec_file, dump_spec(best_spec))
    write_json(
        folder.search_file,
        {
            "best_trial": best.trial if best is not None else None,
            "best_score": best.score if best is not None else None,
            "importance": importance,
            "trials": {state: sum(row.state == state for row in rows) for state in ("done", "stopped", "failed")},
        },
    )
    graphs = _draw(spec, folder, rows, runs, dimensions, importance, best)
    best_file = folder.best_spec_file if best is not None else None
    report = _write_report(folder)
    return SearchResult(folder.path, ranked, best, best_file, importance, graphs, report, spec.meta.seed, stop_code)


def _read_run(folder: RunFolder, trial: int) -> Run | None:
    """The run of a trial; None if it has no rows, or if they cannot be read."""
    try:
        run = read_run(folder.path, trial)
    except NoResultsError:
        return None
    except RunFolderError as error:
        logger.warning(f"Trial {trial} is not used: {error}")
        return None
    for problem in run.problems:
        logger.warning(f"Trial {trial}: {problem}")
    return run


def _format_table(rows: Sequence[TrialRow], dimensions: Sequence[Dimension], runs: Mapping[int, Run]) -> str:
    """The table of all trials, best first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = (*METRICS, "consistency")
    writer.writerow(["trial", "state", "frame", "num_session", *(d.path for d in dimensions), "score", *names, "error"])
    for row in rows:
        run = runs.get(row.trial)
        frame, num_session = (run.frame, len(run.tables)) if run is not None else (0, 0)
        scalar = run.metrics.scalar if run is not None and run.metrics is not None else None
        own = scalar.model_dump() if scalar is not None else {}
        score = row.score if math.isfinite(row.score) else ""
        values = [row.values.get(dimension.path, "") for dimension in dimensions]
        shown = [json.dumps(value) if isinstance(value, (list, dict)) else value for value in values]
        scores = ["" if math.isnan(own.get(name, math.nan)) else own[name] for name in names]
        writer.writerow([row.trial, row.state, frame, num_session, *shown, score, *scores, row.reason])
    return text.getvalue()


def _draw(
    spec: Spec,
    folder: RunFolder,
    rows: Sequence[TrialRow],
    runs: Mapping[int, Run],
    dimensions: Sequence[Dimension],
    importance: Mapping[str, float],
    best: TrialRow | None,
) -> list[Path]:
    """Draw the graphs; a failure is only a warning, so that the result is not lost."""
    keys = [SearchedKey(d.path, d.space == "choice", d.is_log, importance.get(d.path)) for d in dimensions]
    algorithm = name_algorithm(dump_spec(spec)[spec.name])
    trials = []
    for row in rows:
        if row.trial in runs and math.isfinite(row.score):
            values = [row.values[dimension.path] for dimension in dimensions]
            is_best = best is not None and row.trial == best.trial
            is_done = row.state == "done"
            tables = list(runs[row.trial].tables.values())
            trials.append(DrawnTrial(row.trial, is_done, is_best, row.score, values, tables, algorithm))
    if not trials:
        return []
    try:
        return plot_search(trials, keys, folder, f"{spec.agent.name} on {spec.env.name}")
    except Exception as error:
        logger.warning(f"No graphs of the search: {type(error).__name__}: {error}")
        return []


def _write_report(folder: RunFolder) -> Path | None:
    """Write the report; a failure is only a warning, so that the result is not lost."""
    try:
        write_search_report(folder.path, folder.report_file)
    except Exception as error:
        logger.warning(f"No report: {type(error).__name__}: {error}")
        return None
    return folder.report_file
