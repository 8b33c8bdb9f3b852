"""A run of this lab or the published one, read from its folder; needs no torch."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic_core import from_json

from slm_lab.lib.array import Array
from slm_lab.lib.data import Document, ReadOnlyDocument
from slm_lab.lib.errors import LabError, RunFolderError
from slm_lab.lib.io import read_text
from slm_lab.results.baseline import find_shipped_random_return
from slm_lab.results.folder import RunFolder, describe_failure, find_best_trial, find_run_path, find_table_files
from slm_lab.results.metrics import (
    MA_WINDOW,
    MAX_JSON_BYTES,
    SessionFile,
    Spread,
    TrialMetrics,
    calc_spread,
    calc_total_reward_ma,
    find_solved_frame,
)
from slm_lab.results.table import NEEDED, read_session_table
from slm_lab.spec.compat import META_DROPPED
from slm_lab.spec.loading import read_specs
from slm_lab.spec.reader import printable
from slm_lab.spec.schema import EVAL_EPISODES

# The score of a session: the return of the deterministic policy at the end, or at the last evaluation during training,
# or the return of the last training episodes. A run uses the first kind that all its sessions have.
ScoreKind = Literal["final", "eval", "train"]
SCORE_KINDS: tuple[ScoreKind, ...] = ("final", "eval", "train")
# reads the table of a session
TableReader = Callable[[Path], dict[str, Array]]
# an evaluation before this share of a session's frames is too old to be its score
RECENT = 0.5
# the names of algorithms in papers, if the spec has another
_LABEL_OF = {
    "Reinforce": "REINFORCE",
    "VanillaDQN": "DQN",
    "DoubleDQN": "DDQN",
    "ActorCritic": "A2C",
    "PPOSIL": "PPO+SIL",
    "SoftActorCritic": "SAC",
}
# names of variants, by the kind of critic
_LABEL_OF_CRITIC = {
    **{(name, "quantile"): "QR-DQN" for name in ("DQN", "DDQN")},
    **{(name, "categorical"): "C51" for name in ("DQN", "DDQN")},
    **{(name, "implicit"): "IQN" for name in ("DQN", "DDQN")},
    ("SAC", "quantile"): "TQC",
    ("CrossQ", "categorical"): "XQC",
}


class NoResultsError(RunFolderError):
    """A folder without the tables of a run."""


@dataclass(frozen=True)
class Run:
    """The results of a trial."""

    path: Path
    name: str
    trial: int
    # plain data, as saved: it may be from another version
    spec: ReadOnlyDocument
    # tables by session
    tables: Mapping[int, Mapping[str, Array]]
    eval_tables: Mapping[int, Mapping[str, Array]]
    # written at the end; None before that
    metrics: TrialMetrics | None
    session_metrics: Mapping[int, SessionFile]
    provenance: ReadOnlyDocument
    # parts that could not be read, a line each
    problems: tuple[str, ...]

    @property
    def env_name(self) -> str:
        """The env's name in the spec."""
        return printable(str(look_up(self.spec, "env", "name") or "unknown env"))

    @property
    def label(self) -> str:
        """The algorithm, by its usual name."""
        return printable(name_algorithm(self.spec))

    @property
    def title(self) -> str:
        """Agent and env."""
        return f"{printable(str(look_up(self.spec, 'agent', 'name') or self.label))} on {self.env_name}"

    @property
    def counted_tables(self) -> dict[int, Mapping[str, Array]]:
        """Tables of the sessions that count: those with a result if the run has ended, otherwise all."""
        ended = (self.metrics.session_index if self.metrics is not None else None) or ()
        return {s: table for s, table in self.tables.items() if s in ended} or dict(self.tables)

    @property
    def session_scores(self) -> dict[int, float]:
        """The score of each session that counts, all of one kind; NaN without a score."""
        return self.get_scores(self.score_kind)

    @property
    def scores(self) -> list[float]:
        """The values of `session_scores`."""
        return list(self.session_scores.values())

    @property
    def spread(self) -> Spread | None:
        """Mean and interval of the scores; None without a score."""
        known = [score for score in self.scores if math.isfinite(score)]
        return calc_spread(known) if known else None

    @property
    def solved(self) -> str | None:
        """When the sessions solved the env, in words; None if that is not defined, or if none did."""
        threshold = self.metrics.reward_threshold if self.metrics is not None else None
        if threshold is None:
            return None
        found = [find_solved_frame(table, threshold) for table in self.counted_tables.values()]
        frames = [frame for frame in found if frame is not None]
        if not frames:
            return None
        listed = "" if len(found) == 1 else f" in {len(frames)} of {len(found)} sessions"
        span = f"{min(frames):,}" if min(frames) == max(frames) else f"{min(frames):,} to {max(frames):,}"
        return f"at frame {span}{listed} ({threshold:g} over {MA_WINDOW} episodes)"

    @property
    def score_notes(self) -> list[str]:
        """Notes on sessions without a score, or without a final evaluation, a line each."""
        notes = []
        finals = self.get_scores("final")
        missing = [session for session, score in finals.items() if math.isnan(score)]
        if missing and len(missing) < len(finals):
            notes.append(f"no final evaluation of {_list_sessions(missing)}, so the score is of another kind for all")
        empty = [session for session, score in self.session_scores.items() if math.isnan(score)]
        if empty and len(empty) < len(finals):
            notes.append(f"{_list_sessions(empty)} left out: no episode has ended")
        return notes

    @property
    def score_kind(self) -> ScoreKind:
        """The first kind of score that every session that counts has."""
        for kind in SCORE_KINDS:
            if all(math.isfinite(score) for score in self.get_scores(kind).values()):
                return kind
        return "train"

    def get_scores(self, kind: ScoreKind) -> dict[int, float]:
        """The scores of one kind, of each session that counts."""
        match kind:
            case "final":
                known = self.final_evals
            case "eval":
                known = self.last_evals
            case "train":
                known = {session: _get_last(table["total_reward"]) for session, table in self.tables.items()}
        return {session: known.get(session, math.nan) for session in self.counted_tables}

    @property
    def score_meaning(self) -> str:
        """The kind of a session's score, in words."""
        return self.describe_kind(self.score_kind)

    def describe_kind(self, kind: ScoreKind) -> str:
        """A kind of score, in words."""
        each = " each" if len(self.counted_tables) > 1 else ""
        match kind:
            case "final":
                count = max(len(self.session_metrics[session].final_eval or ()) for session in self.final_evals)
                return f"deterministic policy, {count} episodes{each}"
            case "eval":
                count = look_up(self.spec, "meta", "rigorous_eval") or EVAL_EPISODES
                return f"deterministic policy, last evaluation of {count} episodes{each}"
            case "train":
                return f"exploring policy, last {MA_WINDOW} episodes{each}"

    @property
    def session_ma(self) -> dict[int, float]:
        """total_reward_ma of each session that counts: the mean of its last 100 rows, as in benchmarks."""
        return {s: calc_total_reward_ma(table["total_reward"]) for s, table in self.counted_tables.items()}

    @property
    def final_evals(self) -> dict[int, float]:
        """The mean return of each session's final evaluation, if it has one."""
        evals = {}
        for session, metrics in self.session_metrics.items():
            end = self.tables[session]["frame"][-1]
            # at another frame the session has trained further since
            if metrics.final_eval and metrics.frame in (None, end):
                evals[session] = float(np.mean(metrics.final_eval))
        return evals

    @property
    def evaluations(self) -> dict[int, dict[str, Array]]:
        """Frames and returns of the evaluations of each session that counts, including the final one."""
        finals = self.final_evals
        found = {}
        for session, table in self.counted_tables.items():
            known = self.eval_tables.get(session, {})
            frames, returns = (list(known.get(name, ())) for name in NEEDED)
            if session in finals:
                # appended, since curves use the last of two at the same frame
                frames.append(table["frame"][-1])
                returns.append(finals[session])
            if frames:
                found[session] = {"frame": np.array(frames, float), "total_reward": np.array(returns, float)}
        return found

    @property
    def last_evals(self) -> dict[int, float]:
        """The mean return of a session's last evaluation during training, if it is from the second half."""
        evals = {}
        for session, table in self.eval_tables.items():
            frames = table["frame"][np.isfinite(table["total_reward"])]
            if session in self.tables and len(frames) and frames[-1] >= RECENT * self.tables[session]["frame"][-1]:
                evals[session] = _get_last(table["total_reward"])
        return evals

    @property
    def fps(self) -> float:
        """Mean frames per second of the sessions that count; NaN if unknown."""
        speeds = [table["fps"][-1] for table in self.counted_tables.values() if "fps" in table]
        return float(np.mean(speeds)) if speeds else math.nan

    @property
    def ended(self) -> float:
        """When the newest table was last changed, in seconds since 1970."""
        return max(file.path.stat().st_mtime for file in find_table_files(self.path) if file.kind == "train")

    @property
    def random_return(self) -> float | None:
        """Mean return of random play: that of the run, or the shipped one; None if unknown."""
        known = self.metrics.random_return if self.metrics is not None else None
        return find_shipped_random_return(self.env_name) if known is None else known

    @property
    def failed(self) -> tuple[int, ...]:
        """Sessions that failed."""
        return (self.metrics.failed if self.metrics is not None else None) or ()

    @property
    def frame(self) -> int:
        """The last frame of the longest session."""
        return max(int(table["frame"][-1]) for table in self.tables.values())


def _list_sessions(sessions: Sequence[int]) -> str:
    return f"session{'s' if len(sessions) > 1 else ''} {', '.join(map(str, sessions))}"


def _is_same(table: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    return all(name in other and np.array_equal(table[name], other[name], equal_nan=True) for name in NEEDED)


def _get_last(column: Array) -> float:
    """The last known value."""
    known = column[np.isfinite(column)]
    return float(known[-1]) if len(known) else math.nan


def name_algorithm(spec: Any) -> str:
    """The algorithm of a spec, by its usual name."""
    name = str(look_up(spec, "agent", "algorithm", "name") or "unknown algorithm")
    label = _LABEL_OF.get(name, name)
    is_prioritized = str(look_up(spec, "agent", "memory", "name")).startswith("Prioritized")
    kind = look_up(spec, "agent", "algorithm", "critic", "kind")
    if kind == "categorical" and is_prioritized and look_up(spec, "agent", "net", "noisy") is True:
        return "Rainbow"
    if (label, kind) in _LABEL_OF_CRITIC:
        return _LABEL_OF_CRITIC[label, kind]
    if label == "SAC" and look_up(spec, "agent", "critic_net", "type") == "SimbaNet":
        return "SimBa-SAC"
    return f"{label}+PER" if is_prioritized and label in ("DQN", "DDQN") else label


def look_up(data: Any, *keys: str) -> Any:
    """A value deep in plain data, or None; a list of one, as in old specs, counts as its element."""
    for key in keys:
        if isinstance(data, list) and data:
            data = data[0]
        if not isinstance(data, Mapping):
            return None
        data = data.get(key)
    return data


def find_common_kind(runs: Sequence[Run]) -> ScoreKind:
    """The kind of score to compare runs by: if theirs differ, the last training episodes, which every run has."""
    kinds = {run.score_kind for run in runs}
    return kinds.pop() if len(kinds) == 1 else "train"


def find_runs(data_dir: Path) -> tuple[list[Run], list[str]]:
    """All runs in a folder with results, the newest first, and a line for each unreadable one."""
    runs: list[tuple[float, Run]] = []
    problems: list[str] = []
    for folder in sorted(data_dir.glob("*")):
        try:
            run = load_run(str(folder), data_dir)
            runs.append((run.ended, run))
        except NoResultsError:
            continue  # no results yet, or not a run
        except (LabError, OSError) as error:
            problems.append(f"{printable(folder.name)}: {describe_failure(error)}")
    return [run for _, run in sorted(runs, key=lambda pair: pair[0], reverse=True)], problems


def load_run(where: str, data_dir: Path, trial: int | None = None) -> Run:
    """The run meant by a folder, a file in it, a glob or `latest`; `problems` lists unreadable parts."""
    return read_run(find_run_path(where, data_dir), trial)


def load_runs(places: Sequence[str], data_dir: Path) -> tuple[list[tuple[str, Run]], list[str]]:
    """The readable runs with their places, and a line for each unreadable one; raises if none can be read.

    Problems within a readable run are in its `problems`.
    """
    runs: list[tuple[str, Run]] = []
    problems: list[str] = []
    for place in places:
        try:
            runs.append((place, load_run(place, data_dir)))
        except RunFolderError as error:
            problems.append(str(error))
    if not runs:
        raise RunFolderError("; ".join(problems))
    return runs, problems


def read_run(path: Path, trial: int | None = None, read: TableReader = read_session_table) -> Run:
    """The run in a folder; for a search its best trial, unless another is given."""
    if trial is None:
        trial = find_best_trial(path)
    problems: list[str] = []
    tables: dict[str, dict[int, dict[str, Array]]] = {"train": {}, "eval": {}}
    names = set()
    for file in find_table_files(path, trial):
        try:
            table = read(file.path)
        except LabError as error:
            problems.append(str(error))
            continue
        names.add(file.name)
        if len(table["frame"]):
            tables[file.kind][file.session] = table
        elif file.kind == "train":
            problems.append(f"{file.path.name} is left out: it has no rows yet")
    if not tables["train"]:
        details = "".join(f"; {problem}" for problem in problems)
        kind = RunFolderError if problems else NoResultsError
        raise kind(f"{path} has no results: no info/*_session_df_train.csv with rows{details}")
    # without evaluations the published lab writes the training table again as the evaluation table
    evals = {s: table for s, table in tables["eval"].items() if not _is_same(table, tables["train"].get(s, {}))}
    folder = RunFolder(path, min(names, key=lambda text: (len(text), text)))
    spec = _read_spec(folder, trial, problems)
    session_files = {
        session: SessionFile.read(folder.session_metrics_file(trial, session)) for session in tables["train"]
    }
    return Run(
        path=path,
        name=folder.name,
        trial=trial,
        spec=spec,
        tables=dict(sorted(tables["train"].items())),
        eval_tables=dict(sorted(evals.items())),
        metrics=TrialMetrics.read(folder.trial_metrics_file(trial), folder.published_metrics_file(trial)),
        session_metrics={session: file for session, file in session_files.items() if file is not None},
        provenance=_read_provenance(folder.provenance_file),
        problems=tuple(problems),
    )


def _read_spec(folder: RunFolder, trial: int, problems: list[str]) -> ReadOnlyDocument:
    """The spec of the trial, or of the run; older files lack its name as the first key. Adds to `problems`."""
    for file in folder.find_spec_files(trial):
        try:
            specs = read_specs(file)
        except LabError as error:
            problems.append(str(error))
            continue
        # without a name, as in older files
        spec = specs.get(folder.name, specs)
        return _without_bookkeeping(spec) if isinstance(spec, Mapping) else {}
    problems.append(f"{folder.path} has no {folder.spec_file.name}, so env and algorithm are unknown")
    return {}


def _without_bookkeeping(spec: ReadOnlyDocument) -> Document:
    """A saved spec without keys that a lab added, such as paths and the commit."""
    kept = {key: value for key, value in spec.items() if key != "name"}
    if isinstance(meta := spec.get("meta"), Mapping):
        kept["meta"] = {key: value for key, value in meta.items() if key not in META_DROPPED}
    return kept


def _read_provenance(path: Path) -> Document:
    try:
        content = from_json(read_text(path, MAX_JSON_BYTES))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
