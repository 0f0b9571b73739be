"""Takes a job's batches from its loader, and its checkpoints between them: as often as measured costs and a bound allow."""

import importlib.util
import math
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import distributed

from common.checkpoints import Position
from common.errors import IotwinError, UsageError
from common.progress import note
from workloads.checkfreq import profile
from workloads.checkfreq.batches import CFBatches
from workloads.checkfreq.checkpoint import State
from workloads.checkfreq.manager import DEVICE, HOST, CFManager, CFMode
from workloads.policies.cadence import LoopPosition, Policy
from workloads.policies.frequency import AIMED, Controller, Plan, StepWindow, plan
from workloads.state.position import after, begin, go_on

_COLD_STEPS = 3  # after a writing find other things in the caches
_LEAST_SHARE = 0.1  # of the bound that is left to checkpoints where steps are so short that looking at them takes the rest


class CFIterator:
    """Iterates over `dataloader`, epoch after epoch, taking the checkpoints of `cf_manager`.

    AUTO: calls 5 to 99 are timed, the hundredth measures checkpoints and plans the interval for an overhead of `max_overhead` per
    cent, which with `dynamic` a controller then corrects, up and down, by what steps really take. MANUAL: training waits for a
    checkpoint every `chk_freq` steps, 0 for those at ends of epochs only, which both modes take. After `steps_to_run` steps it
    stops and sets `exit`, as it does, with a checkpoint, once a signal of `stop_at` has come. `seconds` adds one by time. With
    `synchronous`, AUTO's interval is planned, and training waits for each checkpoint nevertheless. Profiles are kept in `cache`,
    where one of an earlier job like this one serves, unless `reprofile`.

    A loader whose batch_sampler is a CFBatches goes on after a restore without reading what was consumed; of others, what was
    consumed is read again and dropped. `bs` is the batch of a rank, `arch` names the model in the original's cache file.
    """

    def __init__(
        self, dataloader: Any, bs: int = 128, dali: bool | None = None, steps_this_epoch: int = 0, epoch: int = 0,
        arch: str = "resnet18", worker_id: int = 0, chk_freq: int = 0, steps_to_run: int = -1, max_overhead: float = 5,
        dynamic: bool = False, persist: bool = True, cf_manager: CFManager | None = None,
        *, seconds: float = 0.0, mtbf_s: float | None = None, stop_at: tuple[int, ...] = (), cache: Path | None = None,
        synchronous: bool = False, reprofile: bool = False,
    ) -> None:  # fmt: skip
        if dali and importlib.util.find_spec("nvidia.dali" if importlib.util.find_spec("nvidia") else "nvidia") is None:
            raise UsageError("dali=True needs NVIDIA DALI, which is not installed; give a torch DataLoader and dali=False")
        if not 0 < max_overhead < math.inf:
            raise UsageError(f"max_overhead {max_overhead} must be above 0 per cent")
        self._loader, self._manager, self._bs, self._arch = dataloader, cf_manager, bs, arch
        sampler = getattr(dataloader, "batch_sampler", None)
        self.batches: CFBatches | None = sampler if isinstance(sampler, CFBatches) else None
        self._bound, self._dynamic, self._mtbf_s = max_overhead / 100, dynamic, mtbf_s
        self.interval, self._fixed = chk_freq, cf_manager is not None and cf_manager.mode is CFMode.MANUAL
        self.epoch, self._step_in_epoch, self._steps = epoch, steps_this_epoch, 0
        self._steps_to_run, self._steps_here = steps_to_run, 0
        self.exit = False
        self.before_epoch_checkpoint: Callable[[], None] | None = None  # what a job does at the end of an epoch
        self._synchronous, self._reprofile = synchronous, reprofile
        self.intervals: list[tuple[int, int]] = []  # from which step on which
        self.measured: profile.MeasuredCosts | None = None
        self.plan: Plan | None = None
        self.windows: list[StepWindow] = []  # by which it was corrected
        self._controller: Controller | None = None
        self._calls, self._since, self._began_s = 0, 0, 0.0
        self._durations_s: list[float] = []
        self._took = self._beside = False  # whether the step that runs began with a checkpoint, is beside one or soon after
        self._after = _COLD_STEPS  # steps since a checkpoint was written
        self._own_s: list[float] = []  # what this class took between two steps of a window
        self._fetching: Iterator[Any] | None = None
        self._cut = False
        self._skip = 0  # batches to drop, of a loader that cannot go on
        self._policy = Policy(seconds=seconds or None, now=time.monotonic())
        self._timed, self._cache = bool(seconds or stop_at), cache
        self._handlers = {number: signal.signal(number, self._asked) for number in stop_at}
        if self._fixed and chk_freq:
            self.intervals.append((0, chk_freq))
        elif cf_manager is not None and not self._fixed:
            self._begin_auto(cf_manager)

    # What is known from before

    def _begin_auto(self, manager: CFManager) -> None:
        """Plan by what an earlier run has measured, if one has; rank 0 looks, and tells the others."""
        known = None
        if manager.rank == 0 and self.interval:
            self._set_interval(self.interval)
        elif manager.rank == 0:
            known = profile.recall(self._cache, self._key(manager)) if self._cache is not None and not self._reprofile else None
            if known:
                self._decide(manager, known)
            elif theirs := profile.recall_theirs(Path.cwd(), self._arch, self._bs):
                interval, manager.snapshot, manager.worker = theirs
                self._set_interval(interval)
        self.interval = int(self._from_rank_0(float(self.interval))[0])

    def _key(self, manager: CFManager) -> State:
        return profile.key(manager.chk, manager.directory, manager.world_size, {"arch": self._arch, "batch_size": self._bs})

    # Iterating

    def __iter__(self) -> "CFIterator":
        return self

    def __len__(self) -> int:
        """Return the steps that the epoch has left."""
        return len(self._loader)

    def __next__(self) -> Any:
        """Return the next batch, after a checkpoint if one is due; StopIteration at the end of an epoch, or when stopped."""
        self._end_step()
        if self.exit:
            raise StopIteration
        try:
            if self._cut:
                raise StopIteration
            if self._fetching is None:
                self._fetching = self._begin_loader()
            batch = next(self._fetching)
        except StopIteration:
            self._end_epoch()
            raise
        self._step_in_epoch += 1
        self._steps += 1
        self._steps_here += 1
        self._since += 1
        if self.batches is not None:
            self.batches.position = after(self.batches.position)
        if self._manager is not None and 0 < self.interval <= self._since:
            self._manager.settle_before_update()
        return batch

    def _begin_loader(self) -> Iterator[Any]:
        if not self._step_in_epoch:
            return iter(self._loader)
        # In the middle of an epoch, where an uninterrupted run has drawn nothing for its loader.
        with torch.random.fork_rng(devices=[]):
            fetching = iter(self._loader)
            for _ in range(self._skip):
                next(fetching)
        self._skip = 0
        return fetching

    def _end_step(self) -> None:
        """End the step that ran since the last call: count it, then take the checkpoint that is due."""
        now_s = time.perf_counter()
        stall_s = self._manager.stalls.take() if self._manager else 0.0
        if self._calls and self._began_s:
            self._count(now_s - self._began_s, stall_s)
        self._began_s = now_s
        self._calls += 1
        if self._manager is not None:
            self._manager.check()
            self._took = self._take_due(self._manager)
            self._after = 0 if self._manager.writing else self._after + 1
            self._beside = self._after <= min(_COLD_STEPS, max(1, self.interval // 4))
            if self._controller is not None and not self._took:
                self._own_s.append(time.perf_counter() - now_s)
        if 0 <= self._steps_to_run <= self._steps_here:
            self.exit = True

    def _count(self, seconds: float, stall_s: float) -> None:
        """Take note of how long a step took."""
        if self._controller is not None:
            window = self._controller.step(seconds, self._took, stall_s, self._beside and not self._took)
            if window is not None:
                self._correct(window)
        elif not self.interval and self._calls > profile.WARM_UP and not self._took:
            self._durations_s.append(seconds)

    def _correct(self, window: StepWindow) -> None:
        """Move the interval as a window has shown; without `dynamic` until the first one within the bound."""
        self.windows.append(window)
        if self._own_s and self._controller is not None:  # what every step takes shows in none
            own = median(self._own_s) / window.base_s
            self._controller.overhead = max(AIMED * self._bound - own, _LEAST_SHARE * self._bound)
        self._own_s.clear()
        if window.interval != self.interval:
            self._set_interval(window.interval)
        if window.overhead <= self._bound * (1 + 1e-6) and not self._dynamic:
            self._controller = None

    def _take_due(self, manager: CFManager) -> bool:
        """Take the checkpoint that is due before the next step, if one is; return whether one was."""
        reason = self._due()
        if reason is None or self._steps == 0:
            return False
        self._since = 0
        if reason == "profile":
            self._profile(manager)
            self._began_s = 0.0  # the step is none to learn from
            return False
        where: dict[str, Any] = {"position": self._position(), "reason": reason}
        self._save(manager, self._waits or reason == "signal", epoch=self.epoch, **where)
        if reason == "signal":
            self.exit = True
        return True

    def _save(self, manager: CFManager, wait: bool, **where: Any) -> None:
        """Take a checkpoint: while training waits, or in two phases as was decided."""
        if wait:
            manager.save(self.state_dict(), synchronous=True, **where)
        elif manager.snapshot == HOST:
            manager.save_cpu(self.state_dict(), **where)
        else:
            manager.save(self.state_dict(), **where)

    def _due(self) -> str | None:
        """Return why a checkpoint is due before the next step, as rank 0 has it."""
        reasons = (None, "steps", "profile", "seconds", "signal")
        own = None
        asked = self._policy.due(LoopPosition(self.epoch + 1, self._steps), time.monotonic()) if self._timed else None
        if asked:
            own = asked
        elif self._since == 0 or self._epoch_is_over():
            own = None
        elif self._controller is not None:
            own = "steps" if self._controller.due else None
        elif self.interval:
            own = "steps" if self._since >= self.interval else None
        elif not self._fixed and self._calls >= profile.DECIDED and len(self._durations_s) >= 1:
            own = "profile"
        [told] = self._from_rank_0(float(reasons.index(own)))
        return reasons[int(told)]

    def _epoch_is_over(self) -> bool:
        """Whether the checkpoint at the end of the epoch comes next, as far as the loader tells."""
        if self.batches is not None:
            return len(self.batches) == 0
        return hasattr(self._loader, "__len__") and self._step_in_epoch >= _length(self._loader)

    def _from_rank_0(self, *values: float) -> list[float]:
        if self._manager is None or self._manager.world_size == 1:
            return list(values)
        device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
        told = torch.tensor(values, device=device)
        distributed.broadcast(told, 0)
        return told.tolist()

    def _asked(self, number: int, frame: object) -> None:
        self._policy.ask()

    def _end_epoch(self) -> None:
        self._fetching, self._cut = None, False
        self.epoch += 1
        self._step_in_epoch = 0
        if self.batches is not None:
            self.batches.advance_epoch()
        if self.before_epoch_checkpoint is not None:
            self.before_epoch_checkpoint()
        self._began_s, self._took = 0.0, False  # what comes between two epochs is no step
        if self._manager is not None:
            where: dict[str, Any] = {"is_epoch": True, "epoch": self.epoch - 1, "position": self._position()}
            self._save(self._manager, self._waits, **where)
            self._manager.stalls.take()
            self._since = 0

    @property
    def _waits(self) -> bool:
        """Whether training waits for checkpoints."""
        return self._fixed or self._synchronous

    def end_epoch_here(self) -> None:
        """Let the next call end the epoch, whatever the loader still has."""
        self._cut = True

    def reset(self) -> None:
        """Begin the loader anew, which ends of epochs do by themselves; for scripts of the original."""
        self._fetching = None
        if hasattr(self._loader, "reset"):
            self._loader.reset()

    def close(self) -> None:
        """Give the signals back to whom they belonged."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    # Deciding

    def profile_all(self) -> None:
        """Measure what checkpoints cost, now, and plan the interval; IotwinError before a step has been timed."""
        if self._manager is not None:
            if not self._durations_s:
                raise IotwinError(f"profile_all needs a step's time; call it after {profile.WARM_UP + 1} steps or more")
            self._profile(self._manager)

    def _profile(self, manager: CFManager) -> None:
        where: dict[str, Any] = {"epoch": self.epoch, "position": self._position()}
        # Every rank takes part, as its generators belong into each checkpoint.
        measured = profile.measure(manager, median(self._durations_s), self.state_dict(), **where)
        manager.stalls.take()
        if measured is not None:
            self._decide(manager, measured)
            if self._cache is not None and self.plan is not None:
                profile.remember(self._cache, self._key(manager), measured, self.plan)
        self.interval = int(self._from_rank_0(float(self.interval))[0])

    def _decide(self, manager: CFManager, measured: profile.MeasuredCosts) -> None:
        self.measured = measured
        self.plan = plan(measured.profile, self._bound, self._mtbf_s, manager.in_flight)
        manager.worker, manager.snapshot = measured.worker, DEVICE if self.plan.snapshot == DEVICE else HOST
        least = max(self.plan.interval_no_overlap, self.plan.interval_mtbf or 1)
        self._controller = (
            None
            if self._synchronous
            else Controller(AIMED * self._bound, self.plan.interval, least, measured.profile.interference_s)
        )
        self._set_interval(self.plan.interval)

    def _set_interval(self, interval: int) -> None:
        self.interval = interval
        self.intervals.append((self._steps, interval))

    # State

    def _position(self) -> Position | None:
        return self.batches.position if self.batches is not None else None

    def state_dict(self) -> State:
        """Return where the loop stands: step in the epoch, steps of all, samples of this rank in the epoch, epoch from 0."""
        return {
            "iter": self._step_in_epoch,
            "steps_so_far": self._steps,
            "start_index": self._step_in_epoch * self._bs,
            "epoch": self.epoch,
        }

    def load_state_dict(self, state: State) -> None:
        """Go to where a loop stood; IotwinError when that is no place of this loader's."""
        self.epoch, self._step_in_epoch, self._steps = state["epoch"], state["iter"], state["steps_so_far"]
        self._fetching = None
        if self.batches is not None and self._manager is not None and self._manager.restored_position is not None:
            saved, own = self._manager.restored_position, self.batches.position
            if saved.seed != own.seed:
                raise IotwinError(f"the checkpoint is of seed {saved.seed}, this job is of seed {own.seed}")
            same = (saved.world_size, saved.batch_size) == (own.world_size, own.batch_size)
            if self.batches.sliced and saved.position and not same:
                raise IotwinError(
                    f"the checkpoint stands within an epoch of {saved.world_size} ranks with batches of {saved.batch_size}; "
                    f"slices can go on with these only"
                )
            self.batches.position = go_on(saved, own.samples, own.batch_size, own.world_size)
        elif self.batches is not None:  # of a layout that keeps no position: it follows from the step
            own = self.batches.position
            start = begin(own.seed, self.epoch + 1, own.samples, own.batch_size, own.world_size)
            self.batches.position = after(start, self._step_in_epoch)
        elif self._step_in_epoch:
            note(f"the loader cannot go on in an epoch: its first {self._step_in_epoch} batches are read again and dropped")
            self._skip = self._step_in_epoch


def _length(loader: Any) -> float:
    try:
        return len(loader)
    except TypeError:  # of an iterable data set
        return math.inf
