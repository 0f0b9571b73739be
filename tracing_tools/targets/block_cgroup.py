"""The cgroup to which the kernel charges a job's block requests.

If the blkio controller has a separate v1 hierarchy, that cgroup is in this hierarchy, at the path of the job's cgroup. This
module creates it and moves the job into it, unless the job already runs. Container engines create it themselves. In cgroup v2,
the kernel charges the job's own cgroup, if the io controller is enabled there.
"""

import contextlib
from pathlib import Path

from iotwin.tracing_tools.targets.cgroup import pids_in, remove_cgroup
from iotwin.tracing_tools.targets.cgroup_mounts import cgroup2_mount, cgroup_mounts, v1_cgroup_of

_ROOT_ID = 1  # id of the root cgroup of any hierarchy
_OURS = "iotwin"  # prefix of the names of cgroups that iotwin creates


class BlockCgroup:
    """The cgroup to which the kernel charges the job's block requests.

    With cgroup v2, it is the job's cgroup, whose id is `job_cgroup_id`. If blkio is a v1 controller, it is the v1 cgroup of the
    same path, which this object creates if it is missing. `cgroup_id` is 0 if neither is possible.
    """

    def __init__(self, job_cgroup_id: int) -> None:
        self.cgroup_id = 0
        self._made: Path | None = None
        job, legacy = _find(job_cgroup_id), next(iter(cgroup_mounts("cgroup", "blkio")), None)
        if job_cgroup_id == _ROOT_ID:
            self.cgroup_id = _ROOT_ID
        elif job is not None and legacy is not None:
            self._use_v1(*job, legacy)
        elif job is not None and "io" in (job[0] / job[1] / "cgroup.controllers").read_text().split():
            self.cgroup_id = job_cgroup_id

    def _use_v1(self, mount: Path, job: Path, legacy: Path) -> None:
        path = legacy / job
        own = v1_cgroup_of("blkio")
        if own is not None and job.name.startswith(_OURS) and len(job.parts) > 1:
            path = own / job.name  # below the tracer's cgroup, whose limits then also apply to the job
        if not path.is_dir() and not pids_in(mount / job):
            path.mkdir(parents=True)
            self._made = path
        if path.is_dir():
            self.cgroup_id = path.stat().st_ino

    def add(self, pid: int) -> None:
        """Move the process `pid` into the cgroup, if this object created it."""
        if self._made is not None:
            (self._made / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Remove the cgroup, if this object created it.

        Remaining processes of a job that iotwin started move to the parent cgroup. A running container's cgroup remains.
        """
        if self._made is None:
            return
        if self._made.name.startswith(_OURS):
            remove_cgroup(self._made)
        else:
            with contextlib.suppress(OSError):  # the engine removed the cgroup, or the container still runs
                self._made.rmdir()
        self._made = None


def _find(cgroup_id: int) -> tuple[Path, Path] | None:
    mount = cgroup2_mount()
    if mount is None or not cgroup_id:
        return None
    return next(((mount, path.relative_to(mount)) for path in mount.rglob("*/") if path.stat().st_ino == cgroup_id), None)
