"""A failure is told when it happens, and counts, whatever happens later."""

import signal
from pathlib import Path

import pytest
from loguru import logger

from slm_lab.experiment import trial
from slm_lab.experiment.control import Session
from slm_lab.experiment.executor import Event, Key, SessionTask
from slm_lab.experiment.messages import SessionEnd, SessionResult
from slm_lab.experiment.options import Options
from slm_lab.experiment.signals import StopSignal
from slm_lab.experiment.trial import STOP_GRACE_SECONDS, Trial, is_failure
from slm_lab.lib.errors import DivergenceError, WorkerDeathError, WorkerError
from slm_lab.results.folder import RunFolder
from test.tiny import make_tiny_spec


class Script:
    """An executor whose session 1 fails, and whose others end once they are asked to stop."""

    num_slot = 5

    def __init__(self, stop: StopSignal, result: SessionResult, lines: list[str]) -> None:
        self.stop_signal = stop
        self.result = result
        self.lines = lines
        self.lines_at_stop: list[str] = []
        self.num_poll = 0

    def submit(self, task: SessionTask) -> None:
        pass

    def poll(self, timeout: float) -> list[Event]:
        self.num_poll += 1
        if self.num_poll == 1:
            return [Event((0, 1), end=SessionEnd(1, error="loss is not finite"))]
        if self.num_poll == 2:
            self.lines_at_stop = list(self.lines)
            self.stop_signal._handle(signal.SIGTERM, None)
            return []
        ends = [
            SessionEnd(0, self.result),
            SessionEnd(2, error="not started", reason="not started"),
            SessionEnd(3, error="killed by signal 9", reason="killed"),
            SessionEnd(4, error="no space left"),
        ]
        return [Event((0, end.session), end=end) for end in ends]

    def stop(self, key: Key) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> StopSignal:
    wish = StopSignal()
    monkeypatch.setattr(trial, "StopSignal", lambda: wish)
    return wish


def test_only_sessions_that_the_stop_ended_are_no_failures(
    tmp_path: Path, stop: StopSignal, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_tiny_spec(meta={"max_session": 5})
    folder = RunFolder(tmp_path, spec.name)
    result = Session(spec, folder, 0, 0, lambda _: None, lambda: False).run()
    lines: list[str] = []
    script = Script(stop, result, lines)
    monkeypatch.setattr(trial, "build_executor", lambda *_: script)
    handle = logger.add(lambda message: lines.append(str(message)), level="ERROR", format="{message}")
    try:
        ended = Trial(spec, folder, Options()).run()
    finally:
        logger.remove(handle)
    assert ended.failures == {1: "loss is not finite", 4: "no space left"}
    assert ended.metrics is not None
    assert ended.metrics.failed == (1, 4)
    assert ended.exit_code == 143
    # at once, and once
    assert script.lines_at_stop == ["Session 1 failed: loss is not finite\n"]
    assert [line for line in lines if "Session" in line] == [
        "Session 1 failed: loss is not finite\n",
        "Session 4 failed: no space left\n",
    ]


@pytest.mark.parametrize("is_stopping", [True, False])
@pytest.mark.parametrize(
    "error", [DivergenceError("not finite"), WorkerError("an env failed"), WorkerDeathError("a worker was killed")]
)
def test_a_session_of_this_process_that_fails_is_told(
    tmp_path: Path, stop: StopSignal, monkeypatch: pytest.MonkeyPatch, error: Exception, is_stopping: bool
) -> None:
    def fail(_: Session) -> None:
        if is_stopping:
            stop._handle(signal.SIGTERM, None)
        raise error

    monkeypatch.setattr(Session, "run", fail)
    spec = make_tiny_spec()
    ended = Trial(spec, RunFolder(tmp_path, spec.name), Options()).run()
    # who ends a run may end its env workers too
    is_failure = not (is_stopping and isinstance(error, WorkerDeathError))
    assert ended.failures == ({0: str(error)} if is_failure else {})


@pytest.mark.parametrize(("seconds", "counts"), [(0.1, False), (STOP_GRACE_SECONDS + 0.1, True)])
def test_a_session_that_was_killed_long_before_a_stop_has_failed(seconds: float, counts: bool) -> None:
    stop = StopSignal()
    outcome = SessionEnd(0, error="was killed by signal 15", reason="killed", ended=100.0)
    assert is_failure(outcome, stop)
    # a batch system tells the sessions and the command one after the other
    stop.number, stop.since = signal.SIGTERM, 100.0 + seconds
    assert is_failure(outcome, stop) is counts
