"""SIGKILL in the middle of a save, and at any moment of a run."""

import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from bench.faults.fork import CHILD_SECONDS, fork, train, train_to_end, wait
from bench.faults.row import Batch, Row, Verdict
from bench.faults.specs import ALGORITHMS, make_spec
from slm_lab.audit.difference import find_difference
from slm_lab.experiment.checkpoint.state import load_latest, load_state
from slm_lab.experiment.control import Session
from slm_lab.lib.errors import CheckpointError
from slm_lab.lib.io import remove_orphans
from slm_lab.results.folder import RunFolder
from slm_lab.spec.schema import Spec

# a multiple of the number of envs, so that saves come at it exactly
INTERVAL = 40
# those with every kind of file: nets alone, a replay, priorities, two memories, statistics of layers
SAVERS = ("PPO", "DQN", "DoubleDQN", "PPOSIL", "CrossQ")
# how saves write; the lines of what they gather beforehand touch no file
_SAVING = ("slm_lab/lib/io.py", "slm_lab/experiment/checkpoint/replay_files.py")
_SAVING_FUNCTIONS = ("save_state", "_save")


# --- in a save


def kill_in_saves(algorithm: str, num_timed: int, num_line: int, folder: Path) -> Iterator[Verdict]:
    """Kills at moments uniform over the time of a save and a little longer, and before lines of it that write."""
    spec = make_spec(algorithm, env={"max_frame": 2000}, meta={"checkpoint_frequency": INTERVAL})
    num_line_seen, seconds = measure_save(spec, folder / "whole")
    draw = random.Random(algorithm)
    timed = [("timed", draw.uniform(0.0, 1.2 * seconds)) for _ in range(num_timed)]
    lines = [("line", 1 + index * num_line_seen // max(1, num_line)) for index in range(num_line)]
    kills = [*timed, *lines]
    draw.shuffle(kills)
    count = 0
    while kills:
        path = folder / f"killed_{count}"
        count += 1
        while kills:
            kind, moment = kills[-1]
            if kind == "timed":
                frame = kill_at_time(spec, path, draw.randint(1, 2), moment)
            else:
                frame = kill_at_line(spec, path, draw.randint(1, 2), int(moment))
            if frame is None:
                break
            kills.pop()
            what = f"{moment * 1000:.2f} ms into" if kind == "timed" else f"before line {moment}, or at the end, of"
            problem = check_after_kill(spec, path, frame)
            yield Verdict(f"{what} the save at frame {frame}", problem is None, problem or "")
        train_to_end(spec, path)
        difference = find_difference(folder / "whole", path, spec.name)
        if difference is not None:
            yield Verdict("the end of the run", False, difference)


def check_after_kill(spec: Spec, path: Path, frame: int) -> str | None:
    """What is wrong with the files of a run that was killed while it saved at a frame; None if nothing is."""
    folder = RunFolder(path, spec.name)
    # as a continued run does first
    remove_orphans(path)
    orphans = [file.name for file in path.rglob("*.tmp")]
    if orphans:
        return f"orphans: {', '.join(orphans)}"
    try:
        state, problems = load_latest(folder.resume_file(0, 0))
        for file in path.rglob("*.safetensors"):
            load_state(file)
    except CheckpointError as error:
        return str(error)
    if problems:
        return "; ".join(problems)
    saved = 0 if state is None else int(state["frame"])
    return None if saved >= frame - INTERVAL else f"goes on from frame {saved}: more than {INTERVAL} frames are lost"


class SaveTrace:
    """Counts the lines of a save that write, and ends the process before one of them."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.count = 0
        self.kill_at = kill_at
        self.known: dict[CodeType, bool] = {}

    def _is_saving(self, code: CodeType) -> bool:
        if code not in self.known:
            self.known[code] = code.co_filename.endswith(_SAVING) or (
                code.co_name in _SAVING_FUNCTIONS and "slm_lab" in code.co_filename
            )
        return self.known[code]

    def __call__(self, frame: FrameType, event: str, _: Any) -> "SaveTrace | None":
        if event == "line":
            self.count += 1
            if self.count == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self if self._is_saving(frame.f_code) else None


def watch_saves(number: int, before: Callable[[Session], None], after: Callable[[], None]) -> Callable[[Session], None]:
    """Does something before and after the save of that number."""

    def prepare(session: Session) -> None:
        save, calls = session._save, []

        def watched(*args: Any) -> None:
            calls.append(session.frame)
            if len(calls) != number:
                save(*args)
                return
            before(session)
            save(*args)
            after()

        session._save = watched  # type: ignore[method-assign, assignment]

    return prepare


def measure_save(spec: Spec, path: Path) -> tuple[int, float]:
    """Lines and seconds of a save in the middle of an undisturbed run."""
    answer = path.with_name("measured.json")
    trace = SaveTrace()
    moments: list[float] = []

    def begin_trace(_: Session) -> None:
        sys.settrace(trace)

    def end_trace() -> None:
        sys.settrace(None)

    def prepare(session: Session) -> None:
        # one save for each: a trace slows down
        watch_saves(8, begin_trace, end_trace)(session)
        watch_saves(9, lambda _: moments.append(time.perf_counter()), lambda: moments.append(time.perf_counter()))(
            session
        )

    def run() -> None:
        train(spec, path, prepare=prepare)
        answer.write_text(json.dumps([trace.count, moments[1] - moments[0]]))

    code = wait(fork(run, path.with_name("whole.out")))
    if code:
        raise RuntimeError(f"the undisturbed run ended with {code}: {path.with_name('whole.out').read_text()[-500:]}")
    count, seconds = json.loads(answer.read_text())
    return int(count), float(seconds)


def kill_at_time(spec: Spec, path: Path, number: int, moment: float) -> int | None:
    """Kill a child some seconds into a save; its frame, or None if the run ended before."""
    read_end, write_end = os.pipe()

    def tell(session: Session) -> None:
        os.write(write_end, session.frame.to_bytes(8, "little"))

    child = fork(lambda: train(spec, path, prepare=watch_saves(number, tell, lambda: None)), path.with_suffix(".out"))
    os.close(write_end)
    try:
        if not select.select([read_end], [], [], CHILD_SECONDS)[0]:
            raise TimeoutError("a child did not come to its save")
        told = os.read(read_end, 8)
        if told:
            # a sleep would wake up too late: saves take milliseconds
            deadline = time.perf_counter() + moment
            while time.perf_counter() < deadline:
                pass
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(read_end)
    code = wait(child)
    if code == -signal.SIGKILL:
        return int.from_bytes(told, "little")
    if code:
        raise RuntimeError(f"a session ended with {code}: {path.with_suffix('.out').read_text()[-500:]}")
    return None


def kill_at_line(spec: Spec, path: Path, number: int, line: int) -> int | None:
    """The same before a line of a save, or at the end of one that has fewer, as the first of a run may have."""
    place = path.with_suffix(".frame")

    def begin(session: Session) -> None:
        place.write_text(str(session.frame))
        sys.settrace(SaveTrace(line))

    prepare = watch_saves(number, begin, lambda: os.kill(os.getpid(), signal.SIGKILL))
    code = wait(fork(lambda: train(spec, path, prepare=prepare), path.with_suffix(".out")))
    if code == -signal.SIGKILL:
        return int(place.read_text())
    if code:
        raise RuntimeError(f"a session ended with {code}: {path.with_suffix('.out').read_text()[-500:]}")
    return None


def plan_saves(quick: bool) -> list[Batch]:
    """500 kills over five algorithms, or a few."""
    timed, lines = (3, 3) if quick else (60, 40)
    names = SAVERS[1:2] if quick else SAVERS
    return [Batch(name, timed + lines, partial(kill_in_saves, name, timed, lines)) for name in names]


# --- anywhere


def kill_anywhere(algorithm: str, num_kill: int, max_frame: int, folder: Path) -> Iterator[Verdict]:
    """Kills at uniform moments; each run that was killed again and again must end in the bits of the whole one."""
    meta = {"checkpoint_frequency": INTERVAL, "rigorous_eval": 2, "eval_frequency": 1000}
    spec = make_spec(algorithm, env={"max_frame": max_frame}, meta=meta)
    began = time.monotonic()
    train_to_end(spec, folder / "whole")
    whole = time.monotonic() - began
    began = time.monotonic()
    # what a life takes before it trains
    train_to_end(spec, folder / "whole")
    longest = time.monotonic() - began + 2 * whole / num_kill
    draw = random.Random(algorithm)
    left, count = num_kill, 0
    while left:
        path = folder / f"killed_{count}"
        count += 1
        moments: list[float] = []
        while True:
            output = path.with_suffix(".out")
            child = fork(lambda path=path, output=output: train(spec, path), output)  # type: ignore[misc]
            moment = draw.uniform(0.0, longest)
            if len(moments) < left:
                time.sleep(moment)
                os.kill(child, signal.SIGKILL)
            code = wait(child)
            if code != -signal.SIGKILL:
                break
            moments.append(moment)
        left -= len(moments)
        problem = f"ended with {code}: {output.read_text()[-300:]}" if code else None
        problem = problem or find_difference(folder / "whole", path, spec.name)
        for number, moment in enumerate(moments):
            name = f"run {count}, kill {number + 1}, {moment:.2f} s after its start"
            yield Verdict(name, problem is None, problem or "")


def plan_anywhere(quick: bool) -> list[Batch]:
    """204 kills over all algorithms, or a few."""
    num_kill, max_frame = (3, 800) if quick else (17, 3000)
    names = ("PPO", "DoubleDQN") if quick else tuple(ALGORITHMS)
    return [Batch(name, num_kill, partial(kill_anywhere, name, num_kill, max_frame)) for name in names]


ROWS = (
    Row(
        "kill_in_save",
        "SIGKILL during a save: 60 % at uniform times over it and a fifth longer, 40 % before lines that write, "
        "spread over all of them",
        "an intact checkpoint loads; at most one interval is lost; no orphan files after the next start; the run ends "
        "with the same bits as the undisturbed one",
        plan_saves,
    ),
    Row(
        "kill_anywhere",
        "SIGKILL at uniform times of a run, with a restart each time, for twelve algorithms",
        "weights, table, generators, replay and env states at the end equal those of the undisturbed run bit for bit",
        plan_anywhere,
    ),
)
