"""Checkpoints of a job in two phases, in the shared store: taken, written beside training, brought back."""

import atexit
import enum
import threading
import time
from collections import deque
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec
import numpy as np
import torch
from torch import distributed

from common.checkpoints import VERSION, Manifest, Position
from common.errors import IotwinError, UsageError
from common.progress import note
from workloads.checkfreq import LAYOUTS, OURS
from workloads.checkfreq.checkpoint import CFCheckpoint, State
from workloads.checkfreq.gathering import gathered
from workloads.checkfreq.layouts import Layout, OurLayout, TheirLayout
from workloads.checkfreq.persist import PROCESS, THREAD, Persisted, Persister
from workloads.checkfreq.snapshot import Snapshot, take
from workloads.common.parts import Parts
from workloads.state.keeper import code_sha256
from workloads.state.stateful import flatten

if TYPE_CHECKING:
    from workloads.checkfreq.sharded import Sharding

HOST, DEVICE = "host", "device"  # where a snapshot goes first: beside the next passes to the host, or at once beside the state
_UPDATES = 100  # whose times are kept
_MIB = 1 << 20


class CFMode(enum.Enum):
    """Who decides when: MANUAL, the user, and training waits for each checkpoint; AUTO, by profile, beside training."""

    MANUAL = 0
    AUTO = 1


class Cost(NamedTuple):
    """What one checkpoint took of the training loop and beside it, in seconds."""

    snapshot_s: float
    total_s: float
    call_s: float = 0.0  # before anything went on beside training


class Stalls:
    """What the training loop has waited for its checkpoints."""

    def __init__(self) -> None:
        self.total_s = self.now_s = 0.0
        self.each_s: list[float] = []  # by checkpoint
        self.update_s: deque[float] = deque(maxlen=_UPDATES)  # of weight updates, what they waited left out

    def begin_checkpoint(self) -> None:
        """Count what is waited from now on for the next checkpoint."""
        self.each_s.append(0.0)

    def add(self, seconds: float) -> None:
        """Count a wait for the newest checkpoint."""
        self.now_s += seconds
        self.total_s += seconds
        if self.each_s:
            self.each_s[-1] += seconds

    def take(self) -> float:
        """Return the seconds waited since the last call."""
        now_s, self.now_s = self.now_s, 0.0
        return now_s


class CFManager:
    """Takes, writes and restores the checkpoints of `chk` in the store `chk_dir`, which it holds until `close`.

    With `overwrite` only the newest stays, and with `keep_epoch_chk` those at ends of epochs; without it all stay. `in_flight`
    checkpoints at most are on their way at once (1 is CheckFreq). With the `layout` "theirs" the files are those of the original,
    whose names begin with `chk_prefix`; in the store checkpoints are called step-N. `job` is what a checkpoint must agree on to
    be restored. Of several ranks rank 0 decides and writes, and of sharded state each its own part.

    What goes wrong beside training is raised by the next update or save. IotwinError where the store cannot be used.
    """

    def __init__(
        self, chk_dir: str | Path, chk: CFCheckpoint, keep_epoch_chk: bool = True, overwrite: bool = True,
        mode: CFMode = CFMode.AUTO, chk_prefix: str = "model_v_", *, in_flight: int = 1, job: State | None = None,
        parts: Parts | None = None, layout: str = OURS,
    ) -> None:  # fmt: skip
        if in_flight < 1:
            raise ValueError("in_flight is at least 1")
        if layout not in LAYOUTS:
            raise ValueError(f"layout is one of {', '.join(LAYOUTS)}")
        self.chk, self.mode, self.directory, self.in_flight = chk, mode, Path(chk_dir), in_flight
        self.rank: int = distributed.get_rank() if _in_group() else 0
        self.world_size: int = distributed.get_world_size() if _in_group() else 1
        self.stalls = Stalls()
        self.persisted: list[Persisted] = []
        self.worker, self.snapshot = THREAD, HOST  # until a profile has chosen
        self._job, self._parts = job or {}, parts or Parts(False)
        self._pending: Snapshot | None = None  # whose copying the next update waits for
        self._settling = False
        self._step = 0  # of the newest checkpoint
        self._hooks = [handle for optimizer in chk.optimizers for handle in self._hook(optimizer)]
        self._sharding = _sharding(chk) if _in_group() else None
        if layout == OURS:
            self._layout: Layout = OurLayout(self.directory, keep_epoch_chk, overwrite, self._sharding)
        elif self._sharding is not None:
            raise UsageError("the original's files cannot hold state that is sharded over ranks; use the layout ours")
        else:
            self._layout = TheirLayout(self.directory, keep_epoch_chk, overwrite, chk_prefix, chk.tracked)
        self.workers = (THREAD,) if self._layout.store is None else (THREAD, PROCESS)
        self._persister: Persister | None = None
        if self.rank == 0 or self._sharding is not None:
            self._layout.__enter__()
            self._persister = Persister(self._layout, in_flight, self._done)
            self._step = self._layout.latest_step()
        atexit.register(self._close_at_exit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Wait for what is on its way, and leave the store."""
        atexit.unregister(self._close_at_exit)
        for handle in self._hooks:
            handle.remove()
        self._hooks = []
        persister, self._persister = self._persister, None
        try:
            if persister is not None:
                persister.close()
        finally:
            self._layout.__exit__(None, None, None)

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except Exception as error:  # there is no caller left to tell
            note(f"the last checkpoint failed: {error}")

    # The update

    def _hook(self, optimizer: torch.optim.Optimizer) -> list[Any]:
        """Let each update of `optimizer` wait for the snapshot, and be timed."""
        begun = threading.local()  # an update begins and ends on one thread

        def before(*_: Any) -> None:
            self.wait_for_snapshot()
            begun.s = time.perf_counter()

        def after(*_: Any) -> None:
            self.stalls.update_s.append(time.perf_counter() - begun.s)

        return [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]

    def wait_for_snapshot(self) -> None:
        """Return when the state may change; raise what went wrong beside training."""
        pending, self._pending = self._pending, None
        if pending is not None and not pending.copied.is_set():
            begin_ns = time.monotonic_ns()
            pending.copied.wait()
            self._stalled(begin_ns)
        if self._settling and self._persister is not None and not self._persister.has_room:
            begin_ns = time.monotonic_ns()
            self._persister.give_back(self._persister.buffer())
            self._stalled(begin_ns)
        self._settling = False
        self.check()

    def settle_before_update(self) -> None:
        """Let the next update wait until one checkpoint fewer than are allowed is on its way.

        It is the last one before a checkpoint, which would wait for that, too; so the newest durable one is never two
        intervals old (with one in flight).
        """
        self._settling = True

    def check(self) -> None:
        """Raise what went wrong beside training since the last call."""
        if self._persister is not None:
            self._persister.check()

    def weight_update(self) -> None:
        """Wait for the snapshot, then update by the object that is tracked as `optimizer`."""
        optimizer = self.chk.tracked.get("optimizer")
        if optimizer is None:
            raise IotwinError("weight_update needs an optimizer: make the checkpoint with CFCheckpoint(..., optimizer=optimizer)")
        optimizer.step()

    def _stalled(self, begin_ns: int) -> None:
        duration_ns = time.monotonic_ns() - begin_ns
        self.stalls.add(duration_ns / 1e9)
        self._parts.log("stall", begin_ns, duration_ns)

    @property
    def update_s(self) -> float:
        """Return the median seconds of the latest weight updates; 0 when there was none."""
        return median(self.stalls.update_s) if self.stalls.update_s else 0.0

    # Saving

    def save(
        self, additional_snapshot: State | None = None, is_epoch: bool = False, epoch: int = 0, synchronous: bool = False,
        profile_full: bool = False, profile_snap: bool = False, use_thread: bool | None = None, persist: bool = True,
        *, position: Position | None = None, reason: str = "steps",
    ) -> Cost:  # fmt: skip
        """Take a checkpoint: a snapshot at once, written beside training, or, if `synchronous`, before this returns.

        `additional_snapshot` is what `restore` gives back. `profile_full` waits until it is durable, `profile_snap` takes the
        snapshot only. `use_thread` chooses who writes (None: who was found faster). `persist` is read for scripts of the
        original: all checkpoints are durable. Every rank must call it.
        """
        if synchronous and not (profile_full or profile_snap):
            return self._save_now(
                self._content(additional_snapshot), self._manifest(additional_snapshot, is_epoch, epoch, position, reason)
            )
        worker = self.worker if use_thread is None else THREAD if use_thread else PROCESS
        return self._save(additional_snapshot, is_epoch, epoch, profile_full, profile_snap, worker, False, position, reason)

    def save_cpu(
        self, additional_snapshot: State | None = None, is_epoch: bool = False, epoch: int = 0, synchronous: bool = False,
        profile_full: bool = False, profile_snap: bool = False, use_thread: bool | None = None, persist: bool = True,
        *, position: Position | None = None, reason: str = "steps",
    ) -> Cost:  # fmt: skip
        """Take a checkpoint as `save` does, but copy the state to the host beside the next forward and backward passes."""
        worker = self.worker if use_thread is None else THREAD if use_thread else PROCESS
        beside = bool(self.chk.optimizers)  # whose next step waits; without one nothing would
        wait = synchronous or profile_full
        return self._save(additional_snapshot, is_epoch, epoch, wait, profile_snap, worker, beside, position, reason)

    def _save(
        self, additional: State | None, is_epoch: bool, epoch: int, wait: bool, only_snapshot: bool, worker: str, beside: bool,
        position: Position | None, reason: str,
    ) -> Cost:  # fmt: skip
        begin_ns = time.monotonic_ns()
        state = self._content(additional)
        persister = self._persister
        if persister is None:
            return Cost(0.0, 0.0)
        self.stalls.begin_checkpoint()
        buffer = persister.buffer()
        try:
            snapshot = take(buffer, state, beside, self.chk.updated() if beside else ())
        except BaseException:
            persister.give_back(buffer)
            raise
        self.chk.taken(snapshot)
        call_ns = time.monotonic_ns() - begin_ns
        self._parts.log("snapshot", begin_ns, call_ns)
        if only_snapshot:
            snapshot.finish()
            persister.give_back(buffer)
        else:
            self._pending = snapshot
            persister.submit(snapshot, self._manifest(additional, is_epoch, epoch, position, reason), worker)
            if wait:
                persister.wait()
        self._stalled(begin_ns)
        return Cost(snapshot.copy_s, (time.monotonic_ns() - begin_ns) / 1e9, call_ns / 1e9)

    def _content(self, additional: State | None) -> State:
        own = self.chk.generators()
        generators = [own] if self.world_size == 1 else gathered(own)
        if self.rank:
            return {"objects": self._objects()}
        return {"objects": self._objects(), "additional": additional, "generators": generators}

    def _objects(self) -> State:
        state = self.chk.state()
        return state if self._sharding is None else self._sharding.parts(state)

    def _save_now(self, state: State, manifest: Manifest) -> Cost:
        """Write the state as it is, while training waits."""
        begin_ns, cpu_s = time.monotonic_ns(), time.thread_time()
        if self._persister is None:
            return Cost(0.0, 0.0)
        self.stalls.begin_checkpoint()
        self._persister.wait()
        tensors, values = flatten(state)
        start_ns = time.monotonic_ns()
        self._layout.commit(manifest, tensors, {"state": values}, waited=True)
        write_s = (time.monotonic_ns() - start_ns) / 1e9
        size_bytes = sum(tensor.data.size for tensor in tensors)
        self._done(Persisted(manifest.step, size_bytes, 0.0, start_ns, write_s, time.thread_time() - cpu_s))
        self._stalled(begin_ns)
        return Cost(0.0, (time.monotonic_ns() - begin_ns) / 1e9)

    def _manifest(self, additional: State | None, is_epoch: bool, epoch: int, position: Position | None, reason: str) -> Manifest:
        told = (additional or {}).get("steps_so_far")
        self._step = told if isinstance(told, int) and told >= 0 else self._step + 1
        if position is None:  # of a loop that is not ours: at an end of an epoch or somewhere in it
            position = Position(0, epoch + 1, 0 if is_epoch else max(1, self._step), 0, 0, self.world_size)
        return Manifest(
            VERSION,
            self._step,
            epoch,
            position,
            self.world_size,
            code_sha256=code_sha256(),
            versions={"torch": str(torch.__version__), "numpy": np.__version__, "msgspec": msgspec.__version__},
            reason="epoch" if is_epoch else reason,
            job=self._job,
        )

    def _done(self, persisted: Persisted) -> None:
        self.persisted.append(persisted)
        self._parts.log("persist", persisted.start_ns, int(persisted.write_s * 1e9))

    @property
    def writing(self) -> bool:
        """Whether a checkpoint is on its way."""
        return self._persister is not None and self._persister.writing

    def wait(self) -> None:
        """Wait until all checkpoints are durable."""
        if self._persister is not None:
            self._persister.wait()

    @property
    def get_chk_size(self) -> float:
        """Return the size of a checkpoint's tensors in MiB."""
        tensors, _ = flatten(self._objects())
        return sum(tensor.data.size for tensor in tensors) / _MIB

    # Going back

    def get_latest_checkpoint(self) -> str | None:
        """Return the path of the newest checkpoint that loads, None without one."""
        found = self._layout.latest(note if self.rank == 0 else _say_nothing)
        return str(found) if found else None

    def restore(self, latest: bool = True, epoch: int = 0, gpu: int = 0) -> State | None:
        """Bring the tracked objects to the newest checkpoint that is whole, or to the end of `epoch` if not `latest`.

        Returns what was given as `additional_snapshot`, None when it was nothing or there is no checkpoint. Damaged checkpoints
        are told and passed over. State goes to where the objects are; `gpu` is read for scripts of the original. Raises
        IotwinError where there is no end of `epoch`, or a checkpoint is of another job.
        """
        if self._persister is not None:
            self._persister.wait()
        tell = note if self.rank == 0 else _say_nothing
        found = self._layout.read(tell) if latest else self._layout.read_epoch(epoch)
        if found is None:
            return None
        for key, value in self._job.items():
            if found.job is not None and found.job.get(key) != value:
                raise IotwinError(f"{found.path} is of {key} {found.job.get(key)}, this job is of {key} {value}")
        generators = found.generators or []
        self.chk.load(found.objects, generators[self.rank] if len(generators) == self.world_size else None)
        self._step = found.step
        position = found.position
        self.restored_from = {
            "name": found.path.name,
            "step": found.step,
            "epoch": position.epoch if position else None,
            "position": position.position if position else None,
        }
        self.restored_position = position
        return found.additional

    restored_from: State | None = None
    restored_position: Position | None = None


def _in_group() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def _sharding(chk: CFCheckpoint) -> "Sharding | None":
    from workloads.checkfreq.sharded import sharding_of  # which takes a second to import

    return sharding_of(chk.state())


def _say_nothing(line: str) -> None:
    pass
