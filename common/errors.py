"""Exceptions that every command turns into a one-line message and an exit status."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

# Advice by errno, for errors that occur when the process reaches one of its limits.
_REMEDIES = {
    errno.EFBIG: "; raise the limit on file sizes (ulimit -f)",
    errno.EMFILE: "; raise the limit on open files (ulimit -n 1024)",
}


class IotwinError(Exception):
    """A failure that the user can correct. Its text names what happened, to which thing, and what to do. Exit status 1."""

    exit_status = 1

    def __init__(self, message: str) -> None:
        super().__init__(message.replace("\n", " "))  # a stranger's file name or value may contain line breaks


class UsageError(IotwinError):
    """An error in the request itself: an unknown name, a bad value, a missing path. Exit status 2."""

    exit_status = 2


class UnfinishedTraceError(IotwinError):
    """The job has ended, but its trace is incomplete. `job_status`: exit status, -N if killed by signal N, None if unknown."""

    def __init__(self, message: str, job_status: int | None) -> None:
        super().__init__(message)
        self.job_status = job_status


def reason_of(error: OSError) -> str:
    """Return the system's text for `error`, with a remedy if a limit of the process is the cause."""
    return (error.strerror or str(error)) + _REMEDIES.get(error.errno or 0, "")


@contextmanager
def in_one_line(what: str, advice: str) -> Iterator[None]:
    """Turn any exception of the `with` block into an IotwinError "`what`: reason; `advice`".

    All exceptions are caught, because the exceptions of an object store's client have no common base class.
    """
    try:
        yield
    except IotwinError:
        raise
    except Exception as error:
        raise IotwinError(f"{what}: {' '.join(str(error).split()) or type(error).__name__}; {advice}") from None


def nearest(name: str, known: list[str]) -> str:
    """Return `` (did you mean 'x'?)`` with the name in `known` that is most similar to `name`; '' if no name is similar."""
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""
