"""Whether a crash loses a checkpoint: jobs on the library killed at calls of their writer, beside unsafe ways of writing.

A job's only weight is the number of its steps, so that what is restored tells whether it is right. It takes a checkpoint every
INTERVAL steps, beside the steps. Each job is killed at one call, drawn from those by which the store changes files, and the next
one goes on from what it left: so there are crashes right after a restart, too.
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
import torch._dynamo  # what the first optimizer imports, seconds long: here once for all jobs that are forked

from common.checkpoints import newest, read_rank
from common.errors import IotwinError, UsageError
from common.progress import progress
from workloads.checkfreq.checkpoint import CFCheckpoint, State
from workloads.checkfreq.iterator import CFIterator
from workloads.checkfreq.manager import CFManager
from workloads.state.stateful import unflatten

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
_MOST_CALLS = 60  # of a job, that it may be killed at: some checkpoints
_STEPS = 200
_COUNTER = struct.Struct("<Q")  # steps done
_ELEMENTS = 20_000  # of the unsafe state


def crash(directory: Path, kills: int, seed: int, unsafe: tuple[str, ...]) -> State:
    """Kill `kills` jobs of one store in `directory` and return what was lost; UsageError for an unknown unsafe way.

    A kill has lost something when afterwards no checkpoint loads that did before, an older one does, or one that is wrong.
    `most_steps_lost` is the most steps that were done and are to be done again, `bound_steps` what they may be.
    """
    if unknown := [name for name in unsafe if name not in UNSAFE]:
        raise UsageError(f"--unsafe '{unknown[0]}' is unknown; known: {', '.join(UNSAFE)}")
    store = directory / "store"
    if store.exists():
        raise UsageError(f"{store} is there already; choose another directory")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a forked job would wait for threads that it does not have
    try:
        found = _kill(store, kills, random.Random(seed))  # noqa: S311 - the same kills for the same seed
    finally:
        torch.set_num_threads(threads)
    return {**found, "unsafe": {name: _judge(UNSAFE[name]) for name in unsafe}}


def _kill(store: Path, kills: int, rng: random.Random) -> State:
    points: Counter[str] = Counter()
    lost = loadable = most_lost = 0
    before: int | None = None  # step of the newest checkpoint
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
    """Fork a job that dies at its `call`-th change of a file, before it or right behind it; return what call that was."""
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
    with os.fdopen(reading, "rb") as told:
        point = told.read().decode()
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
        raise IotwinError(f"a job on {store} ended by itself with status {status} instead of being killed; is the disk full?")
    return point


def _die_at(call: int, behind: bool, told: int) -> None:
    """Have this process kill itself at one of the calls of `os` that change files."""
    count = itertools.count()  # whose next() no other thread comes between
    own_write = os.write

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **options: Any) -> Any:
            if next(count) != call:
                return function(*args, **options)
            own_write(told, name.encode())
            try:
                return function(*args, **options) if behind else None
            finally:  # also of a call that fails, as the removal of a file that is gone
                os.kill(os.getpid(), signal.SIGKILL)

        return instead

    for name, point in _CALLS.items():
        setattr(os, name, watched(point, getattr(os, name)))


def _job(store: Path, shared: mmap.mmap) -> None:
    """Train a weight that is the number of steps done, which `shared` tells too."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    manager = CFManager(store, CFCheckpoint(model=model, optimizer=optimizer))
    iterator = CFIterator([torch.ones(1, 1)] * _STEPS, bs=1, chk_freq=INTERVAL, cf_manager=manager)
    if (left := manager.restore()) is not None:
        left["iter"] = 0  # each job has an epoch of its own
        iterator.load_state_dict(left)
    for batch in iterator:
        optimizer.zero_grad()
        (-model(batch)).sum().backward()
        optimizer.step()
        shared[:] = _COUNTER.pack(round(model.weight.item()))


def _restored(store: Path) -> int | None:
    """Return the step that the newest checkpoint is of, None without one, -1 when what it holds is of no step or of another."""
    if not store.is_dir() or (found := newest(store, lambda line: None)) is None or found.manifest is None:
        return None
    tensors, values = read_rank(found, 0)
    weight = unflatten(values["state"], tensors)["objects"]["model"]["weight"]
    return found.manifest.step if weight.item() == found.manifest.step else -1


# Unsafe ways


class _Recorder(io.BytesIO):
    """A file that remembers its writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[int, int]] = []  # offset, bytes

    def write(self, data: Any) -> int:
        at = self.tell()
        count = super().write(data)
        self.writes.append((at, count))
        return count


def _overwritten() -> Iterator[bytes]:
    """Yield what a kill leaves of a file that torch.save writes in place: the old one is emptied, the new one not all written."""
    recorded = _saved()
    content = recorded.getvalue()
    yield b""
    for at, count in recorded.writes[:-1]:
        yield content[: at + count]


def _unsynced() -> Iterator[bytes]:
    """Yield what a power cut leaves of a file that took the old one's name without fsync: a part, the rest cut off or zeros."""
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
    """Count the states that a crash may leave, and those in which nothing loads."""
    count = unloadable = 0
    for content in states():
        count += 1
        try:
            loaded = torch.load(io.BytesIO(content), weights_only=True)
            right = all(bool((loaded[f"layer{index}"] == index).all()) for index in range(4))
        except Exception:  # torch raises what it likes for a damaged file
            right = False
        unloadable += not right
    return {"states": count, "unloadable": unloadable}
