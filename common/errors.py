"""The one error type that every command turns into a one-line message and an exit status."""

from collections.abc import Iterator
from contextlib import contextmanager


class IotwinError(Exception):
    """Something failed that the user should know of: says what, where and what to do. Exit status 1."""

    exit_status = 1

    def __init__(self, message: str) -> None:
        super().__init__(message.replace("\n", " "))  # in a name or value that somebody else has chosen


class UsageError(IotwinError):
    """The request itself is wrong (unknown name, bad value, missing path). Exit status 2."""

    exit_status = 2


class UnfinishedTraceError(IotwinError):
    """The traced job has ended, its trace is not whole; `job_status` is -signal for a job killed by one, None if it has none."""

    def __init__(self, message: str, job_status: int | None) -> None:
        super().__init__(message)
        self.job_status = job_status


@contextmanager
def in_one_line(what: str, advice: str) -> Iterator[None]:
    """Turn whatever the block raises into an IotwinError: a store's client has exceptions of its own, without a common base."""
    try:
        yield
    except IotwinError:
        raise
    except Exception as error:
        raise IotwinError(f"{what}: {' '.join(str(error).split()) or type(error).__name__}; {advice}") from None


def nearest(name: str, known: list[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the known name closest to `name`, or an empty string."""
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""
