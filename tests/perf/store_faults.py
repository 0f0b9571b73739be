"""Faults that strace injects into a store's system calls: reads and writes that fail, and kills of a removal at every call."""

import collections
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from iotwin.common.checkpoints import checkpoints, newest, verify
from iotwin.common.commit import Store
from iotwin.common.errors import IotwinError
from iotwin.common.retention import Retention
from tests.common.stores import fill, step_of
from tests.perf.figures import Figure

_READING = ("openat", "read", "fstat", "newfstatat", "getdents64", "lseek")
_WRITING = (*_READING, "write", "fcntl", "fsync", "mkdir", "rename", "renameat", "unlink", "unlinkat", "rmdir", "ftruncate")
_DIED, _REFUSED, _BROKE = -1, 100, 101  # 0 to 99: what the action returned
_NOTES = "a user's"


def faults(base: Path) -> Iterator[Figure]:
    """Yield the figures."""
    yield _bad_sectors(base)
    for error in ("ENOSPC", "EIO"):
        yield _failing_commits(base, error)
    yield _killed_prunes(base)


def _bad_sectors(base: Path) -> Figure:
    store = base / "sectors"
    fill(store, 1, 2)
    wrong, fallen_back, calls = [], 0, _calls(base, lambda: _newest(store), _READING)
    for call, number in calls:
        status = _run(lambda: _newest(store), f"{call}:error=EIO:when={number}")
        fallen_back += status == 1
        # The names in the store are read before anything else: nothing is found where that fails, which is one line.
        if status not in (1, 2) and not (status == _REFUSED and call in ("openat", "getdents64", "newfstatat", "fstat")):
            wrong.append(f"{call} {number}: {status}")
    detail = f"of {len(calls)} calls; {fallen_back} fell back to the one before" + "".join(f"; {each}" for each in wrong[:3])
    return Figure("EIO at each call of newest: neither a checkpoint nor one line", len(wrong), 0, detail=detail)


def _failing_commits(base: Path, error: str) -> Figure:
    template, store = base / f"before-{error}", base / f"store-{error}"
    fill(template, 1)

    def commit() -> int:
        fill(store, 2, retention=Retention(1))
        return 2

    def fresh() -> None:
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(template, store)

    fresh()
    wrong, refused, calls = [], 0, _calls(base, commit, _WRITING)
    for call, number in calls:
        fresh()
        status = _run(commit, f"{call}:error={error}:when={number}")
        found = newest(store, _say_nothing)
        refused += status == _REFUSED
        if status not in (2, _REFUSED) or found is None or step_of(found) < (2 if status == 2 else 1):
            wrong.append(f"{call} {number}: {status}")
        fill(store, 3, retention=Retention(1))
        if sorted(path.name for path in store.iterdir()) != ["LATEST", "step-3", "store.lock"]:
            wrong.append(f"{call} {number}: left {[path.name for path in store.iterdir()]}")
    detail = f"of {len(calls)} calls; {refused} commits refused in one line" + "".join(f"; {each}" for each in wrong[:3])
    return Figure(
        f"{error} at each call of a commit: lost checkpoints, or durable ones reported as failed", len(wrong), 0, detail=detail
    )


def _killed_prunes(base: Path) -> Figure:
    template, store = base / "to-prune", base / "pruned"
    for folder in fill(template, 1, 2, 3):
        (folder / "notes.txt").write_text(_NOTES)

    def prune() -> int:
        with Store(store, Retention(1)) as opened:
            return len(opened.prune())

    def fresh() -> None:
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(template, store)

    fresh()
    wrong, killed, calls = [], 0, _calls(base, prune, _WRITING)
    for call, number in calls:
        fresh()
        killed += (status := _run(prune, f"{call}:signal=SIGKILL:when={number}")) == _DIED
        for again in (False, True):
            if again:
                prune()
            kept = sorted(path.read_text() for path in store.glob("step-*/notes.txt"))
            reasons = [verify(found).reason for found in checkpoints(store)]
            if kept != [_NOTES] * 3 or any(reasons) or (again and len(reasons) != 1):
                wrong.append(f"{call} {number}: {status}, {len(kept)} files, {reasons}")
    detail = f"{killed} of {len(calls)} killed" + "".join(f"; {each}" for each in wrong[:3])
    return Figure(
        "kill -9 at each call of prune: users' files lost, halves found, next prunes that fail", len(wrong), 0, detail=detail
    )


def _newest(store: Path) -> int:
    found = newest(store, _say_nothing)
    return 0 if found is None or found.manifest is None else found.manifest.step


def _say_nothing(line: str) -> None:
    pass


# Injection


def _calls(base: Path, action: Callable[[], int], names: tuple[str, ...]) -> list[tuple[str, int]]:
    """Run `action`; return its system calls, each as its name and which of that name it is."""
    log = base / "calls.strace"
    _traced(action, ["-e", f"trace={','.join(names)}", "-o", str(log)])
    counts = collections.Counter(re.findall(r"^(\w+)\(", log.read_text(), re.MULTILINE))
    # The first read is that of the byte which begins the action.
    return [(name, number) for name, count in counts.items() for number in range(1 + (name == "read"), count + 1)]


def _run(action: Callable[[], int], inject: str) -> int:
    return _traced(action, ["-o", "/dev/null", "-e", f"trace={inject.partition(':')[0]}", "-e", f"inject={inject}"])


def _traced(action: Callable[[], int], options: list[str]) -> int:
    """Return what `action` returns in a forked process under strace; _DIED, _REFUSED (an IotwinError) or _BROKE otherwise."""
    wait_for, begin = os.pipe()
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        status = _BROKE
        try:
            os.dup2(nowhere, 2)  # of its notes
            os.close(begin)
            os.read(wait_for, 1)
            status = action()
        except IotwinError as error:
            status = _REFUSED if "\n" not in str(error) else _BROKE
        finally:
            os._exit(status)
    os.close(wait_for)
    os.close(nowhere)
    with subprocess.Popen(["strace", "-qq", *options, "-p", str(child)], stderr=subprocess.DEVNULL) as tracer:
        while "TracerPid:\t0\n" in Path(f"/proc/{child}/status").read_text():
            time.sleep(0.001)
        os.write(begin, b"x")
        status = os.waitpid(child, 0)[1]
        tracer.wait()
    os.close(begin)
    return _DIED if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL else os.WEXITSTATUS(status)
