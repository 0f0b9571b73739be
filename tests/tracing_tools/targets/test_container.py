"""A container with a child container, forked processes and a noisy neighbour: exactly its own calls and block bytes."""

import fcntl
import os
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

from iotwin.trace_store.manifest import read_manifest
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.targets.cgroup_mounts import cgroup2_mount
from tests.conftest import PATIENCE_S
from tests.docker_engine import client
from tests.processes import left_behind, start, wait_for
from tests.tracing_tools.backends.test_block import device_of
from tests.tracing_tools.recorder.test_capture import on_path
from tests.tracing_tools.targets.test_targets import NO_NETWORK

pytestmark = pytest.mark.root
ROUNDS = 20
DIRECT_BYTES = 4 * 16 * 4 * 65536  # of direct.c: two processes in each of two containers
_QUERY = struct.Struct("<QQIII4x")  # struct fiemap of linux/fiemap.h: start, length, flags, mapped, count
_EXTENT = struct.Struct("<QQQ16xI12x")  # struct fiemap_extent: logical, physical, length, flags
_FS_IOC_FIEMAP = 0xC020660B

# Opens, reads and writes the same files all the while, through the page cache and past it.
NEIGHBOUR = """
import mmap, os, sys
target, direct = sys.argv[1:]
fd, buffer = os.open(direct, os.O_RDWR | os.O_DIRECT), mmap.mmap(-1, 1 << 18)
while True:
    with open(target, "r+b", buffering=0) as file:
        file.read(); file.seek(0); file.write(bytes(4096)); os.fsync(file.fileno())
    for place in range(0, os.fstat(fd).st_size, 1 << 20):
        os.preadv(fd, [buffer], place); os.pwritev(fd, [buffer], place)
"""


@contextmanager
def neighbour(*arguments: Path) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR, *arguments])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def sectors_of(path: Path) -> list[tuple[int, int]]:
    """Where the file's bytes lie on its device: (first sector, sectors) of each extent."""
    query = bytearray(_QUERY.pack(0, 2**64 - 1, 1, 0, 256) + bytes(256 * _EXTENT.size))
    with path.open("rb") as file:
        fcntl.ioctl(file, _FS_IOC_FIEMAP, query)
        device = os.fstat(file.fileno()).st_dev
    partition = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/start")
    first = int(partition.read_text()) if partition.exists() else 0
    count = _QUERY.unpack_from(query)[3]
    extents = [_EXTENT.unpack_from(query, _QUERY.size + i * _EXTENT.size) for i in range(count)]
    return [(first + physical // 512, length // 512) for _, physical, length, _ in extents]


def within(requests: pd.DataFrame, extents: list[tuple[int, int]]) -> pd.DataFrame:
    inside = [requests["sector"].between(first, first + count - 1) for first, count in extents]
    return requests[pd.concat(inside, axis=1).any(axis=1)]


def start_child(tmp_path: Path, image: str, script: str, volume: str) -> object:
    """Start a container below the job's cgroup, as an engine within the job would, and wait until the tracer knows of it."""
    wait_for(lambda: (tmp_path / "data" / "started").exists(), "the container")
    parent = Path(read_manifest(tmp_path / "t").target.cgroup).relative_to(cgroup2_mount())
    child = client().containers.run(
        image, ["sh", "-c", script], cgroup_parent=f"/{parent}", network_mode="none", volumes=[volume], detach=True
    )
    wait_for(lambda: child.id[:12] in (tmp_path / "t" / "raw" / "journal.jsonl").read_text(), "the child in the journal")
    return child


def work(number: int) -> str:
    """A script: the counting programs, two of them at once, then the one that moves blocks."""
    calls = (f"/bin/calls /data/target {ROUNDS} /data/counts.{number}.{i} &" for i in range(2))
    return f"{' '.join(calls)} wait; /bin/direct /data/direct {2 * number}"


def until(gate: str) -> str:
    return f"while [ ! -e /data/{gate} ]; do sleep 0.01; done"


@pytest.fixture(scope="module")
def traced(tmp_path_factory, test_image):
    """The trace, the counts that the programs printed, and the neighbour's pid."""
    tmp_path = tmp_path_factory.mktemp("container")
    data = tmp_path / "data"
    data.mkdir()
    (data / "target").write_bytes(bytes(16384))
    (data / "direct").write_bytes(os.urandom(DIRECT_BYTES))
    os.sync()
    outer = f"touch /data/started; {until('go')}; {work(0)}; {until('done')}; cat /data/child.out; true"
    inner = f"{until('go')}; {{ {work(1)}; }} > /data/child.out; touch /data/done"
    options = ("--detail", "data,block", "--image", test_image, *NO_NETWORK, "--volume", f"{data}:/data")
    with neighbour(data / "target", data / "direct") as other:
        tracer = start("trace", "-o", tmp_path / "t", *options, "--", "sh", "-c", outer)
        try:
            child = start_child(tmp_path, test_image, inner, f"{data}:/data")
            (data / "go").touch()
            assert child.wait()["StatusCode"] == 0, child.logs()
            child.remove(force=True)
        finally:
            for gate in ("go", "done"):
                (data / gate).touch()
            _, errors = tracer.communicate(timeout=PATIENCE_S)
    assert tracer.returncode == 0, errors
    assert not left_behind()
    trace, counted = Trace(tmp_path / "t"), Counter()
    for line in (trace.path / "logs" / "stdout").read_text().splitlines():
        counted[line.split()[0]] += int(line.split()[1])
    return trace, counted, other.pid, data


def test_calls_are_exactly_its_own(traced):
    """Threads, forks, execs and a child container, beside a neighbour on the same file: the programs' own counts."""
    trace, counted, neighbour_pid, _ = traced
    seen = on_path(trace, "/data/target")["op"].astype(str).replace({"openat": "open"}).value_counts().to_dict()
    expected = {op: count for op, count in counted.items() if not op.startswith("direct")}
    assert expected == {op: seen.get(op, 0) for op in expected}
    assert seen["read"] == 4 * 6 * 2 * ROUNDS
    direct = on_path(trace, "/data/direct")
    moved = direct[direct["op"].isin(["pread64", "pwrite64"])].groupby("op", observed=True)["result"].sum()
    assert moved.to_dict() == {"pread64": counted["direct_read"], "pwrite64": counted["direct_written"]}
    assert neighbour_pid not in set(trace.processes()["pid"])
    assert trace.manifest.lost_events == 0


def test_block_bytes_are_exactly_its_own(traced):
    """By where the file lies on its device, so that nothing depends on how the trace names a request's file."""
    trace, counted, _, data = traced
    if device_of(data) is None:
        pytest.skip(f"{data} is on no block device")
    if any("the io controller is not on" in note for note in trace.manifest.notes):
        pytest.skip("no cgroup is charged for block requests here: the io controller is not on")
    requests = within(trace.block(), sectors_of(data / "direct"))
    moved = requests.groupby(requests["op"].astype(str))["size_bytes"].sum().to_dict()
    assert counted["direct_read"] == counted["direct_written"] == DIRECT_BYTES * 5 // 8
    assert moved == {"read": counted["direct_read"], "write": counted["direct_written"]}
    # All that is charged is the container's or its child's, whoever issued it: the neighbour's fsync may have.
    assert set(trace.block()["cgroup"]) == set(requests["cgroup"]) and requests["cgroup"].nunique() == 2


def test_processes_are_its_own_and_told_apart(traced):
    trace, *_ = traced
    processes = trace.processes()
    # Nothing of the runtime that set the container up: the first process is the shell, as its process 1.
    assert (processes["comm"].iloc[0], processes["namespace_pid"].iloc[0]) == ("sh", 1), processes.to_string()
    assert not processes["comm"].str.startswith("runc").any()
    assert processes["container"].notna().all() and processes["container"].nunique() == 2
    assert trace.manifest.target.container is not None
