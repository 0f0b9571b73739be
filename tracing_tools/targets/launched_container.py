"""A container that a command of the user's starts (docker run --name NAME ...): held at its start until it is watched.

The command has the engine's address from us: a gate at which the request to start the container waits (engine_gate). Where the
command goes to the engine on another way, the container's cgroup is made frozen as soon as the engine tells that it was created.
Should the container still be faster, the trace fails: it would lack its beginning.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from common.errors import IotwinError, UsageError
from tracing_tools.protocols import Backend
from tracing_tools.targets.container import ContainerTarget, Watch, address, connect, docker_sdk, future_cgroup, in_one_line
from tracing_tools.targets.engine_gate import EngineGate, can_gate
from tracing_tools.targets.processes import process_tree, remove_tree

_END_S = 2.0  # for a launcher to notice the end of its container; for it and its children to end when they are asked to


class LaunchedContainer(ContainerTarget):
    """The container called `name` that the command `launcher` starts; command and container are ours, and end together.

    While it starts a container, an engine answers no question about it.
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
        self._made: Path | None = None  # the container's cgroup, while it is ours
        try:
            self._container = self._launch.created()
            cgroup, is_early = future_cgroup(self._container, systemd)
            self._follow(cgroup, None)
            self._made = cgroup.path if is_early else None
            if not is_early:
                raise _too_late(name)
            if self._gate is None or not self._gate.saw_creation:
                self._set_frozen(True)
        except BaseException:
            self._end()
            raise

    def _set_frozen(self, frozen: bool) -> None:
        self._is_frozen = frozen
        with contextlib.suppress(OSError):  # it is gone, or has no freezer: then it is not held
            (self._cgroup.path / "cgroup.freeze").write_text(str(int(frozen)))

    def start(self, backend: Backend, logs: Path, raw: Path) -> None:
        """Listen to the container, if the engine can be asked: else that comes when it runs."""
        self._logs = logs
        if not self._is_frozen:
            with in_one_line(f"container {self._container.name}"):
                self._watch = Watch(self._container.id, logs)

    def attach(self, backend: Backend) -> None:
        """Nothing of it runs yet."""

    def names(self) -> bytes:
        """What runs in it so far belongs to the engine."""
        return b""

    def release(self) -> None:
        """Let it start, and wait until it has; IotwinError when it did not wait for that."""
        if not self._is_frozen and self._has_run():
            raise _too_late(self._container.name)
        self._is_released = True
        self._set_frozen(False)
        with contextlib.suppress(IotwinError), in_one_line("container"):  # gone already: its launcher removes it at its end
            if self._gate is not None:
                self._gate.open()
            while self._container.status == "created" and self._launch.status() is None:
                time.sleep(0.02)
                self._container.reload()
            self.root_pid = self._container.attrs["State"]["Pid"] or None
            self._watch = self._watch or Watch(self._container.id, self._logs, from_start=True)
            self._watch.begin()

    def _has_run(self) -> bool:
        """Whether somebody has started it, though its launcher waits."""
        with in_one_line(f"container {self._container.name}"):
            self._container.reload()
        return bool(self._container.status != "created")

    def abandon(self) -> None:
        """End command and container, which has not run."""
        self._end()

    def has_ended(self) -> bool:
        """Whether container and launcher have ended; the exit status is the launcher's, as it is the command."""
        status = self._launch.status()
        if status is None:
            self._end_launcher_if_due()
        if status is None or (self.remaining() and not super().has_ended()):
            return False
        self.exit_status = status
        return True

    def _end_launcher_if_due(self) -> None:
        """Asked to end, a launcher that starts more, or would start the container yet, has a moment after the container's end."""
        if not self._is_asked or self.remaining():
            return
        self._lone_since = self._lone_since or time.monotonic()
        if time.monotonic() - self._lone_since > _END_S:
            self._launch.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        """Send a signal to the container's main process, whose end a launcher notices; SIGKILL goes to the launcher as well."""
        self._is_asked = True
        self._ask_to_end(number)
        if number == signal.SIGKILL:
            self._launch.signal(number)

    def _end(self) -> None:
        """End what was started, for a container that was never let run."""
        if self._is_released:
            return
        if self._gate is not None:
            self._gate.close()
        if self._is_frozen:  # the engine would answer nothing
            self._set_frozen(False)
        self._launch.end()
        if self._made is not None:
            remove_tree(self._made)

    def close(self) -> None:
        """Let go of it: it goes on, if it ever ran."""
        self._end()
        if self._gate is not None:
            self._gate.close()


class _Launch:
    """The launcher's process, and the container that it creates."""

    def __init__(self, client: Any, name: str, command: list[str], gate: EngineGate | None) -> None:
        self._client, self._name, self._command = client, name, command
        self._is_created = threading.Event()
        events = client.events(decode=True, filters={"type": "container", "event": "create"})
        threading.Thread(target=self._listen, args=(events,), daemon=True).start()
        environment = os.environ if gate is None else {**os.environ, "DOCKER_HOST": gate.address}
        try:
            # Its output would be the container's a second time.
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        except OSError as error:
            if gate is not None:
                gate.close()
            raise IotwinError(f"cannot run '{command[0]}': {error.strerror}") from None

    def _listen(self, events: Any) -> None:
        with contextlib.suppress(Exception):  # the stream is closed
            if any(event["Actor"]["Attributes"].get("name") == self._name for event in events):
                self._is_created.set()

    def created(self) -> Any:
        """Wait for the container and return it."""
        while not self._is_created.wait(0.1):
            status = self._process.poll()
            if status is not None and not self._is_created.wait(1):
                raise IotwinError(f"{self._command[0]} ended (status {status}) and made no container {self._name}")
        with in_one_line(f"container {self._name}"):
            return self._client.containers.get(self._name)

    def status(self) -> int | None:
        """Return the exit status of the launcher, None while it runs."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        """Send a signal to the launcher and its children."""
        for pid in process_tree([self._process.pid]) if self._process.poll() is None else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self) -> None:
        """End the launcher, and the container with it; one that never ran would only be in the way of the next."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
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


def _too_late(name: str) -> IotwinError:
    return IotwinError(
        f"container {name} ran before it could be watched, so that its trace would lack its beginning, and was ended; have its"
        " command find the engine by DOCKER_HOST, which iotwin sets for it, or trace its image with --image"
    )
