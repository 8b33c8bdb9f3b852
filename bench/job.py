"""What a measuring process is told and what it tells: plain data that goes through files."""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# a process that takes longer than this hangs
TIMEOUT = 3600
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    # empty as if not set: start-up is that of libraries whose bytecode is on disk, as everywhere
    "PYTHONDONTWRITEBYTECODE": "",
}


@dataclass(frozen=True)
class Job:
    """One measurement, done by one process."""

    row: str
    # lab, lab-plain, lab-bf16, limit or a peer
    contender: str
    seconds: float
    quick: bool = False
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """What happened between the end of the warm-up and the end of the last whole round."""

    frames: int
    seconds: float
    # what of it the process really ran; much less means that others were at work on the core
    cpu_seconds: float
    # gradient steps and trained parameters: equal work has equal numbers
    opt_steps: int
    num_param: int
    # seconds by phase; what is not listed is the rest
    phases: dict[str, float]
    warm_seconds: float
    peak_mb: float

    @property
    def fps(self) -> float:
        """Frames per second."""
        return self.frames / self.seconds


def peak_mb() -> float:
    """The most memory this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_module(
    module: str, content: dict[str, Any], cores: set[int], variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run a module in a fresh process on the given cores; what it answers."""
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder, "job.json"), Path(folder, "answer.json")
        question.write_text(json.dumps(content))
        process = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", module, str(question), str(answer)],
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT, **(variables or {})},
            # before any import, for libraries count the cores when they are loaded
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        if process.returncode or not answer.exists():
            raise RuntimeError(f"{module} failed on {content}:\n{process.stdout[-2000:]}\n{process.stderr[-4000:]}")
        result: dict[str, Any] = json.loads(answer.read_text())
        return result


def answer_with(measure: Callable[[Job], Measured]) -> None:
    """The main function of a measuring process: `python -m MODULE job.json answer.json`."""
    job = Job(**json.loads(Path(sys.argv[1]).read_text()))
    Path(sys.argv[2]).write_text(json.dumps(asdict(measure(job))))
