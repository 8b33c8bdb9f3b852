"""A user's mistake ends in one clear message and exit code 2; a bug keeps its traceback."""

import errno
import sys
import traceback
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
    except Exception as error:
        # paths that nothing can be at, whatever was to be done there
        if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP):
            sys.stderr.write(redact(f"Error: {str(error.filename)[:100]!r}: {error.strerror}\n"))
            sys.exit(2)
        # a bug, of an env perhaps, whose words may hold a secret
        sys.stderr.write(redact(traceback.format_exc()))
        sys.exit(1)
