"""The rates at which a job read its data during training: mean, 99th percentile and peak over one second."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from iotwin.trace_store.fold import EventDecoder, Events, Ints
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.schema import FILE_KINDS, READ_OPS

_BIN_NS = 100_000_000
_BINS_PER_S = 10
_TRAINING, _READING = "training", "from the first to the last read of data"


@dataclass(frozen=True)
class Demand:
    """The reads of the data set within a window of a trace. Times are seconds since the start of the trace.

    The 99th percentile and the peak are those of all intervals of one second that overlap the window, at steps of 0.1 s.
    """

    phase: str
    begin_s: float
    end_s: float
    size_bytes: int
    requests: int
    mean_bytes_per_s: float
    p99_bytes_per_s: float
    peak_1s_bytes_per_s: float
    mean_requests_per_s: float
    p99_requests_per_s: float
    peak_1s_requests_per_s: float

    def to_document(self) -> dict[str, Any]:
        """Return the figures by name, with the window as a separate object."""
        figures = {name: value for name, value in vars(self).items() if name not in ("phase", "begin_s", "end_s")}
        return {"window": {"phase": self.phase, "begin_s": self.begin_s, "end_s": self.end_s}, **figures}


def demand_of(trace: Trace) -> Demand | None:
    """Return the traced job's reads of its data set during training. None if it read nothing during training.

    Training begins with the first epoch and ends with the last. If the trace has no epochs, the window is that of the reads.
    """
    window = _training(trace) or _reading(trace)
    if window is None:
        return None
    begin_ns, end_ns, phase = window
    bins = max(1, -(-(end_ns - begin_ns) // _BIN_NS))
    size_bytes, requests = np.zeros(bins), np.zeros(bins)
    for start_ns, duration_ns, result in _reads_of_data(trace):
        size_bytes += _spread(start_ns - begin_ns, duration_ns, result.astype(float), end_ns - begin_ns, bins)
        inside = start_ns[(start_ns >= begin_ns) & (start_ns < end_ns)]
        requests += np.bincount((inside - begin_ns) // _BIN_NS, minlength=bins)
    if not requests.sum():
        return None
    span_s, zero_ns = (end_ns - begin_ns) / 1e9, trace.manifest.start_ns or 0
    bytes_per_s, requests_per_s = _seconds(size_bytes, span_s), _seconds(requests, span_s)
    return Demand(
        phase, (begin_ns - zero_ns) / 1e9, (end_ns - zero_ns) / 1e9, round(size_bytes.sum()), int(requests.sum()),
        float(size_bytes.sum() / span_s), _p99(bytes_per_s), float(bytes_per_s.max()),
        float(requests.sum() / span_s), _p99(requests_per_s), float(requests_per_s.max()),
    )  # fmt: skip


def _training(trace: Trace) -> tuple[int, int, str] | None:
    phases = trace.phases()
    epochs = phases[phases["phase"] == "epoch"]
    if epochs.empty or epochs["end_ns"].max() <= epochs["start_ns"].min():
        return None
    return int(epochs["start_ns"].min()), int(epochs["end_ns"].max()), _TRAINING


def _reads_of_data(trace: Trace) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield start, duration and bytes of those reads of data-set files that returned bytes."""
    decoder, is_read = EventDecoder.of(trace), pc.field("op").cast("string").isin(list(READ_OPS)) & (pc.field("result") > 0)
    for batch in trace.events(["start_ns", "duration_ns", "op", "result", "file_id"], is_read):
        events = Events(batch, decoder)
        chosen = np.flatnonzero(events.kind == FILE_KINDS.index("dataset"))
        yield events.column("start_ns")[chosen], events.column("duration_ns")[chosen], events.result[chosen]


def _reading(trace: Trace) -> tuple[int, int, str] | None:
    begin_ns = end_ns = None
    for start, duration, _ in _reads_of_data(trace):
        if len(start):
            begin_ns = min(begin_ns or int(start.min()), int(start.min()))
            end_ns = max(end_ns or 0, int((start + duration).max()))
    return None if begin_ns is None or end_ns is None else (begin_ns, max(end_ns, begin_ns + 1), _READING)


def _spread(
    start_ns: NDArray[np.int64], duration_ns: NDArray[np.int64], amount: NDArray[np.float64], span_ns: int, bins: int
) -> NDArray[np.float64]:
    """Return the amount in each bin of 0.1 s, shape (bins,). Each call's amount is spread evenly over its duration.

    Times are relative to the begin of the window, which is `span_ns` long. The amount outside of the window is left out.
    """
    length = np.maximum(duration_ns, 1)
    first, last = np.clip(start_ns, 0, span_ns), np.clip(start_ns + length, 0, span_ns)
    inside = last > first
    first, last, rate = first[inside], last[inside], amount[inside] / length[inside]
    touched = (last - 1) // _BIN_NS - first // _BIN_NS + 1
    index = np.repeat(np.cumsum(touched) - touched, touched)
    bin_of = np.repeat(first // _BIN_NS, touched) + np.arange(touched.sum()) - index
    covered = np.minimum(np.repeat(last, touched), (bin_of + 1) * _BIN_NS) - np.maximum(
        np.repeat(first, touched), bin_of * _BIN_NS
    )
    return np.bincount(bin_of, covered * np.repeat(rate, touched), bins).astype(float)


def _seconds(bins: NDArray[np.float64], span_s: float) -> NDArray[np.float64]:
    """Return the rates per second of all intervals of one second that overlap the window; of the window if it is shorter.

    Intervals may begin before the window or end after it, so that each moment of the window is in equally many intervals.
    Otherwise, the reads at the window's begin, when loaders fill their buffers, would be in one interval only, and those in its
    middle in ten.
    """
    if len(bins) <= _BINS_PER_S:
        return np.array([bins.sum() / span_s])
    return np.convolve(bins, np.ones(_BINS_PER_S))


def _p99(rates: NDArray[np.float64]) -> float:
    """Return the 99th percentile: the least of `rates` that at least 99 % of them do not exceed."""
    return float(np.percentile(rates, 99, method="inverted_cdf"))
