"""Exports, read back by somebody else's reader: Google's protobuf, json, csv, and a real fio."""

import csv
import gzip
import json
import shutil
import subprocess

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.benchmark.emulator.results.ai_events import DlioEvents, write_pfw
from iotwin.common.errors import IotwinError
from iotwin.main import main
from iotwin.trace_store import schema
from iotwin.trace_store.importers.import_trace import import_trace
from iotwin.trace_store.manifest import read_manifest
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.writer import write_events, write_table
from iotwin.tracing_tools.exports import protobuf as pb
from iotwin.tracing_tools.exports.tracks import slices
from tests.synthetic import Job, event_table, write_job
from tests.trace_visuals.hostile import write_hostile


def export(trace, output, *options):
    return main(["export", str(trace), "-o", str(output), "--quiet", *map(str, options)])


def test_parts_of_several_loaders_lie_beside_one_another(tmp_path):
    trace = write_job(tmp_path / "t", Job(epochs=1))
    times = {"start_ns": [10, 12, 14, 21], "duration_ns": [10, 10, 2, 5]}
    labels = {"name": ["sample_load"] * 4, "rank": [0] * 4, "step": [None, None, None, 9]}
    write_table(trace, "parts.parquet", schema.PARTS, times | labels)
    tracks = {track.track: track for track in slices(Trace(trace)) if "sample_load" in track.track}
    starts = {name: track.start_ns.tolist() for name, track in tracks.items()}
    assert starts == {"rank 0: sample_load": [10, 21], "rank 0: sample_load (2)": [12], "rank 0: sample_load (3)": [14]}
    assert tracks["rank 0: sample_load"].names.tolist() == ["sample_load", "sample_load 9"]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    path = write_hostile(tmp_path_factory.mktemp("export") / "t")
    columns = {
        "start_ns": [6_000_000_000, 6_000_001_000], "duration_ns": [500, 90_000], "kind": ["memcpy", "copy"], "device": [None, 0],
        "stream": [None, 7], "size_bytes": [4096, 4096], "direction": ["host_to_device"] * 2, "pid": [1000, None],
        "tid": [1000, None], "name": ["cudaMemcpyAsync", 'Memcpy "HtoD"'], "source": ["uprobe", "kineto"],
    }  # fmt: skip
    types = {f.name: pa.string() if pa.types.is_dictionary(f.type) else f.type for f in schema.GPU}
    table = pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
    write_table(path, "gpu.parquet", schema.GPU, table.cast(schema.GPU))
    return path


# ---- Perfetto, through Google's own decoder and the field numbers of its published .proto files ----


def _message(file, name, *fields):
    message = file.message_type.add(name=name)
    for number, field, kind, *repeated in fields:
        types = {"int": 3, "uint": 4, "str": 9, "double": 1, "bytes": 12}
        added = message.field.add(name=field, number=number, label=3 if repeated else 1)
        if kind in types:
            added.type = types[kind]
        else:
            added.type, added.type_name = 11, f".t.{kind}"


@pytest.fixture(scope="module")
def perfetto_trace():
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto2")
    _message(file, "Clock", (1, "clock_id", "uint"), (2, "timestamp", "uint"))
    _message(file, "Clocks", (1, "clocks", "Clock", True))
    _message(file, "Name", (1, "iid", "uint"), (2, "name", "str"))
    _message(
        file,
        "Interned",
        (1, "categories", "Name", True),
        (2, "names", "Name", True),
        (3, "annotations", "Name", True),
        (29, "strings", "Name", True),
    )
    _message(file, "Annotation", (1, "name_iid", "uint"), (4, "int_value", "int"), (17, "string_iid", "uint"))
    _message(file, "Event", (3, "category_iids", "uint", True), (4, "annotations", "Annotation", True), (9, "type", "uint"),
             (10, "name_iid", "uint"), (11, "track_uuid", "uint"), (44, "double_counter_value", "double"))  # fmt: skip
    _message(file, "Process", (1, "pid", "int"), (6, "process_name", "str"))
    _message(file, "Thread", (1, "pid", "int"), (2, "tid", "int"))
    _message(file, "Counter", (1, "type", "uint"))
    _message(file, "Track", (1, "uuid", "uint"), (2, "name", "str"), (3, "process", "Process"), (4, "thread", "Thread"),
             (5, "parent_uuid", "uint"), (8, "counter", "Counter"))  # fmt: skip
    _message(file, "Defaults", (58, "timestamp_clock_id", "uint"))
    _message(file, "Packet", (6, "clock_snapshot", "Clocks"), (8, "timestamp", "uint"), (10, "sequence_id", "uint"),
             (11, "event", "Event"), (12, "interned", "Interned"), (13, "flags", "uint"), (59, "defaults", "Defaults"),
             (60, "track", "Track"))  # fmt: skip
    _message(file, "Trace", (1, "packet", "Packet", True))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Trace"))


def test_perfetto_holds_every_event_once(job, tmp_path, perfetto_trace):
    assert export(job, tmp_path / "t.pftrace") == 0
    packets = perfetto_trace.FromString((tmp_path / "t.pftrace").read_bytes()).packet
    assert packets[0].flags == 1 and packets[0].defaults.timestamp_clock_id == 3
    assert {packet.sequence_id for packet in packets} == {1}
    interned = {kind: {} for kind in ("categories", "names", "annotations", "strings")}
    tracks, slices, open_, counters = {}, [], {}, {}
    for packet in packets:
        for kind, entries in interned.items():
            entries |= {entry.iid: entry.name for entry in getattr(packet.interned, kind)}
        if packet.HasField("track"):
            tracks[packet.track.uuid] = packet.track
        if not packet.HasField("event"):
            continue
        event, track = packet.event, tracks[packet.event.track_uuid]  # described before it is used
        if event.type == 1:
            assert event.track_uuid not in open_
            open_[event.track_uuid] = packet
        elif event.type == 2:
            begin = open_.pop(event.track_uuid)
            slices.append((track, interned["names"][begin.event.name_iid], begin, packet.timestamp - begin.timestamp))
        else:
            counters.setdefault(track.name, []).append((packet.timestamp, event.double_counter_value))
    assert not open_
    trace = Trace(job)
    paths, frame = trace.files()["path"], trace.events_frame()
    threads = [row for row in slices if row[0].HasField("thread")]
    assert len(threads) == len(frame)
    for (track, name, begin, duration), row in zip(threads, frame.itertuples(), strict=True):
        arguments = {
            interned["annotations"][a.name_iid]: interned["strings"][a.string_iid] if a.string_iid else a.int_value
            for a in begin.event.annotations
        }
        wanted = {"fd": row.fd, "offset": row.offset, "requested": row.requested, "result": row.result}
        wanted["file"] = None if pd.isna(row.file_id) else paths[int(row.file_id)]
        assert arguments == {key: value for key, value in wanted.items() if not pd.isna(value)}
        assert (track.thread.pid, track.thread.tid, name) == (row.pid, row.tid, row.op)
        assert (begin.timestamp, duration) == (row.start_ns, row.duration_ns)
        assert interned["categories"][begin.event.category_iids[0]] == schema.GROUP_OF_OP[row.op]
    assert {track.name: name for track, name, *_ in slices if track.name.startswith(("GPU", "CUDA"))} == {
        "GPU 0 stream 7": 'Memcpy "HtoD"',
        "CUDA calls of thread 1000": "cudaMemcpyAsync",
    }
    assert [name for track, name, *_ in slices if track.name == "rank 0: epoch"] == ["epoch 1"]
    cpu = trace.samples("cpu")
    assert counters["cpu user"] == list(zip(cpu["time_ns"], cpu["user"].astype(float), strict=True))
    clocks = {clock.clock_id: clock.timestamp for clock in packets[1].clock_snapshot.clocks}
    assert clocks[1] - clocks[3] == trace.manifest.clock[0].realtime_ns - trace.manifest.clock[0].monotonic_ns


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.booleans(), st.floats(allow_nan=False)), min_size=1, max_size=20))
def test_any_numbers_survive_the_encoding(perfetto_trace, rows):
    values, present, floats = (list(column) for column in zip(*rows, strict=True))
    annotation = pb.messages(4, [pb.integers(4, values)], np.array(present))
    event = pb.messages(11, [annotation, pb.doubles(44, floats)])
    decoded = perfetto_trace.FromString(pb.joined(pb.messages(1, [event]))).packet
    found = [[a.int_value for a in packet.event.annotations] for packet in decoded]
    assert found == [[value] if there else [] for value, there in zip(values, present, strict=True)]
    assert [packet.event.double_counter_value for packet in decoded] == floats


# ---- Chrome JSON and CSV ----


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_chrome_holds_every_event_once(job, tmp_path, name):
    assert export(job, tmp_path / name) == 0
    content = (tmp_path / name).read_bytes()
    events = json.loads(gzip.decompress(content) if name.endswith("gz") else content)["traceEvents"]
    trace = Trace(job)
    paths, frame = trace.files()["path"], trace.events_frame()
    calls = [event for event in events if event["ph"] == "X" and event.get("cat")]
    assert len(calls) == len(frame)
    for call, row in zip(calls, frame.itertuples(), strict=True):
        assert (call["name"], call["pid"], call["tid"]) == (row.op, row.pid, row.tid)
        assert (round(call["ts"] * 1000), round(call["dur"] * 1000)) == (row.start_ns, row.duration_ns)
        assert call["args"].get("file") == (None if pd.isna(row.file_id) else paths[int(row.file_id)])
        assert call["args"]["result"] == row.result and call["args"].get("offset", -1) == (
            -1 if pd.isna(row.offset) else row.offset
        )
    assert any(event["name"] == 'Memcpy "HtoD"' for event in events)
    assert {event["ph"] for event in events} == {"M", "X", "C"}


def test_csv_reads_back_as_it_was(job, tmp_path):
    assert export(job, tmp_path / "t.csv") == 0
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    trace = Trace(job)
    paths, frame = trace.files()["path"], trace.events_frame()
    assert [int(row["start_ns"]) for row in rows] == frame["start_ns"].tolist()
    assert [row["op"] for row in rows] == frame["op"].tolist()
    assert [row["path"] for row in rows] == [paths[int(i)] for i in frame["file_id"]]
    assert [row["offset"] for row in rows] == ["" if pd.isna(offset) else str(int(offset)) for offset in frame["offset"]]


# ---- fio ----


def test_fio_replays_the_same_bytes(tmp_path):
    if shutil.which("fio") is None:
        pytest.skip("fio is not installed")
    trace = write_job(
        tmp_path / "t", Job(files=4, evaluation_files=0, epochs=2, file_bytes=1 << 18, read_bytes=1 << 16, compute_ns=10**6)
    )
    names = Trace(trace).files()["path"].tolist()
    names[0], names[1] = "/data/white space\nand %41 ünïcode: *?", "/data/" + "x" * 250
    files = pa.table({**Trace(trace).files().to_dict("list"), "path": names}).select(schema.FILES.names)
    write_table(trace, "files.parquet", schema.FILES, files)
    log = tmp_path / "replay.iolog"
    assert export(trace, log) == 0
    made = sorted((tmp_path / "replay.iolog.files").rglob("*"))
    assert sum(path.stat().st_size for path in made if path.is_file()) == 4 << 18
    replay = ["fio", "--name=replay", f"--read_iolog={log}", "--ioengine=psync", "--replay_no_stall=1", "--output-format=json"]
    done = subprocess.run(replay, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["jobs"][0]
    frame = Trace(trace).events_frame()
    moved = frame[frame["result"] > 0].groupby("op", observed=True)["result"].agg(["sum", "count"])
    assert (result["read"]["io_bytes"], result["read"]["total_ios"]) == tuple(moved.loc["read"])
    assert (result["write"]["io_bytes"], result["write"]["total_ios"]) == tuple(moved.loc["write"])
    assert result["sync"]["total_ios"] == (frame["op"] == "fsync").sum()


def test_fio_log_keeps_to_its_directory(tmp_path):
    """Paths that point upwards, and files that cannot be replayed, stay out of what the replay touches."""
    trace = write_job(tmp_path / "t", Job(files=3, evaluation_files=0, epochs=1, checkpoint_every=0))
    columns = Trace(trace).files().to_dict("list")
    columns["path"] = ["/data/../../etc/shadow", "/dev/sda", "/data/c"]
    columns["kind"] = ["dataset", "device", "dataset"]
    write_table(trace, "files.parquet", schema.FILES, pa.table(columns).select(schema.FILES.names))
    assert export(trace, tmp_path / "t.iolog", "--files", tmp_path / "replayed") == 0
    lines = (tmp_path / "t.iolog").read_text().splitlines()[1:]
    assert {line.split()[1] for line in lines} == {f"{tmp_path}/replayed/data/etc/shadow", f"{tmp_path}/replayed/data/c"}
    assert {path.name for path in (tmp_path / "replayed").rglob("*") if path.is_file()} == {"shadow", "c"}


# ---- bad input ----


@pytest.mark.parametrize(
    ("name", "options", "status", "says"),
    [
        ("t.xyz", [], 2, "has no known ending"),
        ("t.csv", ["--format", "perfeto"], 2, "did you mean 'perfetto'"),
        ("t.csv", ["--files", "x"], 2, "--files is for the format fio"),
        ("t.iolog.gz", [], 2, "compressed"),
        ("missing/t.csv", [], 1, "not a directory"),
        ("t.iolog", ["--files", "white space"], 1, "choose another directory"),
    ],
)
def test_bad_input_is_one_line(job, tmp_path, capsys, name, options, status, says):
    assert export(job, tmp_path / name, *options) == status
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_damaged_trace_leaves_no_export(tmp_path, capsys):
    trace = write_job(tmp_path / "t", Job(files=4))
    part = next((trace / "events.parquet").iterdir())
    content = bytearray(part.read_bytes())
    content[100:200] = bytes(100)
    part.write_bytes(content)
    assert export(trace, tmp_path / "t.csv") == 1
    assert "damaged" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"t"}


def test_an_empty_trace_exports(tmp_path):
    trace = write_job(tmp_path / "t", Job(files=4))
    write_events(trace / "events.parquet", [event_table([])])
    manifest = read_manifest(trace)
    manifest.events = 0
    from iotwin.trace_store.manifest import write_manifest

    write_manifest(trace, manifest)
    for name in ("t.pftrace", "t.json", "t.csv", "t.iolog"):
        assert export(trace, tmp_path / name) == 0


def test_our_own_chrome_json_is_imported_again(tmp_path):
    trace = write_job(tmp_path / "t", Job(epochs=1))
    assert export(trace, tmp_path / "t.json", "--format", "chrome") == 0
    manifest, _ = import_trace(tmp_path / "t.json", tmp_path / "again")
    assert manifest.backend == "import chrome"
    columns = ["op", "pid", "tid", "result", "offset"]
    moved = [Trace(path).events_frame() for path in (trace, tmp_path / "again")]
    moved = [frame[frame["op"].isin(["read", "pread64", "write", "pwrite64"])] for frame in moved]
    was, again = (frame.sort_values(["start_ns", "tid"])[columns].astype(str).reset_index(drop=True) for frame in moved)
    pd.testing.assert_frame_equal(was, again)
    paths = [set(Trace(path).files()["path"]) for path in (trace, tmp_path / "again")]
    assert paths[1] and paths[1] <= paths[0]


def test_our_own_pfw_says_that_it_holds_no_calls(tmp_path):
    numbers = np.arange(3)
    write_pfw(tmp_path / "trace-0-of-1.pfw", [DlioEvents("compute", "compute", numbers, numbers, numbers)], 0, "host")
    with pytest.raises(IotwinError, match="no calls on files, as iotwin emulate logs them with DFTRACER_ENABLE=1; trace the run"):
        import_trace(tmp_path / "trace-0-of-1.pfw", tmp_path / "t")
