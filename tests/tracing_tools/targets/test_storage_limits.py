"""Limits on storage: the kernel has them while a run lasts and not a moment longer, in either version of cgroups."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from iotwin.common.errors import IotwinError
from iotwin.loops.page_cache_state import evict
from iotwin.tracing_tools.targets import storage_limits as module
from iotwin.tracing_tools.targets.cgroup import remove_stale_cgroups
from iotwin.tracing_tools.targets.cgroup_mounts import v1_cgroup_of
from iotwin.tracing_tools.targets.storage_limits import (
    MEMORY,
    READS,
    DeviceReads,
    LimitedCgroups,
    Limits,
    device_below,
    reason_against,
)
from tests.conftest import small_disk
from tests.processes import wait_for

LIMITS = Limits(read_bytes_per_s=5_000_000, read_requests_per_s=200, memory_bytes=64 << 20)


def _device(path: Path) -> str:
    """The disk that the file is on; the test is skipped on a file system without one."""
    for what in (READS, MEMORY):
        if reason := reason_against(what):
            pytest.skip(f"{what} cannot be limited: {reason}")
    try:
        return device_below(path)
    except IotwinError as error:
        pytest.skip(str(error))


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "100"])
    yield process
    process.kill()
    process.wait()


def _limited() -> list[Path]:
    roots = {place for place in (v1_cgroup_of("blkio"), v1_cgroup_of("memory")) if place} | {Path("/sys/fs/cgroup")}
    return [path for root in roots for path in root.glob(f"iotwin-{os.getpid()}-*")]


@pytest.mark.root
def test_a_process_is_under_the_limits_and_they_end_with_the_block(tmp_path, sleeper):
    device = _device(tmp_path)
    blkio = v1_cgroup_of("blkio")
    if blkio is None:
        pytest.skip("reads are capped by io.max here")
    with LimitedCgroups(LIMITS, [device]) as cgroups:
        cgroups.add(sleeper.pid)
        place = next(path for path in _limited() if path.parent == blkio)
        assert (place / "cgroup.procs").read_text().split() == [str(sleeper.pid)]
        assert (place / "blkio.throttle.read_bps_device").read_text() == f"{device} 5000000\n"
        assert (place / "blkio.throttle.read_iops_device").read_text() == f"{device} 200\n"
        memory = next(path for path in _limited() if path.parent == v1_cgroup_of("memory"))
        assert (memory / "memory.limit_in_bytes").read_text() == f"{64 << 20}\n"
    assert not _limited()
    assert sleeper.poll() is None and "iotwin-" not in Path(f"/proc/{sleeper.pid}/cgroup").read_text()


@pytest.mark.root
@pytest.mark.parametrize("ending", [KeyboardInterrupt, OSError])
def test_nothing_is_left_of_them_whatever_ends_the_run(tmp_path, ending):
    device = _device(tmp_path)
    with pytest.raises(ending), LimitedCgroups(LIMITS, [device]):
        assert _limited()
        raise ending
    assert not _limited()


@pytest.mark.root
def test_a_limit_that_the_kernel_refuses_is_one_line_and_leaves_nothing(tmp_path):
    _device(tmp_path)
    with pytest.raises(IotwinError, match="does not take a limit"), LimitedCgroups(LIMITS, ["4095:77"]):
        pass
    assert not _limited()


@pytest.mark.root
def test_the_memory_of_a_job_is_what_it_has_beside_the_page_cache(tmp_path):
    _device(tmp_path)
    (tmp_path / "read").write_bytes(bytes(64 << 20))
    code = f"kept = bytearray(48 << 20); open('{tmp_path}/read', 'rb').read(); input()"
    with LimitedCgroups(Limits(), []) as cgroups:
        job = subprocess.Popen(["sh", "-c", 'read go; exec "$0" -c "$1"', sys.executable, code], stdin=subprocess.PIPE)
        assert job.stdin is not None
        cgroups.add(job.pid)
        job.stdin.write(b"go\n")
        job.stdin.flush()
        wait_for(lambda: cgroups.most_memory_bytes >= 48 << 20, "the job's memory")
        job.communicate(b"end\n")
    assert 48 << 20 <= cgroups.most_memory_bytes < 48 << 22


@pytest.mark.root
@pytest.mark.parametrize("limits", [Limits(), Limits(read_bytes_per_s=100 << 20)])
def test_what_a_job_reads_from_a_disk_is_counted_capped_or_not(tmp_path, limits):
    device, path = _device(tmp_path), tmp_path / "read"
    path.write_bytes(os.urandom(4 << 20))
    evict(path)
    with LimitedCgroups(limits, [device]) as cgroups:
        assert cgroups.device_reads() == DeviceReads(0, 0)
        job = subprocess.Popen(["sh", "-c", 'read go; exec cat "$0"', path], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        cgroups.add(job.pid)
        job.communicate(b"go\n")
        found = cgroups.device_reads()
    assert found is not None and 4 << 20 <= found.size_bytes < 40 << 20 and found.requests > 0


@pytest.mark.root
def test_a_reader_under_limits_is_overtaken_by_one_without(tmp_path):
    """At 128 KiB/s the first reader needs 32 s, though it starts first. If the limit had no effect, it would end at once."""
    device = _device(tmp_path)
    for name in ("slow", "fast"):
        (tmp_path / name).write_bytes(os.urandom(4 << 20))
        evict(tmp_path / name)
    with LimitedCgroups(Limits(read_bytes_per_s=128 << 10), [device]) as cgroups:
        words = ["sh", "-c", 'read go; exec cat "$0"', tmp_path / "slow"]
        slow = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert slow.stdin is not None
        cgroups.add(slow.pid)
        with slow.stdin as pipe:
            pipe.write(b"go\n")
        wait_for(lambda: cgroups.device_reads() != DeviceReads(0, 0), "the first read under limits")
        subprocess.run(["cat", tmp_path / "fast"], stdout=subprocess.DEVNULL, check=True)
        assert slow.poll() is None
        slow.kill()
    slow.wait()


def test_what_the_kernel_keeps_beside_cached_pages_is_not_the_jobs_own_memory():
    """In MiB: it starts, needs its most, starts two loaders, writes files whose pages have buffer heads, and ends."""
    memory = module._OwnMemory()
    readings = ((10, 0, 1), (60, 1, 1), (100, 1, 1), (100, 3, 2), (105, 5, 3), (99, 4, 3), (102, 12, 3), (100, 1, 1), (90, 1, 3))
    for own, kernel, processes in (*readings, (5, 0, 1)):
        memory.add(own << 20, kernel << 20, processes)
    assert memory.total_bytes() == (105 + 4) << 20


def test_processes_of_cgroups_below_count(tmp_path):
    (tmp_path / "below").mkdir()
    for folder, pids in ((tmp_path, ""), (tmp_path / "below", "7\n8\n")):
        (folder / "cgroup.procs").write_text(pids)
    assert module._count_processes(tmp_path) == 2


@pytest.mark.root
def test_limits_of_a_killed_recorder_are_removed_by_the_next_one():
    blkio = v1_cgroup_of("blkio")
    if blkio is None:
        pytest.skip("there is no v1 hierarchy here")
    dead = subprocess.Popen(["true"])
    dead.wait()
    stale = blkio / f"iotwin-{dead.pid}-{Path('/proc/self/ns/pid').stat().st_ino}-1"
    stale.mkdir()
    assert stale.name in remove_stale_cgroups() and not stale.exists()


def test_version_2_is_asked_for_the_same_in_its_own_words(tmp_path, monkeypatch):
    (tmp_path / "cgroup.controllers").write_text("cpu io memory\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu\n")
    monkeypatch.setattr(module, "cgroup2_mount", lambda: tmp_path)
    monkeypatch.setattr(module, "remove_cgroup", shutil.rmtree)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with LimitedCgroups(LIMITS, ["8:0", "8:16"]) as cgroups:
        assert cgroups.parent is not None and cgroups.parent.parent == tmp_path
        assert (cgroups.parent / "io.max").read_text() == "8:16 rbps=5000000 riops=200"  # the kernel keeps a line for each
        assert (cgroups.parent / "memory.max").read_text() == str(64 << 20)
        assert (cgroups.parent / "memory.swap.max").read_text() == "0"
        assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory"
        counted = "8:0 rbytes=7 wbytes=9 rios=1 wios=2\n8:16 rbytes=70 rios=10\n8:32 rbytes=700 rios=100\n"
        (cgroups.parent / "io.stat").write_text(counted)
        assert cgroups.device_reads() == DeviceReads(77, 11)
        stat = (
            f"anon {9 << 20}\nfile {41 << 20}\nshmem {1 << 20}\nkernel_stack 4096\npagetables 8192\nslab_reclaimable {5 << 20}\n"
        )
        (cgroups.parent / "memory.stat").write_text(stat)
        assert module._found_memory(cgroups.parent) == (10 << 20, 12_288)
    assert not cgroups.parent.exists()
    assert (tmp_path / "cgroup.subtree_control").read_text() == "-memory"


def test_a_machine_that_cannot_cap_says_so_in_one_line(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert reason_against(READS) == "it needs root; run under sudo"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(module, "cgroup2_mount", lambda: None)
    monkeypatch.setattr(module, "v1_cgroup_of", lambda controller: None)
    assert reason_against(MEMORY) == "no cgroup hierarchy here has the controller memory (v2) or memory (v1)"
    with pytest.raises(IotwinError, match="cannot limit a job's reads: no cgroup hierarchy"), LimitedCgroups(LIMITS, ["8:0"]):
        pass


@pytest.mark.root
def test_files_in_memory_are_on_no_disk_to_cap(tmp_path):
    with small_disk(tmp_path / "disk", 1 << 20) as folder, pytest.raises(IotwinError, match="cannot be capped"):
        device_below(folder)
