"""Docker containers as targets, through the docker SDK: one that runs, one that a command starts, one that we make of an image.

A container of an image is created below a cgroup of ours, so that its cgroup is known, and watched, before its first instruction.
What the container runtime does in there to set it up is not traced: a process counts from the first program that it executes.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.errors import IotwinError, UsageError, nearest
from tracing_tools.protocols import Backend
from tracing_tools.targets.cgroup import Cgroup, JobCgroup
from tracing_tools.targets.mounts import cgroup2_mount
from tracing_tools.targets.processes import cgroup_of
from tracing_tools.targets.running import RunningTarget
from tracing_tools.trace.manifest import Target

# How long an engine that lives has, on a machine however busy, for what it will say in any case.
_LOG_END_S = _STATUS_S = 60.0
_OOM_S = 1.0  # for the engine to learn why a container was killed
_LIMITED_OOM_S = 20.0  # the same where a limit on its memory is the likely reason


@dataclass
class ContainerOptions:
    """How to create a container: parameters of the docker SDK's containers.create, and the GPUs to give it ('all' or ids)."""

    parameters: dict[str, Any] = field(default_factory=dict)
    gpus: str | None = None

    def check(self) -> None:
        """Raise UsageError for a parameter that the SDK does not have, or that is ours to set."""
        models = docker_sdk().models.containers
        ours = {"cgroup_parent", "command", "image", "detach", "auto_remove", "remove", "tty"}
        known = sorted({*models.RUN_CREATE_KWARGS, *models.RUN_HOST_CONFIG_KWARGS, "name", "volumes", "ports", "network"} - ours)
        for name in self.parameters:
            if name in ours:
                raise UsageError(f"the container option '{name}' is set by iotwin itself; leave it out")
            if name not in known:
                raise UsageError(
                    f"unknown container option '{name}'{nearest(name, known)}; see containers.create of the docker SDK"
                )


def docker_sdk() -> Any:
    """Return the docker SDK; IotwinError when it is not installed."""
    try:
        import docker
        import docker.models.containers
    except ImportError:
        raise IotwinError("the Python package docker is not installed; install it with: pip install docker") from None
    return docker


def connect() -> Any:
    """Return a client of the Docker Engine (DOCKER_HOST is heeded); IotwinError when there is none."""
    docker = docker_sdk()
    try:
        client = docker.from_env()
        client.ping()
    except docker.errors.DockerException:
        raise IotwinError(f"no Docker Engine answers at {address()}; start it, or set DOCKER_HOST to its address") from None
    return client


def address() -> str:
    """Return where the Docker Engine is looked for."""
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


@contextlib.contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """Turn what the engine says into an IotwinError."""
    docker = docker_sdk()
    try:
        yield
    except docker.errors.ImageNotFound:
        raise IotwinError(f"{what}: there is no such image on this machine; build or pull it first") from None
    except docker.errors.NotFound:
        raise IotwinError(f"{what}: there is no such container; docker ps lists those that run") from None
    except docker.errors.APIError as error:
        raise IotwinError(f"{what}: {' '.join(str(error.explanation or error).split())}") from None
    except (docker.errors.DockerException, OSError) as error:
        raise IotwinError(f"{what}: the Docker Engine does not answer any more: {str(error).splitlines()[0]}") from None


class Watch:
    """Follows one container in the background: copies its output to the log files and waits for its end."""

    def __init__(self, identity: str, logs: Path, from_start: bool = False) -> None:
        """`from_start`: copy what it wrote before, too."""
        self.exit_status: int | None = None
        self._waiting: threading.Thread | None = None
        stream = connect().containers.get(identity).attach(stream=True, logs=from_start, demux=True)
        files = [
            os.open(logs / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644) for name in ("stdout", "stderr")
        ]
        self._copying = threading.Thread(target=self._copy, args=(stream, files), daemon=True)
        self._copying.start()
        self._identity = identity

    def begin(self) -> None:
        """Wait for the end of the container, which has been started."""
        container = connect().containers.get(self._identity)
        self._waiting = threading.Thread(target=self._wait, args=(container,), daemon=True)
        self._waiting.start()

    def may_tell_status(self) -> bool:
        """Whether the engine still may say how the container ended."""
        return self._waiting is not None and self._waiting.is_alive()

    def _copy(self, stream: Any, files: list[int]) -> None:
        with contextlib.suppress(Exception):  # the engine went away: the job's end is seen in its cgroup
            for parts in stream:
                for part, file in zip(parts, files, strict=True):
                    if part:
                        os.write(file, part)
        for file in files:
            os.close(file)

    def _wait(self, container: Any) -> None:
        with contextlib.suppress(Exception):  # it is gone: that is seen in its cgroup
            self.exit_status = int(container.wait(timeout=None)["StatusCode"])

    def finish(self) -> None:
        """Wait for the last of the output."""
        self._copying.join(_LOG_END_S)


class ContainerTarget(RunningTarget):
    """A container that runs already."""

    def __init__(self, name: str) -> None:
        with in_one_line(f"container {name}"):
            self._container = connect().containers.get(name)
        state = self._container.attrs["State"]
        if not state["Running"]:
            raise IotwinError(f"container {name} is not running ({state['Status']}); start it, or trace its image with --image")
        path, mount = cgroup_of(state["Pid"]), cgroup2_mount()
        if path is None or mount is None:
            raise IotwinError("cannot tell the container's processes from others: no cgroup2 hierarchy is mounted")
        self._follow(Cgroup.find(str(mount / path.lstrip("/"))), state["Pid"])

    def _follow(self, cgroup: Cgroup, root_pid: int | None) -> None:
        self._cgroup = cgroup
        super().__init__(replace(cgroup.scope, entered_by_exec=True), root_pid)
        self.containers = {self._container.id: self._container.name}
        self._watch: Watch | None = None
        self._gone_since: float | None = None

    def describe(self) -> Target:
        """Return the container and its image."""
        config = self._container.attrs["Config"]
        command = [*(config["Entrypoint"] or []), *(config["Cmd"] or [])]
        return Target(
            command,
            config["WorkingDir"] or "/",
            self.root_pid,
            str(self._cgroup.path),
            container=f"{self._container.name} ({self._container.id[:12]})",
            image=config["Image"],
        )

    def start(self, backend: Backend, logs: Path, raw: Path) -> None:
        """Copy its output from now on."""
        with in_one_line(f"container {self._container.name}"):
            self._watch = Watch(self._container.id, logs)
            self._watch.begin()

    def remaining(self) -> list[int]:
        """Return the container's processes."""
        return self._cgroup.pids()

    def has_ended(self) -> bool:
        """Whether the container has ended: its cgroup goes a moment before the engine tells its status, if it still does."""
        may_tell = self._watch is not None and self._watch.may_tell_status()  # asked first: what it says last is seen below
        if self._watch and self._watch.exit_status is not None:
            self._set_status(self._watch.exit_status)
        if self.exit_status is None and not self._cgroup.path.is_dir():
            self._gone_since = self._gone_since or time.monotonic()
            return not may_tell or time.monotonic() - self._gone_since > _STATUS_S
        return self.exit_status is not None

    def _set_status(self, status: int) -> None:
        # A shell and Docker both tell a signal's end as 128 + its number.
        self.exit_status = 128 - status if 128 < status < 128 + signal.NSIG else status

    def _ask_to_end(self, number: int) -> None:
        """Send a signal to the container's main process.

        The kernel drops what the first process of a container neither handles nor blocks; outside of one it would be the end of
        it, so it is here, too.
        """
        number = number if self._is_noticed(number) else signal.SIGKILL
        with contextlib.suppress(IotwinError), in_one_line("container"):  # it has ended
            self._container.kill(signal=int(number))

    def _is_noticed(self, number: int) -> bool:
        try:
            lines = Path(f"/proc/{self.root_pid}/status").read_text().splitlines()
        except OSError:
            return True
        masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigBlk:", "SigIgn:", "SigCgt:"))]
        return any(mask >> (number - 1) & 1 for mask in masks)

    def cpu_ns(self) -> int | None:
        """Return the CPU time of the container."""
        return self._cgroup.cpu_ns()

    def cgroup_path(self) -> Path | None:
        """Return the container's cgroup."""
        return self._cgroup.path

    def closing_notes(self) -> list[str]:
        """Return how the container ended, once the last of its output is there."""
        if self._watch and self.exit_status is not None:
            self._watch.finish()
        notes, before = [], self._container.name
        with contextlib.suppress(IotwinError), in_one_line("container"):  # it may be gone
            self._container.reload()
            if self._container.name != before:
                notes.append(f"the container was renamed from {before} to {self._container.name}")
            if self._was_out_of_memory():
                notes.append("the container ran out of memory (OOM)")
        return notes

    def _was_out_of_memory(self) -> bool:
        """Whether the engine says so, which it may learn a moment after the end of a container that was killed."""
        longest_s = _LIMITED_OOM_S if self._container.attrs["HostConfig"]["Memory"] else _OOM_S
        until = time.monotonic() + (longest_s if self.exit_status == -signal.SIGKILL else 0)
        while not self._container.attrs["State"]["OOMKilled"] and time.monotonic() < until:
            time.sleep(_OOM_S / 20)
            self._container.reload()
        return bool(self._container.attrs["State"]["OOMKilled"])


class ImageTarget(ContainerTarget):
    """A container that we make of an image, and remove when it has ended."""

    is_ours = True

    def __init__(self, image: str, command: list[str], options: ContainerOptions) -> None:
        options.check()
        client = connect()
        docker = docker_sdk()
        parameters = dict(options.parameters)
        if options.gpus:
            ids = {"count": -1} if options.gpus == "all" else {"device_ids": options.gpus.split(",")}
            parameters["device_requests"] = [docker.types.DeviceRequest(capabilities=[["gpu"]], **ids)]
        self._parent = JobCgroup.create_for_containers(client.info().get("CgroupDriver") == "systemd")
        mount = cgroup2_mount()
        parent = (
            self._parent.path.name if self._parent.path.suffix == ".slice" else f"/{self._parent.path.relative_to(str(mount))}"
        )
        try:
            with in_one_line(f"image {image}"):
                self._container = client.containers.create(image, command or None, cgroup_parent=parent, **parameters)
        except (TypeError, ValueError) as error:
            self._parent.remove()
            raise UsageError(f"image {image}: {error}") from None
        except BaseException:
            self._parent.remove()
            raise
        self._follow(self._parent, None)
        self.scope = self._parent.scope

    def start(self, backend: Backend, logs: Path, raw: Path) -> None:
        """Listen to the container, which is created but does not run yet; its own cgroup is made, so that it is known by then."""
        slice_ = self._parent.path.suffix == ".slice"
        (self._parent.path / (f"docker-{self._container.id}.scope" if slice_ else self._container.id)).mkdir()
        with in_one_line(f"container {self._container.name}"):
            self._watch = Watch(self._container.id, logs)

    def names(self) -> bytes:
        """Nothing of it runs yet."""
        return b""

    def release(self) -> None:
        """Start the container."""
        with in_one_line(f"container {self._container.name}"):
            self._container.start()
            if self._watch:
                self._watch.begin()
            self._container.reload()
        self.root_pid = self._container.attrs["State"]["Pid"] or None

    def has_ended(self) -> bool:
        """Whether the container has ended."""
        if self._watch and self._watch.exit_status is not None:
            self._set_status(self._watch.exit_status)
        return self.exit_status is not None

    def signal(self, number: int) -> None:
        """Send a signal to the container's main process; SIGKILL ends all of it."""
        self._ask_to_end(number)

    def close(self) -> None:
        """Remove the container, and with it all that it still runs."""
        with contextlib.suppress(IotwinError), in_one_line("container"):
            self._container.remove(force=True)
        self._parent.remove()


def future_cgroup(container: Any, systemd: bool) -> tuple[Cgroup, bool]:
    """Return the cgroup that the engine puts a created container into, and whether it was not there yet and is made by us."""
    mount = cgroup2_mount()
    if mount is None:
        raise IotwinError("cannot tell the container's processes from others: no cgroup2 hierarchy is mounted")
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
