"""The command itself in processes of its own, and what they are and leave."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.faults.row import ROOT
from slm_lab.lib.io import write_yaml
from slm_lab.spec.loading import dump_spec
from slm_lab.spec.schema import Spec

POLL_SECONDS = 0.02
COMMAND_SECONDS = 300.0


def start_command(
    words: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start `slm-lab` in a folder; what it says goes into a file there."""
    folder.mkdir(parents=True, exist_ok=True)
    # no settings of the person who runs the programme
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "WANDB_", "UPLOAD_"))}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    with (folder / "said.txt").open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "slm_lab.cli", *words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env={**inherited, **threads, "PYTHONPATH": str(ROOT), **(variables or {})},
        )


def finish(process: subprocess.Popen[bytes], seconds: float = COMMAND_SECONDS) -> int:
    """The exit code; a command that hangs is killed and told."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        kill_family(process)
        raise TimeoutError(f"the command took more than {seconds:.0f} s") from None


def kill_family(process: subprocess.Popen[bytes]) -> None:
    """End a command that was started here, with all that it has started."""
    family = find_descendants(process.pid)
    process.kill()
    process.wait()
    for pid in family:
        if is_alive(pid):
            os.kill(pid, 9)


def said(folder: Path) -> str:
    """All that commands in a folder have said."""
    return (folder / "said.txt").read_text(errors="replace")


def write_spec(spec: Spec, folder: Path) -> Path:
    """A spec as a file."""
    path = folder / f"{spec.name}.yaml"
    write_yaml(path, dump_spec(spec))
    return path


def wait_for(is_there: "os.PathLike[str]", process: subprocess.Popen[bytes], seconds: float = COMMAND_SECONDS) -> None:
    """Wait for a file that a process makes."""
    deadline = time.monotonic() + seconds
    while not os.path.exists(is_there):
        if process.poll() is not None:
            raise RuntimeError(f"the command ended with {process.returncode} before {os.path.basename(is_there)}")
        if time.monotonic() > deadline:
            kill_family(process)
            raise TimeoutError(f"no {os.path.basename(is_there)} after {seconds:.0f} s")
        time.sleep(POLL_SECONDS)


def read_stat(pid: int) -> list[str] | None:
    """What the system knows of a process, from its state on; None where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def is_alive(pid: int) -> bool:
    """Whether a process runs, and does not only wait to be buried."""
    fields = read_stat(pid)
    return fields is not None and fields[0] != "Z"


def find_descendants(pid: int) -> list[int]:
    """All processes that a process has started, and those that they have."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        fields = read_stat(int(path.name))
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(int(path.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        own = children.get(waiting.pop(), [])
        found += own
        waiting += own
    return found


def find_sessions(pid: int) -> dict[int, int]:
    """Sessions of a run by their number, as processes of the command."""
    found = {}
    for child in find_descendants(pid):
        try:
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        except OSError:
            continue
        if "slm_lab.experiment.worker" in words:
            text = words[words.index("slm_lab.experiment.worker") + 1]
            found[int(json.loads(text)["session"])] = child
    return found
