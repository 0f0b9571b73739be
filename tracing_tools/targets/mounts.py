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
