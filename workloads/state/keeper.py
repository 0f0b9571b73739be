"""Saves a job's state when a policy requires it, restores the state, and records which samples the run has consumed."""

import hashlib
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np

from iotwin.common.checkpoints import VERSION, CheckpointManifest, Found, Position, checkpoints, open_checkpoint, read_rank
from iotwin.common.commit import Store, Together
from iotwin.common.errors import IotwinError
from iotwin.common.files import append_line
from iotwin.common.progress import note
from iotwin.common.retention import Retention
from iotwin.workloads.policies.cadence import Cadence, LoopPosition, Policy
from iotwin.workloads.state.nested_state import Framework
from iotwin.workloads.state.options import AUTO, NEVER, StateOptions
from iotwin.workloads.state.position import order_digest

FOLDER = "checkpoints"
State = dict[str, Any]


@dataclass
class ResumedJob:
    """A restored checkpoint: the position in the data, the state that all ranks share, and states that belong to single ranks.

    `own` is this rank's state if the number of ranks is unchanged. Otherwise rank 0 gets all states, and other ranks get none.
    """

    position: Position
    shared: State
    own: list[State]


class Keeper:
    """Saves and restores the state of one rank. As a context manager it locks the store of checkpoints.

    `job` identifies the job: a checkpoint whose manifest has other values is refused.
    """

    def __init__(self, options: StateOptions, output: Path, ranks: Together, job: State, framework: Framework) -> None:
        self._options, self._ranks, self._job, self._framework = options, ranks, job, framework
        self._directory = output / FOLDER
        self._store = Store(self._directory, Retention(options.keep), ranks) if options.keeps else None
        steps = Cadence(options.checkpoint_steps, options.checkpoint_steps) if options.checkpoint_steps else None
        self._policy = Policy(steps=steps, seconds=options.checkpoint_seconds or None, now=time.monotonic())
        self.resumed_from: State | None = None
        self.steps = 0  # number of steps of the whole run, including those before a resume
        self._steps_here = 0
        self.order_sha256 = hashlib.sha256().hexdigest()
        self.metric: float | None = None  # metric of the newest evaluation; higher is better

    def __enter__(self) -> Self:
        if self._store is not None:
            self._store.__enter__()
            # Batch systems send SIGUSR1 before they end a job. The state is then saved after the current step.
            self._handler = signal.signal(signal.SIGUSR1, lambda *_: self._policy.ask())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._store is not None:
            signal.signal(signal.SIGUSR1, self._handler)
            self._store.__exit__(kind, error, trace)

    @property
    def active(self) -> bool:
        """True if the job writes checkpoints."""
        return self._store is not None

    @property
    def stops(self) -> bool:
        """True if this run has done the steps of its option --stop-after."""
        return 0 < self._options.stop_after <= self._steps_here

    def resume(self) -> ResumedJob | None:
        """Return the checkpoint to resume from, None for a new run. Raises IotwinError if it is damaged or of another job."""
        found = self._chosen()
        if found is None or found.manifest is None:
            return None
        manifest = found.manifest
        [total] = self._ranks.sum(float(manifest.sequence))
        if total != manifest.sequence * self._ranks.world_size:
            raise IotwinError(f"{found.path}: the ranks do not find the same checkpoints; give all ranks the same --output")
        self._check_job(found)
        shared = self._read(found, 0)
        same_ranks = manifest.world_size == self._ranks.world_size
        saved = range(manifest.world_size) if self._ranks.rank == 0 else ()
        own = [self._read(found, rank)["own"] for rank in ([self._ranks.rank] if same_ranks else saved)]
        if same_ranks:
            self._framework.generators.load_state_dict(own[0]["generators"])
        self.steps, self.order_sha256, self.metric = manifest.step, shared["order_sha256"], manifest.metric
        self.resumed_from = {
            "name": found.name,
            "step": manifest.step,
            "epoch": manifest.epoch,
            "position": manifest.position.position,
        }
        return ResumedJob(manifest.position, shared["shared"], own)

    def _chosen(self) -> Found | None:
        wanted = self._options.resume
        if wanted == NEVER or (wanted == AUTO and not (self._directory.is_dir() and checkpoints(self._directory))):
            return None
        tell = note if self._ranks.rank == 0 else lambda line: None
        return open_checkpoint(self._directory if wanted == AUTO else Path(wanted), tell)

    def _read(self, found: Found, rank: int) -> State:
        tensors, values = read_rank(found, rank)
        state: State = self._framework.unflatten(values.get("state"), tensors)
        if not isinstance(state, dict) or "own" not in state:
            raise IotwinError(f"{found.path} holds no job's state")
        return state

    def _check_job(self, found: Found) -> None:
        saved = found.manifest.job if found.manifest else {}
        for key, value in self._job.items():
            if saved.get(key) != value:
                what = key.replace("_", " ")
                raise IotwinError(f"{found.path} is of {what} {saved.get(key)}, this job is of {what} {value}; give it its own")

    def consumed(self, epoch: int, own: Sequence[int], all_ranks: Sequence[int]) -> None:
        """Record the sample indices of a step: those that this rank took (`own`) and those of all ranks, in the epoch's order."""
        self.steps += 1
        self._steps_here += 1
        self.order_sha256 = order_digest(self.order_sha256, all_ranks)
        if self._options.index_log is not None:
            append_line(self._options.index_log, " ".join(map(str, (self._ranks.rank, epoch, self.steps, *own))))

    def due(self, epoch: int) -> str | None:
        """Return the reason why the state must be saved now, or None. All ranks get None, or all get a reason."""
        if self._store is None:
            return None
        reason = self._policy.due(LoopPosition(epoch, self.steps), time.monotonic())
        if self.stops:
            reason = "stop"
        if self._ranks.world_size > 1:  # clocks and signals differ between ranks, so rank 0 decides
            [due] = self._ranks.sum(float(reason is not None and self._ranks.rank == 0))
            return (reason or "seconds") if due else None
        return reason

    def keep(self, position: Position, reason: str, shared: State, own: State) -> None:
        """Write a checkpoint with the state `shared` of rank 0 and the state `own` of each rank. Every rank must call it."""
        if self._store is None:
            return
        state: State = {"own": {**own, "generators": self._framework.generators.state_dict()}}
        if self._ranks.rank == 0:
            state |= {"shared": shared, "order_sha256": self.order_sha256}
        tensors, values = self._framework.flatten(state)
        manifest = CheckpointManifest(
            VERSION, self.steps, position.epoch, position, self._ranks.world_size, code_sha256=code_sha256(),
            versions=self._framework.versions | {"numpy": np.__version__, "msgspec": msgspec.__version__},
            reason=reason, metric=self.metric, job=self._job,
        )  # fmt: skip
        self._store.commit(manifest, tensors, {"state": values})
        self._policy.restart(time.monotonic())

    def result(self) -> State:
        """Return the entries of result.json about checkpoints and consumed samples."""
        return {"resumed_from": self.resumed_from, "order_sha256": self.order_sha256, "stopped": self.stops}


@cache
def code_sha256() -> str:
    """Return the SHA-256 of the source files of the workloads."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)} ".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
