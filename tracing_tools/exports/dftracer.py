"""Export of events as DFTracer's .pfw: Chrome's complete events, one per line after a bracket; times are microseconds.

Format: https://dftracer.readthedocs.io (LLNL); the names of its AI categories are those that DLIO 3 logs.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from iotwin.common.files import open_whole

_NANOSECONDS = 1000  # in a microsecond
Ints = NDArray[np.int64]


class _Events(Protocol):
    """Events of one kind, each column of shape (events,); times are UNIX nanoseconds; `step` is None outside of steps."""

    @property
    def category(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def start_ns(self) -> Ints: ...
    @property
    def duration_ns(self) -> Ints: ...
    @property
    def epoch(self) -> Ints: ...
    @property
    def step(self) -> Ints | None: ...
    @property
    def thread(self) -> int: ...


def write_pfw(path: Path, events: Iterable[_Events], rank: int, hostname: str) -> int:
    """Write the events of one rank as a whole file and return their number."""
    written = 0
    with open_whole(path) as out:
        out.write(b"[\n")
        for group in events:
            lines = _lines(group, rank, hostname, written)
            out.write("".join(lines.to_pylist()).encode())
            written += len(lines)
        out.write(b"]\n")
    return written


def _lines(group: _Events, rank: int, hostname: str, first: int) -> pa.Array:
    def text(column: Ints) -> pa.Array:
        return pa.array(column).cast(pa.string())

    steps = [] if group.step is None else [',"step":', text(group.step)]
    return pc.binary_join_element_wise(
        '{"id":', text(np.arange(first, first + len(group.start_ns))), f',"name":{json.dumps(group.name)}',
        f',"cat":{json.dumps(group.category)},"pid":{rank},"tid":{group.thread},"ts":', text(group.start_ns // _NANOSECONDS),
        ',"dur":', text(group.duration_ns // _NANOSECONDS), f',"ph":"X","args":{{"hostname":{json.dumps(hostname)},"epoch":',
        text(group.epoch), *steps, "}}\n", "",
    )  # fmt: skip
