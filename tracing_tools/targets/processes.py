"""What /proc tells of processes that run already: their descendants, names and open files, as name records."""

import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from tracing_tools.targets.mounts import cgroup2_mount
from tracing_tools.trace.raw.records import NAME_EXEC, NAME_FORK, NAME_INHERITED, NameRecord, pack_name

_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")  # docker, podman, containerd and Kubernetes all put it into the cgroup's path
_DELETED = b" (deleted)"
_BEFORE = 0  # the time of what happened before the trace began


def container_id(cgroup_path: str) -> str | None:
    """Return the id of the innermost container that a cgroup path names, or None."""
    found = _CONTAINER_ID.findall(cgroup_path)
    return found[-1] if found else None


def processes_and_parents() -> dict[int, int]:
    """Return the parent of every process of the machine, by pid."""
    parents = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            try:
                # The command's name, in parentheses, may hold anything: the fields are counted from its end.
                fields = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            if fields[0] != b"Z":
                parents[int(entry.name)] = int(fields[1])
    return parents


def processes_called_with(word: bytes) -> list[int]:
    """Return the running processes that have `word` among their arguments."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            try:
                words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it ended meanwhile
            if word in words:
                found.append(int(entry.name))
    return found


def is_asleep(pid: int) -> bool:
    """Whether the process sleeps or has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"S", b"Z")
    except OSError:
        return True


def process_tree(roots: Iterable[int]) -> set[int]:
    """Return those of the processes `roots` that run, and all their descendants."""
    parents = processes_and_parents()
    tree = {pid for pid in roots if pid in parents}
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    waiting = list(tree)
    while waiting:
        new = [child for child in children.get(waiting.pop(), []) if child not in tree]
        tree.update(new)
        waiting += new
    return tree


def running_processes(pids: Iterable[int]) -> bytes:
    """Return name records of how the processes came to be, as far as /proc knows, and of the files that they have open."""
    content = b""
    commands: dict[int, bytes] = {}
    for pid in sorted(pids):
        try:
            content += _life(pid, commands) + open_files(pid)
        except OSError:
            continue  # it ended meanwhile
    return content


def _life(pid: int, commands: dict[int, bytes]) -> bytes:
    """A fork, and an exec where the program is not the parent's; `commands` gathers the command lines by pid."""
    status = dict(line.partition(b":")[::2] for line in Path(f"/proc/{pid}/status").read_bytes().splitlines())
    commands[pid] = command = Path(f"/proc/{pid}/cmdline").read_bytes()
    if not command:
        return b""  # a kernel thread
    parent, inner_pid = int(status[b"PPid"]), int(status.get(b"NSpid", str(pid).encode()).split()[-1])
    nothing = {"device": 0, "generation": 0, "mode": 0, "size": 0, "inode": _cgroup_id(pid)}
    common = {"time_ns": _BEFORE, "pid": pid, "tid": pid, "parent": parent, "result": inner_pid, **nothing}
    content = pack_name(NameRecord(type=NAME_FORK, text=status[b"Name"].strip(), **common))
    if commands.get(parent) != command:
        content += pack_name(NameRecord(type=NAME_EXEC, text=command.rstrip(b"\0"), **common))
    return content


def cgroup_of(pid: int) -> str | None:
    """Return the process's path in the cgroup2 hierarchy, or None where there is none."""
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
    """Return name records of the files that a process has open (only `descriptors`, if given); `called` names some otherwise."""
    folder = Path(f"/proc/{pid}/fd")
    numbers = descriptors if descriptors is not None else sorted(int(entry.name) for entry in folder.iterdir())
    content = b""
    for number in numbers:
        link = folder / str(number)
        try:
            status, path = link.stat(), os.fsencode(link.readlink())
        except OSError:
            continue  # closed
        device = os.major(status.st_dev) << 20 | os.minor(status.st_dev)
        identity = {"inode": status.st_ino, "device": device, "generation": 0, "mode": status.st_mode, "size": status.st_size}
        text = (called or {}).get(number, path.removesuffix(_DELETED))
        content += pack_name(NameRecord(_BEFORE, NAME_INHERITED, pid, pid, parent=0, result=0, text=text, **identity))
    return content


def remove_tree(path: Path) -> None:
    """Remove the cgroup at `path` and those below it, once their last tasks have left them; one that is gone already is fine."""
    for _ in range(50):
        try:
            for child in sorted(path.rglob("*/"), reverse=True):
                child.rmdir()
            path.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)  # a task that has exited leaves its cgroup a moment later
