"""Facts about the machine and the seeds derived from the spec; torch-free."""

import importlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import numpy as np

from slm_lab.lib.errors import LabError

PACKAGES = (
    "slm-lab",
    "torch",
    "gymnasium",
    "numpy",
    "ale-py",
    "envpool",
    "mujoco",
    "box2d",
    "pydantic",
    "jax",
    "mujoco-mjx",
    "playground",
)


def derive_seed(*key: int) -> int:
    """A 32-bit seed from a tuple of numbers; different keys give independent streams."""
    # numpy pads with zeros and splits large numbers, so keys of different length or size could meet without this
    words = [len(key), *(word for number in key for word in (number & 0xFFFFFFFF, number >> 32))]
    return int(np.random.SeedSequence(words).generate_state(1)[0])


def num_cores() -> int:
    """Cores this process may use; in a container fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_niceness() -> None:
    """Apply the niceness among all processes: Linux groups them by session, and a new group starts at 0."""
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(os.nice(0)), encoding="utf-8")


CPU_FILE = Path("/proc/cpuinfo")
# Makes glibc keep freed memory. Otherwise images and what a net computes from them get fresh pages at every gradient
# step: 4 % of the time of a compiled one, 10 % of a plain one.
MEMORY_VARIABLES = {
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**31),
    "MALLOC_TOP_PAD_": str(2**28),
}
# set by remote runs, whose code comes without its history
COMMIT_VARIABLE = "SLM_LAB_COMMIT"


def git_sha(folder: Path | None = None) -> str | None:
    """The commit of the code in use, with `-dirty` if files differ from it; None if unknown."""
    folder = folder or Path(__file__).parent
    # an installed package may be inside somebody else's repository
    is_tracked = _ask_git("ls-files", "--error-unmatch", ".", folder=folder) is not None
    commit = _ask_git("rev-parse", "HEAD", folder=folder) if is_tracked else None
    if commit is None:
        return os.environ.get(COMMIT_VARIABLE)
    changes = _ask_git("status", "--porcelain", "--untracked-files=no", folder=folder)
    return f"{commit}-dirty" if changes else commit


def _ask_git(*arguments: str, folder: Path) -> str | None:
    try:
        result = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def package_versions() -> dict[str, str]:
    """Versions of the packages that can change a result."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def machine_facts() -> dict[str, str | int]:
    """Facts about the machine, without names of hosts or users."""
    return {
        "platform": platform.platform(),
        "processor": processor_name(),
        "cores": num_cores(),
    }


def processor_name() -> str:
    """The model of the processor."""
    return describe_processor().get("model name") or platform.processor()


def describe_processor() -> dict[str, str]:
    """What Linux says about the first core; empty elsewhere."""
    try:
        text = CPU_FILE.read_text()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def import_modules(names: Iterable[str]) -> None:
    """Import a user's own modules, which register algorithms, nets or envs."""
    for name in names:
        try:
            import_by_name(name)
        except ImportError as error:
            raise LabError(f"--import {name}: {error}") from None


def import_by_name(name: str) -> None:
    """Import a user's own module, which may be in the working folder."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ImportError(f"'{name}' is not the name of a module, such as my_package.my_module")
    if name.endswith(".py"):
        raise ImportError(f"'{name}' is a file; name the module: {name.removesuffix('.py')}")
    add_working_folder_to_path()
    try:
        importlib.import_module(name)
    except SyntaxError as error:
        # it names the file and the line; the traceback would show how Python imports
        raise ImportError(str(error)) from None
    except SystemExit as error:
        raise ImportError(f"it exits the process when it is imported: {error!r}") from None


def add_working_folder_to_path() -> None:
    """Put the working folder on the import path, as `python script.py` does."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
