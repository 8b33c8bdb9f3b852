"""A user's mistake ends in one clear message and exit code 2; a bug keeps its traceback."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from slm_lab.lib.errors import LabError
from slm_lab.lib.secret import redact


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn errors that a user can mend into a message."""
    try:
        yield
    except LabError as error:
        sys.stderr.write(redact(f"Error: {error}\n"))
        sys.exit(2)
