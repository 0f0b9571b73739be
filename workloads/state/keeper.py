"""Keeps a job's state by its policy, brings it back, and knows which samples the run has consumed."""

import hashlib
import os
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

from common.checkpoints import VERSION, Found, Manifest, Position, checkpoints, open_checkpoint, read_rank
from common.commit import Retention, Store, Together
from common.errors import IotwinError
from common.progress import note
from workloads.policies.cadence import Cadence, LoopPosition, Policy
from workloads.state.nested import Framework
from workloads.state.options import AUTO, NEVER, StateOptions
from workloads.state.position import order_digest

FOLDER = "checkpoints"
State = dict[str, Any]


@dataclass
class Resumed:
    """What a job goes on from: the state all ranks share, and the own states that this rank takes over.

    On as many ranks as saved, each takes its own; on another number, rank 0 takes all of them.
    """

    position: Position
    shared: State
    own: list[State]


class Keeper:
    """The state of one rank's job; a context, as its store is. `job` is what must agree for a checkpoint to be this job's."""

    def __init__(self, options: StateOptions, output: Path, ranks: Together, job: State, framework: Framework) -> None:
        self._options, self._ranks, self._job, self._framework = options, ranks, job, framework
        self._directory = output / FOLDER
        self._store = Store(self._directory, Retention(options.keep), ranks) if options.keeps else None
        steps = Cadence(options.checkpoint_steps, options.checkpoint_steps) if options.checkpoint_steps else None
        self._policy = Policy(steps=steps, seconds=options.checkpoint_seconds or None, now=time.monotonic())
        self.resumed_from: State | None = None
        self.steps = 0  # of the whole run, with those before it was resumed
        self._steps_here = 0
        self.order_sha256 = hashlib.sha256().hexdigest()
        self.metric: float | None = None  # of the newest evaluation; higher is better

    def __enter__(self) -> Self:
        if self._store is not None:
            self._store.__enter__()
            # A batch system's warning before it ends a job: the state is kept after the step that is under way.
            self._handler = signal.signal(signal.SIGUSR1, lambda *_: self._policy.ask())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._store is not None:
            signal.signal(signal.SIGUSR1, self._handler)
            self._store.__exit__(kind, error, trace)

    @property
    def active(self) -> bool:
        """Whether the state is kept."""
        return self._store is not None

    @property
    def stops(self) -> bool:
        """Whether this run has done as many steps as it was to do."""
        return 0 < self._options.stop_after <= self._steps_here

    # Going on

    def resume(self) -> Resumed | None:
        """Return what the job goes on from, None when it begins; IotwinError for a damaged checkpoint or another job's."""
        found = self._chosen()
        if found is None or found.manifest is None:
            return None
        manifest = found.manifest
        [total] = self._ranks.sum(float(manifest.sequence))
        if total != manifest.sequence * self._ranks.world_size:
            raise IotwinError(f"{found.path}: the ranks do not see the same checkpoints; give all of them one --output")
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
        return Resumed(manifest.position, shared["shared"], own)

    def _chosen(self) -> Found | None:
        wanted = self._options.resume
        if wanted == NEVER or (wanted == AUTO and not (self._directory.is_dir() and checkpoints(self._directory))):
            return None
        tell = note if self._ranks.rank == 0 else _say_nothing
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

    # Consuming

    def consumed(self, epoch: int, own: Sequence[int], all_ranks: Sequence[int]) -> None:
        """Count a step that took the samples `own` on this rank and `all_ranks`, in the order's order, on all."""
        self.steps += 1
        self._steps_here += 1
        self.order_sha256 = order_digest(self.order_sha256, all_ranks)
        if self._options.index_log is not None:
            line = " ".join(map(str, (self._ranks.rank, epoch, self.steps, *own)))
            descriptor = os.open(self._options.index_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                os.write(descriptor, f"{line}\n".encode())  # one call, so that lines of several ranks do not mix
            finally:
                os.close(descriptor)

    # Keeping

    def due(self, epoch: int) -> str | None:
        """Return why the state is to be kept after this step, None when it is not; the same on all ranks."""
        if self._store is None:
            return None
        reason = self._policy.due(LoopPosition(epoch, self.steps), time.monotonic())
        if self.stops:
            reason = "stop"
        if self._ranks.world_size > 1:  # clocks and signals are a rank's own: what rank 0 says counts
            [told] = self._ranks.sum(float(reason is not None and self._ranks.rank == 0))
            return (reason or "seconds") if told else None
        return reason

    def keep(self, position: Position, reason: str, shared: State, own: State) -> None:
        """Write the state: `shared` as rank 0 has it, `own` of each rank. Every rank must call it."""
        if self._store is None:
            return
        state: State = {"own": {**own, "generators": self._framework.generators.state_dict()}}
        if self._ranks.rank == 0:
            state |= {"shared": shared, "order_sha256": self.order_sha256}
        tensors, values = self._framework.flatten(state)
        manifest = Manifest(
            VERSION, self.steps, position.epoch, position, self._ranks.world_size, code_sha256=code_sha256(),
            versions=self._framework.versions | {"numpy": np.__version__, "msgspec": msgspec.__version__},
            reason=reason, metric=self.metric, job=self._job,
        )  # fmt: skip
        self._store.commit(manifest, tensors, {"state": values})
        self._policy.restart(time.monotonic())

    def result(self) -> State:
        """Return what a job's result says of all this."""
        return {"resumed_from": self.resumed_from, "order_sha256": self.order_sha256, "stopped": self.stops}


def _say_nothing(line: str) -> None:
    pass


@cache
def code_sha256() -> str:
    """Return the digest of the jobs' own source files."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)} ".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
