"""Calls of CUDA's API, captured by uprobes. The library is a stand-in of the same names and signatures; the probes are real."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from iotwin.trace_store import schema
from iotwin.trace_store.manifest import Host, Manifest, Target
from iotwin.trace_store.raw.cuda_calls import CUDA_CALLS
from iotwin.trace_store.raw.record_files import GPU_FILE, RAW, Recording
from iotwin.trace_store.raw.records import GPU_CALL
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.backends.elf_symbols import function_offsets
from iotwin.tracing_tools.backends.gpu_calls import WithGpuCalls
from iotwin.tracing_tools.backends.libbpf import LibbpfBackend
from iotwin.tracing_tools.targets.cgroup import JobCgroup
from tests.conftest import PATIENCE_S, ROOT, compile_c
from tests.processes import call

pytestmark = pytest.mark.root
HERE = ROOT / "tests" / "tracing_tools" / "backends"
ROUNDS = 10
# name: (kind, bytes a call, stream, direction); cudaMalloc's sizes grow
EXPECTED = {
    "cudaMalloc": ("malloc", None, None, None),
    "cudaMemcpy": ("memcpy", 4096, None, "host_to_device"),
    "cudaMemcpyAsync": ("memcpy", 8192, 7, "device_to_host"),
    "cudaMemcpy2DAsync": ("memcpy", 480, 8, "device_to_device"),
    "cudaMemset": ("memset", 100, None, None),
    "cuMemsetD32Async": ("memset", 100, 9, None),
    "cudaLaunchKernel": ("launch", None, 11, None),
    "cudaLaunchKernelExC": ("launch", None, 15, None),
    "cuLaunchKernel": ("launch", None, 13, None),
    "cudaStreamSynchronize": ("sync", None, 11, None),
    "cudaDeviceSynchronize": ("sync", None, None, None),
    "cudaFree": ("free", None, None, None),
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The job linked to the stand-in, and the same in one static file."""
    folder = tmp_path_factory.mktemp("cuda")
    stub, job = HERE / "stub_cudart.c", HERE / "cuda_job.c"
    options = ["-fno-ipa-icf", "-fno-inline", "-pthread", "-w"]
    shared = [*options, "-shared", "-fPIC", "-Wl,-soname,libcudart.so.12"]
    library = compile_c(folder / "libcudart.so.12", stub, options=shared)
    compile_c(folder / "linked", job, library, options=[*options, f"-Wl,-rpath,{folder}"])
    compile_c(folder / "static", job, stub, options=[*options, "-static"])
    return folder


def record(directory: Path, *command: str | Path, options: tuple[str, ...] = ("--detail", "data,gpu")) -> Trace:
    result = call("trace", "-o", directory / "t", *options, "--quiet", "--", *command)
    assert result.returncode == 0, result.stderr
    return Trace(directory / "t")


def check(gpu, times: int) -> None:
    assert gpu is not None
    assert gpu["name"].astype(str).value_counts().to_dict() == dict.fromkeys(EXPECTED, times * ROUNDS)
    for name, (kind, size, stream, direction) in EXPECTED.items():
        rows = gpu[gpu["name"] == name]
        assert set(rows["kind"].astype(str)) == {kind}
        assert rows["stream"].dropna().unique().tolist() == ([] if stream is None else [stream]), name
        assert rows["direction"].dropna().astype(str).unique().tolist() == ([] if direction is None else [direction]), name
        if name == "cudaMalloc":
            assert sorted(rows["size_bytes"]) == sorted([1000 + i for i in range(ROUNDS)] * times)
        else:
            assert rows["size_bytes"].dropna().unique().tolist() == ([] if size is None else [size]), name
    assert (gpu["duration_ns"] > 0).all() and gpu["start_ns"].is_monotonic_increasing
    assert set(gpu["source"].astype(str)) == {"uprobe"} and gpu["device"].isna().all()


@pytest.mark.parametrize("program", ["linked", "static"])
def test_every_call_once(tmp_path, programs, program):
    """Also where the library is part of the program; of the runtime's copy and the driver's within it, only the outer one."""
    trace = record(tmp_path, programs / program, str(ROUNDS))
    gpu = trace.gpu()
    check(gpu, times=3)
    assert gpu["pid"].nunique() == 2 and gpu["tid"].nunique() == 3
    assert gpu["start_ns"].between(trace.manifest.start_ns, trace.manifest.end_ns).all()
    assert trace.manifest.lost_events == 0


def test_beside_another_backend(tmp_path, programs):
    trace = record(tmp_path, programs / "linked", str(ROUNDS), options=("--detail", "data,gpu", "--backend", "strace"))
    check(trace.gpu(), times=3)
    assert trace.manifest.backend == "strace" and trace.manifest.counts["openat"] > 0


# Each call has its number as its size; ten more once the first is recorded, and a minute's worth if none ever is.
LOADING = """
import ctypes, os, sys, time
library = ctypes.CDLL(sys.argv[1])
number, left = 1000, 10
while left and number < 7000:
    left -= os.path.exists(sys.argv[2])
    number += 1
    library.cudaMemset(None, 0, ctypes.c_size_t(number))
    time.sleep(0.01)
print(number)
"""
# Ends when the tracer has surely looked at what is mapped: it has recorded what was done long after.
UNUSED = """
import ctypes, os, sys, time
ctypes.CDLL(sys.argv[1])
for _ in range(3):
    time.sleep(0.3)
    recorded = os.path.getsize(sys.argv[2])
    while os.path.getsize(sys.argv[2]) == recorded:
        open("/etc/hostname").close()
        time.sleep(0.01)
"""


def test_a_library_that_is_loaded_later_in_a_namespace_of_its_own(tmp_path, programs):
    """As in a container: the path leads to the library only there, and the process ids are others."""
    private = tmp_path / "private"
    private.mkdir()
    (tmp_path / "load.py").write_text(LOADING)
    script = f'mount -t tmpfs none {private} && cp {programs}/libcudart.so.12 {private}/libown.so && "$@"'
    command = ["sh", "-c", script, "sh", sys.executable, tmp_path / "load.py", private / "libown.so", tmp_path / "t/raw/gpu.bin"]
    trace = record(tmp_path, "unshare", "--mount", "--pid", "--fork", *command)
    gpu = trace.gpu()
    assert gpu is not None
    last = int((trace.path / "logs" / "stdout").read_text())
    assert len(gpu) >= 10 and set(gpu["name"].astype(str)) == {"cudaMemset"}
    assert gpu["size_bytes"].tolist() == list(range(last + 1 - len(gpu), last + 1))  # from the first one on, all
    processes = trace.processes().set_index("pid")
    assert processes.loc[gpu["pid"].iloc[0], "namespace_pid"] < gpu["pid"].iloc[0]


def test_nothing_of_a_neighbour(tmp_path, programs):
    neighbour = subprocess.Popen([programs / "linked", "10000000"], start_new_session=True)
    try:
        check(record(tmp_path, programs / "linked", str(ROUNDS)).gpu(), times=3)
    finally:
        os.killpg(neighbour.pid, signal.SIGKILL)  # with the process that it has forked
        neighbour.wait()


# Moves itself into a cgroup, calls the library without having executed a program there, then starts one that does.
RUNTIME = """
import ctypes, pathlib, subprocess, sys
library = ctypes.CDLL(sys.argv[1])
pathlib.Path(sys.argv[2]).write_text("0")
for _ in range(50):
    library.cudaMemset(None, 0, ctypes.c_size_t(4242))
print(subprocess.run(sys.argv[3:], check=True).returncode)
"""


def test_of_a_container_s_cgroup_only_what_executed_a_program_there(tmp_path, programs):
    """As for storage calls: what a runtime does that sets the container up from inside is not the job's."""
    group = JobCgroup.create()
    assert isinstance(group, JobCgroup), group
    scope = replace(group.scope, entered_by_exec=True, follows_job=False)
    backend = WithGpuCalls(LibbpfBackend(scope), scope)
    manifest = Manifest("recording", "libbpf", Host("h", "k", 1, 1, "x86_64"), Target([]))
    job = [programs / "linked", str(ROUNDS)]
    try:
        with Recording(tmp_path / "t", manifest) as recording:
            backend.wrap([str(part) for part in job], tmp_path / "t" / RAW)
            backend.start()
            procs = group.path / "cgroup.procs"
            subprocess.run(
                [sys.executable, "-c", RUNTIME, programs / "libcudart.so.12", procs, *job], check=True, timeout=PATIENCE_S
            )
            backend.stop(recording)
            calls = np.fromfile(tmp_path / "t" / RAW / GPU_FILE, GPU_CALL)
    finally:
        backend.stop(None)
        group.remove()
    assert len(calls) == 3 * ROUNDS * len(EXPECTED)
    assert 4242 not in calls["size_bytes"] and len(set(calls["pid"].tolist())) == 2  # the job and its fork


def test_without_calls_there_is_no_table_and_a_reason(tmp_path, programs):
    trace = record(tmp_path, "true")
    assert trace.gpu() is None and not (trace.path / "gpu.parquet").exists()
    assert "no GPU calls: the job mapped no file that holds CUDA's functions" in trace.manifest.notes
    (tmp_path / "load.py").write_text(UNUSED)
    again = tmp_path / "again"
    again.mkdir()
    command = [sys.executable, tmp_path / "load.py", programs / "libcudart.so.12", again / "t" / "raw" / "events.bin"]
    trace = record(again, *command)
    assert trace.gpu() is None
    assert any("made none" in note and "libcudart.so.12" in note for note in trace.manifest.notes)


def test_not_asked_for_nothing_is_attached(tmp_path, programs):
    trace = record(tmp_path, programs / "linked", str(ROUNDS), options=())
    assert trace.gpu() is None and not any("uprobe" in probe for probe in trace.manifest.probes)


def test_symbols_are_where_readelf_finds_them(programs, tmp_path):
    """For a library nothing moves between address and offset in these small files, for the static program it does."""
    for name in ("libcudart.so.12", "static"):
        found = function_offsets(programs / name, "cu")
        readelf = subprocess.run(["readelf", "-Wsl", programs / name], capture_output=True, text=True, check=True).stdout
        symbols = {m[2]: int(m[1], 16) for m in re.finditer(r"([0-9a-f]{16}) +\d+ FUNC .* \d+ (cu\w+)$", readelf, re.MULTILINE)}
        loads = [[int(x, 16) for x in m.groups()] for m in re.finditer(r"LOAD +0x(\w+) 0x(\w+) 0x\w+ 0x(\w+)", readelf)]
        expected = {
            symbol: address - start + offset
            for symbol, address in symbols.items()
            for offset, start, size in loads
            if start <= address < start + size
        }
        assert found == expected and len(found) == 13
    assert function_offsets(programs / "linked", "cu") == {}  # it only calls them
    (tmp_path / "text").write_text("#!/bin/sh\n")
    (tmp_path / "torn").write_bytes((programs / "static").read_bytes()[:5000])
    for name in ("text", "torn", "missing"):
        assert function_offsets(tmp_path / name, "cu") == {}


def test_the_calls_and_their_kinds_are_the_schema_s():
    assert {call.kind for call in CUDA_CALLS} <= set(schema.GPU_KINDS)
    assert len({call.name for call in CUDA_CALLS}) == len(CUDA_CALLS) < 256
