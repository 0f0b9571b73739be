"""Read recorded times from a text file with one number of seconds on each line."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError
from iotwin.common.untrusted_files import read_foreign_text

_LONGEST_S = 1e9


def read_recording(file: str) -> NDArray[np.float64]:
    """Return the recorded seconds in `file`, one per line. Empty lines and comments after a # are ignored.

    Raises IotwinError if the file cannot be read, has no times, or a time is not from 0 to 1e9 s. The error names file and line.
    """
    try:
        text = read_foreign_text(Path(file))
    except OSError as error:
        raise IotwinError(f"{file}: the recorded times cannot be read: {error.strerror}") from None
    values = []
    for number, line in enumerate(text.splitlines(), 1):
        if content := line.partition("#")[0].strip():
            try:
                values.append(float(content))
            except ValueError:
                raise IotwinError(f"{file}:{number}: {content[:40]!r} is no number of seconds") from None
            if not 0 <= values[-1] <= _LONGEST_S:
                raise IotwinError(f"{file}:{number}: {content[:40]} s is no time that anything takes")
    if not values:
        raise IotwinError(f"{file}: holds no recorded times; write one number of seconds a line")
    return np.array(values)
