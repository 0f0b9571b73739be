"""Find the cgroup of a Docker container that runs, or that the engine has created but not started."""

from typing import Any

from iotwin.common.errors import IotwinError
from iotwin.tracing_tools.targets.cgroup import Cgroup
from iotwin.tracing_tools.targets.cgroup_mounts import NO_CGROUP2, cgroup2_mount
from iotwin.tracing_tools.targets.processes import cgroup_of


def running_cgroup(pid: int) -> Cgroup:
    """Return the cgroup of a running container whose main process is `pid`."""
    path, mount = cgroup_of(pid), cgroup2_mount()
    if path is None or mount is None:
        raise IotwinError(f"cannot trace a container: {NO_CGROUP2}")
    return Cgroup.find(str(mount / path.lstrip("/")))


def future_cgroup(container: Any, systemd: bool) -> tuple[Cgroup, bool]:
    """Return the cgroup that the engine will use for a created container, and whether it had to be made.

    `systemd`: the engine has systemd make its cgroups. Raises IotwinError if the container has ended already.
    """
    mount = cgroup2_mount()
    if mount is None:
        raise IotwinError(f"cannot trace a container: {NO_CGROUP2}")
    parent = container.attrs["HostConfig"]["CgroupParent"]
    if systemd:
        path = mount / (parent or "system.slice") / f"docker-{container.id}.scope"
    else:
        path = mount / (parent or "docker").lstrip("/") / container.id
    is_early = True
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        is_early = False
    try:
        return Cgroup(path), is_early
    except FileNotFoundError:
        raise IotwinError(f"container {container.name} ended before it could be watched; let it run longer") from None
