"""Worker processes of ours import nothing from the current directory, which may be a stranger's or a job's."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLE = "PYTHONSAFEPATH"  # as python -P, for the interpreters that multiprocessing starts by a command line of its own


@contextmanager
def safe_path() -> Iterator[None]:
    """Have the Python processes that are started meanwhile leave the current directory out of sys.path.

    Only for our own: the variable is taken back before a job could inherit it.
    """
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before
