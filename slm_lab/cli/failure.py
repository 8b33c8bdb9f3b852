"""A user's mistake ends in one clear message and exit code 2; a bug keeps its traceback."""

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from slm_lab.lib.errors import LabError
from slm_lab.lib.secret import redact


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn errors that a user can fix into a message."""
    try:
        yield
    except LabError as error:
        sys.stderr.write(redact(f"Error: {error}\n"))
        sys.exit(2)
    except OSError as error:
        # paths that nothing can be at, whatever was to be done there
        if error.errno not in (errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP):
            raise
        sys.stderr.write(redact(f"Error: {str(error.filename)[:100]!r}: {error.strerror}\n"))
        sys.exit(2)
