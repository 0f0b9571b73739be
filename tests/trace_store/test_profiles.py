"""Profiles attached to a trace: a real one of PyTorch on the CPU, and small ones of GPUs in the frameworks' own words."""

import gzip
import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.main import main
from iotwin.trace_store.importers.json_objects import object_pieces
from iotwin.trace_store.manifest import read_manifest
from iotwin.trace_store.reader import Trace
from tests.synthetic import Job, write_job

BASE_NS = 1_700_000_000 * 10**9  # what write_job's clock says at the job's start


def kineto(*events: dict, base_ns: int = BASE_NS) -> str:
    return json.dumps(
        {"schemaVersion": 1, "deviceProperties": [], "baseTimeNanoseconds": base_ns, "traceEvents": events}, indent=1
    )


def gpu_events() -> list[dict]:
    name = 'void gemm<float, "{\\"[">(int)'  # a name full of what parts JSON
    return [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0.5, "args": {"name": "python"}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": 900.0, "dur": 400.0, "args": {"stream": 3}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 8, "ts": 1000.125, "dur": 9.5},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "pid": 7, "tid": 8, "ts": 1020.0, "dur": 50.0},
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1010.25, "dur": 30.002,
         "args": {"device": 0, "stream": 7, "correlation": 1}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 1, "tid": 20, "ts": 2000.0, "dur": 5.0,
         "args": {"device": 1, "stream": 20, "bytes": 65536}},
        {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "pid": 0, "tid": 7, "ts": 2100.0, "dur": 1.0,
         "args": {"device": 0, "stream": 7, "bytes": 128}},
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": 2100.0, "id": 1},
    ]  # fmt: skip


@pytest.fixture
def trace(tmp_path):
    return write_job(tmp_path / "t", Job(files=4, epochs=1))


def attach(trace, *profiles):
    return main(["attach-profile", str(trace), *map(str, profiles), "--quiet"])


@pytest.mark.parametrize("packed", [False, True])
def test_kineto_on_the_trace_s_clock(trace, tmp_path, packed):
    content = kineto(*gpu_events()).encode()
    path = tmp_path / ("p.json.gz" if packed else "p.json")
    path.write_bytes(gzip.compress(content) if packed else content)
    assert attach(trace, path) == 0
    gpu = Trace(trace).gpu()
    assert gpu is not None
    zero = Trace(trace).manifest.clock[0].monotonic_ns
    assert (gpu["start_ns"] - zero).tolist() == [1_000_125, 1_010_250, 1_020_000, 2_000_000, 2_100_000]
    assert gpu["duration_ns"].tolist() == [9_500, 30_002, 50_000, 5_000, 1_000]
    assert gpu["kind"].astype(str).tolist() == ["launch", "kernel", "sync", "copy", "set"]
    assert gpu["device"].fillna(-1).tolist() == [-1, 0, -1, 1, 0] and gpu["stream"].fillna(-1).tolist() == [-1, 7, -1, 20, 7]
    assert gpu["size_bytes"].fillna(-1).tolist() == [-1, -1, -1, 65536, 128]
    assert gpu["pid"].fillna(-1).tolist() == [7, -1, 7, -1, -1]
    assert gpu["direction"].dropna().tolist() == ["host_to_device"]
    assert set(gpu["source"]) == {"kineto"}
    assert any(note.startswith(f"attached the profile {path.name}: 5 rows") for note in read_manifest(trace).notes)


def test_several_ranks_go_together_and_none_twice(trace, tmp_path, capsys):
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_text(kineto(*gpu_events(), base_ns=BASE_NS + rank * 10**6))
    assert attach(trace, tmp_path / "rank0.json", tmp_path / "rank1.json") == 0
    gpu = Trace(trace).gpu()
    assert gpu is not None and len(gpu) == 10 and gpu["start_ns"].is_monotonic_increasing
    assert attach(trace, tmp_path / "rank1.json") == 2
    assert "already" in capsys.readouterr().err
    assert len(Trace(trace).gpu()) == 10


def test_tensorflow_s_timeline(trace, tmp_path):
    """Devices are told by the name of the process, times are UNIX microseconds."""
    start_us = BASE_NS // 1000 + 500_000
    events = [
        {"ph": "M", "name": "process_name", "pid": 3, "args": {"name": "/device:GPU:1/stream:all Compute"}},
        {"ph": "M", "name": "process_name", "pid": 4, "args": {"name": "/job:localhost/replica:0/task:0/device:CPU:0 Compute"}},
        {"ph": "X", "cat": "Op", "name": "MatMul", "pid": 3, "tid": 0, "ts": start_us, "dur": 120},
        {"ph": "X", "cat": "Op", "name": "MEMCPYHtoD", "pid": 3, "tid": 2, "ts": start_us + 5, "dur": 7},
        {"ph": "X", "cat": "Op", "name": "MatMul", "pid": 4, "tid": 0, "ts": start_us, "dur": 400},
    ]
    (tmp_path / "timeline.json").write_text(json.dumps({"traceEvents": events}))
    assert attach(trace, tmp_path / "timeline.json") == 0
    gpu = Trace(trace).gpu()
    assert gpu is not None and gpu["kind"].tolist() == ["kernel", "copy"] and gpu["device"].tolist() == [1, 1]
    assert set(gpu["source"]) == {"tensorflow"} and gpu["direction"].dropna().tolist() == ["host_to_device"]
    assert (gpu["start_ns"] - Trace(trace).manifest.clock[0].monotonic_ns).tolist() == [500_000_000, 500_005_000]


def test_calls_that_the_trace_has_already_are_not_doubled(trace, tmp_path):
    import pyarrow as pa

    from iotwin.trace_store import schema
    from iotwin.trace_store.writer import write_table

    row = {
        "start_ns": 5_900_000_000,
        "duration_ns": 5,
        "kind": "launch",
        "pid": 7,
        "tid": 8,
        "name": "cudaLaunchKernel",
        "source": "uprobe",
    }
    plain = pa.schema([(f.name, pa.string() if pa.types.is_dictionary(f.type) else f.type) for f in schema.GPU])
    write_table(trace, "gpu.parquet", schema.GPU, pa.Table.from_pylist([row], schema=plain).cast(schema.GPU))
    (tmp_path / "p.json").write_text(kineto(*gpu_events()))
    assert attach(trace, tmp_path / "p.json") == 0
    gpu = Trace(trace).gpu()
    assert gpu is not None and sorted(zip(gpu["source"], gpu["kind"], strict=True)) == [
        ("kineto", "copy"),
        ("kineto", "kernel"),
        ("kineto", "set"),
        ("uprobe", "launch"),
    ]


@pytest.mark.torch
def test_a_real_profile_of_the_cpu_claims_no_gpu(trace, tmp_path, capsys):
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        torch.ones(64, 64) @ torch.ones(64, 64)
    profiler.export_chrome_trace(str(tmp_path / "cpu.json"))
    assert attach(trace, tmp_path / "cpu.json") == 1
    error = capsys.readouterr().err
    assert "no work of an accelerator" in error and error.count("\n") == 1
    assert not (trace / "gpu.parquet").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (kineto(*gpu_events(), base_ns=BASE_NS + 10**15), "another run"),
        (kineto(*gpu_events(), base_ns=0), "has no begin time"),
        ("not JSON at all", "no traceEvents"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": "late"}]}', "not a profile"),
        ('{"traceEvents": []}', "no work of an accelerator"),
        (kineto(*gpu_events())[:120], "no work of an accelerator"),
    ],
)
def test_a_bad_profile_is_one_line_and_changes_nothing(trace, tmp_path, capsys, content, says):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(kineto(*gpu_events()))
    bad.write_text(content)
    before = (trace / "manifest.json").read_bytes()
    assert attach(trace, good, bad) == 1
    error = capsys.readouterr().err
    assert says in error and "bad.json" in error and error.count("\n") == 1
    assert not (trace / "gpu.parquet").exists() and (trace / "manifest.json").read_bytes() == before


def test_a_profile_that_is_not_there(trace, tmp_path, capsys):
    assert attach(trace, tmp_path / "missing.json") == 1
    (tmp_path / "torn.json.gz").write_bytes(gzip.compress(kineto(*gpu_events()).encode())[:60])
    assert attach(trace, tmp_path / "torn.json.gz") == 1
    assert capsys.readouterr().err.count("\n") == 2


values = st.recursive(
    st.text(max_size=8) | st.integers() | st.booleans(), lambda inner: st.dictionaries(st.text(max_size=4), inner, max_size=3)
)


@given(
    st.lists(st.dictionaries(st.text(max_size=6), values, min_size=1, max_size=4), max_size=12),
    st.integers(1, 200),
    st.booleans(),
)
def test_objects_are_the_same_whatever_the_size_of_the_pieces(objects, piece_bytes, spaced):
    text = json.dumps(objects, ensure_ascii=False, indent=2 if spaced else None).encode("utf-8", "surrogatepass")
    file = io.BytesIO(text + b', "after": {"not": "one"}}')
    file.seek(1)
    found = [each for piece in object_pieces(file, piece_bytes) for each in json.loads(piece.decode("utf-8", "surrogatepass"))]
    assert found == objects


def test_memory_stays_small(tmp_path):
    """Pieces of a file of 20 MB are a few megabytes each."""
    event = json.dumps({"ph": "X", "cat": "cpu_op", "name": 'a"b\\' * 20, "ts": 1.0, "dur": 1.0}).encode()
    file = io.BytesIO(b",\n".join([event] * (20_000_000 // len(event))) + b"]}")
    sizes = [len(piece) for piece in object_pieces(file)]
    assert max(sizes) < 2 * (1 << 22) + len(event) and np.sum(sizes) > 19_000_000
