"""`--upload-hf`: checked before training starts, done when it ends."""

import shlex
import sys
from importlib import import_module
from pathlib import Path

from slm_lab.lib.errors import LabError
from slm_lab.lib.secret import redact
from slm_lab.share.settings import read_settings


def check_upload() -> None:
    """Raise before hours of training if the upload would fail."""
    # loaded only if needed: importing the hub's client takes a moment
    import_module("slm_lab.share.opening").open_store(read_settings()).check_write()


def upload_run(folder: Path) -> int:
    """Upload a run that has ended; returns the exit code. After a failure, print the command to retry."""
    try:
        store = import_module("slm_lab.share.opening").open_store(read_settings())
        url = import_module("slm_lab.share.push").push_run(folder, store)
    except LabError as error:
        command = shlex.join(["slm-lab", "push", str(folder)])
        sys.stderr.write(
            redact(f"Error: the run is complete, but was not uploaded: {error}\nTry again with:\n  {command}\n")
        )
        return 2
    sys.stdout.write(f"Shared   {url}\n")
    return 0
