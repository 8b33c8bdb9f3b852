"""What must work on Windows is tried without what Windows lacks; and the locks and processes of the others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slm_lab.experiment.launch import start
from slm_lab.experiment.options import Options
from slm_lab.lib import io, system
from slm_lab.lib.errors import LabError
from test.tiny import make_tiny_spec

# names that Python has on Linux and macOS alone
MODULES = ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog", "readline")
ATTRIBUTES = {
    "os": (
        *("fork", "forkpty", "getuid", "geteuid", "getgid", "getegid", "killpg", "setsid", "getpgid", "setpgid"),
        *("sched_getaffinity", "sched_setaffinity", "nice", "uname", "statvfs", "getloadavg", "mkfifo", "mknod"),
        *("pread", "pwrite", "posix_fallocate", "posix_fadvise", "register_at_fork", "wait3", "wait4", "sync"),
        *("chown", "lchown", "fchown", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_DIRECTORY", "O_CLOEXEC", "O_SYNC"),
        *("WNOHANG", "WIFSIGNALED", "WTERMSIG", "set_blocking", "sysconf", "setpriority", "PRIO_PROCESS"),
    ),
    "signal": (
        *("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGCHLD", "SIGCONT", "SIGSTOP"),
        *("SIGTSTP", "SIGPIPE", "SIGQUIT", "SIGTTIN", "SIGTTOU", "pthread_kill", "pthread_sigmask", "setitimer"),
        *("alarm", "pause", "sigwait", "sigtimedwait"),
    ),
}
# Other libraries look at the name of the system, which stays Linux, so they are loaded before.
LIBRARIES = (
    *("torch", "gymnasium", "huggingface_hub", "filelock", "typer.rich_utils", "matplotlib.pyplot", "scipy.stats"),
    *("pydantic", "loguru", "yaml", "safetensors.torch", "psutil", "tenacity", "dotenv", "multiprocessing.connection"),
    *("uvicorn", "fastapi", "asyncio", "subprocess", "tempfile", "shutil", "imageio_ffmpeg", "rich.live", "rich.table"),
)
BLOCK = f"""
import importlib, os, signal, sys
from types import SimpleNamespace

for name in {LIBRARIES}:
    importlib.import_module(name)
# these know which system it is, and call what Linux has
for name in ("filelock._unix", "shutil"):
    sys.modules[name].os = SimpleNamespace(**vars(os))
for name in {MODULES}:
    sys.modules[name] = None
for module, names in {ATTRIBUTES}.items():
    for name in names:
        # which of them there are differs between Linux and macOS
        vars(sys.modules[module]).pop(name, None)
assert not hasattr(os, "O_NOFOLLOW") and not hasattr(signal, "SIGHUP")
"""
# Every command that promises to work there; RUN is a finished run in data/.
COMMANDS = [
    ["--help"],
    ["spec", "check", "ppo_cartpole"],
    ["spec", "list"],
    ["list"],
    ["plot", "-f", "RUN"],
    ["report", "RUN"],
    ["compare", "RUN", "RUN"],
    ["doctor", "RUN"],
    ["push", "RUN", "--to", "./shared"],
    ["pull", "RUN", "--from", "./shared", "--data-dir", "pulled"],
]
DRIVER = """
import contextlib, io, json
from slm_lab.cli.main import main

for words in json.loads(sys.argv[1]):
    sys.argv = ["slm-lab", *words]
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            main()
    except SystemExit as end:
        if end.code:
            sys.exit(f"{words} ended with {end.code}")
    if not out.getvalue():
        sys.exit(f"{words} said nothing")
import slm_lab

agent = slm_lab.load_agent("latest")
action = agent.act(agent.observation_space.sample())
assert agent.action_space.contains(action), action

from pathlib import Path
from slm_lab.ui.files import list_files, open_run_file
from slm_lab.ui.library import Library
from slm_lab.ui.server import build_server

build_server(Path("data"), False)
library = Library(Path("data"))
library.scan()
(row,) = library.refresh()
assert row["status"] == "done", row
place = library.find(row["id"])
open_run_file(place, list_files(place)[0]["path"], library.data_dir)[0].close()
"""
REFUSED = """
from slm_lab.cli.main import main

for words in (["run"], ["search", "ppo_cartpole"]):
    sys.argv = ["slm-lab", *words]
    try:
        main()
    except SystemExit as end:
        assert end.code == 2, end.code
    else:
        sys.exit(f"{words} was not refused")
"""


def call(program: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter of its own, without what Windows lacks."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(
        [sys.executable, "-c", BLOCK + program, *words],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_must_work_on_windows_does_without_posix(tmp_path) -> None:
    run = start(make_tiny_spec(), Options(data_dir=tmp_path / "data")).folder.name
    (tmp_path / "shared").mkdir()
    commands = [[run if word == "RUN" else word for word in command] for command in COMMANDS]
    ran = call(DRIVER, tmp_path, json.dumps(commands))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (tmp_path / "pulled" / run / "info").is_dir()


def test_training_says_what_to_use_on_windows(tmp_path) -> None:
    ran = call(REFUSED, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.splitlines() == [
        f"Error: {what} needs Linux or macOS; on Windows use WSL: see docs/INSTALL.md"
        for what in ("training", "a search")
    ]
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("is_posix", [True, False])
def test_a_lock_is_seen_with_and_without_flock(is_posix, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(system, "IS_POSIX", is_posix)
    path = tmp_path / "run" / "lock"
    path.parent.mkdir()
    assert not io.is_locked(path)
    with io.lock_file(path, wait=0):
        assert io.is_locked(path)
    assert not io.is_locked(path)


def test_without_posix_no_process_is_sent_a_signal(monkeypatch) -> None:
    def kill(*_: object) -> None:
        pytest.fail("os.kill(pid, 0) is Ctrl-C on Windows")

    monkeypatch.setattr(system, "IS_POSIX", False)
    monkeypatch.setattr(os, "kill", kill)
    assert system.is_alive(os.getpid())
    assert system.peak_children_mb() == 0.0


def test_a_process_that_has_ended_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert not system.is_alive(process.pid)
    assert not system.is_alive(10**30)
    assert system.is_alive(os.getpid())


def test_training_is_refused_in_one_line(monkeypatch) -> None:
    system.require_posix("training")
    monkeypatch.setattr(system, "IS_POSIX", False)
    with pytest.raises(LabError, match=r"^training needs Linux or macOS; on Windows use WSL: see docs/INSTALL.md$"):
        system.require_posix("training")
