"""Chakra execution traces: read by Google's decoder with the field numbers of the published schema, and imported again."""

import gzip

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iotwin.common.errors import IotwinError
from iotwin.main import main
from iotwin.trace_store import chakra as et
from iotwin.trace_store import schema
from iotwin.trace_store.importers import chakra as importer
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.exports import protobuf as pb
from tests.synthetic import Job, write_job

EVENT_COLUMNS = ["start_ns", "duration_ns", "op", "pid", "tid", "path", "fd", "offset", "requested", "result", "flags"]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    path = tmp_path_factory.mktemp("chakra")
    write_job(path / "t", Job(files=6, epochs=2, block=True, gpu=True))
    assert main(["export", str(path / "t"), "-o", str(path / "t.et"), "--quiet"]) == 0
    return path


@pytest.fixture(scope="module")
def node_class():
    """Google's classes for the schema, whose numbers are those of et_def.proto after pull request 216."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory

    kinds = {"int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "uint32": 13, "enum": 13}
    messages = {
        "Attribute": [("name", 1, "string"), ("int64_val", 9, "int64"), ("bool_val", 27, "bool"), ("string_val", 29, "string")],
        "FsOp": [("op", 1, "enum"), ("pathname", 2, "string"), ("fd", 3, "int32"), ("offset", 4, "uint64"),
                 ("size_bytes", 5, "uint64"), ("flags", 6, "uint32")],
        "BlockOp": [("op", 1, "enum"), ("queue_event", 2, "enum"), ("device", 3, "string"), ("lba", 4, "uint64"),
                    ("nr_sectors", 5, "uint32"), ("req_op_flags", 6, "uint32")],
        "Storage": [("level", 1, "enum"), ("fs", 10, "FsOp"), ("block", 12, "BlockOp")],
        "Node": [("id", 1, "uint64"), ("name", 2, "string"), ("type", 3, "enum"), ("ctrl_deps", 4, "uint64*"),
                 ("start_time_micros", 6, "uint64"), ("duration_micros", 7, "uint64"), ("attr", 10, "Attribute*"),
                 ("storage", 11, "Storage")],
        "Metadata": [("version", 1, "string"), ("attr", 2, "Attribute*")],
    }  # fmt: skip
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="et", syntax="proto2")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            added = message.field.add(name=field, number=number, label=3 if kind.endswith("*") else 1)
            added.type = kinds.get(kind.rstrip("*"), 11)
            if added.type == 11:
                added.type_name = f".et.{kind.rstrip('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"et.{name}"))


def decoded(path, node_class):
    from google.protobuf.internal.decoder import _DecodeVarint32

    content, place, found = path.read_bytes(), 0, []
    while place < len(content):
        length, place = _DecodeVarint32(content, place)
        found.append(node_class("Node" if found else "Metadata").FromString(content[place : place + length]))
        place += length
    return found


def events_of(trace):
    frame = trace.events_frame()
    frame["op"] = frame["op"].astype(str)
    paths = trace.files()["path"]
    frame["path"] = [None if pd.isna(number) else paths[int(number)] for number in frame["file_id"]]
    return frame


def test_operations_have_the_numbers_of_the_schema():
    published = {"openat": 1, "close": 2, "read": 3, "write": 4, "pread64": 5, "pwrite64": 6, "fsync": 7, "fdatasync": 8,
                 "sync_file_range": 9, "readv": 3, "pwritev2": 6, "io_uring_fsync": 7}  # fmt: skip
    assert {op: et.FS_OPS[op] for op in published} == published
    assert not set(et.FS_OPS) & {"page_fault", "lseek", "newfstatat", "mmap", "sendfile"}
    assert (et.BLOCK_OPS, et.EVENT_DISPATCH) == ({"read": 1, "write": 2, "flush": 3}, 4)
    assert (et.STORAGE_NODE, et.BATCH_NODE, et.CHECKPOINT_NODE, et.LEVEL_FS, et.LEVEL_BLOCK) == (8, 9, 10, 1, 3)
    # fcntl.h: O_DIRECT, O_APPEND, O_CREAT, O_TRUNC, O_RDWR; blk_types.h: REQ_SYNC, REQ_META, REQ_FUA, REQ_RAHEAD
    assert [et.open_flags(np.array([1 << bit]))[0] for bit in range(5)] == [0o40000, 0o2000, 0o100, 0o1000, 2]
    assert (et.block_flags(et.request_flags(np.arange(16))) == np.arange(16)).all()
    assert (et.event_flags(et.open_flags(np.arange(32))) == np.arange(32)).all()
    assert et.event_flags(np.array([1, 0o101, 0]))[:3].tolist() == [
        schema.FLAG_WRITABLE,
        schema.FLAG_WRITABLE | schema.FLAG_CREATE,
        0,
    ]


def test_every_call_is_a_storage_node_below_its_step_or_checkpoint(job, node_class):
    metadata, *nodes = decoded(job / "t.et", node_class)
    assert metadata.version == et.VERSION
    by_id = {node.id: node for node in nodes}
    assert len(by_id) == len(nodes)
    trace = Trace(job / "t")
    events = events_of(trace)
    calls = [node for node in nodes if node.storage.HasField("fs")]
    kept = events[events["op"].isin(list(et.FS_OPS))]
    assert len(calls) == len(kept) > 0
    for node, row in zip(calls, kept.itertuples(), strict=True):
        assert (node.type, node.storage.level, node.name) == (et.STORAGE_NODE, et.LEVEL_FS, row.op)
        assert (node.storage.fs.op, node.storage.fs.pathname) == (et.FS_OPS[row.op], row.path or "")
        assert node.start_time_micros == row.start_ns // 1000
        for parent in node.ctrl_deps:
            above = by_id[parent]
            assert above.type in (et.BATCH_NODE, et.CHECKPOINT_NODE)
            assert above.start_time_micros <= node.start_time_micros <= above.start_time_micros + above.duration_micros
    phases = trace.phases()
    assert sum(node.type == et.CHECKPOINT_NODE for node in nodes) == (phases["phase"] == "checkpoint").sum() > 0
    writes = [node for node in calls if node.name == "write"]
    assert writes and all(by_id[node.ctrl_deps[0]].type == et.CHECKPOINT_NODE for node in writes)


def test_block_requests_hang_on_the_call_that_caused_them(job, node_class):
    nodes = decoded(job / "t.et", node_class)[1:]
    by_id = {node.id: node for node in nodes}
    requests = [node for node in nodes if node.storage.HasField("block")]
    assert len(requests) == len(Trace(job / "t").block()) > 0
    tied = [(by_id[node.ctrl_deps[0]], node) for node in requests if node.ctrl_deps]
    assert tied
    for call, request in tied:
        pids = [{a.name: a.int64_val for a in node.attr}["pid"] for node in (call, request)]
        assert call.storage.HasField("fs") and pids[0] == pids[1]
        assert call.start_time_micros <= request.start_time_micros <= call.start_time_micros + call.duration_micros


def test_what_the_format_holds_comes_back(job):
    assert main(["import", str(job / "t.et"), "-o", str(job / "back"), "--quiet"]) == 0
    before, after = Trace(job / "t"), Trace(job / "back")
    kept = events_of(before)
    kept = kept[kept["op"].isin(list(et.FS_OPS))].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept[EVENT_COLUMNS], events_of(after)[EVENT_COLUMNS], check_dtype=False)
    block = [name for name in schema.BLOCK.names if name != "file_id"]
    for ours, theirs, columns in (
        (before.block(), after.block(), block),
        (before.gpu(), after.gpu(), schema.GPU.names),
        (before.phases(), after.phases(), schema.PHASES.names),
    ):
        order = [columns[0] if "issue_ns" not in columns else "issue_ns", columns[3]]
        ours, theirs = (frame[columns].sort_values(order, kind="stable").reset_index(drop=True) for frame in (ours, theirs))
        pd.testing.assert_frame_equal(ours, theirs, check_dtype=False, check_categorical=False)


def test_a_compressed_trace_is_recognised_and_a_torn_one_refused(job, tmp_path):
    content = (job / "t.et").read_bytes()
    (tmp_path / "t.et.gz").write_bytes(gzip.compress(content))
    assert importer.recognises(tmp_path / "t.et.gz")
    (tmp_path / "torn.et").write_bytes(content[:-3])
    with pytest.raises(IotwinError, match="the last node is cut off"):
        importer.read(tmp_path / "torn.et", None)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(damage=st.binary(max_size=40), place=st.floats(0, 1))
def test_damaged_traces_end_in_one_line(job, tmp_path, damage, place):
    content = (job / "t.et").read_bytes()[:4000]
    at = int(place * len(content))
    (tmp_path / "damaged.et").write_bytes(content[:at] + damage + content[at + len(damage) :])
    importer.recognises(tmp_path / "damaged.et")
    try:
        importer.read(tmp_path / "damaged.et", None)
    except IotwinError as error:
        assert "\n" not in str(error)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40), min_size=1, max_size=20))
def test_texts_are_encoded_by_the_column(values):
    present = np.arange(len(values)) % 3 > 0
    encoded = pb.joined(pb.delimited([pb.integers(1, np.arange(len(values))), pb.texts(2, values, present)]))
    place, found = 0, []
    while place < len(encoded):
        length, place = importer._varint(encoded, place)
        fields = importer._fields(encoded[place : place + length])
        found.append(fields[2][0].decode() if 2 in fields else None)
        place += length
    assert found == [value if kept else None for value, kept in zip(values, present, strict=True)]
