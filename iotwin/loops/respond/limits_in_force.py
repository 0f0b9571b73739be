"""Decide whether a change of storage was in force during a run, by what the run read and what the disks delivered."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow.compute as pc

from iotwin.common.errors import IotwinError
from iotwin.common.units import counted, format_duration, format_size
from iotwin.trace_store.figures.distinct_bytes import distinct_bytes
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.schema import READ_OPS
from iotwin.tracing_tools.targets.storage_limits import DeviceReads, Limits

_LEAST_COLD = 0.9  # least share of a cold run's bytes that comes from the disk
# A cap is in force if reads stay below _MORE times its rate, plus the bytes that it allows in _BURST_S seconds. The kernel counts
# in slices of time.
_MORE, _BURST_S = 1.1, 0.5


@dataclass(frozen=True)
class DataSetReading:
    """What a run read of its data set: seconds from the first read to the end of the last, and number of different bytes."""

    span_s: float
    size_bytes: int


def reading_of(trace: Trace) -> DataSetReading:
    """Return what the traced run read of its data set. Raises IotwinError if it read nothing."""
    files = trace.files()
    data = files.loc[files["kind"] == "dataset", "file_id"].to_numpy()
    of_data = pc.field("op").cast("string").isin(list(READ_OPS)) & pc.field("file_id").isin(data.tolist())
    reads = trace.events_frame(["start_ns", "duration_ns", "file_id", "offset", "result"], of_data)
    if reads.empty:
        raise IotwinError(f"the run reads no data set: see iotwin stats {trace.path} --by file")
    span_ns = (reads["start_ns"] + reads["duration_ns"]).max() - reads["start_ns"].min()
    return DataSetReading(float(span_ns) / 1e9, distinct_bytes(reads))


def not_in_force(
    limits: Limits, reading: DataSetReading, run_s: float, disks: DeviceReads | None, memory_bytes: int
) -> Iterator[str]:
    """Yield a sentence for each of the `limits` of a run with cold data that was not in force.

    `disks`: what the run's control group read from the disks, None if unknown. `memory_bytes`: most memory that its tasks used.
    """
    seconds, size = run_s * _MORE + _BURST_S, format_size(reading.size_bytes)
    if disks is not None and disks.size_bytes < _LEAST_COLD * reading.size_bytes:
        yield (
            f"its reads were not cold: the disks gave it {format_size(disks.size_bytes)} of the {size} that it read; "
            "the rest was cached, lay on other disks or was read outside of its control group"
        )
    cap = limits.read_bytes_per_s
    if cap and (reading.size_bytes > cap * (reading.span_s * _MORE + _BURST_S) or (disks and disks.size_bytes > cap * seconds)):
        took = format_duration(reading.span_s * 1e9)
        yield f"its reads were not capped: it read {size} in {took}, where {format_size(cap)} a second were allowed"
    cap = limits.read_requests_per_s
    if cap and disks is not None and disks.requests > cap * seconds:
        took = f"{counted(disks.requests, 'request')} in {format_duration(run_s * 1e9)}"
        yield f"its requests were not capped: the disks served {took}, where {cap} a second were allowed"
    if limits.memory_bytes and not memory_bytes:
        yield "its page cache was not limited: no task of it was found in the control group that limits memory"
