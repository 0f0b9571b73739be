"""Takes a job's checkpoints in two phases, a snapshot and then a write that overlaps training, and restores checkpoints."""

import atexit
import enum
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np
import torch
from torch import distributed

from iotwin.common.checkpoints import VERSION, CheckpointManifest, Position
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.progress import note
from iotwin.workloads.checkfreq import LAYOUTS, OURS
from iotwin.workloads.checkfreq.checkpoint import CFCheckpoint
from iotwin.workloads.checkfreq.epochs.epoch_starts import recall, remember
from iotwin.workloads.checkfreq.layouts import CheckpointLayout, OurLayout, TheirLayout
from iotwin.workloads.checkfreq.stalls import CheckpointCost, Stalls
from iotwin.workloads.common.parts import Parts
from iotwin.workloads.state.gathering import gathered
from iotwin.workloads.state.keeper import code_sha256
from iotwin.workloads.state.snapshot import StateSnapshot, take
from iotwin.workloads.state.snapshot_writer import PROCESS, THREAD, Persisted, Persister
from iotwin.workloads.state.torch_state import flatten
from iotwin.workloads.state.tracked_objects import State

if TYPE_CHECKING:
    from iotwin.workloads.state.sharding import Sharding

# where snapshots are stored: in host memory, copied during the next forward and backward passes, or on the GPU, copied at once
HOST, DEVICE = "host", "device"
_EPOCH = "epoch"  # key, among the generators in a checkpoint, of the state of the loader's epoch
_MIB = 1 << 20


class CFMode(enum.Enum):
    """When to take checkpoints: MANUAL at the user's interval, while training waits; AUTO at a measured interval."""

    MANUAL = 0
    AUTO = 1


class CFManager:
    """Takes, writes and restores checkpoints of `chk` in the directory `chk_dir`, which it locks until `close`.

    * `overwrite` keeps only the newest checkpoint and, with `keep_epoch_chk`, the checkpoints at ends of epochs.
    * `in_flight` is how many checkpoints may be unfinished at once; CheckFreq has 1.
    * `layout` "theirs" writes CheckFreq's own files, whose names begin with `chk_prefix`; "ours" writes to the checkpoint store.
    * `job` identifies the job: `restore` refuses a checkpoint whose manifest has other values.

    Rank 0 decides and writes; if state is sharded, each rank writes its own shards. If a write fails, the next weight update or
    save raises the error. Raises IotwinError if the directory is unusable.
    """

    def __init__(
        self, chk_dir: str | Path, chk: CFCheckpoint, keep_epoch_chk: bool = True, overwrite: bool = True,
        mode: CFMode = CFMode.AUTO, chk_prefix: str = "model_v_", *, in_flight: int = 1, job: State | None = None,
        parts: Parts | None = None, layout: str = OURS,
    ) -> None:  # fmt: skip
        if in_flight < 1:
            raise ValueError(f"in_flight must be at least 1 (got {in_flight})")
        if layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(LAYOUTS)} (got {layout})")
        self.chk, self.mode, self.directory, self.in_flight = chk, mode, Path(chk_dir), in_flight
        self.rank: int = distributed.get_rank() if _in_group() else 0
        self.world_size: int = distributed.get_world_size() if _in_group() else 1
        self.stalls = Stalls()
        self.persisted: list[Persisted] = []
        self.worker, self.snapshot = THREAD, HOST  # defaults, which a profile may replace
        self._job, self._parts = job or {}, parts or Parts(False)
        self._pending: StateSnapshot | None = None  # a snapshot that must be complete before the next weight update
        self._settling = False  # True if the next weight update waits for a free snapshot buffer
        self._step = 0  # step of the newest checkpoint
        self._hooks = [handle for optimizer in chk.optimizers for handle in self._hook(optimizer)]
        self._sharding = _sharding(chk) if _in_group() else None
        if layout == OURS:
            self._layout: CheckpointLayout = OurLayout(self.directory, keep_epoch_chk, overwrite, self._sharding)
        elif self._sharding is not None:
            raise UsageError("the original's files cannot hold state that is sharded over ranks; use the layout 'ours'")
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
        """Wait until all checkpoints are durable, and unlock the store."""
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
        except Exception as error:  # at the exit of the program, no caller can catch an error
            note(f"the last checkpoint failed: {error}")

    def _hook(self, optimizer: torch.optim.Optimizer) -> list[Any]:
        """Make each weight update of `optimizer` wait for the pending snapshot, and time the update. Return the hooks."""
        begun = threading.local()  # per thread, because an update begins and ends on one thread

        def before(*_: Any) -> None:
            self.wait_for_snapshot()
            begun.s = time.perf_counter()

        def after(*_: Any) -> None:
            self.stalls.update_s.append(time.perf_counter() - begun.s)

        return [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]

    def wait_for_snapshot(self) -> None:
        """Wait until the pending snapshot is complete, so that the state may change. Raises the error of a write that failed."""
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
        """Make the next weight update wait until a snapshot buffer is free.

        Call this method before the last weight update that precedes a checkpoint. Otherwise the checkpoint itself waits as long.
        With one checkpoint in flight, the newest durable checkpoint is then always less than two intervals old.
        """
        self._settling = True

    def check(self) -> None:
        """Raise the error of a write that failed since the last call."""
        if self._persister is not None:
            self._persister.check()

    def weight_update(self) -> None:
        """Call `step` of the object that is tracked as `optimizer`; the call waits for the pending snapshot."""
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
        """Return the median duration of the latest weight updates in seconds, 0 if there was none."""
        return median(self.stalls.update_s) if self.stalls.update_s else 0.0

    def save(
        self, additional_snapshot: State | None = None, is_epoch: bool = False, epoch: int = 0, synchronous: bool = False,
        profile_full: bool = False, profile_snap: bool = False, use_thread: bool | None = None, persist: bool = True,
        *, position: Position | None = None, reason: str = "steps",
    ) -> CheckpointCost:  # fmt: skip
        """Take a checkpoint and return its cost. If `synchronous`, this call writes it; otherwise training continues meanwhile.

        * `additional_snapshot` is saved too; `restore` returns it.
        * `profile_full` waits until the checkpoint is durable. `profile_snap` takes the snapshot but writes nothing.
        * `use_thread`: True writes on a thread, False in the writer process, None as the profile chose.
        * `persist`, which scripts for CheckFreq pass, has no effect: all checkpoints are durable.

        Every rank must call this method.
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
    ) -> CheckpointCost:  # fmt: skip
        """Take a checkpoint as `save` does, but copy parameters only during the next forward and backward passes."""
        worker = self.worker if use_thread is None else THREAD if use_thread else PROCESS
        overlap = bool(self.chk.optimizers)  # an optimizer's next step waits for the copy; without one, nothing would wait
        wait = synchronous or profile_full
        return self._save(additional_snapshot, is_epoch, epoch, wait, profile_snap, worker, overlap, position, reason)

    def _save(
        self, additional: State | None, is_epoch: bool, epoch: int, wait: bool, only_snapshot: bool, worker: str, overlap: bool,
        position: Position | None, reason: str,
    ) -> CheckpointCost:  # fmt: skip
        begin_ns = time.monotonic_ns()
        state = self._content(additional)
        persister = self._persister
        if persister is None:
            return CheckpointCost(0.0, 0.0)
        self.stalls.begin_checkpoint()
        buffer = persister.buffer()
        try:
            snapshot = take(buffer, state, overlap, self.chk.updated() if overlap else ())
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
        return CheckpointCost(snapshot.copy_s, (time.monotonic_ns() - begin_ns) / 1e9, call_ns / 1e9)

    def _content(self, additional: State | None) -> State:
        own = self.chk.generators()
        if self.epoch_state is not None:
            own = {**own, _EPOCH: self.epoch_state()}
        generators = [own] if self.world_size == 1 else gathered(own)
        shared = {} if self.rank else {"additional": additional, "generators": generators}
        return {"objects": self._objects(), **shared}

    def _objects(self) -> State:
        state = self.chk.state()
        return state if self._sharding is None else self._sharding.parts(state)

    def _save_now(self, state: State, manifest: CheckpointManifest) -> CheckpointCost:
        """Write the state without a snapshot. Training waits for the write."""
        begin_ns, cpu_s = time.monotonic_ns(), time.thread_time()
        if self._persister is None:
            return CheckpointCost(0.0, 0.0)
        self.stalls.begin_checkpoint()
        self._persister.wait()
        tensors, values = flatten(state)
        start_ns = time.monotonic_ns()
        self._layout.commit(manifest, tensors, {"state": values}, waited=True)
        write_s = (time.monotonic_ns() - start_ns) / 1e9
        size_bytes = sum(tensor.data.size for tensor in tensors)
        self._done(Persisted(manifest.step, size_bytes, 0.0, start_ns, write_s, time.thread_time() - cpu_s))
        self._stalled(begin_ns)
        return CheckpointCost(0.0, (time.monotonic_ns() - begin_ns) / 1e9)

    def _manifest(
        self, additional: State | None, is_epoch: bool, epoch: int, position: Position | None, reason: str
    ) -> CheckpointManifest:
        step = (additional or {}).get("steps_so_far")
        self._step = step if isinstance(step, int) and step >= 0 else self._step + 1
        if position is None:  # the position in a user's own loop is unknown, except at the end of an epoch
            position = Position(0, epoch + 1, 0 if is_epoch else max(1, self._step), 0, 0, self.world_size)
        return CheckpointManifest(
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
        """True if a checkpoint is unfinished."""
        return self._persister is not None and self._persister.writing

    @property
    def chk_process(self) -> "Underway | None":
        """Return an object with which scripts for CheckFreq wait for unfinished checkpoints, None if all are durable."""
        return Underway(self) if self.writing else None

    def wait(self) -> None:
        """Wait until all checkpoints are durable."""
        if self._persister is not None:
            self._persister.wait()

    @property
    def get_chk_size(self) -> float:
        """Return the size of a checkpoint's tensors in MiB."""
        tensors, _ = flatten(self._objects())
        return sum(tensor.data.size for tensor in tensors) / _MIB

    def keep_epoch_start(self, end: State, start: State) -> None:
        """Save the generators' states `start`, with which an epoch started (epochs/epoch_starts.py). Every rank must call it.

        `end` holds the generators' states in the checkpoint at the end of the previous epoch.
        """
        if isinstance(self._layout, OurLayout):
            remember(self.directory, end, start, self.world_size, self.rank, self.in_flight + 1)

    def get_latest_checkpoint(self, latest: bool = True, epoch: int = 0) -> str | None:
        """Return the path of the newest valid checkpoint; None if there is none.

        If `latest` is False, return the path of the checkpoint that was taken at the end of `epoch`.
        """
        found = self._layout.latest(self._refused) if latest else self._layout.epoch_end(epoch)
        return str(found) if found else None

    def restore(self, latest: bool = True, epoch: int = 0, gpu: int = 0) -> State | None:
        """Restore the tracked objects from the newest valid checkpoint; if not `latest`, from the one at the end of `epoch`.

        Returns the `additional_snapshot` of `save`, None if it was None or if there is no checkpoint. Damaged checkpoints are
        skipped with a note. `gpu` has no effect, since states are loaded to the devices of their objects. Raises IotwinError if
        the checkpoint belongs to another job, or if there is none for the end of `epoch`.
        """
        if self._persister is not None:
            self._persister.wait()
        found = self._layout.read(self._refused) if latest else self._layout.read_epoch(epoch)
        if found is None:
            return None
        for key, value in self._job.items():
            if found.job is not None and found.job.get(key) != value:
                raise IotwinError(
                    f"{found.path} has the {key} {found.job.get(key)}, this job has the {key} {value}; use another directory"
                )
        generators = found.generators or []
        own = dict(generators[self.rank]) if len(generators) == self.world_size else {}
        self.restored_epoch = own.pop(_EPOCH, None)
        if self.restored_epoch is not None and not self.restored_epoch["taken"]:
            self.restored_epoch["start"] = recall(self.directory, self.restored_epoch["now"], self.world_size, self.rank)
        self.chk.load(found.objects, own)
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
    restored_epoch: State | None = None  # state of the loader's epoch in the restored checkpoint
    epoch_state: Callable[[], State] | None = None  # returns the state of the loader's epoch, for a checkpoint

    def _refused(self, line: str) -> None:
        if self.rank == 0:
            note(line)


class Underway:
    """Waits for unfinished checkpoints. It has the methods of the process that writes checkpoints in CheckFreq's own code."""

    def __init__(self, manager: CFManager) -> None:
        self._manager = manager

    def is_alive(self) -> bool:
        """Return True if a checkpoint is unfinished."""
        return self._manager.writing

    def join(self) -> None:
        """Wait until all checkpoints are durable. Raises the error of a write that failed."""
        self._manager.wait()


def _in_group() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def _sharding(chk: CFCheckpoint) -> "Sharding | None":
    from iotwin.workloads.state.sharding import sharding_of  # imported only if needed, since it takes a second

    return sharding_of(chk.state())
