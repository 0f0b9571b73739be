"""The cgroup to which the kernel charges a job's block requests.

With cgroup v2 it is the job's own cgroup, if the io controller is enabled there. If the blkio controller has a separate v1
hierarchy, it is the cgroup there that corresponds to the job's (its twin). This module makes the twin if the job has not begun,
and moves the job into it; container engines make it themselves.
"""

import contextlib
from pathlib import Path

from iotwin.tracing_tools.targets.cgroup import pids_in, remove_cgroup
from iotwin.tracing_tools.targets.cgroup_mounts import cgroup2_mount, cgroup_mounts, v1_cgroup_of

_ROOT_ID = 1  # id of the root cgroup of any hierarchy
_OURS = "iotwin"  # the names of our cgroups begin so


class BlockCgroup:
    """Finds or makes the cgroup for the job in the v2 cgroup `job_cgroup_id`; `cgroup_id` is its id, 0 if there is none."""

    def __init__(self, job_cgroup_id: int) -> None:
        self.cgroup_id = 0
        self._made: Path | None = None
        job, legacy = _find(job_cgroup_id), next(iter(cgroup_mounts("cgroup", "blkio")), None)
        if job_cgroup_id == _ROOT_ID:
            self.cgroup_id = _ROOT_ID
        elif job is not None and legacy is not None:
            self._use_twin(*job, legacy)
        elif job is not None and "io" in (job[0] / job[1] / "cgroup.controllers").read_text().split():
            self.cgroup_id = job_cgroup_id

    def _use_twin(self, mount: Path, job: Path, legacy: Path) -> None:
        twin = legacy / job
        own = v1_cgroup_of("blkio")
        if own is not None and job.name.startswith(_OURS) and len(job.parts) > 1:
            twin = own / job.name  # below our own cgroup, so that the job keeps its limits
        if not twin.is_dir() and not pids_in(mount / job):
            twin.mkdir(parents=True)
            self._made = twin
        if twin.is_dir():
            self.cgroup_id = twin.stat().st_ino

    def add(self, pid: int) -> None:
        """Move a process into the cgroup, if this object made it."""
        if self._made is not None:
            (self._made / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Remove the cgroup, if this object made it.

        The last processes of a job that iotwin started move to the parent cgroup; the cgroup of a running container remains.
        """
        if self._made is None:
            return
        if self._made.name.startswith(_OURS):
            remove_cgroup(self._made)
        else:
            with contextlib.suppress(OSError):  # the engine has removed it, or the container still runs
                self._made.rmdir()
        self._made = None


def _find(cgroup_id: int) -> tuple[Path, Path] | None:
    """Return the v2 mount and the path below it of the cgroup with this id, which is its inode number; None if there is none."""
    mount = cgroup2_mount()
    if mount is None or not cgroup_id:
        return None
    return next(((mount, path.relative_to(mount)) for path in mount.rglob("*/") if path.stat().st_ino == cgroup_id), None)
