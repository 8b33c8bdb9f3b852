"""SIGTERM and SIGINT in every phase of a command, to it alone and to all its processes."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.faults.command import (
    find_descendants,
    finish,
    is_alive,
    kill_family,
    said,
    start_command,
    wait_for,
    write_spec,
)
from bench.faults.row import Batch, Row, Verdict
from bench.faults.specs import NAME, make_spec
from slm_lab.experiment.checkpoint.state import load_state
from slm_lab.lib.errors import CheckpointError
from slm_lab.results.folder import RunFolder

# of sessions under way, which save; of the command alone, when sessions have not begun or have ended
UNDER_WAY = ("compile", "rollout", "update", "eval", "video")
ALONE = ("import", "plot", "upload")
PHASES = ("import", "compile", "rollout", "update", "eval", "plot", "video", "upload")
WAYS = {
    "SIGTERM": (signal.SIGTERM, False),
    "SIGINT": (signal.SIGINT, False),
    "SIGTERM to all its processes": (signal.SIGTERM, True),
}
STOP_SECONDS = 10.0
IMPORT_SECONDS = 1.0


def stop_in(phase: str, ways: tuple[str, ...], folder: Path) -> Iterator[Verdict]:
    """Stop a command in one of its phases, each way."""
    for way in ways:
        place = folder / way.replace(" ", "_")
        place.mkdir()
        problem = stop_once(phase, *WAYS[way], place)
        yield Verdict(f"{way} in {phase}", problem is None, problem or "")


def make_command(phase: str, place: Path) -> list[str]:
    """A run that comes to the phase."""
    meta = {
        "max_session": count_sessions(phase),
        "rigorous_eval": 2 if phase == "eval" else 0,
        "eval_frequency": 600,
        "video_frequency": 600 if phase == "video" else None,
        "compile": phase == "compile",
    }
    # those that are stopped at their end are short, all others do not end by themselves
    env = {"max_frame": 600 if phase in ("plot", "upload") else 10**9, "num_workers": 2 if phase == "rollout" else 0}
    spec = make_spec("PPO", env=env, meta=meta)
    words = ["run", str(write_spec(spec, place)), NAME, "train", "--import", "bench.faults.phase_mark"]
    return [*words, "--upload-hf"] if phase == "upload" else words


def count_sessions(phase: str) -> int:
    """One session trains in the process of the command, two have processes of their own."""
    return 1 if phase == "update" else 2


def stop_once(phase: str, number: signal.Signals, to_all: bool, place: Path) -> str | None:
    """What was wrong with a stop; None if nothing was."""
    mark = place / "mark"
    (place / "team").mkdir()
    variables = {
        "FAULT_PHASE": phase,
        "FAULT_MARK": str(mark),
        "HF_REPO": str(place / "team"),
        # compiled again, not found on disk
        "SLM_LAB_CACHE": str(place / "cache"),
    }
    process = start_command(make_command(phase, place), place, variables)
    try:
        if phase == "import":
            time.sleep(IMPORT_SECONDS)
        else:
            wait_for(mark, process)
        family = find_descendants(process.pid)
        began = time.monotonic()
        process.send_signal(number)
        for pid in family if to_all else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        code = finish(process)
        seconds = time.monotonic() - began
    except (TimeoutError, RuntimeError) as error:
        return f"{error}: {said(place)[-300:]}"
    finally:
        if process.poll() is None:
            kill_family(process)
    left = [pid for pid in family if is_alive(pid)]
    if left:
        return f"processes were left behind: {left}"
    if seconds > STOP_SECONDS:
        return f"it took {seconds:.1f} s"
    return check_code(phase, number, code, place) or check_files(phase, place)


def check_code(phase: str, number: signal.Signals, code: int, place: Path) -> str | None:
    """Whether the exit code is the promised one; a shell says 128 + n for a process that a signal n has ended."""
    allowed = (128 + number, -number) if phase in ALONE else (128 + number,)
    if code not in allowed:
        return f"exit code {code}: {said(place)[-300:]}"
    return f"a traceback: {said(place)[-300:]}" if "Traceback" in said(place) else None


def check_files(phase: str, place: Path) -> str | None:
    """Whether what is on disk can be gone on from."""
    runs = list((place / "data").glob("*")) if (place / "data").exists() else []
    if phase == "import":
        return None
    (run,) = runs
    folder = RunFolder(run, NAME)
    if phase not in UNDER_WAY:
        # all is done but for what was stopped, which comes again
        shared = list((place / "team").rglob("manifest.json"))
        return f"a half run is shared as a whole: {shared}" if shared else None
    told = dict(re.findall(r"Session (\d) stopped at frame (\d+)", said(place)))
    for session in range(count_sessions(phase)):
        path = folder.resume_file(0, session)
        if phase == "compile" and not path.exists():
            # the first step has not been done
            continue
        try:
            saved = int(load_state(path)["frame"])
        except CheckpointError as error:
            return str(error)
        if str(saved) != told.get(str(session)):
            return f"session {session} stopped at frame {told.get(str(session))}, its checkpoint is of {saved}"
    orphans = [path.name for path in run.rglob("*.tmp")]
    return f"orphans: {orphans}" if orphans else None


def plan(quick: bool) -> list[Batch]:
    """Eight phases, three ways each, or two."""
    phases, ways = (("update",), ("SIGTERM",)) if quick else (PHASES, tuple(WAYS))
    return [Batch(phase, len(ways), partial(stop_in, phase, ways)) for phase in phases]


ROWS = (
    Row(
        "signals",
        "SIGTERM, SIGINT, and SIGTERM to all processes at once, during import, compile, rollout, update, eval, plot, "
        "video and upload",
        "it exits within 10 s with 143 or 130, leaves no process behind, each session has a checkpoint at the frame "
        "where it stopped, and a partial upload does not count as a run",
        plan,
        "A compiler cannot be interrupted: a compiling session is killed after 8 s and resumes from its checkpoint. "
        "During import, plot and upload, with nothing to save, SIGTERM ends the process itself, which a shell shows "
        "as 143. Runs have two sessions in separate processes; update has one, in the process of the command; rollout "
        "also has env workers. The limit of 10 s holds on a machine that is not overloaded: with nine busy processes "
        "on two cores, six of the 24 took 10 to 13 s.",
    ),
)
