"""Block requests of a job: every byte that devices gave or took for it, whoever issued it, and nothing of a neighbour's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from iotwin.trace_store.figures.page_cache_hits import page_cache_hits
from iotwin.trace_store.reader import Trace
from tests.conftest import run_iotwin
from tests.processes import call

pytestmark = pytest.mark.root
MIB = 1 << 20

# Reads cold through the page cache, again from it, then directly; writes and syncs. Prints what /proc/PID/io has of each.
JOB = """
import mmap, os, sys
path = sys.argv[1]
def counted(name):
    return {line.split(":")[0]: int(line.split()[1]) for line in open("/proc/self/io")}[name]
def read_all(fd):
    os.lseek(fd, 0, os.SEEK_SET)
    while os.read(fd, 1 << 20):
        pass
fd = os.open(path, os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
before = counted("read_bytes")
read_all(fd)
read_all(fd)
print("cold", counted("read_bytes") - before)  # after both, as a machine short of memory drops pages in between
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
direct, buffer = os.open(path + ".direct", os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 1 << 20)
before = counted("read_bytes")
for i in range(4):
    os.preadv(direct, [buffer], i << 20)
print("direct", counted("read_bytes") - before)
out = os.open(path + ".out", os.O_CREAT | os.O_WRONLY)
os.write(out, os.urandom(2 << 20))
os.fsync(out)
"""
NEIGHBOUR = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
out = os.open(sys.argv[1] + ".neighbour", os.O_CREAT | os.O_WRONLY)
while True:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.lseek(fd, 0, os.SEEK_SET)
    while os.read(fd, 1 << 20):
        pass
    os.pwrite(out, bytes(1 << 20), 0)
    os.fsync(out)
"""


def device_of(path: Path) -> str | None:
    number = path.stat().st_dev
    found = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    return found.resolve().name if found.exists() else None


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    folder = tmp_path_factory.mktemp("block")
    if device_of(folder) is None:
        pytest.skip(f"{folder} is on no block device")
    data, other = folder / "data", folder / "other"
    for path in (data, Path(f"{data}.direct"), other):
        path.write_bytes(os.urandom(8 * MIB))
    os.sync()
    neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR, other])
    try:
        result = run_iotwin("trace", "-o", folder / "t", "--detail", "data,block", "--", sys.executable, "-c", JOB, data)
    finally:
        neighbour.kill()
        neighbour.wait()
    assert result.returncode == 0, result.stderr
    trace = Trace(folder / "t")
    if any("the io controller is not on" in note for note in trace.manifest.notes):
        pytest.skip("no cgroup is charged for block requests here: the io controller is not on")
    own = dict(line.split() for line in (folder / "t" / "logs" / "stdout").read_text().splitlines())
    requests, files = trace.block(), trace.files()
    requests["name"] = requests["file_id"].map(files["path"]).str.removeprefix(f"{folder}/")
    return trace, requests, {key: int(value) for key, value in own.items()}


def moved(requests, op: str, name: str) -> int:
    return int(requests[(requests["op"] == op) & (requests["name"] == name)]["size_bytes"].sum())


def test_bytes_from_devices_equal_the_kernels_count_for_the_process(traced):
    _, requests, own = traced
    assert own["cold"] > 4 * MIB  # the kernel may keep a page that it was asked to drop
    assert moved(requests, "read", "data") == own["cold"]
    reads = requests[requests["op"] == "read"]
    # What a worker of the kernel issues of a direct read is the job's, but no longer tells its file.
    direct = int(reads[(reads["name"] == "data.direct") | reads["name"].isna()]["size_bytes"].sum())
    assert own["direct"] == 4 * MIB and moved(requests, "read", "data.direct") <= own["direct"] <= direct
    assert moved(requests, "write", "data.out") == 2 * MIB


def test_nothing_of_a_neighbour(traced):
    _, requests, _ = traced
    assert not requests["name"].fillna("").str.startswith("other").any()
    assert requests["cgroup"].nunique() == 1


def test_times_and_devices(traced):
    trace, requests, _ = traced
    assert requests["issue_ns"].is_monotonic_increasing
    assert (requests["duration_ns"].dropna() > 0).all() and requests["duration_ns"].notna().mean() > 0.9
    queued = requests["queued_ns"].dropna()
    assert len(queued) and (queued <= requests["issue_ns"][queued.index]).all()
    assert requests["issue_ns"].between(trace.manifest.start_ns, trace.manifest.end_ns).all()
    for number in requests["device"].unique():
        assert Path(f"/sys/dev/block/{os.major(int(number))}:{os.minor(int(number))}").exists()
    assert set(requests["origin"].astype(str)) <= {"task", "kernel"}


def test_page_cache_hit_ratio(traced):
    trace, _, own = traced
    hits = page_cache_hits(trace)
    data = hits[hits["path"].str.endswith("/data")].iloc[0]
    assert (data["read_bytes"], data["device_bytes"]) == (16 * MIB, own["cold"])
    assert data["hit_ratio"] == 1 - own["cold"] / (16 * MIB)
    assert not hits["path"].str.endswith(".direct").any()
    shown = call("info", trace.path).stdout
    assert "were in the page cache" in shown


_CROWD = """
import mmap, os, sys
fd, buffer = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT), mmap.mmap(-1, 1 << 16)
number = sum(os.fork() == 0 for _ in range(2))
for i in range(1000):
    os.pwritev(fd, [buffer], i * 7 % 128 << 16)
"""


def test_every_request_of_a_busy_disk(tmp_path):
    """Several processes at once, whose requests end together: the kernel does not run every program in every interrupt."""
    if device_of(tmp_path) is None:
        pytest.skip(f"{tmp_path} is on no block device")
    data = tmp_path / "data"
    data.write_bytes(os.urandom(8 * MIB))
    os.sync()
    result = run_iotwin("trace", "-o", tmp_path / "t", "--detail", "data,block", "--", sys.executable, "-c", _CROWD, data)
    assert result.returncode == 0, result.stderr
    requests = Trace(tmp_path / "t").block()
    assert requests.loc[requests["op"] == "write", "size_bytes"].sum() == 4 * 1000 * 65536


def test_no_table_without_the_group(tmp_path):
    assert run_iotwin("trace", "-o", tmp_path / "t", "--", "true").returncode == 0
    trace = Trace(tmp_path / "t")
    assert trace.block() is None and page_cache_hits(trace) is None


def test_nothing_is_left_of_the_cgroup(traced):
    made = Path("/sys/fs/cgroup").glob("blkio/**/iotwin-*")
    assert not [path for path in made if not Path(f"/proc/{path.name.split('-')[1]}").exists()]


def test_requests_without_a_completion_are_kept(tmp_path):
    """Two made-up requests still in flight when the capture stops."""
    import ctypes

    import numpy as np

    from iotwin.trace_store.manifest import Host, Manifest, Target
    from iotwin.trace_store.raw.finish import finish_trace
    from iotwin.trace_store.raw.record_files import Recording
    from iotwin.trace_store.raw.records import BLOCK
    from iotwin.tracing_tools.backend_base import Scope
    from iotwin.tracing_tools.backends.libbpf import LibbpfBackend

    backend = LibbpfBackend(Scope(1, 0, detail=("data", "block")))
    requests = np.zeros(2, BLOCK)
    requests["issue_ns"], requests["size_bytes"], requests["duration_ns"] = [20, 10], [4096, 512], -1
    library, fd = ctypes.CDLL("libbpf.so.1"), backend._object.map_fd("in_flight")
    for key, request in enumerate(requests):
        assert not library.bpf_map_update_elem(fd, ctypes.byref(ctypes.c_uint64(key)), request.tobytes()[8:], ctypes.c_uint64(0))
    manifest = Manifest("recording", "libbpf", Host("h", "k", 1, 1, "x86_64"), Target(["x"]))
    with Recording(tmp_path / "t", manifest) as recording:
        recording.append_clock()
        backend.stop(recording)
    finish_trace(tmp_path / "t", manifest)
    table = Trace(tmp_path / "t").block()
    assert table["size_bytes"].tolist() == [512, 4096] and table["duration_ns"].isna().all()
    assert table["file_id"].isna().all()
