"""How a command reports an error: one clear message or a traceback, and its exit code."""

import errno
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from slm_lab.lib.errors import LabError
from slm_lab.lib.secret import redact

# packages that the install without torch leaves out
ML_PACKAGES = ("torch", "gymnasium", "ale_py", "tensorboard", "optuna")
# errors of impossible paths, for any operation
BAD_PATH = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP)


def report_error(error: BaseException) -> int:
    """Print an error to stderr; returns the exit code: 2 for a user's mistake, 130 for Ctrl-C, 1 for a bug."""
    if isinstance(error, KeyboardInterrupt):
        # a session saves on the first one
        return 130
    text = None
    if isinstance(error, LabError):
        text = str(error)
    elif isinstance(error, OSError) and error.errno in BAD_PATH:
        text = f"{str(error.filename)[:100]!r}: {error.strerror}"
    elif isinstance(error, ModuleNotFoundError) and error.name in ML_PACKAGES:
        text = f"this command needs {error.name}; run `uv sync`, or `pip install '.[ml]'`"
    # the message, perhaps from an env, may contain a secret
    message = f"Error: {text}\n" if text is not None else "".join(traceback.format_exception(error))
    sys.stderr.write(redact(message))
    return 2 if text is not None else 1


@contextmanager
def user_errors() -> Iterator[None]:
    """Report an error and exit with its code."""
    try:
        yield
    except Exception as error:
        sys.exit(report_error(error))
