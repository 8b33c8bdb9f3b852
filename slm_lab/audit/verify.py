"""Replay a part of a finished run in a copy, and compare the results bit for bit."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from slm_lab.audit.difference import MODELS, NEVER, TABLES, Comparison, Difference, read_rows
from slm_lab.experiment.checkpoint.replay_files import parse_chunks
from slm_lab.experiment.checkpoint.state import content_errors, load_state, read_frame
from slm_lab.experiment.control import FORMAT, Session
from slm_lab.experiment.launch import describe_machine, prepare
from slm_lab.experiment.options import Options
from slm_lab.lib.data import Document, State
from slm_lab.lib.errors import CheckpointError, DivergenceError, LabError, RunFolderError, WorkerError
from slm_lab.lib.io import is_locked, storage_errors
from slm_lab.lib.runtime import import_modules
from slm_lab.results.folder import (
    RunFolder,
    find_best_trial,
    import_hint,
    open_run_folder,
    previous_file,
    replay_file,
)
from slm_lab.spec.loading import load_spec
from slm_lab.spec.reader import read_document
from slm_lab.spec.schema import SINKS, Spec

PACKAGE = "versions."


@dataclass(frozen=True)
class Settings:
    """Which part of a run to replay, and how."""

    session: int | None = None
    trial: int | None = None
    # frames from the start; None: from the checkpoint before the last one
    segment: int | None = None
    from_start: bool = False
    num_threads: int | None = None
    compile: bool | None = None
    imports: tuple[str, ...] = ()


@dataclass
class Verdict:
    """The result of one session's replay."""

    session: int
    first: int = 0
    last: int = 0
    comparison: Comparison = field(default_factory=Comparison)
    # why there is nothing to compare
    problem: str | None = None

    @property
    def is_same(self) -> bool:
        """Whether the replay succeeded and nothing differs."""
        return self.problem is None and self.comparison.is_same

    def describe(self) -> list[str]:
        """The verdict as lines; the first is a summary."""
        title = f"Session {self.session}"
        notes = [f"Note: {note}" for note in self.comparison.notes]
        if self.problem is not None:
            return [f"{title}: not verified: {self.problem}", *self.comparison.describe(), *notes]
        part = f"frame {self.first:,} to {self.last:,}"
        counts = f"{self.comparison.num_row:,} rows, {self.comparison.num_tensor:,} tensors"
        if self.comparison.is_same:
            return [f"{title}: identical from {part} ({counts})", *notes]
        return [
            f"{title}: differs from {part} ({counts}; there: the run, here: the replay)",
            *self.comparison.describe(),
            *notes,
        ]


class Verification:
    """Replays a run session by session, without changing its folder."""

    def __init__(self, where: str, data_dir: Path, settings: Settings) -> None:
        import_modules(settings.imports)
        self.settings = settings
        self.folder, saved = open_run_folder(where, data_dir)
        self.trial = find_best_trial(self.folder.path) if settings.trial is None else settings.trial
        file = self.folder.trial_spec_file(self.trial)
        if file.exists():
            saved = load_spec(file, self.folder.name).spec
        elif settings.trial:
            raise RunFolderError(f"{self.folder.path} has no trial {settings.trial}")
        self.saved = saved
        sessions = range(saved.meta.max_session)
        if settings.session is not None and settings.session not in sessions:
            raise RunFolderError(
                f"{self.folder.path} has no session {settings.session}; it has 0 to {len(sessions) - 1}"
            )
        self.sessions = list(sessions) if settings.session is None else [settings.session]
        with import_hint(self.folder):
            self.spec = self._plan(saved)
        self.facts, self.unknown = self._compare_machines()

    def _plan(self, saved: Spec) -> Spec:
        """The spec of the replay, without keys that do not affect numbers."""
        meta: Document = {
            **dict.fromkeys(SINKS, False),
            "video_frequency": None,
            "final_eval": 0,
            # the one at the end is all that is asked for
            "checkpoint_frequency": NEVER,
        }
        if self.settings.num_threads is not None:
            meta["num_threads"] = self.settings.num_threads
        if self.settings.compile is not None:
            meta["compile"] = self.settings.compile
        return prepare(saved.replace(meta=meta))[0]

    def _compare_machines(self) -> tuple[list[Difference], list[str]]:
        """Differences from the machine of the run, and facts it did not record."""
        path = self.folder.provenance_file
        try:
            origin = read_document(path)
        except LabError:
            origin = {}
        # the run's own spec says these, whatever was written down
        there, here = (
            {"threads": str(spec.meta.num_threads), "compile": str(spec.meta.compile), **flatten(content)}
            for spec, content in ((self.saved, origin), (self.spec, describe_machine(self.spec)))
        )
        # a package that is not listed was not installed, unless none is; anything else was not written down
        unknown = [name for name in here if name not in there and not (name.startswith(PACKAGE) and PACKAGE in there)]
        facts = [
            Difference(name, there.get(name, "not installed"), here.get(name, "not installed"))
            for name in dict.fromkeys([*here, *there])
            if name not in unknown and name != PACKAGE and there.get(name) != here.get(name)
        ]
        return facts, unknown

    def run(self) -> Iterator[Verdict]:
        """Replay the sessions one by one."""
        for session in self.sessions:
            with tempfile.TemporaryDirectory(prefix="slm_lab_verify_") as path:
                scratch = RunFolder(Path(path), self.folder.name)
                yield self._verify(session, scratch)

    def _verify(self, session: int, scratch: RunFolder) -> Verdict:
        key = self.trial, session
        if is_locked(self.folder.lock_file(*key)):
            raise RunFolderError(f"{self.folder.path} is training; verify it when it has ended, or stop it")
        verdict = Verdict(session)
        try:
            self._replay_and_compare(key, scratch, verdict)
        except (CheckpointError, DivergenceError, WorkerError) as error:
            verdict.problem = str(error)
        return verdict

    def _replay_and_compare(self, key: tuple[int, int], scratch: RunFolder, verdict: Verdict) -> None:
        path = self.folder.resume_file(*key)
        with content_errors(path):
            target = self._read_target(key, verdict)
            start = self._find_start(key, target, verdict)
            if target is not None:
                self._check_files(key, target, start or target)
        end = target["frame"] if target is not None else self._last_row(key)
        verdict.last = min(end, self.settings.segment or end)
        if start is not None:
            verdict.first = start["frame"]
            self._copy(key, start, scratch)
        if self._replay(key, verdict.last, scratch).grade == "statistical":
            raise CheckpointError(
                f"the env could not be rebuilt at frame {verdict.first:,} from its seed and actions, so this run "
                "resumes statistically, and bits cannot agree; try --from-start"
            )
        with content_errors(path):
            self._compare(key, target, scratch, verdict)
        if not verdict.comparison.num_row and not verdict.comparison.num_tensor:
            rows = self._row_frames(key)
            first = f"the first row is at frame {rows[0]:,}" if rows else "the run has no rows"
            raise CheckpointError(f"nothing to compare up to frame {verdict.last:,}; {first}")

    def _read_target(self, key: tuple[int, int], verdict: Verdict) -> State | None:
        """The last checkpoint; None if there is none."""
        path = self.folder.resume_file(*key)
        if not path.exists():
            verdict.comparison.notes.append(f"{path.name} is not there, so only tables are compared")
            return None
        state = load_state(path)
        if state.get("format") != FORMAT:
            verdict.comparison.notes.append(f"{path.name} is of another version, so only tables are compared")
            return None
        read_frame(state)
        return state

    def _find_start(self, key: tuple[int, int], target: State | None, verdict: Verdict) -> State | None:
        """The checkpoint to replay from; None for the start of the run."""
        if self.settings.from_start or self.settings.segment is not None or target is None:
            return None
        path = previous_file(self.folder.resume_file(*key))
        with content_errors(path):
            state = load_state(path) if path.exists() else {}
            if state.get("format") == FORMAT and read_frame(state) < target["frame"]:
                return state
        verdict.comparison.notes.append("there is no earlier checkpoint, so the whole session is replayed")
        return None

    def _check_files(self, key: tuple[int, int], *states: State) -> None:
        """Read all files of the checkpoints first, so that damage shows before a long replay."""
        models = [path for which in MODELS if (path := self.folder.model_file(*key, which)).exists()]
        rows = [path for state in states for path in list_replay_files(self.folder, key, state)]
        for path in dict.fromkeys([*models, *rows]):
            load_state(path)

    def _row_frames(self, key: tuple[int, int]) -> list[int]:
        return sorted(read_rows(self.folder.table_file(*key, "train"), NEVER).rows)

    def _last_row(self, key: tuple[int, int]) -> int:
        rows = self._row_frames(key)
        if not rows:
            raise RunFolderError(f"{self.folder.path}: session {key[1]} has neither a checkpoint nor rows in a table")
        return rows[-1]

    def _copy(self, key: tuple[int, int], state: State, scratch: RunFolder) -> None:
        """Copy the checkpoint to resume from; link its replay files, since nothing ever writes to them."""
        target = scratch.resume_file(*key)
        with storage_errors(target):
            target.parent.mkdir(parents=True)
            shutil.copyfile(previous_file(self.folder.resume_file(*key)), target)
            old, new = (list_replay_files(folder, key, state) for folder in (self.folder, scratch))
            for source, link in zip(old, new, strict=True):
                os.symlink(source.resolve(), link)

    def _replay(self, key: tuple[int, int], last: int, scratch: RunFolder) -> Session:
        # initial weights are drawn from torch's global generator, which belongs to the caller
        with torch.random.fork_rng(devices=[]):
            options = Options(imports=self.settings.imports)
            session = Session(self.spec, scratch, *key, options=options, end_frame=last)
            session.run()
        return session

    def _compare(self, key: tuple[int, int], target: State | None, scratch: RunFolder, verdict: Verdict) -> None:
        comparison = verdict.comparison
        is_eval_left_out = self.spec.meta.num_eval_episode == 0 or (target is not None and target["is_eval_due"])
        for kind, label in TABLES.items():
            if kind == "eval" and is_eval_left_out:
                continue
            files = [folder.table_file(*key, kind) for folder in (self.folder, scratch)]
            comparison.compare_tables(files[0], files[1], label, verdict.first, verdict.last)
        if target is not None and verdict.last >= target["frame"]:
            comparison.compare_sessions(self.folder, scratch, key)


def list_replay_files(folder: RunFolder, key: tuple[int, int], state: State) -> list[Path]:
    """The replay files that a checkpoint needs."""
    files = []
    for which, chunks in state["rows"].items():
        if Path(str(which)).name != str(which):
            raise ValueError("a name of a replay that is none")
        prefix = folder.replay_prefix(*key, which)
        files += [replay_file(prefix, *chunk) for chunk in parse_chunks(chunks)]
    return files


def flatten(data: Document) -> dict[str, str]:
    """The recorded facts that can change a result, by name."""
    found = {"git_sha": str(data["git_sha"])} if data.get("git_sha") else {}
    for section in ("versions", "machine", "torch", "variables"):
        content = data.get(section)
        if isinstance(content, dict):
            found |= {f"{section}.{name}": str(value) for name, value in content.items()}
    if any(name.startswith(PACKAGE) for name in found):
        found[PACKAGE] = ""
    return found
