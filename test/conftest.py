"""What every test shares: one torch thread, and a cache folder of its own."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from loguru import logger

from slm_lab.lib.io import write_yaml
from slm_lab.spec.loading import dump_spec
from slm_lab.spec.schema import Spec
from test.tiny import InlineExecutor, make_tiny_spec

# each worker rewrites the assertions of all tests, and compiles them, unless it may keep what it made
sys.dont_write_bytecode = False


@pytest.fixture(scope="session", autouse=True)
def _quiet_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two torch threads on a busy machine slow tiny nets down several times; the user's own cache stays untouched."""
    torch.set_num_threads(1)
    # nohup has it ignored, also by the processes of the tests
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        # processes of the tests import torch again and again: seconds each, unless they may keep what they compiled
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        # workers are siblings: what one has compiled the other need not
        base = tmp_path_factory.getbasetemp()
        patch.setenv("SLM_LAB_CACHE", str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"))
        yield


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    """What is logged as a warning or worse."""
    lines: list[str] = []
    handle = logger.add(lambda message: lines.append(message.record["message"]), level="WARNING")
    yield lines
    logger.remove(handle)


@pytest.fixture
def write_spec() -> Callable[[Spec, Path], Path]:
    """Writes a spec as a file and returns its path."""

    def write(spec: Spec, path: Path) -> Path:
        write_yaml(path, dump_spec(spec))
        return path

    return write


@pytest.fixture(scope="session")
def tiny_spec() -> Callable[..., Spec]:
    """Makes specs that train in a second: `tiny_spec("DQN", env={"max_frame": 400})`."""
    return make_tiny_spec


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end without graphs and pages, which take seconds."""
    monkeypatch.setattr("slm_lab.results.conclude.plot_run", lambda _: None)
    monkeypatch.setattr("slm_lab.results.conclude.write_report", lambda _, path, **rest: path.touch())


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of trials and searches train within the test's process."""
    for name in ("trial.build_executor", "search_run.build_executor", "search_run.LocalExecutor"):
        monkeypatch.setattr(f"slm_lab.experiment.{name}", lambda *_: InlineExecutor())
