"""The trace store: what is written is read back, filters reach Parquet, damaged and foreign files are refused in one line."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import compute as pc

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.units import format_size, parse_duration, parse_size
from iotwin.trace_store import schema
from iotwin.trace_store.manifest import Host, Manifest, Target
from iotwin.trace_store.raw.finish import finish_trace, recover_trace
from iotwin.trace_store.raw.record_files import Recording
from iotwin.trace_store.raw.records import EVENT, NAME_OPENED, NameRecord, pack_call, pack_name
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.syscalls import CALLS
from tests.synthetic import Job, write_job


@pytest.fixture
def trace_path(tmp_path):
    return write_job(tmp_path / "job.trace")


def manifest() -> Manifest:
    return Manifest("recording", "test", Host("h", "k", 1, 1, "x86_64"), Target(["x"]))


def raw_events(count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    events = np.zeros(count, EVENT)
    events["header"] = EVENT.itemsize - 8
    events["start_ns"] = 10**9 + rng.permutation(count) * 1000
    events["duration_ns"] = rng.integers(1, 10**7, count)
    events["result"] = rng.integers(-20, 1 << 20, count)
    events["offset"] = rng.integers(-1, 1 << 40, count)
    events["requested"] = rng.integers(1, 1 << 20, count)
    events["inode"], events["device"], events["generation"] = rng.integers(1, 9, count), 8 << 20 | 1, rng.integers(0, 2, count)
    events["pid"] = events["tid"] = rng.integers(1, 5, count)
    events["fd"] = 3
    events["call_flags_cpu"] = [pack_call(CALLS["read"][0], 8, cpu) for cpu in rng.integers(0, 300, count)]
    return events


def record(path, events: np.ndarray, names: bytes = b"") -> Manifest:
    made = manifest()
    with Recording(path, made) as recording:
        recording.append_clock()
        recording.append_names(names)
        half = len(events) // 2
        recording.append_events(events[:half])
        recording.append_events(events[half:])
        recording.append_journal("ledger", {"seen": len(events), "lost": {}})
    return made


@settings(max_examples=20)
@given(count=st.integers(0, 3000), seed=st.integers(0, 100))
def test_records_come_back_sorted_and_whole(tmp_path, count, seed):
    path = tmp_path / f"{count}-{seed}"
    shutil.rmtree(path, ignore_errors=True)
    events = raw_events(count, seed)
    finish_trace(path, record(path, events))
    frame = Trace(path).events_frame()
    expected = events[np.argsort(events["start_ns"], kind="stable")]
    for column in ("start_ns", "duration_ns", "result", "pid", "tid", "fd"):
        assert (frame[column].to_numpy() == expected[column]).all(), column
    assert (frame["offset"].fillna(-1).to_numpy() == expected["offset"]).all()
    assert (frame["cpu"].to_numpy() == expected["call_flags_cpu"] >> 18).all()
    files = Trace(path).files()
    identity = set(zip(expected["inode"].tolist(), expected["generation"].tolist(), strict=True))
    assert len(files) == len(identity)
    back = files.loc[frame["file_id"].to_numpy(np.int64)] if count else files
    assert (back["inode"].to_numpy() == expected["inode"]).all()
    assert not (path / "raw").exists()


def test_a_torn_recording_is_recovered_to_the_last_whole_record(tmp_path):
    path = tmp_path / "t"
    events = raw_events(1000)
    record(path, events)
    raw = path / "raw" / "events.bin"
    raw.write_bytes(raw.read_bytes()[:-33])  # the last write was cut off
    journal = path / "raw" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"kind": "cpu", "time')
    with pytest.raises(IotwinError, match="iotwin recover"):
        Trace(path)
    recovered = recover_trace(path)
    assert (recovered.status, recovered.events, recovered.lost) == ("recovered", 999, {"recorder": 1})
    assert len(Trace(path).events_frame()) == 999
    with pytest.raises(IotwinError, match="already recovered"):
        recover_trace(path)


def test_a_reused_inode_is_another_file(tmp_path):
    events = raw_events(4)
    events["start_ns"] = [1000, 2000, 3000, 4000]
    events["inode"], events["generation"] = 7, [1, 1, 2, 2]
    names = b"".join(
        pack_name(NameRecord(time, NAME_OPENED, 1, 1, 0, 0, 7, 8 << 20 | 1, generation, 0o100644, 10, path))
        for time, generation, path in ((500, 1, b"/data/old"), (2500, 2, b"/data/new"))
    )
    finish_trace(tmp_path / "t", record(tmp_path / "t", events, names))
    trace = Trace(tmp_path / "t")
    assert trace.files()["path"].to_numpy()[trace.events_frame()["file_id"].to_numpy(np.int64)].tolist() == [
        "/data/old",
        "/data/old",
        "/data/new",
        "/data/new",
    ]


def test_filters_are_pushed_down(trace_path):
    trace = Trace(trace_path)
    everything = trace.events_frame()
    reads = trace.events_frame(columns=["start_ns", "result"], where=(pc.field("op") == "read") & (pc.field("result") > 0))
    expected = everything[(everything["op"] == "read") & (everything["result"] > 0)]
    assert list(reads.columns) == ["start_ns", "result"]
    assert reads["start_ns"].tolist() == expected["start_ns"].tolist()
    batches = list(trace.events(columns=["start_ns"], batch_rows=100))
    assert all(batch.num_rows <= 100 for batch in batches)
    assert pa.Table.from_batches(batches)["start_ns"].to_pylist() == everything["start_ns"].tolist()


def test_folders_that_look_like_partitions_add_no_columns(trace_path, tmp_path):
    shutil.copytree(trace_path, tmp_path / "host=3" / "lr=0.1" / "t")
    plain, nested = Trace(trace_path), Trace(tmp_path / "host=3" / "lr=0.1" / "t")
    assert nested.files().equals(plain.files()) and nested.processes().equals(plain.processes())
    assert nested.events_frame().equals(plain.events_frame())


def test_every_column_has_the_documented_type(trace_path):
    for batch in Trace(trace_path).events():
        assert batch.schema.equals(schema.EVENTS)


@pytest.mark.parametrize(
    "damage", ["empty", "truncated", "foreign", "part missing", "no manifest", "empty manifest", "other json", "newer"]
)
def test_damaged_and_foreign_traces_are_refused_in_one_line(trace_path, damage):
    part = next((trace_path / "events.parquet").glob("*.parquet"))
    manifest_path = trace_path / "manifest.json"
    if damage == "empty":
        part.write_bytes(b"")
    elif damage == "truncated":
        part.write_bytes(part.read_bytes()[:-100])
    elif damage == "foreign":
        part.write_bytes(b"PK\x03\x04 some other file" * 100)
    elif damage == "part missing":
        part.unlink()
    elif damage == "no manifest":
        manifest_path.unlink()
    elif damage == "empty manifest":
        manifest_path.write_bytes(b"")
    elif damage == "other json":
        manifest_path.write_text('{"name": "package", "version": 1}')
    else:
        content = json.loads(manifest_path.read_text())
        manifest_path.write_text(json.dumps(content | {"schema_version": 999}))
    with pytest.raises(IotwinError) as error:
        Trace(trace_path).events_frame()
    assert "\n" not in str(error.value)
    assert str(trace_path) in str(error.value)


def test_losses_are_part_of_the_ledger(tmp_path):
    path = tmp_path / "t"
    made = manifest()
    with Recording(path, made) as recording:
        recording.append_clock()
        recording.append_events(raw_events(10))
        recording.append_journal("ledger", {"seen": 15, "lost": {"ring_full": 5}})
    finished = finish_trace(path, made)
    assert (finished.seen, finished.events, finished.lost_events) == (15, 10, 5)


def test_stored_size_per_event(tmp_path):
    """At most 12 bytes an event for a job like the ones traced."""
    path = write_job(tmp_path / "big", Job(files=400, epochs=5, read_bytes=1 << 17))
    trace = Trace(path)
    size = sum(part.stat().st_size for part in (path / "events.parquet").iterdir())
    assert trace.manifest.events > 50_000
    assert size / trace.manifest.events <= 12


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("4096", 4096), ("512MiB", 512 << 20), ("30 GiB", 30 << 30), ("1.5k", 1500), ("2TB", 2 * 10**12), ("1e3B", 1000)],
)
def test_sizes(text, expected):
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["0", "-1", "", "MiB", "1 parsec", "1MiB2", "0.1", "nan", "1_000", "9999999TiB"])
def test_sizes_that_are_none(text):
    with pytest.raises(UsageError):
        parse_size(text)


def test_durations_and_formats():
    assert parse_duration("1.5s") == 1_500_000_000 and parse_duration("100ms") == 100_000_000 and parse_duration("2") == 2 * 10**9
    assert format_size(1536 << 20) == "1.5 GiB" and format_size(0) == "0 B"
