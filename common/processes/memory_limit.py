"""How much memory a command may use: the limit that its user sets, otherwise half of the free memory."""

from functools import cache
from pathlib import Path

from iotwin.common.errors import UsageError
from iotwin.common.units import parse_size

_LEAST_BYTES = 128 << 20
_PROCESS_BYTES = 140 << 20  # memory of a worker process before it reads: Python with numpy, Arrow and pandas
_WORK_BYTES = 96 << 20  # least memory with which a worker reads in batches of full size
_ROW_BYTES = 1 << 10  # memory for each row of a batch: all columns and their intermediate results
_LEAST_ROWS, _MOST_ROWS = 1 << 12, 1 << 17

_limit_bytes: int | None = None


def free_bytes() -> int:
    """Return the bytes of memory that processes may still take without swapping."""
    (available,) = (line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:"))
    return int(available.split()[1]) * 1024


@cache
def _half_of_free() -> int:
    return free_bytes() // 2


def limit_memory(size: str | int | None) -> None:
    """Limit the memory of this process and its workers to `size`, in addition to the 200 MiB of an interpreter.

    `size`: number of bytes, or text such as '1GiB'; None: the default. Raises UsageError if the text is no size or too small a
    size.
    """
    global _limit_bytes
    _limit_bytes = parse_size(size) if isinstance(size, str) else size
    if isinstance(size, str) and _limit_bytes is not None and _limit_bytes < _LEAST_BYTES:
        raise UsageError(f"--memory {size} is too small; give at least {_LEAST_BYTES >> 20}MiB")


def memory_limit() -> int:
    """Return the last limit of `limit_memory` in bytes; by default, half of the memory that was free at the first call."""
    return _half_of_free() if _limit_bytes is None else _limit_bytes


def workers_within_limit(most: int, held_bytes: int = 0) -> tuple[int, int]:
    """Return (number of worker processes that the limit permits, from 1 to `most`; bytes of the limit that each may use).

    `held_bytes`: memory of each worker in addition to its batches.
    """
    number = max(1, min(most, memory_limit() // (_PROCESS_BYTES + _WORK_BYTES + held_bytes)))
    return number, max(memory_limit() - number * _PROCESS_BYTES, 0) // (number + 1)


def rows_of_batch() -> int:
    """Return how many rows of a table to read at a time, so that they use at most an eighth of the limit."""
    return min(max(memory_limit() // 8 // _ROW_BYTES, _LEAST_ROWS), _MOST_ROWS)
