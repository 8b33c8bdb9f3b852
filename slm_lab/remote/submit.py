"""Submits tasks to dstack, an external program, without a shell."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from slm_lab.lib.errors import LabError
from slm_lab.remote.task import RenderedTask, TaskRequest, check_upload, render_task

INSTALL = "uv sync --no-default-groups --group remote"
# the task comes through stdin, so that no file is written
APPLY = ("apply", "-f", "-", "-y", "--detach")
# of runs that have ended, whose names may be used again
ENDED = ("done", "failed", "terminated")
ASK_SECONDS = 120


class SubmitError(LabError):
    """dstack refused a task, with a message of its own."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def submit_task(request: TaskRequest, environ: Mapping[str, str], root: Path) -> RenderedTask:
    """Check, render and submit a run. Raises LabError for bad input, SubmitError if dstack refuses."""
    task = render_task(request, environ, root)
    if request.upload:
        check_upload(environ)
    dstack = find_dstack(environ)
    status = find_status(task.run_name, environ, root)
    # dstack would stop the run that has the name
    if status is not None and status not in ENDED:
        raise LabError(
            f"a run '{task.run_name}' is already {status}; give another --name, or stop it with "
            f"`dstack stop {task.run_name}`"
        )
    # stdout and stderr are those of this process: dstack shows its plan and its errors itself
    sys.stdout.flush()
    done = subprocess.run([dstack, *APPLY], input=task.text.encode(), env=dict(environ), cwd=root, check=False)
    if done.returncode:
        raise SubmitError(f"dstack refused the run '{task.run_name}'; its message is above", done.returncode)
    return task


def find_dstack(environ: Mapping[str, str]) -> str:
    """The dstack on the path, or the one beside this Python."""
    places = (environ.get("PATH", ""), str(Path(sys.executable).parent))
    found = next((program for place in places if (program := shutil.which("dstack", path=place))), None)
    if found is None:
        raise LabError(f"dstack is not installed; run `{INSTALL}`, or `uv tool install dstack` (docs/REMOTE.md)")
    return found


def find_status(run_name: str, environ: Mapping[str, str], root: Path) -> str | None:
    """The status of a run at dstack; None if it does not know the run."""
    asked = [find_dstack(environ), "run", "get", run_name, "--json"]
    try:
        answer = subprocess.run(
            asked, capture_output=True, text=True, env=dict(environ), cwd=root, timeout=ASK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"dstack did not answer within {ASK_SECONDS} seconds; is its server running?") from None
    output = "\n".join(text.strip() for text in (answer.stdout, answer.stderr) if text.strip())
    if answer.returncode and "not found" in output:
        return None
    if answer.returncode and "project" in output.lower():
        raise LabError(f"dstack is not configured: {output}; start a server or log in, see docs/REMOTE.md")
    if answer.returncode:
        raise SubmitError(f"dstack cannot list runs: {output}", answer.returncode)
    try:
        return str(json.loads(answer.stdout)["status"])
    except (ValueError, KeyError, TypeError):
        raise LabError(
            f"`dstack run get` returned no status but: {output[:200]}; the lab supports dstack 0.22"
        ) from None
