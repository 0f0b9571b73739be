"""Where the cgroup hierarchies are mounted."""

from pathlib import Path

_TABLE = Path("/proc/self/mounts")


def cgroup_mounts(kind: str, controller: str | None = None) -> list[Path]:
    """Return where hierarchies of the `kind` cgroup2 or cgroup (v1) are mounted; of v1, only those that have `controller`."""
    fields = (line.split() for line in _TABLE.read_text().splitlines())
    return [Path(f[1]) for f in fields if f[2] == kind and (controller is None or controller in f[3].split(","))]


def cgroup2_mount() -> Path | None:
    """Return where the cgroup2 hierarchy is mounted, or None where it is not."""
    return next(iter(cgroup_mounts("cgroup2")), None)


def v1_cgroup_of(controller: str) -> Path | None:
    """Return the directory of this process's cgroup in the v1 hierarchy of a controller, or None where there is no such one."""
    mount = next(iter(cgroup_mounts("cgroup", controller)), None)
    if mount is None:
        return None
    fields = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    own = next((path for _, controllers, path in fields if controller in controllers.split(",")), "/")
    place = mount / own.lstrip("/")
    return place if place.is_dir() else mount  # a container may have mounted only its own part
