"""The demand of training, against a naive count call by call."""

import math

import numpy as np
import pytest

from iotwin.trace_store.figures.demand import demand_of
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.schema import READ_OPS
from tests.synthetic import Job, write_job


def _naive(trace: Trace, begin_ns: int, end_ns: int):
    """Return bytes and calls in bins of 0.1 s, by one pass over all calls in Python."""
    files, bins = trace.files(), -(-(end_ns - begin_ns) // 100_000_000)
    data = set(files.loc[files["kind"] == "dataset", "file_id"])
    size_bytes, calls = np.zeros(bins), np.zeros(bins)
    for call in trace.events_frame().itertuples():
        if call.op not in READ_OPS or call.file_id not in data or call.result <= 0:
            continue
        start, end = call.start_ns - begin_ns, call.start_ns - begin_ns + max(call.duration_ns, 1)
        if 0 <= start < end_ns - begin_ns:
            calls[start // 100_000_000] += 1
        for index in range(bins):
            low, high = max(start, index * 100_000_000), min(end, (index + 1) * 100_000_000, end_ns - begin_ns)
            size_bytes[index] += call.result * max(0, high - low) / (end - start)
    return size_bytes, calls


@pytest.mark.parametrize("read_ns", [1_000_000, 150_000_000])
def test_rates_are_those_of_training_alone(tmp_path, read_ns):
    trace = Trace(write_job(tmp_path / "trace", Job(read_ns=read_ns, files=32, compute_ns=90_000_000)))
    epochs = trace.phases().query("phase == 'epoch'")
    begin_ns, end_ns = int(epochs["start_ns"].min()), int(epochs["end_ns"].max())
    size_bytes, calls = _naive(trace, begin_ns, end_ns)
    demand = demand_of(trace)
    seconds = [size_bytes[max(0, index - 9) : index + 1].sum() for index in range(len(size_bytes) + 9)]
    assert demand.phase == "training" and demand.end_s - demand.begin_s == pytest.approx((end_ns - begin_ns) / 1e9)
    assert demand.size_bytes == pytest.approx(size_bytes.sum(), abs=1)
    assert demand.mean_bytes_per_s == pytest.approx(size_bytes.sum() / (end_ns - begin_ns) * 1e9)
    assert demand.peak_1s_bytes_per_s == pytest.approx(max(seconds))
    assert demand.p99_bytes_per_s == pytest.approx(sorted(seconds)[math.ceil(0.99 * len(seconds)) - 1])
    assert demand.requests == calls.sum() and demand.mean_requests_per_s == pytest.approx(calls.sum() / (end_ns - begin_ns) * 1e9)


def test_without_epochs_the_window_is_that_of_the_reads(tmp_path):
    trace = Trace(write_job(tmp_path / "trace", Job(log_phases=False)))
    assert demand_of(trace).phase == "from the first to the last read of data"


def test_a_burst_at_the_begin_of_training_is_in_the_99th_percentile(tmp_path):
    """Loaders fill their buffers at once, and read nothing more for 40 s."""
    trace = Trace(write_job(tmp_path / "trace", Job(epochs=1, files=4, compute_ns=20_000_000_000, evaluation_files=0)))
    demand = demand_of(trace)
    assert demand.end_s - demand.begin_s > 30
    assert demand.p99_bytes_per_s >= demand.mean_bytes_per_s and demand.p99_requests_per_s >= demand.mean_requests_per_s
