"""Find the descendants of running processes in /proc. Write the parent, command and open files of each as a trace's records."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from iotwin.trace_store.raw.records import NAME_EXEC, NAME_FORK, NAME_INHERITED, NameRecord, pack_name
from iotwin.tracing_tools.targets.cgroup_mounts import cgroup2_mount

_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")  # in the cgroup's path of docker, podman, containerd, Kubernetes
_DELETED = b" (deleted)"
_STOP_S = 1.0  # seconds that a process may take to stop. One that waits in the kernel does not stop, but starts no process
_BEFORE = 0  # time of all records about what happened before the trace began


def container_id(cgroup_path: str) -> str | None:
    """Return the id of the innermost container that the path of a cgroup contains, None if it contains none."""
    found = _CONTAINER_ID.findall(cgroup_path)
    return found[-1] if found else None


def running_pids() -> Iterator[int]:
    """Yield the pids of all processes of the machine. Some may have ended when they are yielded."""
    return (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdecimal())


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _state_and_parent(pid: int) -> tuple[bytes, int]:
    # The second field, the command's name in parentheses, may contain anything, so fields are counted from its end.
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return (fields[0], int(fields[1])) if fields else (b"Z", 0)


def processes_called_with(word: bytes) -> list[int]:
    """Return the pids of the running processes that have `word` among their arguments."""
    return [pid for pid in running_pids() if word in _read(pid, "cmdline").split(b"\0")]


def is_asleep(pid: int) -> bool:
    """Return True if the process `pid` sleeps or has ended."""
    return _state_and_parent(pid)[0] in (b"S", b"Z")


def _is_stopped(pid: int) -> bool:
    return _state_and_parent(pid)[0] in (b"T", b"t", b"Z")


def process_tree(roots: Iterable[int]) -> set[int]:
    """Return the pids of the running processes among `roots`, and of all their descendants."""
    children: dict[int, list[int]] = {}
    running = set()
    for pid in running_pids():
        state, parent = _state_and_parent(pid)
        if state != b"Z":
            running.add(pid)
            children.setdefault(parent, []).append(pid)
    tree = running.intersection(roots)
    waiting = list(tree)
    while waiting:
        new = [child for child in children.get(waiting.pop(), []) if child not in tree]
        tree.update(new)
        waiting += new
    return tree


def signal_tree(roots: Iterable[int], number: int) -> set[int]:
    """Send the signal `number` to the processes `roots` and all their descendants, and return their pids.

    All processes are stopped first, so that none can start a new process that would miss the signal.
    """
    roots, stopped = set(roots), set[int]()
    while new := process_tree(roots | stopped) - stopped:
        _signal_each(new, signal.SIGSTOP)
        deadline = time.monotonic() + _STOP_S
        while not all(map(_is_stopped, new)) and time.monotonic() < deadline:
            time.sleep(0.0005)
        stopped |= new
    _signal_each(stopped, number)
    _signal_each(stopped, signal.SIGCONT)
    return stopped


def _signal_each(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def running_processes(pids: Iterable[int]) -> bytes:
    """Return name records of the forks, execs and open files of the running processes `pids`, as far as /proc shows them."""
    content = b""
    commands: dict[int, bytes] = {}
    for pid in sorted(pids):
        try:
            content += _life(pid, commands) + open_files(pid)
        except OSError:
            continue  # the process has ended meanwhile
    return content


def _life(pid: int, commands: dict[int, bytes]) -> bytes:
    status = dict(line.partition(b":")[::2] for line in Path(f"/proc/{pid}/status").read_bytes().splitlines())
    commands[pid] = command = Path(f"/proc/{pid}/cmdline").read_bytes()
    if not command:
        return b""  # a kernel thread
    parent, inner_pid = int(status[b"PPid"]), int(status.get(b"NSpid", str(pid).encode()).split()[-1])
    common = {"time_ns": _BEFORE, "pid": pid, "tid": pid, "parent": parent, "result": inner_pid, "inode": _cgroup_id(pid)}
    content = pack_name(NameRecord(type=NAME_FORK, text=status[b"Name"].strip(), **common))
    if commands.get(parent) != command:
        content += pack_name(NameRecord(type=NAME_EXEC, text=command.rstrip(b"\0"), **common))
    return content


def cgroup_of(pid: int) -> str | None:
    """Return the path of the process's cgroup in the v2 hierarchy, None if that hierarchy is not mounted."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return next((line.split(":", 2)[2] for line in lines if line.startswith("0::")), None)


def _cgroup_id(pid: int) -> int:
    mount, path = cgroup2_mount(), cgroup_of(pid)
    if mount is None or path is None:
        return 0
    try:
        return (mount / path.lstrip("/")).stat().st_ino
    except OSError:
        return 0


def open_files(pid: int, descriptors: Iterable[int] | None = None, called: Mapping[int, bytes] | None = None) -> bytes:
    """Return name records of the open files of `pid`; if given, only of `descriptors`. `called`: paths to use, by descriptor."""
    folder = Path(f"/proc/{pid}/fd")
    numbers = descriptors if descriptors is not None else sorted(int(entry.name) for entry in folder.iterdir())
    content = b""
    for number in numbers:
        link = folder / str(number)
        try:
            status, path = link.stat(), os.fsencode(link.readlink())
        except OSError:
            continue  # the descriptor was closed
        device = os.major(status.st_dev) << 20 | os.minor(status.st_dev)
        identity = {"inode": status.st_ino, "device": device, "mode": status.st_mode, "size": status.st_size}
        text = (called or {}).get(number, path.removesuffix(_DELETED))
        content += pack_name(NameRecord(_BEFORE, NAME_INHERITED, pid, pid, text=text, **identity))
    return content


def remove_tree(path: Path) -> None:
    """Remove the cgroup at `path`, if it exists, and all below it. Wait up to 0.5 s for their last tasks to leave."""
    for _ in range(50):
        try:
            for child in sorted(path.rglob("*/"), reverse=True):
                child.rmdir()
            path.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)  # a task leaves its cgroup a moment after its exit
