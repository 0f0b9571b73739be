"""Traces of runs on a virtual clock: every time moves by the jumps before it, as a sum over all jumps says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.command_lines import own_command
from iotwin.loops.emulation import EmulationOptions, run_workload
from iotwin.trace_store import schema
from iotwin.trace_store.columns import integers, rows_table
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.virtual_times import Jumps, moved
from iotwin.tracesim import compare
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from iotwin.workload_yaml import load
from tests.conftest import ROOT
from tests.synthetic import event_table

_TIME = st.integers(0, 30)
_JUMPS = st.lists(st.tuples(_TIME, st.integers(1, 1000)), min_size=1, max_size=8)


def _skipped(jumps: list[tuple[int, int]], time: int, begins: bool) -> int:
    return sum(length for at, length in jumps if at < time or (begins and at == time))


@given(_JUMPS, st.lists(st.tuples(_TIME, st.integers(0, 9)), min_size=1, max_size=8))
def test_spans_move_by_the_jumps_before_their_ends(jumps: list[tuple[int, int]], spans: list[tuple[int, int]]) -> None:
    rows = [
        {"start_ns": begin, "duration_ns": length, "kind": "kernel", "name": "k", "source": "uprobe"} for begin, length in spans
    ]
    table = moved(rows_table(rows, schema.GPU), Jumps(np.array(jumps, np.int64)))
    begins = [begin + _skipped(jumps, begin, True) for begin, _ in spans]
    ends = [begin + length + _skipped(jumps, begin + length, False) for begin, length in spans]
    assert integers(table["start_ns"]).tolist() == begins
    assert integers(table["duration_ns"]).tolist() == [max(0, end - begin) for begin, end in zip(begins, ends, strict=True)]
    assert table.schema == schema.GPU


@given(_JUMPS, st.integers(10, 30), st.integers(1, 10))
def test_shares_of_samples_become_shares_of_virtual_time(jumps: list[tuple[int, int]], time: int, interval: int) -> None:
    row = {"time_ns": time, "interval_ns": interval, "user": 0.5, "system": 0.25, "iowait": 0.0, "idle": 0.25, "job_cpus": None}
    (found,) = moved(rows_table([row], schema.CPU_SAMPLES), Jumps(np.array(jumps, np.int64))).to_pylist()
    grown = interval + _skipped(jumps, time, False) - _skipped(jumps, time - interval, True)
    assert found["time_ns"] == time + _skipped(jumps, time, False) and found["interval_ns"] == grown
    share = interval / max(grown, 1)
    assert found["user"] == pytest.approx(0.5 * share) and found["idle"] == pytest.approx(1 - 0.75 * share)
    assert found["job_cpus"] is None


def test_unknown_times_stay_unknown() -> None:
    rows = [{"pid": 1, "comm": "a", "role": "rank", "start_ns": None, "exit_ns": 20}]
    (found,) = moved(rows_table(rows, schema.PROCESSES), Jumps(np.array([[10, 100]]))).to_pylist()
    assert found["start_ns"] is None and found["exit_ns"] == 120


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trace]:
    """Traces of one workload on both clocks: two loaders, 3 ms for a sample, 50 ms for each of 20 steps, checkpoints."""
    folder = tmp_path_factory.mktemp("clocks")
    words = {
        "dataset.data_folder": folder / "data", "dataset.num_files_train": 40, "dataset.record_length_bytes": 100_000,
        "reader.batch_size": 4, "reader.read_threads": 2, "reader.preprocess_time": 0.003, "train.epochs": 2,
        "train.computation_time": 0.05, "workflow.evaluation": "false", "workflow.checkpoint": "true",
        "output.folder": folder / "results", "checkpoint.checkpoint_folder": folder / "checkpoints",
    }  # fmt: skip
    overrides = [f"++workload.{key}={value}" for key, value in words.items()]
    yaml = ROOT / "workload_yaml" / "workloads" / "default.yaml"
    run_workload(load(yaml, [*overrides, "++workload.workflow.generate_data=true"]), EmulationOptions(one_of_several=True))
    found = {}
    for clock in ("real", "virtual"):
        command = [*own_command("emulate", "workload=default"), *overrides, f"++workload.twin.clock={clock}"]
        trace_command(command, folder / f"{clock}.trace", TraceOptions(forward_output=False))
        found[clock] = Trace(folder / f"{clock}.trace")
    return found


@pytest.mark.root
def test_a_trace_of_a_virtual_run_has_its_times(traces: dict[str, Trace]) -> None:
    trace = traces["virtual"]
    clock = trace.table("clock")
    assert clock.num_rows > 10 and "virtual clock" in " ".join(trace.manifest.notes)
    skipped_ns = integers(clock["skipped_ns"])
    phases = trace.phases()
    epochs = phases[phases["phase"] == "epoch"]
    computed_ns = 20 * 50_000_000
    assert computed_ns <= (epochs["end_ns"] - epochs["start_ns"]).sum() < trace.manifest.end_ns - trace.manifest.start_ns
    assert 0.5 * computed_ns < skipped_ns[-1] < trace.manifest.end_ns - trace.manifest.start_ns
    # Real times follow from the table: each jump is a gap of virtual time, and no call on a file of data lies across one.
    after_ns = integers(clock["real_ns"]) + skipped_ns
    before_ns = after_ns - np.diff(skipped_ns, prepend=0)
    data = trace.files().set_index("file_id")["path"].str.contains("/data/|/checkpoints/")
    events = trace.events_frame(["start_ns", "duration_ns", "file_id"])
    events = events[events["file_id"].map(data).fillna(False).astype(bool)]
    begin, end = events["start_ns"].to_numpy(), (events["start_ns"] + events["duration_ns"]).to_numpy()
    assert len(events) > 100
    assert (np.searchsorted(before_ns, begin) == np.searchsorted(before_ns, end)).all()
    assert (np.searchsorted(after_ns, begin) == np.searchsorted(after_ns, end)).all()


def _samples_by_process(trace: Trace) -> list[list[str]]:
    """The files of data that each process opened, in its order. Which of two loaders is ahead is left to the machine."""
    data = trace.files().set_index("file_id")["path"]
    opens = trace.events_frame(["start_ns", "pid", "op", "file_id"])
    opens = opens[opens["op"].isin(schema.OPEN_OPS)].sort_values("start_ns")
    paths = opens["file_id"].map(data)
    paths = paths[paths.str.contains("/data/train/.*npz$", na=False)]
    return sorted(paths.groupby(opens["pid"]).agg(list))


@pytest.mark.root
def test_a_virtual_run_compares_with_a_real_one(traces: dict[str, Trace]) -> None:
    scores = compare(traces["real"], traces["virtual"]).to_document()["dimensions"]
    assert min(scores[name] for name in ("volume", "operation_mix", "request_size", "files")) > 0.95
    samples = _samples_by_process(traces["virtual"])
    assert samples == _samples_by_process(traces["real"]) and sum(map(len, samples)) == 2 * 40
    assert traces["real"].table("clock").num_rows == 0


def test_events_stay_in_order() -> None:
    rows = [(at, 1, "read", 1, 1, 0, 3, 0, 8, 8, 0, 0) for at in range(5)]
    table = moved(event_table(rows), Jumps(np.array([[3, 50], [1, 7]])))
    assert integers(table["start_ns"]).tolist() == [0, 8, 9, 60, 61]
