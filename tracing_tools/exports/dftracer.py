"""Events as DFTracer writes them (.pfw): Chrome's complete events, one a line after a line with a bracket, times in microseconds.

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

from common.files import open_whole

_NANOSECONDS = 1000  # in a microsecond
Ints = NDArray[np.int64]


class Events(Protocol):
    """Events of one kind, each column of shape (events,); times are UNIX nanoseconds."""

    @property
    def category(self) -> str:
        """DFTracer's `cat`."""

    @property
    def name(self) -> str:
        """DFTracer's `name`."""

    @property
    def start_ns(self) -> Ints:
        """When each began."""

    @property
    def duration_ns(self) -> Ints:
        """How long each took."""

    @property
    def epoch(self) -> Ints:
        """The epoch of each."""

    @property
    def step(self) -> Ints | None:
        """The step of each; None where they are in no step."""

    @property
    def thread(self) -> int:
        """The thread that all are drawn on."""


def write_pfw(path: Path, events: Iterable[Events], rank: int, hostname: str) -> int:
    """Write the events of one rank, whole or not at all, and return how many they are."""
    written = 0
    with open_whole(path) as out:
        out.write(b"[\n")
        for group in events:
            lines = _lines(group, rank, hostname, written)
            out.write("".join(lines.to_pylist()).encode())
            written += len(lines)
        out.write(b"]\n")
    return written


def _lines(group: Events, rank: int, hostname: str, first: int) -> pa.Array:
    def text(column: Ints) -> pa.Array:
        return pa.array(column).cast(pa.string())

    steps = [] if group.step is None else [',"step":', text(group.step)]
    return pc.binary_join_element_wise(
        '{"id":', text(np.arange(first, first + len(group.start_ns))), f',"name":{json.dumps(group.name)}',
        f',"cat":{json.dumps(group.category)},"pid":{rank},"tid":{group.thread},"ts":', text(group.start_ns // _NANOSECONDS),
        ',"dur":', text(group.duration_ns // _NANOSECONDS), f',"ph":"X","args":{{"hostname":{json.dumps(hostname)},"epoch":',
        text(group.epoch), *steps, "}}\n", "",
    )  # fmt: skip
