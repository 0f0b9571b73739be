"""The cgroup that the kernel charges a job's block requests to.

With cgroup v2 it is the job's own cgroup, if the io controller is on for it. Where the blkio controller has a hierarchy of its
own (cgroup v1, or both versions), it is a cgroup there: a twin of the job's, which this makes and the job has to be put into as
well. A container engine makes and uses the twin by itself.
"""

from pathlib import Path

from tracing_tools.targets.mounts import cgroup2_mount, cgroup_mounts
from tracing_tools.targets.processes import remove_tree

_ROOT_ID = 1  # of the root of any hierarchy
_OURS = "iotwin"


class BlockCgroup:
    """Finds or makes the cgroup for the tasks of the v2 cgroup with the id given; `cgroup_id` is 0 when there is none."""

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
        if job.name.startswith(_OURS) and len(job.parts) > 1:
            twin = legacy / _own_path("blkio") / job.name  # so that the job keeps the limits it would have had
        if job.name.startswith(_OURS) and not twin.is_dir():
            _remove_stale(twin.parent)
            twin.mkdir()
            self._made = twin
        if twin.is_dir():
            self.cgroup_id = twin.stat().st_ino

    def add(self, pid: int) -> None:
        """Move a process into the cgroup, if it was made here."""
        if self._made is not None:
            (self._made / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Remove the cgroup, if it was made here; processes that are still in it move to the one above."""
        if self._made is not None:
            _empty(self._made)
            remove_tree(self._made)
            self._made = None


def _find(cgroup_id: int) -> tuple[Path, Path] | None:
    """Return the v2 mount and the path below it of the cgroup with this id, which is its inode number."""
    mount = cgroup2_mount()
    if mount is None or not cgroup_id:
        return None
    return next(((mount, path.relative_to(mount)) for path in mount.rglob("*/") if path.stat().st_ino == cgroup_id), None)


def _own_path(controller: str) -> str:
    lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    return next((path.lstrip("/") for _, controllers, path in lines if controller in controllers.split(",")), "")


def _empty(path: Path) -> None:
    for procs in path.rglob("cgroup.procs"):
        for pid in procs.read_text().split():
            try:
                (path.parent / "cgroup.procs").write_text(pid)
            except OSError:
                continue  # it ended meanwhile


def _remove_stale(parent: Path) -> None:
    """Remove empty cgroups that killed recorders left behind."""
    for path in parent.glob(f"{_OURS}-*"):
        recorder = path.name.split("-")[1]
        if not Path(f"/proc/{recorder}").exists() and not (path / "cgroup.procs").read_text():
            remove_tree(path)
