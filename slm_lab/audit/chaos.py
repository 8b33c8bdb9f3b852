"""Train a spec twice, undisturbed and with kills at random times, and compare the results bit for bit."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from slm_lab.audit.difference import Comparison, compare_runs
from slm_lab.experiment.checkpoint.state import load_state
from slm_lab.lib.errors import CheckpointError, LabError
from slm_lab.lib.io import is_locked, read_text, write_yaml
from slm_lab.lib.parent import child_python_path
from slm_lab.results.folder import RunFolder, previous_file
from slm_lab.spec.loading import dump_spec
from slm_lab.spec.schema import SINKS, Spec

POLL_SECONDS = 0.02
# checkpoints of a run whose spec does not say when: often enough for kills to meet one being written
NUM_CHECKPOINT = 50
# a session without its parent saves and ends; one that does not is killed
ORPHAN_SECONDS = 30.0
# beyond this a process hangs: this many times what the undisturbed run took, and at least this many seconds
PATIENCE, MIN_SECONDS = 10.0, 120.0
WORKER = "slm_lab.experiment.worker"


@dataclass(frozen=True)
class Kill:
    """The cost of a kill."""

    number: int
    target: str
    # of each session: the frame it was at, as far as its table tells, and that of the checkpoint it resumes from
    frames: dict[int, tuple[int, int]]

    @property
    def num_lost(self) -> int:
        """Frames that are trained again."""
        return sum(at - saved for at, saved in self.frames.values())

    def __str__(self) -> str:
        parts = [
            f"session {session} at frame {at:,} resumes from {saved:,}" for session, (at, saved) in self.frames.items()
        ]
        return f"Kill {self.number}: {self.target}; {', '.join(parts)}: {self.num_lost:,} frames lost"


@dataclass(frozen=True)
class Result:
    """How both runs ended."""

    kills: list[Kill]
    seconds: tuple[float, float]
    comparison: Comparison
    folders: tuple[Path, Path]
    num_leftover: int

    @property
    def is_same(self) -> bool:
        """Whether nothing differs and no process was left behind."""
        return self.comparison.is_same and not self.num_leftover


class Chaos:
    """One spec, trained twice; kills only processes that it started."""

    def __init__(
        self,
        spec: Spec,
        path: Path,
        num_kill: int,
        seed: int,
        tell: Callable[[str], None],
        imports: tuple[str, ...] = (),
    ) -> None:
        if spec.meta.checkpoint_frequency is None:
            every = max(1, spec.env.max_frame // NUM_CHECKPOINT)
            tell(f"Checkpoints every {every:,} frames, since meta.checkpoint_frequency is null; they change no number")
            spec = spec.replace(meta={"checkpoint_frequency": every})
        self.spec = spec.replace(meta=dict.fromkeys(SINKS, False))
        self.path = path
        self.num_kill = num_kill
        self.draw = random.Random(seed)
        self.tell = tell
        self.imports = imports
        self.kills: list[Kill] = []
        self.num_leftover = 0
        # whether something was killed in the present life of the driver
        self.was_hit = False
        self.spec_file = path / f"{spec.name}.yaml"

    def run(self) -> Result:
        """Train both ways and compare."""
        write_yaml(self.spec_file, dump_spec(self.spec))
        trained, ended, whole = self._run_whole()
        self.tell(f"Undisturbed: {self.spec.env.max_frame:,} frames in {ended:.1f} s, {trained:.1f} s of training")
        start = time.monotonic()
        killed = self._run_killed(trained, max(MIN_SECONDS, PATIENCE * ended))
        seconds = ended, time.monotonic() - start
        return Result(self.kills, seconds, self._compare(whole, killed), (whole, killed), self.num_leftover)

    # --- processes

    def _start(self, data_dir: Path) -> subprocess.Popen[bytes]:
        """The command itself: train, or resume an existing run."""
        runs = self._runs(data_dir)
        words = ["run", f"train@{runs[0]}"] if runs else ["run", str(self.spec_file), self.spec.name, "train"]
        for name in self.imports:
            words += ["--import", name]
        with self._log(data_dir).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "slm_lab.cli", *words, "--data-dir", str(data_dir)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": child_python_path()},
            )

    def _log(self, data_dir: Path) -> Path:
        return self.path / f"{data_dir.name}.log"

    def _runs(self, data_dir: Path) -> list[Path]:
        """The run folder, once it has a spec; before that, a killed run does not count."""
        return sorted(path.parent for path in data_dir.glob(f"*/{self.spec.name}_spec.yaml"))

    def _folder(self, data_dir: Path) -> RunFolder | None:
        runs = self._runs(data_dir)
        return RunFolder(runs[0], self.spec.name) if runs else None

    def _is_training(self, data_dir: Path) -> bool:
        folder = self._folder(data_dir)
        return folder is not None and any(is_locked(folder.lock_file(0, session)) for session in self._sessions)

    @property
    def _sessions(self) -> range:
        return range(self.spec.meta.max_session)

    def _run_whole(self) -> tuple[float, float, Path]:
        """Seconds of training, seconds in all, and the run folder."""
        data_dir = self.path / "undisturbed"
        start, begun, trained = time.monotonic(), 0.0, 0.0
        process = self._start(data_dir)
        try:
            while process.poll() is None:
                if self._is_training(data_dir):
                    trained = time.monotonic() - start
                    begun = begun or trained
                time.sleep(POLL_SECONDS)
        finally:
            self._end(process)
        self._check(process, data_dir)
        return trained - begun, time.monotonic() - start, self._runs(data_dir)[0]

    def _check(self, process: subprocess.Popen[bytes], data_dir: Path) -> None:
        if process.returncode:
            lines = self._log(data_dir).read_text(errors="replace").strip().splitlines()
            raise LabError(f"the run ended with exit code {process.returncode}: {lines[-1] if lines else 'no output'}")

    def _run_killed(self, train_seconds: float, patience: float) -> Path:
        data_dir = self.path / "killed"
        while True:
            process = self._start(data_dir)
            try:
                self._live(process, data_dir, train_seconds, patience)
            finally:
                self._end(process)
            if process.returncode == 0:
                return self._runs(data_dir)[0]
            if not self.was_hit:
                self._check(process, data_dir)

    def _live(self, process: subprocess.Popen[bytes], data_dir: Path, train_seconds: float, patience: float) -> None:
        """One life of the driver: it ends by itself, or is killed."""
        self.was_hit = False
        deadline = time.monotonic() + patience
        while process.poll() is None and not self._is_training(data_dir):
            self._wait(deadline)
        while len(self.kills) < self.num_kill and process.poll() is None:
            moment = time.monotonic() + self._draw_delay(data_dir, train_seconds)
            while process.poll() is None and time.monotonic() < moment:
                self._wait(deadline)
            if process.poll() is not None:
                return
            self.was_hit = True
            if self._strike(process, data_dir):
                return
        while process.poll() is None:
            self._wait(deadline)

    def _wait(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise LabError(f"the run hangs; see {self.path / 'killed.log'}")
        time.sleep(POLL_SECONDS)

    def _draw_delay(self, data_dir: Path, train_seconds: float) -> float:
        """Seconds until the next kill: the first of the remaining ones, uniform over the remaining time."""
        frames = [saved for _, saved in self._frames(data_dir).values()]
        share = 1 - min(frames, default=0) / self.spec.env.max_frame
        num_left = self.num_kill - len(self.kills)
        return train_seconds * share * (1 - (1 - self.draw.random()) ** (1 / num_left))

    def _strike(self, driver: subprocess.Popen[bytes], data_dir: Path) -> bool:
        """Kill the driver, a session or all at once; returns whether the driver was killed."""
        family = find_descendants(driver.pid)
        sessions = {process: session for process in family if (session := _session_of(process)) is not None}
        choice = self.draw.choice(["driver", *sorted(sessions.values()), *(["all"] if sessions else [])])
        if choice in ("driver", "all"):
            driver.kill()
            if choice == "all":
                for process in sessions:
                    _kill(process)
            driver.wait()
            target = "the driver and all sessions" if sessions and choice == "all" else "the driver"
            self._await_end(family)
        else:
            (hit,) = [process for process, session in sessions.items() if session == choice]
            children = find_descendants(hit.pid)
            _kill(hit)
            target = f"session {choice}"
            self._await_end([hit, *children])
        self.kills.append(Kill(len(self.kills) + 1, target, self._frames(data_dir)))
        self.tell(str(self.kills[-1]))
        return choice in ("driver", "all")

    def _await_end(self, family: list[psutil.Process]) -> None:
        """Orphaned processes end by themselves; count and kill those that do not."""
        for process in psutil.wait_procs(family, timeout=ORPHAN_SECONDS)[1]:
            if is_alive(process):
                self.num_leftover += 1
                self.tell(f"Process {process.pid} was left behind by its parent, and is killed")
                _kill(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill every process that is left."""
        if process.poll() is not None:
            return
        family = find_descendants(process.pid)
        process.kill()
        process.wait()
        for one in family:
            _kill(one)

    # --- what the runs have saved

    def _frames(self, data_dir: Path) -> dict[int, tuple[int, int]]:
        """The frame of each session: of its table or checkpoint, whichever is later, and of its checkpoint."""
        folder = self._folder(data_dir)
        frames = {}
        for session in self._sessions:
            saved = 0 if folder is None else _read_frame(folder.resume_file(0, session))
            row = 0 if folder is None else _read_last_row(folder.table_file(0, session, "train"))
            frames[session] = max(row, saved), saved
        return frames

    def _compare(self, whole: Path, killed: Path) -> Comparison:
        one, two = (RunFolder(path, self.spec.name) for path in (whole, killed))
        whole_run = Comparison()
        for session in self._sessions:
            comparison = compare_runs(one, two, (0, session))
            metrics = [json.loads(read_text(folder.session_metrics_file(0, session))) for folder in (one, two)]
            evals = [each.get("final_eval") for each in metrics]
            comparison.compare_states(evals[0], evals[1], "final_eval")
            whole_run.add(comparison, f"session {session}, ")
        return whole_run


def _read_frame(path: Path) -> int:
    """The frame of the last good checkpoint; between two renames that is the previous one."""
    for file in (path, previous_file(path)):
        try:
            return int(load_state(file)["frame"])
        except CheckpointError:
            continue
    return 0


def _read_last_row(path: Path) -> int:
    """The frame of the last complete row."""
    try:
        rows = read_text(path).rpartition("\n")[0].splitlines()
        return int(rows[-1].split(",")[rows[0].split(",").index("frame")])
    except (IndexError, OSError, ValueError):
        return 0


def find_descendants(pid: int) -> list[psutil.Process]:
    """All descendants of a process, identified by number and start time."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def is_alive(process: psutil.Process) -> bool:
    """Whether it is still the same process, and not a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _kill(process: psutil.Process) -> None:
    """Kill exactly this process, not another one with the same number."""
    with suppress(psutil.NoSuchProcess):
        process.kill()


def _session_of(process: psutil.Process) -> int | None:
    """The session that a process trains; None for other processes."""
    try:
        words = process.cmdline()
        if WORKER in words:
            return int(json.loads(words[words.index(WORKER) + 1])["session"])
    except (IndexError, KeyError, ValueError, psutil.Error):
        return None
    return None
