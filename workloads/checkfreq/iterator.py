"""Delivers a job's batches, and takes checkpoints between them as often as their measured cost and a bound on it allow."""

import importlib.util
import math
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import distributed

from iotwin.common.checkpoints import Position
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import cache_folder
from iotwin.common.units import counted
from iotwin.workloads.checkfreq import profile
from iotwin.workloads.checkfreq.epochs.epoch_restarts import Epochs
from iotwin.workloads.checkfreq.manager import DEVICE, HOST, CFManager, CFMode
from iotwin.workloads.policies.adaptive_interval import AIMED, Controller, IntervalPlan, StepWindow, plan
from iotwin.workloads.policies.cadence import LoopPosition, Policy
from iotwin.workloads.state.batches import ResumableBatches
from iotwin.workloads.state.position import after, begin, go_on
from iotwin.workloads.state.tracked_objects import State

_COLD_STEPS = 3  # number of steps after a write that are slower because of cold caches
_LEAST_SHARE = 0.1  # this share of the bound is always left for checkpoints, even if this class itself takes much time


@dataclass(frozen=True)
class IteratorOptions:
    """Keyword arguments of CFIterator that the class of this name in CheckFreq's own code lacks."""

    seconds: float = 0.0  # seconds between further checkpoints; 0: none
    mtbf_s: float | None = None  # mean time between failures, which sets a least interval
    stop_at: tuple[int, ...] = ()  # signals on which the job takes a checkpoint and stops
    cache: Path | None = None  # folder of the profiles; None: in the user's cache
    synchronous: bool = False  # if True, training waits for each checkpoint even in mode AUTO
    reprofile: bool = False  # True: ignore the cached profile of an earlier job with the same key (profile.key)


class CFIterator:
    """Iterates over `dataloader`, epoch after epoch, and takes checkpoints with `cf_manager`, in the manager's mode.

    * In mode AUTO it times the steps of its calls 5 to 99. In call 100 it measures checkpoints, and plans an interval for an
      overhead of `max_overhead` per cent. With `dynamic`, a controller corrects the interval for the rest of the job.
    * In mode MANUAL it takes a checkpoint every `chk_freq` steps (0: none), and training waits for it.
    * In both modes it takes a checkpoint at the end of each epoch. After `steps_to_run` steps it stops and sets `exit`.
    * `bs` is the batch size of a rank. `arch` names the model in CheckFreq's own cache file. A job can begin at `epoch` and
      `steps_this_epoch`.
    * `worker_id` and `persist` have no effect. The other keywords are fields of IteratorOptions.

    After a restore, a loader whose batch_sampler is a ResumableBatches continues without reading consumed batches again. Any
    other loader reads the consumed batches again and drops them. With DALI (`dali`), the script must skip them.
    """

    def __init__(
        self, dataloader: Any, bs: int = 128, dali: bool | None = None, steps_this_epoch: int = 0, epoch: int = 0,
        arch: str = "resnet18", worker_id: int = 0, chk_freq: int = 0, steps_to_run: int = -1, max_overhead: float = 5,
        dynamic: bool = False, persist: bool = True, cf_manager: CFManager | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        own = IteratorOptions(**options)
        if dali and importlib.util.find_spec("nvidia.dali" if importlib.util.find_spec("nvidia") else "nvidia") is None:
            raise UsageError("dali=True needs NVIDIA DALI, which is not installed; give a torch DataLoader and dali=False")
        if not 0 < max_overhead < math.inf:
            raise UsageError(f"max_overhead {max_overhead} must be above 0 per cent")
        if not isinstance(dataloader, Iterable):
            raise ValueError(f"a data loader of type {type(dataloader).__name__} is not iterable; give a torch DataLoader")
        self._loader: Any = dataloader
        self._manager, self._bs, self._arch = cf_manager, bs, arch
        sampler = getattr(dataloader, "batch_sampler", None)
        self.batches: ResumableBatches | None = sampler if isinstance(sampler, ResumableBatches) else None
        self._epochs = Epochs(dataloader, goes_on=bool(dali) or self.batches is not None)
        if cf_manager is not None:
            cf_manager.epoch_state = self._epochs.state_dict
        self._options, self._bound, self._dynamic = own, max_overhead / 100, dynamic
        self.interval, self._fixed = chk_freq, cf_manager is not None and cf_manager.mode is CFMode.MANUAL
        self.epoch, self._step_in_epoch, self._steps = epoch, 0, 0
        self._steps_to_run, self._steps_here = steps_to_run, 0
        self.exit = False
        self.before_epoch_checkpoint: Callable[[], None] | None = None  # called at the end of an epoch
        self.intervals: list[tuple[int, int]] = []  # (step, interval) for each step from which on the interval is a new one
        self.measured: profile.MeasuredCosts | None = None
        self.plan: IntervalPlan | None = None
        self.windows: list[StepWindow] = []  # the windows of steps that the controller has evaluated
        self._controller: Controller | None = None
        self._calls, self._since, self._began_s = 0, 0, 0.0
        self._durations_s: list[float] = []
        self._took = False  # True if the current step began with a checkpoint
        self._overlaps_write = False  # True if the current step runs during a write or shortly after one
        self._after = _COLD_STEPS  # number of steps since the last write
        self._own_s: list[float] = []  # seconds that this class needs between two steps, in the current window
        self._cut = False
        self._policy = Policy(seconds=own.seconds or None, now=time.monotonic())
        self._timed, self._cache = bool(own.seconds or own.stop_at), own.cache or cache_folder() / "checkfreq"
        self._handlers = {number: signal.signal(number, self._asked) for number in own.stop_at}
        if self._fixed and chk_freq:
            self.intervals.append((0, chk_freq))
        elif cf_manager is not None and not self._fixed:
            self._begin_auto(cf_manager)
        if epoch or steps_this_epoch:
            steps = epoch * self._batches_per_epoch() + steps_this_epoch
            self.load_state_dict({"epoch": epoch, "iter": steps_this_epoch, "steps_so_far": steps})

    def _begin_auto(self, manager: CFManager) -> None:
        """Plan the interval from the cached profile of an earlier job with the same key, if any, and broadcast it from rank 0."""
        known = None
        if manager.rank == 0 and self.interval:
            self._set_interval(self.interval)
        elif manager.rank == 0:
            known = None if self._options.reprofile else profile.recall(self._cache, self._key(manager))
            if known:
                self._decide(manager, known)
            elif theirs := profile.recall_theirs(Path.cwd(), self._arch, self._bs):
                interval, manager.snapshot, manager.worker = theirs
                self._set_interval(interval)
        self.interval = int(self._from_rank_0(float(self.interval))[0])

    def _key(self, manager: CFManager) -> State:
        return profile.key(manager.chk, manager.directory, manager.world_size, {"arch": self._arch, "batch_size": self._bs})

    def __iter__(self) -> "CFIterator":
        return self

    def __len__(self) -> int:
        """Return the number of steps left in the epoch."""
        return len(self._loader)

    def __next__(self) -> Any:
        """Take a checkpoint if one is due, then return the next batch. Raises StopIteration at an epoch's end and if stopped."""
        self._end_step()
        if self.exit:
            raise StopIteration
        try:
            if self._cut:
                raise StopIteration
            batch = self._epochs.next()
        except StopIteration:
            self._end_epoch()
            raise
        if self._step_in_epoch == 0 and self._manager is not None and self._epochs.began is not None:
            self._manager.keep_epoch_start(*self._epochs.began)
        self._step_in_epoch += 1
        self._steps += 1
        self._steps_here += 1
        self._since += 1
        if self.batches is not None:
            self.batches.position = after(self.batches.position)
        if self._manager is not None and 0 < self.interval <= self._since:
            self._manager.settle_before_update()
        return batch

    def _end_step(self) -> None:
        """Time the step that ran since the last call of `__next__`, then take a checkpoint if one is due."""
        now_s = time.perf_counter()
        stall_s = self._manager.stalls.take() if self._manager else 0.0
        if self._calls and self._began_s:
            self._record_duration(now_s - self._began_s, stall_s)
        self._began_s = now_s
        self._calls += 1
        if self._manager is not None:
            self._manager.check()
            self._took = self._take_due(self._manager)
            self._after = 0 if self._manager.writing else self._after + 1
            self._overlaps_write = self._after <= min(_COLD_STEPS, max(1, self.interval // 4))
            if self._controller is not None and not self._took:
                self._own_s.append(time.perf_counter() - now_s)
        if 0 <= self._steps_to_run <= self._steps_here:
            self.exit = True

    def _record_duration(self, seconds: float, stall_s: float) -> None:
        if self._controller is not None:
            window = self._controller.step(seconds, self._took, stall_s, self._overlaps_write and not self._took)
            if window is not None:
                self._correct(window)
        elif not self.interval and self._calls > profile.WARM_UP and not self._took:
            self._durations_s.append(seconds)

    def _correct(self, window: StepWindow) -> None:
        """Let the controller correct the interval between checkpoints, from the durations of a window of steps.

        Unless the policy is dynamic, the controller is dropped after the first window whose overhead is within the bound.
        """
        self.windows.append(window)
        # The controller does not notice this class's own time, since all steps contain it.
        if self._own_s and self._controller is not None:
            own = median(self._own_s) / window.base_s
            self._controller.overhead = max(AIMED * self._bound - own, _LEAST_SHARE * self._bound)
        self._own_s.clear()
        if window.interval != self.interval:
            self._set_interval(window.interval)
        if window.overhead <= self._bound * (1 + 1e-6) and not self._dynamic:
            self._controller = None

    def _take_due(self, manager: CFManager) -> bool:
        """Take a checkpoint if one is due before the next step. Returns True if one was taken."""
        reason = self._due()
        if reason is None or self._steps == 0:
            return False
        self._since = 0
        if reason == "profile":
            self._profile(manager)
            self._began_s = 0.0  # this step is not timed
            return False
        where: dict[str, Any] = {"position": self._position(), "reason": reason}
        self._save(manager, self._waits or reason == "signal", epoch=self.epoch, **where)
        if reason == "signal":
            self.exit = True
        return True

    def _save(self, manager: CFManager, wait: bool, **where: Any) -> None:
        """Take a checkpoint and wait for it if `wait`. Otherwise it is written while training continues."""
        if wait:
            manager.save(self.state_dict(), synchronous=True, **where)
        elif manager.snapshot == HOST:
            manager.save_cpu(self.state_dict(), **where)
        else:
            manager.save(self.state_dict(), **where)

    def _due(self) -> str | None:
        """Return the reason for a checkpoint before the next step, as rank 0 decided; None if none is due."""
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
        [index] = self._from_rank_0(float(reasons.index(own)))
        return reasons[int(index)]

    def _epoch_is_over(self) -> bool:
        """Return True if the loader has no batch left, so that the next checkpoint is that at the epoch's end."""
        if self.batches is not None:
            return len(self.batches) == 0
        return self._step_in_epoch >= _length(self._loader)

    def _from_rank_0(self, *values: float) -> list[float]:
        if self._manager is None or self._manager.world_size == 1:
            return list(values)
        device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
        shared = torch.tensor(values, device=device)
        distributed.broadcast(shared, 0)
        return shared.tolist()

    def _asked(self, number: int, frame: object) -> None:
        self._policy.ask()

    def _end_epoch(self) -> None:
        self._epochs.end(all_taken=not self._cut)
        self._cut = False
        self.epoch += 1
        self._step_in_epoch = 0
        if self.batches is not None:
            self.batches.advance_epoch()
        if self.before_epoch_checkpoint is not None:
            self.before_epoch_checkpoint()
        self._began_s, self._took = 0.0, False  # the time between two epochs must not count as a step
        if self._manager is not None:
            where: dict[str, Any] = {"is_epoch": True, "epoch": self.epoch - 1, "position": self._position()}
            self._save(self._manager, self._waits, **where)
            self._manager.stalls.take()
            self._since = 0

    @property
    def _waits(self) -> bool:
        return self._fixed or self._options.synchronous

    def end_epoch_here(self) -> None:
        """End the epoch at the next call, even if the loader has batches left."""
        self._cut = True

    def reset(self) -> None:
        """Restart the loader within an epoch. At the end of an epoch, where scripts for CheckFreq also call this, do nothing."""
        if self._step_in_epoch and self.batches is None:
            self._epochs.end(all_taken=False)
            self._step_in_epoch = 0
        if hasattr(self._loader, "reset"):
            self._loader.reset()

    def close(self) -> None:
        """Restore the signal handlers that were set before this object was made."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def profile_all(self) -> None:
        """Measure checkpoints now and plan the interval. Raises IotwinError if no step has been timed yet."""
        if self._manager is not None:
            if not self._durations_s:
                raise IotwinError(f"profile_all needs a step's time; call it after {profile.WARM_UP + 1} steps or more")
            self._profile(self._manager)

    def _profile(self, manager: CFManager) -> None:
        where: dict[str, Any] = {"epoch": self.epoch, "position": self._position()}
        # Every rank takes part, because each checkpoint holds the generators of all ranks.
        measured = profile.measure(manager, median(self._durations_s), self.state_dict(), **where)
        manager.stalls.take()
        if measured is not None:
            self._decide(manager, measured)
            if self.plan is not None:
                profile.remember(self._cache, self._key(manager), measured, self.plan)
        self.interval = int(self._from_rank_0(float(self.interval))[0])

    def _decide(self, manager: CFManager, measured: profile.MeasuredCosts) -> None:
        self.measured = measured
        self.plan = plan(measured.profile, self._bound, self._options.mtbf_s, manager.in_flight)
        manager.worker, manager.snapshot = measured.worker, DEVICE if self.plan.snapshot == DEVICE else HOST
        least = max(self.plan.interval_no_overlap, self.plan.interval_mtbf or 1)
        self._controller = (
            None
            if self._options.synchronous
            else Controller(AIMED * self._bound, self.plan.interval, least, measured.profile.interference_s)
        )
        self._set_interval(self.plan.interval)

    def _set_interval(self, interval: int) -> None:
        self.interval = interval
        self.intervals.append((self._steps, interval))

    def _position(self) -> Position | None:
        return self.batches.position if self.batches is not None else None

    def state_dict(self) -> State:
        """Return the loop's position, as numbers of steps and samples. `epoch` counts from 0.

        `iter` and `start_index` count this rank's steps and samples in the epoch, `steps_so_far` the steps of the whole job.
        """
        return {
            "iter": self._step_in_epoch,
            "steps_so_far": self._steps,
            "start_index": self._step_in_epoch * self._bs,
            "epoch": self.epoch,
        }

    def load_state_dict(self, state: State | None) -> None:
        """Continue at the position in `state`; None changes nothing. Raises IotwinError if `state` does not fit the loader."""
        if state is None:
            return
        self.epoch, self._step_in_epoch, self._steps = state["epoch"], state["iter"], state["steps_so_far"]
        manager = self._manager
        if self.batches is not None and manager is not None and manager.restored_position is not None:
            saved, own = manager.restored_position, self.batches.position
            if saved.seed != own.seed:
                raise IotwinError(f"the checkpoint has the seed {saved.seed}, this job has the seed {own.seed}; use one seed")
            same = (saved.world_size, saved.batch_size) == (own.world_size, own.batch_size)
            if self.batches.sliced and saved.position and not same:
                raise IotwinError(
                    f"the checkpoint is within an epoch of {counted(saved.world_size, 'rank')} with batches of "
                    f"{saved.batch_size}; a sliced order resumes only with the same"
                )
            self.batches.position = go_on(saved, own.samples, own.batch_size, own.world_size)
        elif self.batches is not None:  # the checkpoint holds no position, so derive it from the step
            own = self.batches.position
            start = begin(own.seed, self.epoch + 1, own.samples, own.batch_size, own.world_size)
            self.batches.position = after(start, self._step_in_epoch)
        self._epochs.resume(self._step_in_epoch, manager.restored_epoch if manager is not None else None)

    def _batches_per_epoch(self) -> int:
        """Return the number of batches of a whole epoch, 0 if unknown."""
        if self.batches is not None:
            own = self.batches.position
            return own.kept // (own.batch_size * own.world_size)
        length = _length(self._loader)
        return int(length) if math.isfinite(length) else 0

    @property
    def _size(self) -> int:
        """Number of this rank's samples per epoch, which CheckFreq's trainer reads."""
        return getattr(self._loader, "_size", None) or self._batches_per_epoch() * self._bs


def _length(loader: Any) -> float:
    try:
        return len(loader)
    except TypeError:  # an iterable data set has no length
        return math.inf
