"""The one error type that every command turns into a one-line message and an exit status."""


class IotwinError(Exception):
    """Something failed that the user should know of: says what, where and what to do. Exit status 1."""

    exit_status = 1


class UsageError(IotwinError):
    """The request itself is wrong (unknown name, bad value, missing path). Exit status 2."""

    exit_status = 2


def nearest(name: str, known: list[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the known name closest to `name`, or an empty string."""
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""
