"""Sort calls by start: calls arrive in sorted blocks, called runs, which are merged at the end.

Runs remain in memory up to a limit. Beyond it, they move to an unnamed file, which disappears with the process.
"""

import mmap
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError
from iotwin.common.files import temporary_directory
from iotwin.trace_store.columns import column, labels, numbers

_MOST_HELD_BYTES = 1 << 29
_CHUNK_ROWS = 1 << 18
_CHUNKS_PER_PART = 4
_SAMPLED_EACH = 64
_LABEL = pa.dictionary(pa.int32(), pa.string())

# Calls as importers return them: like schema.EVENTS, but with the path of the file (null if none), and times of any clock.
CALLS = pa.schema([
    ("start_ns", pa.int64()), ("duration_ns", pa.int64()), ("op", _LABEL), ("pid", pa.int32()), ("tid", pa.int32()),
    ("path", _LABEL),
    ("fd", pa.int32()), ("offset", pa.int64()), ("requested", pa.int64()), ("result", pa.int64()),
    ("flags", pa.int32()),
])  # fmt: skip
# The columns of CALLS, with operations and paths as indices into `Runs.ops` and `Runs.paths`, -1 for null.
NUMBERED = pa.schema([(f.name, pa.int32() if f.type == _LABEL else f.type) for f in CALLS])


def calls_table(**columns: Any) -> pa.Table:
    """Return a CALLS table of `columns`. Columns not passed are null, except `tid`, which is the pid, and `fd`, which is -1."""
    rows = len(columns["start_ns"])
    columns = {"tid": columns["pid"], "fd": np.full(rows, -1, np.int32), **columns}
    arrays = [as_type(columns[f.name], f.type) if columns.get(f.name) is not None else pa.nulls(rows, f.type) for f in CALLS]
    return pa.table(arrays, schema=CALLS)


def calls_of(rows: list[tuple[Any, ...]], names: tuple[str, ...]) -> tuple[pa.Table, int]:
    """Return (`rows` as a CALLS table, number of rows left out for impossible values). `names`: the columns of `rows`.

    All other columns are filled as by `calls_table`.
    """
    limits = [_LIMITS.get(str(CALLS.field(name).type)) for name in names]
    found, rows = len(rows), [row for row in rows if _is_possible(row, limits)]
    if not rows:
        return CALLS.empty_table(), found
    columns = {
        name: pa.array(values, pa.string() if CALLS.field(name).type == _LABEL else CALLS.field(name).type)
        for name, values in zip(names, zip(*rows, strict=True), strict=True)
    }
    return calls_table(**columns), found - len(rows)


# The sum of two times or sizes must fit in 64 bits.
_LIMITS = {"int32": (1 << 31) - 1, "int64": 1 << 62}


def _is_possible(row: tuple[Any, ...], limits: list[int | None]) -> bool:
    return all(limit is None or value is None or -limit <= value <= limit for value, limit in zip(row, limits, strict=True))


def same_label(text: str, rows: int) -> pa.DictionaryArray:
    """Return a dictionary column of `rows` rows with `text` in each."""
    return labels(np.zeros(rows, np.int32), [text])


def as_type(values: Any, kind: pa.DataType) -> Any:
    """Return `values`, an array of numpy or Arrow, as an Arrow column of the type `kind`."""
    known = values if isinstance(values, pa.Array | pa.ChunkedArray) else column(values, kind)
    if kind == _LABEL and not pa.types.is_dictionary(known.type):
        known = known.dictionary_encode()
    return known if known.type == kind else known.cast(kind)


class _Numbers:
    """Assigns numbers from 0 to names, in order of appearance. `names[number]` is the name."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._number: dict[str, int] = {}

    def of(self, named: pa.ChunkedArray) -> pa.Array:
        """Return the number of each name in the dictionary column `named`, -1 for null."""
        array = named.unify_dictionaries().combine_chunks()
        known = [self._of_name(name) for name in array.dictionary.to_pylist()]
        codes = numbers(array.indices, -1)
        return column(np.array([*known, -1], np.int32)[codes], pa.int32())

    def _of_name(self, name: str) -> int:
        number = self._number.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number


def sorted_by_start(calls: pa.Table) -> pa.Table:
    """Return `calls` sorted by `start_ns`. Rows with equal times keep their order."""
    start = numbers(calls["start_ns"])
    if (start[1:] >= start[:-1]).all():
        return calls
    return calls.combine_chunks().take(column(np.argsort(start, kind="stable"), pa.int64()))


class Runs:
    """Collects sorted tables of calls, and returns all calls in order of start. `ops` and `paths` hold names by number."""

    def __init__(self) -> None:
        self._ops, self._paths = _Numbers(), _Numbers()
        self.ops, self.paths = self._ops.names, self._paths.names
        self._held: list[pa.RecordBatch] = []
        self._filed: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self.rows = self.impossible = 0

    @classmethod
    def of(cls, calls: pa.Table) -> "Runs":
        """Return Runs that hold the calls of one CALLS table, which need not be sorted."""
        runs = cls()
        runs.add(sorted_by_start(calls))
        return runs

    def add(self, calls: pa.Table) -> None:
        """Add a CALLS table, which must be in order of start. Rows with impossible times or sizes are only counted
        (`impossible`).

        Raises IotwinError if the directory for temporary files is full.
        """
        possible = np.ones(calls.num_rows, np.bool_)
        for name in ("start_ns", "duration_ns", "offset", "requested", "result"):
            values = numbers(calls[name])
            possible &= (values <= _LIMITS["int64"]) & (values >= -_LIMITS["int64"])
        self.impossible += int((~possible).sum())
        calls = calls if possible.all() else calls.filter(pa.array(possible))
        if not calls.num_rows:
            return
        numbered = calls.set_column(2, NUMBERED.field("op"), self._ops.of(calls["op"]))
        numbered = numbered.set_column(5, NUMBERED.field("path"), self._paths.of(calls["path"])).combine_chunks()
        self._held += numbered.to_batches()
        self._held_bytes += numbered.nbytes
        self.rows += numbered.num_rows
        if self._held_bytes > _MOST_HELD_BYTES:
            self._spill()

    def _spill(self) -> None:
        directory = temporary_directory()
        try:
            with tempfile.TemporaryFile(dir=directory) as file:
                with pa.ipc.new_file(file, NUMBERED) as writer:
                    for batch in self._held:
                        writer.write(batch)
                file.flush()
                filed = pa.ipc.open_file(pa.BufferReader(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
        except OSError as error:
            raise IotwinError(
                f"{directory} cannot take the calls to be sorted ({error.strerror or error}); set TMPDIR to a directory with room"
            ) from None
        self._filed += [filed.get_batch(index) for index in range(filed.num_record_batches)]
        self._held, self._held_bytes = [], 0

    def span(self) -> tuple[int, int]:
        """Return the starts of the first and the last call. There must be at least one call."""
        starts = [run.column("start_ns") for run in (*self._filed, *self._held)]
        return min(start[0].as_py() for start in starts), max(start[-1].as_py() for start in starts)

    def drop_before(self, start_ns: int) -> int:
        """Remove the calls that start before `start_ns`; return their number."""
        rows = self.rows
        for runs in (self._filed, self._held):
            runs[:] = [run.slice(np.searchsorted(numbers(run.column("start_ns")), start_ns)) for run in runs]
            runs[:] = [run for run in runs if run.num_rows]
        self.rows = sum(run.num_rows for run in (*self._filed, *self._held))
        return rows - self.rows

    def parts(self) -> list[Iterator[pa.Table]]:
        """Return the calls in order of start, divided into parts that threads may read concurrently.

        Each part yields tables (NUMBERED) of about _CHUNK_ROWS calls.
        """
        runs = [*self._filed, *self._held]
        starts = [numbers(run.column("start_ns")) for run in runs]
        bounds = _bounds(starts, self.rows) if runs else np.zeros(0, np.int64)
        cuts = [np.concatenate(([0], np.searchsorted(start, bounds), [len(start)])).tolist() for start in starts]

        def gathered(gap: int) -> pa.Table:
            """Return the calls of all runs in gap number `gap` between the bounds, sorted."""
            pieces = [
                run.slice(cut[gap], cut[gap + 1] - cut[gap])
                for run, cut in zip(runs, cuts, strict=True)
                if cut[gap + 1] > cut[gap]
            ]
            return sorted_by_start(pa.Table.from_batches(pieces, NUMBERED))

        gaps = range(len(bounds) + 1) if runs else range(0)
        # A gap is empty if its bounds are equal: many calls may start at the same time.
        whole = [gap for gap in gaps if any(cut[gap + 1] > cut[gap] for cut in cuts)]
        return [map(gathered, whole[first : first + _CHUNKS_PER_PART]) for first in range(0, len(whole), _CHUNKS_PER_PART)]


def _bounds(starts: list[NDArray[np.int64]], rows: int) -> NDArray[np.int64]:
    """Return ascending times that divide all calls into chunks of about _CHUNK_ROWS, estimated from a sample of `starts`."""
    chunks = -(-rows // _CHUNK_ROWS)
    if chunks <= 1:
        return np.zeros(0, np.int64)
    sample = np.sort(np.concatenate([start[::_SAMPLED_EACH] for start in starts]))
    return np.unique(sample[np.arange(1, chunks) * len(sample) // chunks])
