"""Parts of a run that die: env workers and sessions."""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.faults.command import (
    POLL_SECONDS,
    find_sessions,
    finish,
    is_alive,
    kill_family,
    said,
    start_command,
    write_spec,
)
from bench.faults.fork import fork, train, train_to_end, wait
from bench.faults.row import Batch, Row, Verdict
from bench.faults.specs import NAME, make_spec
from slm_lab.audit.difference import find_difference
from slm_lab.env.worker import WorkerVecEnv
from slm_lab.experiment.control import Session
from slm_lab.results.folder import RunFolder

NUM_SESSION = 4


# --- workers


def kill_workers(num_kill: int, max_frame: int, folder: Path) -> Iterator[Verdict]:
    """Kill an env worker at a uniform moment, continue, and so on; the run must end in the bits of the whole one."""
    spec = make_spec("PPO", env={"num_workers": 2, "max_frame": max_frame})
    began = time.monotonic()
    train_to_end(spec, folder / "whole")
    # of each life, so that all kills fall into the run; workers take most of it to start
    longest = (time.monotonic() - began) * 1.5 / num_kill + 0.2
    draw = random.Random(num_kill)
    killed, count, left = folder / "killed_0", 0, num_kill
    pids, output = folder / "pids", folder / "life.out"
    while left:
        output.unlink(missing_ok=True)
        strike = partial(kill_later, left, draw.uniform(0.0, longest), pids)
        code = wait(fork(partial(train, spec, killed, prepare=strike), output))
        if code == 0:
            problem = find_difference(folder / "whole", killed, spec.name)
            if problem is not None:
                yield Verdict(f"the end of run {count}", False, problem)
            count += 1
            killed = folder / f"killed_{count}"
            continue
        left -= 1
        text = output.read_text()
        leftover = [pid for pid in pids.read_text().split() if is_alive(int(pid))]
        is_told = "WorkerDeathError" in text and "killed by signal 9" in text
        problem = "" if is_told else f"what ended it is not told: {text[-300:]}"
        problem = f"workers {', '.join(leftover)} were left behind" if leftover else problem
        yield Verdict(f"kill {num_kill - left}", not problem, problem)
    train_to_end(spec, killed)
    problem = find_difference(folder / "whole", killed, spec.name)
    yield Verdict("the last run ends as the whole one", problem is None, problem or "")


def kill_later(number: int, seconds: float, pids: Path, session: Session) -> None:
    """Kill one worker of a session after a time, and write down who they are."""
    assert isinstance(session.env, WorkerVecEnv)
    family = [worker.process.pid for worker in session.env.workers]
    pids.write_text(" ".join(str(pid) for pid in family))
    threading.Timer(seconds, os.kill, (family[number % len(family)], signal.SIGKILL)).start()


def plan_workers(quick: bool) -> list[Batch]:
    """50 kills, or two."""
    num_kill, max_frame = (2, 1500) if quick else (50, 20_000)
    return [Batch("two workers", num_kill + 1, partial(kill_workers, num_kill, max_frame))]


# --- sessions


def kill_session(victim: int, num_session: int, folder: Path) -> Iterator[Verdict]:
    """Kill one of the sessions under way; the trial goes on and tells."""
    spec = make_spec("PPO", env={"max_frame": 3000}, meta={"max_session": num_session})
    process = start_command(["run", str(write_spec(spec, folder)), NAME, "train"], folder)
    try:
        kill_once(process.pid, victim, folder)
        code = finish(process)
    finally:
        if process.poll() is None:
            kill_family(process)
    text = said(folder)
    (run,) = (folder / "data").iterdir()
    metrics = json.loads(RunFolder(run, NAME).trial_metrics_file(0).read_text())
    others = [session for session in range(num_session) if session != victim]
    checks = {
        "exit code 1": code == 1,
        "says how many": f"{len(others)} of {num_session} sessions have a result" in text,
        "names the signal": f"Session {victim} failed: the process of session {victim} was killed by signal 9" in text,
        "names the failed one": metrics["failed"] == [victim] and not metrics["is_complete"],
        "averages the others alone": metrics["session_index"] == others
        and len(metrics["total_reward_ma"]["values"]) == len(others),
    }
    wrong = [name for name, is_right in checks.items() if not is_right]
    yield Verdict(f"session {victim} of {num_session}", not wrong, ", ".join(wrong))
    # and it can be made whole
    code = finish(start_command(["run", f"train@{run}"], folder))
    metrics = json.loads(RunFolder(run, NAME).trial_metrics_file(0).read_text())
    is_whole = code == 0 and metrics["is_complete"] and metrics["failed"] == []
    yield Verdict(f"train@ after session {victim} died", is_whole, "" if is_whole else f"exit code {code}")


def kill_once(pid: int, victim: int, folder: Path) -> None:
    """Kill a session once it has a checkpoint."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        saved = list((folder / "data").glob(f"*/model/*_s{victim}_ckpt-last_resume.safetensors"))
        session = find_sessions(pid).get(victim)
        if saved and session is not None:
            os.kill(session, signal.SIGKILL)
            return
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"session {victim} has not begun")


def plan_sessions(quick: bool) -> list[Batch]:
    """Each of four sessions, or one."""
    victims = (1,) if quick else range(NUM_SESSION)
    return [Batch(f"session {victim}", 2, partial(kill_session, victim, NUM_SESSION)) for victim in victims]


ROWS = (
    Row(
        "worker_death",
        "SIGKILL of an env worker at a uniform time, with a restart each time",
        "the session reports the signal of its worker, no process stays behind, no episode is lost: the run resumes "
        "and ends with the same bits as the undisturbed one",
        plan_workers,
    ),
    Row(
        "session_death",
        "SIGKILL of one of four sessions",
        "the trial reports 3 of 4 and which one is missing, and exits with 1; nothing is averaged silently; train@ "
        "completes it",
        plan_sessions,
    ),
)
