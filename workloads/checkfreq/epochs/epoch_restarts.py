"""Delivers the batches of a data loader. A resumed job first repeats the interrupted epoch exactly."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler

from iotwin.common.errors import IotwinError
from iotwin.common.progress import note
from iotwin.common.units import counted
from iotwin.workloads.checkfreq.epochs.batch_digest import batch_digest
from iotwin.workloads.checkfreq.epochs.generators import LoaderGenerators, State
from iotwin.workloads.checkfreq.epochs.worker_generators import draws_behind_batches, first_batches, watch

_FIXED_ORDER = (SequentialSampler, DistributedSampler)
_REMEDY = "restore the end of an epoch, or let its order follow from seeds"


class Epochs:
    """Delivers the batches of `loader`. In a resumed job, it continues the interrupted epoch after the batches consumed before.

    For this, it sets the random generators to their states at the epoch's start, and reads the consumed batches again and drops
    them. Then it sets the generators to their states at the checkpoint. If `goes_on`, the loader itself skips consumed batches.
    """

    def __init__(self, loader: Any, goes_on: bool) -> None:
        self._loader, self._goes_on = loader, goes_on
        self._generators = LoaderGenerators(loader)
        self._fetching: Iterator[Any] | None = None
        self._checked = not goes_on and not isinstance(loader, (list, tuple, range))  # a sequence always has the same items
        self._in_process = not getattr(loader, "num_workers", 0)
        self._watched = watch(loader) if getattr(loader, "persistent_workers", False) else None
        # The next four attributes describe the current epoch.
        self._start: State | None = None  # states of the generators at the epoch's start
        # states of the generators before the newest batch was read; None if worker processes read batches
        self._before: State | None = None
        self._digest = ""  # digest of the newest batch
        self._taken = 0  # batches of the epoch delivered so far
        self._ended: State | None = None  # states of the generators in the checkpoint at the end of the previous epoch
        # states of the generators when persistent workers were started, in an earlier epoch
        self._workers_start: State | None = None
        self._workers: torch.Tensor | None = None  # states of the generators of persistent workers at the epoch's start, if known
        self._resumed: tuple[int, State | None] | None = None  # number of batches to skip, and the saved state of their epoch

    def next(self) -> Any:
        """Return the next batch. Raises StopIteration at the end of the epoch, IotwinError if the epoch cannot be repeated."""
        if self._fetching is None:
            self._fetching = self._begin()
        if self._checked and self._in_process:
            self._before = self._generators.state_dict()
        batch = next(self._fetching)
        if self._checked:
            self._digest = batch_digest(batch)
        self._taken += 1
        return batch

    @property
    def began(self) -> tuple[State, State] | None:
        """States of the generators at the end of the previous epoch and at the start of this one; None in the first epoch."""
        return (self._ended, self._start) if self._ended is not None and self._start is not None else None

    def end(self, all_taken: bool = True) -> None:
        """End the epoch. `all_taken`: True if all batches of the loader were delivered."""
        if self._watched is not None:
            self._workers_start = self._workers_start or self._start
            self._workers = self._watched.states() if all_taken and not draws_behind_batches(self._loader) else None
        self._start = self._before = self._fetching = None
        self._digest, self._taken = "", 0

    def state_dict(self) -> State:
        """Return the state of the current epoch for a checkpoint."""
        if self._resumed is not None and self._resumed[1] is not None:  # no batch was delivered since the resume
            return self._resumed[1]
        now = self._generators.state_dict()
        if not self._taken:
            self._ended = now
        return {
            "taken": self._taken,
            "start": self._start,
            "before": self._before,
            "digest": self._digest,
            "now": now,
            "workers_start": self._workers_start,
            "workers": self._workers,
            "workers_draw": self._watched is not None and self._watched.drew,
        }

    def resume(self, taken: int, state: State | None) -> None:
        """Continue after `taken` batches of an epoch. `state` is that of `state_dict`, None if the checkpoint has none.

        Raises IotwinError if the epoch cannot be repeated exactly.
        """
        if state is not None and state["taken"] != taken:  # the user's script resumes at another batch than the checkpoint's
            state = None
        if not self._goes_on:
            self._check(taken, state)
        self._fetching = None
        self._resumed = (taken, state)
        if state is not None and not taken:
            self._generators.search()
            self._generators.load_state_dict(state["now"])
            self._ended = state["now"]

    def _check(self, taken: int, state: State | None) -> None:
        if state is not None and state["workers_draw"] and state["workers_start"] is not None and state["workers"] is None:
            raise IotwinError(
                "the data set draws random numbers in persistent workers for batches that were not taken, which no checkpoint "
                "holds; train with persistent_workers=False, or without drop_last and to the end of each epoch"
            )
        if not taken:
            return
        if not getattr(self._loader, "in_order", True) and self._loader.num_workers > 1:
            raise IotwinError("a loader with in_order=False cannot be resumed within an epoch; " + _REMEDY)
        if state is None:
            if isinstance(self._loader, DataLoader) and not _has_fixed_order(self._loader):
                raise IotwinError(
                    f"the checkpoint holds no generators for this loader, so {counted(taken, 'batch')} cannot be repeated; "
                    "use CFManager's layout ours on as many ranks as before, or restore the end of an epoch"
                )
            note(f"the epoch begins again: {counted(taken, 'batch')} read again and dropped")

    def _begin(self) -> Iterator[Any]:
        """Start a new epoch, or restart the interrupted one."""
        taken, state = self._resumed or (0, None)
        self._generators.search()
        if state is None:
            self._start = self._generators.state_dict()
            # An uninterrupted run makes no loader within an epoch, so making one here must not change torch's generator.
            with torch.random.fork_rng(devices=[]) if taken else nullcontext():
                fetching = iter(self._loader)
            for _ in range(0 if self._goes_on else taken):
                next(fetching)
        else:
            fetching = self._begin_again(taken, state)
        self._resumed = None
        self._taken = taken
        return fetching

    def _begin_again(self, taken: int, state: State) -> Iterator[Any]:
        now = state["now"] if taken else state["start"] or self._generators.state_dict()
        self._workers_start = state["workers_start"]
        # Put new workers into their second epoch, since those of the interrupted job were past their first.
        if self._workers_start is not None:
            self._workers = state["workers"]
            if self._watched is not None and self._workers is not None:
                self._watched.begin_with(self._workers, first_batches(self._loader))
            self._generators.load_state_dict(self._workers_start)
            iter(self._loader)
        self._start = state["start"] if taken else now
        self._generators.load_state_dict(self._start)
        fetching = iter(self._loader)
        if taken and not self._goes_on:
            self._pass_over(fetching, taken, state)
        if taken:
            self._generators.load_state_dict(now)
        return fetching

    def _pass_over(self, fetching: Iterator[Any], taken: int, state: State) -> None:
        """Read the first `taken` batches of the interrupted epoch from `fetching`, and drop them.

        `state` is the epoch's state in the checkpoint. Before this method reads the last of these batches, it sets the random
        generators to their states in `state`. Raises IotwinError if the loader delivers fewer batches, or if the last batch
        does not have the digest in `state`.
        """
        note(f"the epoch begins again: {counted(taken, 'batch')} read again and dropped")
        missing = object()
        for _ in range(taken - 1):
            next(fetching, missing)
        if state["before"] is not None:
            self._generators.load_state_dict(state["before"])
        batch = next(fetching, missing)
        if batch is missing or (self._checked and batch_digest(batch) != state["digest"]):
            raise IotwinError(
                f"batch {taken} of the epoch is not the one that the interrupted job took: the loader's order or data follow "
                f"from more than the generators that a checkpoint holds; {_REMEDY}"
            )
        self._before, self._digest = state["before"], state["digest"]


def _has_fixed_order(loader: DataLoader) -> bool:
    """Return True if the order of a loader's samples depends on no generator."""
    batches = loader.batch_sampler
    sampler = batches.sampler if type(batches) is BatchSampler else loader.sampler if batches is None else None
    return type(sampler) in _FIXED_ORDER
