"""A real dstack server on loopback: it takes every task and lacks only machines."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
START_SECONDS = 120

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("uvicorn") is None,
        reason="no dstack server here: uv run --group remote-server pytest -m slow test/remote",
    ),
]


def find_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def is_up(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthcheck", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server with a home of its own, for which it configures the project `main`; the environment to reach it with."""
    home = tmp_path_factory.mktemp("home")
    port = find_port()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "WANDB_", "DSTACK_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**kept, "HOME": str(home), "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    environ |= {"HF_TOKEN": "hf_planted_token", "HF_REPO": "me/runs"}
    words = ["dstack", "server", "--host", "127.0.0.1", "--port", str(port), "-y"]
    with (home / "server.log").open("w") as log:
        started = {**environ, "DSTACK_SERVER_ADMIN_TOKEN": "a-token-for-tests"}
        process = subprocess.Popen(words, env=started, stdout=log, stderr=log, start_new_session=True)
        try:
            end = time.monotonic() + START_SECONDS
            while not is_up(port):
                assert process.poll() is None, (home / "server.log").read_text()
                assert time.monotonic() < end, (home / "server.log").read_text()
                time.sleep(0.2)
            yield environ
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def call(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def run_remote(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return call(environ, sys.executable, "-m", "slm_lab.cli", "run-remote", *words)


@pytest.mark.parametrize("mode", ["train", "search"])
@pytest.mark.parametrize("machine", ["cpu", "gpu"])
def test_the_server_takes_every_task_and_lacks_only_machines(mode, machine, server) -> None:
    name = f"{machine}-{mode}"
    options = ["--gpu"] if machine == "gpu" else []
    # a value that a shell would take apart
    odd = ["-s", 'env.kwargs={"note": "it\'s $(touch pwned); `touch pwned`"}']
    ran = run_remote(server, "ppo_cartpole", mode, "-n", name, *options, *odd)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"Run {name} submitted" in ran.stdout
    # of dstack's plan
    assert "Max duration   6h" in ran.stdout
    assert "Retry policy   6h[no-capacity, interruption]" in ran.stdout
    assert "no fleets" in ran.stdout or "No matching instance offers" in ran.stdout
    stored = call(server, "dstack", "run", "get", name, "--json")
    assert stored.returncode == 0, stored.stdout
    assert f"/checkpoint/{name}" in stored.stdout
    assert "SLM_LAB_COMMIT" in stored.stdout

    again = run_remote(server, "ppo_cartpole", mode, "-n", name)
    assert again.returncode == 2
    assert f"Error: a run '{name}' is " in again.stderr
    assert call(server, "dstack", "stop", name, "-y").returncode == 0


def test_a_volume_that_is_not_there_is_refused_by_name(server) -> None:
    ran = run_remote(server, "ppo_cartpole", "-n", "no-volume", "--volume", "not-there")
    assert ran.returncode == 1
    assert "not-there" in ran.stdout + ran.stderr
    assert "dstack refused the run 'no-volume'" in ran.stderr


@pytest.mark.parametrize("name", ["fleet-cpu.yml", "fleet-gpu.yml"])
def test_fleets_are_taken(name, server) -> None:
    ran = call(server, "dstack", "apply", "-f", f".dstack/{name}", "-y", "-d")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Fleet configuration submitted" in ran.stdout


def test_without_a_project_it_says_how_to_get_one(server, tmp_path) -> None:
    ran = run_remote({**server, "HOME": str(tmp_path)}, "ppo_cartpole")
    assert ran.returncode == 2
    assert ran.stderr.startswith("Error: dstack is not configured: No default project")
