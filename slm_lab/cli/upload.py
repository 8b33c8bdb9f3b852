"""`--upload-hf`: asked before a training starts, done when it has ended."""

import shlex
import sys
from importlib import import_module
from pathlib import Path

from slm_lab.lib.errors import LabError
from slm_lab.lib.secret import redact
from slm_lab.share.settings import read_settings


def check_upload() -> None:
    """Raise before hours of training if the run could not be sent afterwards."""
    # loaded only where it is asked for: the hub's client takes a moment
    import_module("slm_lab.share.opening").open_store(read_settings()).check_write()


def upload_run(folder: Path) -> int:
    """Send a run that has ended; the exit code. A failure leaves the run as it is, and tells how to try again."""
    try:
        store = import_module("slm_lab.share.opening").open_store(read_settings())
        url = import_module("slm_lab.share.push").push_run(folder, store)
    except LabError as error:
        command = shlex.join(["slm-lab", "push", str(folder)])
        sys.stderr.write(redact(f"Error: the run is whole, but not shared: {error}\nTry again with:\n  {command}\n"))
        return 2
    sys.stdout.write(f"Shared   {url}\n")
    return 0
