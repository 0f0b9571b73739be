"""Tests whether a crash can lose a checkpoint: kills jobs while they write, and compares with unsafe ways of writing.

The weight of a test job is a single number, which equals its number of steps, so that a restored weight can be checked. The job
takes a checkpoint every INTERVAL steps. It is killed at a randomly chosen system call that changes files. The next job resumes
from the files left, so that crashes soon after a restart are tested too.
"""

import io
import itertools
import mmap
import os
import random
import signal
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer imports this module, which takes seconds; imported here, forked jobs do not need to

from iotwin.common.checkpoints import newest, read_rank
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.progress import progress
from iotwin.workloads.checkfreq.checkpoint import CFCheckpoint
from iotwin.workloads.checkfreq.iterator import CFIterator
from iotwin.workloads.checkfreq.manager import CFManager
from iotwin.workloads.state.torch_state import unflatten
from iotwin.workloads.state.tracked_objects import State

INTERVAL = 3
_CALLS = {
    "mkdir": "mkdir",
    "write": "write",
    "fsync": "fsync",
    "rename": "rename",
    "replace": "rename",
    "unlink": "unlink",
    "rmdir": "rmdir",
}
_MOST_CALLS = 60  # a job is killed at one of its first 60 calls that change files; they suffice for several checkpoints
_STEPS = 200
_COUNTER = struct.Struct("<Q")  # number of steps done
_ELEMENTS = 20_000  # elements of a tensor in the unsafe checkpoints


def crash(directory: Path, kills: int, seed: int, unsafe: tuple[str, ...]) -> State:
    """Run and kill `kills` jobs, one after another, that write to one checkpoint store in `directory`. Return counts by name.

    A kill counts as `lost` if no checkpoint loads afterwards although one did before, or if an older or a wrong one loads.
    `most_steps_lost` is the largest number of steps that a job had to repeat, and `bound_steps` the allowed number. `unsafe`
    names unsafe ways of writing (UNSAFE) to test for comparison. Raises UsageError if a name is unknown.
    """
    if unknown := [name for name in unsafe if name not in UNSAFE]:
        raise UsageError(f"--unsafe '{unknown[0]}' is unknown; known: {', '.join(UNSAFE)}")
    store = directory / "store"
    if store.exists():
        raise UsageError(f"{store} is there already; choose another directory")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a forked job has no copies of torch's threads and would wait for them
    try:
        found = _kill(store, kills, random.Random(seed))  # noqa: S311 - the same kills for the same seed
    finally:
        torch.set_num_threads(threads)
    return {**found, "unsafe": {name: _judge(UNSAFE[name]) for name in unsafe}}


def _kill(store: Path, kills: int, rng: random.Random) -> State:
    points: Counter[str] = Counter()
    lost = loadable = most_lost = 0
    before: int | None = None  # step of the newest checkpoint, before the kill
    with mmap.mmap(-1, _COUNTER.size) as shared, progress("killing jobs", kills) as advance:
        for _ in range(kills):
            shared[:] = _COUNTER.pack(before or 0)
            point = _one_kill(store, rng.randrange(_MOST_CALLS), rng.random() < 0.5, shared)
            points[point] += 1
            [done] = _COUNTER.unpack(shared[:])
            after = _restored(store)
            lost += (after is None and before is not None) or (after is not None and not (before or 0) <= after <= done)
            loadable += after is not None
            if after is not None:
                most_lost = max(most_lost, done - after)
            before = after if after is not None else before
            advance(1)
    return {
        "kills": kills,
        "loadable": loadable,
        "lost": lost,
        "most_steps_lost": most_lost,
        "bound_steps": 2 * INTERVAL - 1,
        "points": dict(sorted(points.items())),
    }


def _one_kill(store: Path, call: int, behind: bool, shared: mmap.mmap) -> str:
    """Fork a job that kills itself at its `call`-th call that changes a file: after the call if `behind`, else before it.

    Return the name of the called function.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        try:
            os.close(reading)
            _die_at(call, behind, writing)
            _job(store, shared)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        point = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
        raise IotwinError(f"a job on {store} ended by itself with status {status} instead of being killed; is the disk full?")
    return point


def _die_at(call: int, behind: bool, report: int) -> None:
    """Make this process kill itself at call number `call`, counted from 0, of the functions of `os` that change files.

    If `behind`, the process dies after the call, else before it. It first writes the function's name to the descriptor `report`.
    """
    count = itertools.count()  # used because its next() is atomic among threads
    own_write = os.write

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **options: Any) -> Any:
            if next(count) != call:
                return function(*args, **options)
            own_write(report, name.encode())
            try:
                return function(*args, **options) if behind else None
            finally:  # even if the call fails, as the removal of a missing file does
                os.kill(os.getpid(), signal.SIGKILL)

        return instead

    for name, point in _CALLS.items():
        setattr(os, name, watched(point, getattr(os, name)))


def _job(store: Path, shared: mmap.mmap) -> None:
    """Run the test job: train a weight that equals the number of steps, and write this number to `shared`, too."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    manager = CFManager(store, CFCheckpoint(model=model, optimizer=optimizer))
    iterator = CFIterator([torch.ones(1, 1)] * _STEPS, bs=1, chk_freq=INTERVAL, cf_manager=manager)
    if (left := manager.restore()) is not None:
        left["iter"] = 0  # the epoch restarts in each job
        iterator.load_state_dict(left)
    for batch in iterator:
        optimizer.zero_grad()
        (-model(batch)).sum().backward()
        optimizer.step()
        shared[:] = _COUNTER.pack(round(model.weight.item()))


def _restored(store: Path) -> int | None:
    """Return the step of the newest checkpoint in `store`; None if there is none, -1 if its weight does not equal its step."""
    if not store.is_dir() or (found := newest(store, lambda line: None)) is None or found.manifest is None:
        return None
    tensors, values = read_rank(found, 0)
    weight = unflatten(values["state"], tensors)["objects"]["model"]["weight"]
    return found.manifest.step if weight.item() == found.manifest.step else -1


class _Recorder(io.BytesIO):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[int, int]] = []  # offset and number of bytes of each write

    def write(self, data: Any) -> int:
        at = self.tell()
        count = super().write(data)
        self.writes.append((at, count))
        return count


def _overwritten() -> Iterator[bytes]:
    """Yield the contents that a file can have if a kill interrupts torch.save overwriting it: nothing, or partly new bytes."""
    recorded = _saved()
    content = recorded.getvalue()
    yield b""
    for at, count in recorded.writes[:-1]:
        yield content[: at + count]


def _unsynced() -> Iterator[bytes]:
    """Yield the contents that a file can have if it was renamed without fsync before a power cut: cut off, or partly zeros."""
    recorded = _saved()
    content = recorded.getvalue()
    yield b""
    yield bytes(len(content))
    for at, count in recorded.writes[:-1]:
        written = content[: at + count]
        yield written
        yield written.ljust(len(content), b"\0")


def _saved() -> _Recorder:
    recorded = _Recorder()
    torch.save({f"layer{index}": torch.full((_ELEMENTS,), float(index)) for index in range(4)}, recorded)
    return recorded


UNSAFE: dict[str, Callable[[], Iterator[bytes]]] = {"overwrite": _overwritten, "no-fsync": _unsynced}


def _judge(states: Callable[[], Iterator[bytes]]) -> dict[str, int]:
    """Return the number of file contents that `states` yields, and how many of them do not load correctly."""
    count = unloadable = 0
    for content in states():
        count += 1
        try:
            loaded = torch.load(io.BytesIO(content), weights_only=True)
            right = all(bool((loaded[f"layer{index}"] == index).all()) for index in range(4))
        except Exception:  # torch raises errors of many types for a damaged file
            right = False
        unloadable += not right
    return {"states": count, "unloadable": unloadable}
