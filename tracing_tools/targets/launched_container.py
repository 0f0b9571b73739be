"""A container that the user's command starts (docker run --name NAME ...). Its start is delayed until it is traced.

The command receives the address of a proxy (engine_gate) as the engine's address. The proxy delays the request to start the
container. If the command uses another address, the container's cgroup is frozen as soon as the engine reports its creation. If
the container starts even before that, the trace fails, because it would lack the beginning.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.processes import children
from iotwin.common.signals import interrupts_held
from iotwin.tracing_tools.backend_base import Backend
from iotwin.tracing_tools.targets.cgroup import Cgroup
from iotwin.tracing_tools.targets.cgroup_mounts import NO_CGROUP2, cgroup2_mount
from iotwin.tracing_tools.targets.container import (
    ContainerTarget,
    ContainerWatch,
    address,
    connect,
    docker_sdk,
    in_one_line,
)
from iotwin.tracing_tools.targets.docker_proxy import EngineGate, can_gate
from iotwin.tracing_tools.targets.running_processes import process_tree, remove_tree, signal_tree

_END_S = 2.0  # seconds that a launcher may take to notice its container's end, and then again to end after SIGTERM


class LaunchedContainer(ContainerTarget):
    """The container called `name` that the command `launcher` starts. iotwin starts the command. Command and container are one
    target.

    While an engine starts a container, it answers no requests about the container.
    """

    is_ours = True

    def __init__(self, name: str, launcher: list[str]) -> None:
        client = connect()
        if _name_of(client, name) is not None:
            raise UsageError(f"there is a container {name} already; remove it, or trace it without a command")
        systemd = client.info().get("CgroupDriver") == "systemd"
        self._gate = EngineGate(address(), name, lambda given: _name_of(client, given)) if can_gate(address()) else None
        self._launch = _Launch(client, name, launcher, self._gate)
        self._is_released = self._is_frozen = self._is_asked = False
        self._lone_since: float | None = None
        self._made: Path | None = None  # the container's cgroup, if iotwin created it
        self._loss = ""  # reason why the engine's log of the container could not be read
        try:
            with interrupts_held(children.REQUESTS):  # an interrupt during the start would leave the launcher running
                self._launch.start()
            self._container = self._launch.created()
            cgroup, is_early = _future_cgroup(self._container, systemd)
            self._follow(cgroup, None)
            self._made = cgroup.path if is_early else None
            if not is_early:
                raise self._too_late()
            if self._gate is None or not self._gate.saw_creation:
                self._set_frozen(True)
        except BaseException:
            self._end()
            raise

    def _set_frozen(self, frozen: bool) -> None:
        self._is_frozen = frozen
        with contextlib.suppress(OSError):  # the cgroup is gone or cannot be frozen
            (self._cgroup.path / "cgroup.freeze").write_text(str(int(frozen)))

    def start(self, backend: Backend, logs: Path, raw: Path) -> None:
        """Attach to the container's output. If the container is frozen, the engine cannot answer, so `release` attaches."""
        self._logs = logs
        if not self._is_frozen:
            with in_one_line(f"container {self._container.name}"):
                self._watch = ContainerWatch(self._container.id, logs)

    def attach(self, backend: Backend) -> None:
        """Do nothing: the container does not run yet."""

    def names(self) -> bytes:
        """Return no records, as only the engine's processes run in the container before `release`."""
        return b""

    def release(self) -> None:
        """Let the container start, and wait until it has started. Raises IotwinError if it started before."""
        # The engine reports the start of a container once it is complete. A frozen container starts only after the release.
        if self._launch.saw_start or (not self._is_frozen and self._has_run()):
            raise self._too_late()
        self._is_released = True
        self._set_frozen(False)
        with contextlib.suppress(IotwinError), in_one_line("container"):  # the launcher may have removed it
            if self._gate is not None:
                self._gate.open()
            while self._container.status == "created" and self._launch.status() is None:
                time.sleep(0.02)
                self._container.reload()
            self.root_pid = self._container.attrs["State"]["Pid"] or None
        self._copy_log()
        with contextlib.suppress(IotwinError), in_one_line("container"):  # its end will show in its cgroup
            if self._watch is not None:
                self._watch.begin()

    def _copy_log(self) -> None:
        if self._watch is not None:
            return
        try:
            with in_one_line(f"container {self._container.name}"):
                self._watch = ContainerWatch(self._container.id, self._logs, from_start=True)
        except IotwinError as error:
            self._loss = str(error)

    def closing_notes(self) -> list[str]:
        """Wait for the container's last output. Return notes on how the container ended and on lost output."""
        self._copy_log()  # tries again if the engine was too busy during `release`
        notes = super().closing_notes()
        if self._watch is None:
            notes.append(
                f"logs lack the container's output: {self._loss}; it was requested too late, since the command reached the engine"
                " by another way than DOCKER_HOST: have it use the DOCKER_HOST that iotwin sets, or remove the container later"
            )
        return notes

    def _has_run(self) -> bool:
        """Return True if the container was started although the request to start it waits at the gate."""
        with in_one_line(f"container {self._container.name}"):
            self._container.reload()
        return bool(self._container.status != "created")

    def _too_late(self) -> IotwinError:
        if self._gate is None:
            cause = f"iotwin cannot hold a start at {address()}"
        elif self._gate.saw_creation:
            cause = "another program than its command started it"
        else:
            cause = "its command reached the engine by another way than DOCKER_HOST, as docker -H and sudo docker do"
        return IotwinError(
            f"container {self._container.name} ran before it could be watched, so that its trace would lack its beginning, and"
            f" was ended: {cause}; have it use the DOCKER_HOST that iotwin sets, or trace its image with --image"
        )

    def abandon(self) -> None:
        """End the command, and remove the container, which never ran."""
        self._end()

    def has_ended(self) -> bool:
        """Return True if both container and launcher have ended. Set the exit status to that of the launcher."""
        status = self._launch.status()
        if status is None:
            self._end_launcher_if_due()
        if status is None or (self.remaining() and not super().has_ended()):
            return False
        self.exit_status = status
        return True

    def _end_launcher_if_due(self) -> None:
        if not self._is_asked or self.remaining():
            return
        self._lone_since = self._lone_since or time.monotonic()
        if time.monotonic() - self._lone_since > _END_S:
            self._launch.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        """Send the signal `number` to the container's main process; the launcher notices its end. SIGKILL goes to both."""
        self._is_asked = True
        self._ask_to_end(number)
        if number == signal.SIGKILL:
            self._launch.signal(number)

    def _end(self) -> None:
        if self._is_released:
            return
        if self._gate is not None:
            self._gate.close()
        if self._is_frozen:  # otherwise the engine would not answer
            self._set_frozen(False)
        self._launch.end()
        if self._made is not None:
            remove_tree(self._made)

    def close(self) -> None:
        """If the container was never released, end command and container. Otherwise they continue."""
        self._end()
        if self._gate is not None:
            self._gate.close()


class _Launch:
    def __init__(self, client: Any, name: str, command: list[str], gate: EngineGate | None) -> None:
        self._client, self._name, self._command = client, name, command
        self._is_created = threading.Event()
        self.saw_start = False
        events = client.events(decode=True, filters={"type": "container", "event": ["create", "start"]})
        threading.Thread(target=self._listen, args=(events,), daemon=True).start()
        self._environment = os.environ if gate is None else {**os.environ, "DOCKER_HOST": gate.address}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the launcher while requests to end are blocked. Raises IotwinError if it cannot be executed."""
        try:
            # The launcher's output would repeat the container's.
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.DEVNULL, env=self._environment, preexec_fn=children.ready
            )
        except OSError as error:
            raise IotwinError(f"cannot run '{self._command[0]}': {error.strerror}") from None

    def _listen(self, events: Any) -> None:
        with contextlib.suppress(Exception):  # the stream was closed
            for event in events:
                if event["Actor"]["Attributes"].get("name") == self._name:
                    self.saw_start = self.saw_start or event["Action"] == "start"
                    self._is_created.set()

    def created(self) -> Any:
        """Wait until the launcher has created the container, and return it."""
        while not self._is_created.wait(0.1):
            status = self.status()
            if status is not None and not self._is_created.wait(1):
                raise IotwinError(f"{self._command[0]} ended (status {status}) and made no container {self._name}")
        with in_one_line(f"container {self._name}"):
            return self._client.containers.get(self._name)

    def status(self) -> int | None:
        """Return the launcher's exit status, None while it runs."""
        return self._process.poll() if self._process else None

    def signal(self, number: int) -> set[int]:
        """Send the signal `number` to the launcher and its descendants, and return their pids."""
        return signal_tree([self._process.pid], number) if self._process and self._process.poll() is None else set()

    def end(self) -> None:
        """End the launcher and the container. Remove a container that never ran, as its name would block the next trace."""
        if self._process is None:
            return
        tree, deadline = self.signal(signal.SIGTERM), time.monotonic() + _END_S
        while (left := process_tree(tree)) and time.monotonic() < deadline:
            time.sleep(0.01)
        signal_tree(left, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # the launcher waits within the kernel
            self._process.wait(_END_S)
        with contextlib.suppress(IotwinError), in_one_line("container"):
            container = self._client.containers.get(self._name)
            if container.status == "created":
                container.remove(force=True)
            else:
                container.kill()


def _name_of(client: Any, given: str) -> str | None:
    try:
        return str(client.containers.get(given).name)
    except docker_sdk().errors.DockerException:
        return None


def _future_cgroup(container: Any, systemd: bool) -> tuple[Cgroup, bool]:
    """Return (the cgroup that the engine will use for the created container, True if this function created the cgroup).

    `systemd`: the engine lets systemd create its cgroups. Raises IotwinError if the container has ended already.
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
