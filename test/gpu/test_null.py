"""torch's own CUDA code on a GPU that computes nothing: capture, compile and launch; and its kernels for newer GPUs."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from test.gpu.cases import LARGE_CASES

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# A100, H100, RTX 50
CAPABILITIES = "80", "90", "120"

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("null_gpu")]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a process that finds the null GPU."""
    triton = importlib.util.find_spec("triton")
    if torch.version.cuda is None or triton is None or triton.origin is None:
        pytest.skip(f"torch {torch.__version__} is not built for CUDA, so there is no CUDA code to run")
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ to build the null GPU with")
    headers = Path(triton.origin).parent / "backends" / "nvidia" / "include"
    folder = tmp_path_factory.mktemp("null_gpu")
    library = folder / "libcuda.so.1"
    flags = ["-O1", "-shared", "-fPIC", f"-I{headers}", "-Wl,-soname,libcuda.so.1", "-o", str(library)]
    subprocess.run([compiler, *flags, *map(str, (HERE / "null").glob("*.cpp")), "-ldl"], check=True, timeout=120)
    return {
        **os.environ,
        "LD_PRELOAD": str(library),
        "TRITON_LIBCUDA_PATH": str(folder),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }


def run(*command: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac", "crossq", "ppo_conv", *LARGE_CASES])
def test_updates_on_the_null_gpu(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    environment = {**environment, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    updates = str(HERE / "null" / "updates.py")
    run("-m", "pytest", "-n", "0", "-q", "-p", "no:logging", updates, "-k", f"[{name}-", environment=environment)
    # what was written on the way, for GPUs that are not here either
    print(run(str(HERE / "aot.py"), str(tmp_path), *CAPABILITIES, environment=dict(os.environ)))


def test_the_doctor_runs_through(environment: dict[str, str]) -> None:
    """Every check is made; those of numbers fail, since nothing was computed."""
    done = subprocess.run(
        [sys.executable, "-m", "slm_lab.cli", "doctor", "--gpu"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=290,
    )
    print(done.stdout)
    lines = done.stdout.splitlines()
    assert done.returncode == 1, done.stderr[-3000:]
    assert lines[0].startswith("ok      device                      Null GPU, sm_80")
    assert {line[:7].strip() for line in lines[1:7]} == {"FAILED"}
    assert len(lines) == 22
    assert lines[-1].endswith("check(s) failed")
