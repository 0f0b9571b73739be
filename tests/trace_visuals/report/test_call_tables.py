"""Tables, heat map, survey and picks of whole made-up traces against pandas."""

import numpy as np
import pyarrow.compute as pc
import pytest

from iotwin.trace_store.parallel_fold import in_this_process
from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.call_columns import READ, WRITE, read_calls
from iotwin.trace_visuals.report.analysis import Detail, analyse
from iotwin.trace_visuals.report.call_tables import ReportedFiles
from iotwin.trace_visuals.report.heatmap import HeatMap
from iotwin.trace_visuals.report.slowest_calls import SlowestCalls
from tests.synthetic import Job, write_job
from tests.trace_visuals.common import make_calls


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return Trace(write_job(tmp_path_factory.mktemp("tables") / "job.trace", Job(shuffle=True, loaders=3, epochs=2)))


@pytest.fixture(scope="module")
def analysis(trace):
    return analyse([trace], ["job"], [trace.manifest.start_ns], Detail(512, 10**6), in_this_process, lambda amount: None)[0]


@pytest.fixture(scope="module")
def frame(trace):
    return trace.events_frame().assign(op=lambda events: events["op"].astype(str))


def test_operations_match_the_events(analysis, frame):
    table = analysis.operations.frame(analysis.ops).set_index("op")
    assert table["calls"].to_dict() == frame.groupby("op").size().to_dict()
    assert table["time_ns"].to_dict() == frame.groupby("op")["duration_ns"].sum().to_dict()
    assert table.loc["read", "size_bytes"] == frame.loc[frame["op"] == "read", "result"].sum()
    assert table.loc["openat", "size_bytes"] == 0
    exact = frame.loc[frame["op"] == "read", "duration_ns"].quantile(0.99, interpolation="lower")
    assert table.loc["read", "p99_ns"] == pytest.approx(exact, rel=0.03)


def test_files_match_the_events(analysis, frame):
    table = analysis.files.set_index("file_id")
    reads = frame[frame["op"] == "read"].groupby("file_id")["result"].agg(["size", "sum"])
    assert table.loc[reads.index, "reads"].tolist() == reads["size"].tolist()
    assert table.loc[reads.index, "read_bytes"].tolist() == reads["sum"].tolist()
    written = frame[frame["op"] == "write"].groupby("file_id")["result"].sum()
    assert analysis.checkpoints["written_bytes"].tolist() == written.tolist()
    assert table["time_ns"].sum() == frame["duration_ns"].sum()


def test_processes_match_the_events(analysis, frame):
    table = analysis.processes.set_index("pid")
    assert table["calls"].to_dict() == frame.groupby("pid").size().to_dict()
    assert table["storage_ns"].to_dict() == frame.groupby("pid")["duration_ns"].sum().to_dict()


def test_lanes_hold_every_byte(analysis, frame):
    for place, op in ((0, "read"), (1, "write")):
        assert analysis.lanes.size_bytes[place].sum() == frame.loc[frame["op"] == op, "result"].sum()
        assert analysis.lanes.calls[place].sum() == (frame["op"] == op).sum()
    by_process = [i for i, name in enumerate(analysis.lane_names) if name.section == "process"]
    assert analysis.lanes.calls[by_process].sum() == len(frame)


def test_every_call_is_kept_or_none(trace, analysis):
    calls, lane = analysis.every_call
    assert len(calls) == (analysis.lanes.calls[: len(analysis.lane_names)][[0, 1, 2, 3]]).sum() == len(lane)
    assert analyse([trace], ["job"], [0], Detail(64, 10), in_this_process, lambda amount: None)[0].every_call is None


def test_slowest_are_the_slowest(analysis, frame):
    expected = frame["duration_ns"].nlargest(50).tolist()
    assert analysis.slowest["duration_ns"].tolist() == expected
    assert set(analysis.slowest["op"]) <= set(frame["op"])


def test_slowest_over_many_batches(trace):
    rng = np.random.default_rng(3)
    duration = rng.integers(0, 300, 5000)
    slowest = SlowestCalls(20)
    for part in np.array_split(np.arange(5000), 37):
        slowest.add(make_calls(part, duration[part]))
    found = slowest.frame(["read"], trace)
    earliest = sorted(range(5000), key=lambda at: (-duration[at], at))[:20]  # of equally long calls, the earlier ones
    assert found["start_ns"].tolist() == earliest and found["duration_ns"].tolist() == duration[earliest].tolist()


def test_heat_map_holds_every_byte_at_its_address(analysis, frame):
    assert analysis.reads_heat.size_bytes.sum() == pytest.approx(frame.loc[frame["op"] == "read", "result"].sum())
    in_order, extent_bytes = np.array([1, 0]), np.array([800, 800, 500])
    heat = HeatMap(in_order, extent_bytes, READ, 0, 1024)
    heat.add(make_calls([0, 512], [1, 1], size=[100, 10], file_id=[0, 1], offset=[0, 790]))
    heat.add(make_calls([600], [1], size=[100], file_id=[2], offset=[0]))
    result = heat.result()
    assert result.file_ids.tolist() == [1, 0] and result.bases.tolist() == [0, 800]
    assert result.size_bytes[0, 80:90].tolist() == [10] * 10 and result.size_bytes[512, 79] == 10
    assert result.size_bytes.sum() == 110
    assert HeatMap(in_order, extent_bytes, WRITE, 0, 1024).result() is None


@pytest.mark.parametrize("apart", [False, True])
def test_read_order_across_batches(apart):
    """In one table batch after batch, or in a table each that are put together."""
    table = ReportedFiles(2)
    # File 0 goes forward over two batches, jumps once and starts again; file 1 jumps at once.
    table.add(make_calls([0, 1, 2], [0] * 3, size=10, file_id=[0, 1, 0], offset=[0, 50, 10]))
    later = ReportedFiles(2) if apart else table
    later.add(make_calls([3, 4, 5], [0] * 3, size=10, file_id=[0, 0, 0], offset=[20, 70, 0]))
    if apart:
        table.later(later)
    frame = table.frame(np.zeros(2, np.int8), np.array([0, 0])).set_index("file_id")
    assert frame.loc[0, "sequential_reads"] == 4 and frame.loc[0, "reads"] == 5 and frame.loc[1, "sequential_reads"] == 0


def test_calls_reader_tells_storage_and_failures(trace):
    calls = next(read_calls(trace, [], pc.scalar(True)))
    assert calls.storage.all() and (calls.size_bytes[calls.group == READ] > 0).all()
    assert (calls.end_ns >= calls.start_ns).all() and (np.diff(calls.start_ns) >= 0).all()
