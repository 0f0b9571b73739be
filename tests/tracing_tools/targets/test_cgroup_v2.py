"""Machines with cgroup v2 alone: its hierarchy at /sys/fs/cgroup, no v1 beside it, block requests charged to the job's cgroup."""

import subprocess
import sys
from pathlib import Path

import pytest

from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.targets import block_cgroup, cgroup, cgroup_mounts
from iotwin.tracing_tools.targets.block_cgroup import BlockCgroup
from tests.conftest import ROOT
from tests.tracing_tools.recorder.test_capture import ROUNDS, on_path, own_counts

V2_MOUNTS = "proc /proc proc rw 0 0\ncgroup2 {mount} cgroup2 rw,nsdelegate 0 0\n"
HYBRID_MOUNTS = V2_MOUNTS + "cgroup {legacy} cgroup rw,blkio 0 0\ncgroup {other} cgroup rw,cpu,cpuacct 0 0\n"


@pytest.mark.root
def test_a_job_where_there_is_nothing_but_v2(tmp_path, calls_program):
    """The real hierarchy, mounted where such machines have it, in a mount namespace of our own without the v1 ones."""
    target = tmp_path / "target"
    target.write_bytes(bytes(16384))
    inside = 'umount --lazy --recursive /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'
    trace = [sys.executable, "-m", "iotwin", "trace", "-o", tmp_path / "t", "--detail", "data,block", "--"]
    command = [*trace, calls_program, target, str(ROUNDS), tmp_path / "counts"]
    result = subprocess.run(
        ["unshare", "--mount", "sh", "-c", inside, "sh", *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert result.returncode == 0, result.stderr
    traced = Trace(tmp_path / "t")
    seen = on_path(traced, str(target))["op"].astype(str).replace({"openat": "open"}).value_counts().to_dict()
    assert own_counts(traced) == {key: seen.get(key, 0) for key in own_counts(traced)}
    # Here the v1 hierarchy, though out of sight, has the controller: the job's own requests are those that its processes issue.
    assert any("the io controller is not on" in note for note in traced.manifest.notes)
    group = Path(traced.manifest.target.cgroup or "")
    assert group.is_relative_to("/sys/fs/cgroup") and "unified" not in group.parts
    assert not (cgroup_mounts.cgroup2_mount() / group.relative_to("/sys/fs/cgroup")).exists()


@pytest.fixture
def layout(tmp_path, monkeypatch):
    """A made-up hierarchy below `tmp_path`: a job's cgroup, its controllers, and the mount table that the code is to see."""

    def make(lines: str, controllers: str) -> Path:
        mount, table = tmp_path / "cgroup", tmp_path / "mounts"
        job = mount / "user.slice" / "iotwin-1-2"
        for folder in (job, tmp_path / "blkio" / "user.slice", tmp_path / "cpu"):
            folder.mkdir(parents=True)
        (job / "cgroup.controllers").write_text(controllers)
        table.write_text(lines.format(mount=mount, legacy=tmp_path / "blkio", other=tmp_path / "cpu"))
        monkeypatch.setattr(cgroup_mounts, "_TABLE", table)
        monkeypatch.setattr(block_cgroup, "v1_cgroup_of", lambda controller: tmp_path / "blkio" / "user.slice")
        return job

    return make


@pytest.mark.parametrize(("controllers", "charged"), [("cpuset cpu io memory\n", True), ("cpu memory\n", False), ("", False)])
def test_block_requests_are_charged_to_the_jobs_own_cgroup(layout, controllers, charged):
    job = layout(V2_MOUNTS, controllers)
    group = BlockCgroup(job.stat().st_ino)
    assert group.cgroup_id == (job.stat().st_ino if charged else 0)
    group.add(1)  # nothing to move: there is one hierarchy
    group.remove()
    assert job.is_dir() and cgroup._legacy_twins(job) == []


def test_block_requests_are_charged_to_a_twin_where_v1_has_the_controller(layout, tmp_path):
    job = layout(HYBRID_MOUNTS, "cpu io\n")
    group = BlockCgroup(job.stat().st_ino)
    twin = tmp_path / "blkio" / "user.slice" / job.name
    assert twin.is_dir() and group.cgroup_id == twin.stat().st_ino != job.stat().st_ino
    assert cgroup._legacy_twins(job) == [twin]
    group.remove()
    assert not twin.exists() and job.is_dir()


def test_containers_are_found_in_either_layout(layout):
    job = layout(V2_MOUNTS, "")
    names = [f"docker-{'a' * 64}.scope", "b" * 64, f"kubepods/pod1/cri-containerd-{'c' * 64}.scope"]
    for name in names:
        (job / name).mkdir(parents=True)
    found = cgroup.Cgroup(job).containers()
    assert set(found.values()) == {"a" * 64, "b" * 64, "c" * 64}
    assert all((job / name).stat().st_ino in found for name in names)
    assert cgroup.Cgroup(job).scope.cgroup_level == 2
