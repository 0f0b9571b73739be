"""Convert the times of the trace of an emulated run with a virtual clock to virtual time.

The emulator logs when its clock jumped, and how far. A trace is recorded in real time. This module adds to each time of the trace
all jumps before it, so that the twin's calls lie as far apart as the job's. The jumps are kept in the table `clock`, from which
the real times follow.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from iotwin.common.units import counted, format_duration
from iotwin.trace_store import schema
from iotwin.trace_store.columns import column, integers
from iotwin.trace_store.manifest import ClockPair, Manifest
from iotwin.trace_store.writer import write_events, write_table

Times = NDArray[np.int64]

_BEGINS = ("start_ns", "issue_ns", "queued_ns")
_SHARES = ("user", "system", "iowait", "job_cpus", "busy", "some", "full")  # columns of samples: shares of their interval


class Jumps:
    """The jumps of a virtual clock. `rows`: (real CLOCK_MONOTONIC in ns, ns by which the clock jumps then), shape (n, 2)."""

    def __init__(self, rows: Times) -> None:
        ordered = rows[np.argsort(rows[:, 0], kind="stable")]
        self.real_ns, self._skipped_ns = ordered[:, 0], np.concatenate([[0], np.cumsum(ordered[:, 1])])

    @property
    def skipped_ns(self) -> Times:
        """The time skipped by each jump and those before it."""
        return self._skipped_ns[1:]

    def before_begin(self, real_ns: Times) -> Times:
        """Return the ns skipped before an event that begins at `real_ns`. If a jump has the same time, it is before the event."""
        return self._skipped_ns[np.searchsorted(self.real_ns, real_ns, side="right")]

    def before_end(self, real_ns: Times) -> Times:
        """Return the ns skipped before an event that ends at `real_ns`. If a jump has the same time, it is after the event."""
        return self._skipped_ns[np.searchsorted(self.real_ns, real_ns, side="left")]


def move_to_virtual(directory: Path, manifest: Manifest, rows: Times) -> None:
    """Rewrite the tables in `directory` and the times in `manifest` in virtual time, and write the table `clock`.

    `rows`: at least one jump, as in Jumps. Shares of the machine's time in samples become shares of virtual time.
    """
    jumps = Jumps(rows)
    write_events(directory / "events.parquet", _moved_events(directory / "events.parquet", jumps))
    for name, expected in {**schema.TABLES, **{f"samples/{kind}": each for kind, each in schema.SAMPLES.items()}}.items():
        if (directory / f"{name}.parquet").exists():
            table = pq.read_table(directory / f"{name}.parquet", schema=expected, partitioning=None)
            write_table(directory, f"{name}.parquet", expected, moved(table, jumps))
    columns = {"real_ns": column(jumps.real_ns, pa.int64()), "skipped_ns": column(jumps.skipped_ns, pa.int64())}
    write_table(directory, "clock.parquet", schema.CLOCK, pa.table(columns))
    manifest.clock = [_moved_reading(pair, jumps) for pair in manifest.clock]
    manifest.start_ns += int(jumps.before_begin(np.array([manifest.start_ns]))[0])
    manifest.end_ns += int(jumps.before_end(np.array([manifest.end_ns]))[0])
    skipped = format_duration(jumps.skipped_ns[-1])
    manifest.notes.append(f"times are those of the twin's virtual clock, which skipped {skipped} in {counted(len(rows), 'jump')}")


def moved(table: pa.Table, jumps: Jumps) -> pa.Table:
    """Return `table`, one of a trace, with virtual times."""
    real = {name: table[name] for name in table.column_names if name.endswith("_ns")}
    for name, values in real.items():
        if name not in ("duration_ns", "interval_ns"):
            skipped_ns = (jumps.before_begin if name in _BEGINS else jumps.before_end)(integers(values))
            table = _with(table, name, pc.add(values, column(skipped_ns, pa.int64())))
    begin = next((name for name in ("start_ns", "issue_ns") if name in real), None)
    if "duration_ns" in real and begin is not None:
        begun_ns = integers(real[begin])
        within_ns = jumps.before_end(begun_ns + integers(real["duration_ns"])) - jumps.before_begin(begun_ns)
        table = _with(table, "duration_ns", pc.add(real["duration_ns"], column(np.maximum(within_ns, 0), pa.int64())))
    if "interval_ns" in real:
        ended_ns, interval_ns = integers(real["time_ns"]), integers(real["interval_ns"])
        within_ns = jumps.before_end(ended_ns) - jumps.before_begin(ended_ns - interval_ns)
        table = _with(table, "interval_ns", pc.add(real["interval_ns"], column(within_ns, pa.int64())))
        table = _shares_of_longer(table, interval_ns / np.maximum(interval_ns + within_ns, 1))
    return table


def _with(table: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.column_names.index(name), table.schema.field(name), values)


def _shares_of_longer(table: pa.Table, grown: NDArray[np.float64]) -> pa.Table:
    """Return samples whose interval grew by 1 / `grown`. Nothing happened in the time that was added."""
    factor = column(grown.astype(np.float32), pa.float32())
    for name in set(_SHARES) & set(table.column_names):
        table = _with(table, name, pc.multiply(table[name], factor))
    if "idle" in table.column_names:
        one = pa.scalar(1.0, pa.float32())
        table = _with(table, "idle", pc.subtract(one, pc.multiply(pc.subtract(one, table["idle"]), factor)))
    return table


def _moved_events(directory: Path, jumps: Jumps) -> Iterator[pa.Table]:
    for part in sorted(directory.glob("*.parquet")):
        with pq.ParquetFile(part) as file:
            for batch in file.iter_batches():
                yield moved(pa.Table.from_batches([batch]).cast(schema.EVENTS), jumps)


def _moved_reading(pair: ClockPair, jumps: Jumps) -> ClockPair:
    skipped_ns = int(jumps.before_end(np.array([pair.monotonic_ns]))[0])
    moved = {"monotonic_ns": pair.monotonic_ns + skipped_ns, "realtime_ns": pair.realtime_ns + skipped_ns}
    return msgspec.structs.replace(pair, **moved)
