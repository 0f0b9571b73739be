"""Docker containers as targets, through the docker SDK: a running container, or one that iotwin creates from an image.

iotwin creates the parent of the new container's cgroup, so that tracing starts before the container's first instruction. What the
container runtime does in the cgroup is not traced: a process is traced from the first program that it executes there.
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

from iotwin.common.errors import IotwinError, UsageError, nearest
from iotwin.trace_store.manifest import Target
from iotwin.tracing_tools.backend_base import Backend
from iotwin.tracing_tools.targets.cgroup import Cgroup, JobCgroup
from iotwin.tracing_tools.targets.cgroup_mounts import NO_CGROUP2, cgroup2_mount
from iotwin.tracing_tools.targets.container_output import ContainerOutput, Parts
from iotwin.tracing_tools.targets.out_of_memory import was_killed_for_memory
from iotwin.tracing_tools.targets.running_processes import cgroup_of
from iotwin.tracing_tools.targets.running_targets import RunningTarget

_STATUS_S = 60.0  # how long a working engine may take to report a status on a busy machine
_OOM_S = 1.0  # how long the engine may take to detect that a container ran out of memory
_LIMITED_OOM_S = 20.0  # the same time for a container with a limit of memory, if the kernel's log cannot be read


@dataclass
class ContainerOptions:
    """Options of a new container: parameters of the docker SDK's containers.create, and the GPUs to use ('all' or ids)."""

    parameters: dict[str, Any] = field(default_factory=dict)
    gpus: str | None = None

    def check(self) -> None:
        """Raise UsageError if the SDK lacks one of the parameters, or if iotwin itself sets the parameter."""
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
    """Return the docker SDK. Raises IotwinError if it is not installed."""
    try:
        import docker
        import docker.models.containers
    except ImportError:
        raise IotwinError("the Python package docker is not installed; install it with: pip install docker") from None
    return docker


def connect() -> Any:
    """Return the docker SDK's client of the Docker Engine at `address()`. Raises IotwinError if no engine answers."""
    docker = docker_sdk()
    try:
        client = docker.from_env()
        client.ping()
    except docker.errors.DockerException:
        raise IotwinError(f"no Docker Engine answers at {address()}; start it, or set DOCKER_HOST to its address") from None
    return client


def address() -> str:
    """Return the address of the Docker Engine."""
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


@contextlib.contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """Convert the engine's errors in the `with` block to an IotwinError whose message begins with `what`."""
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


class ContainerWatch:
    """Threads that copy the output of one container to the log files and wait for its end."""

    def __init__(self, identity: str, logs: Path, from_start: bool = False) -> None:
        """Start to copy the output. `from_start`: the container already runs, so copy its earlier output, too."""
        self.exit_status: int | None = None
        self._waiting: threading.Thread | None = None
        container = connect().containers.get(identity)
        streams = _logged(container) if from_start else [container.attach(stream=True, demux=True)]
        self._output = ContainerOutput(streams, logs)
        self._identity = identity

    def begin(self) -> None:
        """Start to wait for the end of the container. Call this once the container runs."""
        container = connect().containers.get(self._identity)
        self._waiting = threading.Thread(target=self._wait, args=(container,), daemon=True)
        self._waiting.start()

    def may_report_status(self) -> bool:
        """Return True if the engine may still report the container's exit status."""
        return self._waiting is not None and self._waiting.is_alive()

    def _wait(self, container: Any) -> None:
        try:
            self.exit_status = int(container.wait(timeout=None)["StatusCode"])
        except docker_sdk().errors.NotFound:
            pass  # the container was removed, and its cgroup with it
        except Exception as error:  # the engine has ended; the container may still run
            self._output.lose(error)

    def finish(self) -> list[str]:
        """Wait for the container's last output. Return notes on output that the logs lack."""
        return self._output.finish()


def _logged(container: Any) -> list[Iterator[Parts]]:
    """Return streams of (stdout, stderr) from the engine's log of the container, with its whole output, past and future.

    A stream by `attach` would lack earlier output, and would never end if the container had ended before.
    """
    printed = container.logs(stream=True, follow=True, stdout=True, stderr=False)
    errors = container.logs(stream=True, follow=True, stdout=False, stderr=True)
    return [((part, None) for part in printed), ((None, part) for part in errors)]


def _running_cgroup(pid: int) -> Cgroup:
    path, mount = cgroup_of(pid), cgroup2_mount()
    if path is None or mount is None:
        raise IotwinError(f"cannot trace a container: {NO_CGROUP2}")
    return Cgroup.find(str(mount / path.lstrip("/")))


class ContainerTarget(RunningTarget):
    """A container that already runs."""

    _cgroup: Cgroup

    def __init__(self, name: str) -> None:
        with in_one_line(f"container {name}"):
            self._container = connect().containers.get(name)
        state = self._container.attrs["State"]
        if not state["Running"]:
            raise IotwinError(f"container {name} is not running ({state['Status']}); start it, or trace its image with --image")
        self._follow(_running_cgroup(state["Pid"]), state["Pid"])

    def _follow(self, cgroup: Cgroup, root_pid: int | None) -> None:
        super().__init__(replace(cgroup.scope, entered_by_exec=True), root_pid, cgroup)
        self.containers = {self._container.id: self._container.name}
        self._watch: ContainerWatch | None = None
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
        """Start to copy to `logs` the output that the container prints from now on."""
        with in_one_line(f"container {self._container.name}"):
            self._watch = ContainerWatch(self._container.id, logs)
            self._watch.begin()

    def has_ended(self) -> bool:
        """Return True if the exit status is known, or if the container's cgroup is gone and no status arrives within a limit."""
        may_report = self._watch is not None and self._watch.may_report_status()  # before the status, which may arrive in between
        if self._watch and self._watch.exit_status is not None:
            self._set_status(self._watch.exit_status)
        if self.exit_status is None and not self._cgroup.path.is_dir():
            self._gone_since = self._gone_since or time.monotonic()
            return not may_report or time.monotonic() - self._gone_since > _STATUS_S
        return self.exit_status is not None

    def _set_status(self, status: int) -> None:
        # Docker reports a container that a signal killed as 128 + the signal's number, as a shell does.
        self.exit_status = 128 - status if 128 < status < 128 + signal.NSIG else status

    def _ask_to_end(self, number: int) -> None:
        """Send the signal `number` to the container's main process; SIGKILL instead if the kernel would drop the signal.

        The kernel drops a signal that the first process of a container neither handles nor blocks. Outside of a container, this
        signal would end the process.
        """
        number = number if self._is_delivered(number) else signal.SIGKILL
        with contextlib.suppress(IotwinError), in_one_line("container"):  # the container has ended
            self._container.kill(signal=int(number))

    def _is_delivered(self, number: int) -> bool:
        try:
            lines = Path(f"/proc/{self.root_pid}/status").read_text().splitlines()
        except OSError:
            return True
        masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigBlk:", "SigIgn:", "SigCgt:"))]
        return any(mask >> (number - 1) & 1 for mask in masks)

    def closing_notes(self) -> list[str]:
        """Wait for the container's last output. Return notes on how the container ended."""
        notes = self._watch.finish() if self._watch and self.exit_status is not None else []
        before = self._container.name
        with contextlib.suppress(IotwinError), in_one_line("container"):  # the container may be gone
            self._container.reload()
            if self._container.name != before:
                notes.append(f"the container was renamed from {before} to {self._container.name}")
            if self._was_out_of_memory():
                notes.append("the container ran out of memory (OOM)")
        return notes

    def _was_out_of_memory(self) -> bool:
        if logged := was_killed_for_memory(self._container.id):
            return True
        longest_s = _OOM_S if logged is not None or not self._container.attrs["HostConfig"]["Memory"] else _LIMITED_OOM_S
        until = time.monotonic() + (longest_s if self.exit_status == -signal.SIGKILL else 0)
        while not self._container.attrs["State"]["OOMKilled"] and time.monotonic() < until:
            time.sleep(_OOM_S / 20)
            self._container.reload()
        return bool(self._container.attrs["State"]["OOMKilled"])


class ImageTarget(ContainerTarget):
    """A container that iotwin creates from an image, and removes at the end."""

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
        """Create the container's cgroup before the container runs, so that its start is traced. Attach to its output."""
        slice_ = self._parent.path.suffix == ".slice"
        (self._parent.path / (f"docker-{self._container.id}.scope" if slice_ else self._container.id)).mkdir()
        with in_one_line(f"container {self._container.name}"):
            self._watch = ContainerWatch(self._container.id, logs)

    def names(self) -> bytes:
        """Return no records: the container does not run yet."""
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
        """Return True if the container has ended."""
        if self._watch and self._watch.exit_status is not None:
            self._set_status(self._watch.exit_status)
        return self.exit_status is not None

    def signal(self, number: int) -> None:
        """Send the signal `number` to the container's main process. SIGKILL ends all its processes."""
        self._ask_to_end(number)

    def close(self) -> None:
        """Remove the container, and end the processes that still run in it."""
        with contextlib.suppress(IotwinError), in_one_line("container"):
            self._container.remove(force=True)
        self._parent.remove()
