"""Find the mount points of the cgroup hierarchies, versions 1 and 2."""

from pathlib import Path

_TABLE = Path("/proc/self/mounts")
_UNIFIED = "/sys/fs/cgroup/unified"  # where container engines expect v2 if controllers are v1
NO_CGROUP2 = f"no cgroup2 hierarchy is mounted; mount one: mkdir {_UNIFIED} && mount -t cgroup2 cgroup2 {_UNIFIED}"


def cgroup_mounts(kind: str, controller: str | None = None) -> list[Path]:
    """Return the mounts of type `kind`: cgroup2, or cgroup (v1); if `controller` is given, only v1 hierarchies with it."""
    fields = (line.split() for line in _TABLE.read_text().splitlines())
    return [Path(f[1]) for f in fields if f[2] == kind and (controller is None or controller in f[3].split(","))]


def cgroup2_mount() -> Path | None:
    """Return the mount point of the v2 hierarchy, None if it is not mounted."""
    return next(iter(cgroup_mounts("cgroup2")), None)


def v1_cgroup_of(controller: str) -> Path | None:
    """Return the directory of this process's cgroup in the v1 hierarchy of `controller`, None if there is no such hierarchy."""
    mount = next(iter(cgroup_mounts("cgroup", controller)), None)
    if mount is None:
        return None
    fields = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    own = next((path for _, controllers, path in fields if controller in controllers.split(",")), "/")
    directory = mount / own.lstrip("/")
    return directory if directory.is_dir() else mount  # a container may see only its own part of the hierarchy
