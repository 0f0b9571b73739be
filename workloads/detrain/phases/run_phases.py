"""Logs, for a tracer, what an instrumented run does: epochs, steps, checkpoints, and how a resumed run reached its batch."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from iotwin.common.mllog import FOR_TRACERS, MlLog

if TYPE_CHECKING:
    from iotwin.workloads.detrain.resumption import Resumption

# Logged intervals of a resumed run: it reads the checkpoint, reads earlier batches or trains on them again, restores the state.
LOAD, REPLAY, RESTORE = "load", "replay", "restore"
SKIPPED, REPLAYED, MODE = "skipped_batches", "replayed_batches", "resumed_by"  # logged values of a resumed run


class RunPhases:
    """Logs lines to a copy of stdout that a tracer keeps from the terminal. Does nothing unless `enabled`.

    Epochs and the steps of an epoch count from 1 in these lines, as in those of `iotwin trace --phases auto`.
    """

    def __init__(self, enabled: bool = False, rank: int = 0) -> None:
        # A copy, since the script may redirect stdout.
        stream = os.fdopen(os.dup(sys.stdout.fileno()), "w") if enabled else None
        self._log = MlLog(stream, FOR_TRACERS, rank=rank)
        self._epoch: int | None = None
        self._in_step = self._has_arrived = False
        self._replay_ns: int | None = None  # when the replay began

    def epoch(self, epoch: int) -> None:
        """Log that an epoch begins, and that the one before has ended."""
        self._end_epoch()
        self._epoch = epoch + 1
        self._log.start("epoch", epoch_num=self._epoch)

    def step(self, batch: int) -> None:
        """Log that a step begins."""
        self._in_step = True
        self._log.start("step", epoch_num=self._epoch or 0, step_num=batch + 1)

    def end_step(self) -> None:
        """Log that the step has ended."""
        if self._in_step:
            self._log.end("step")
            self._in_step = False

    def end(self) -> None:
        """Log that the run has ended."""
        self.end_step()
        self._end_epoch()

    def _end_epoch(self) -> None:
        if self._epoch is not None:
            self._log.end("epoch", epoch_num=self._epoch)
            self._epoch = None

    @contextmanager
    def checkpoint(self) -> Iterator[None]:
        """Log the `with` block as a checkpoint."""
        with self._log.interval("checkpoint"):
            yield

    def replays(self) -> None:
        """Log, once `arrived` is called, that earlier batches are read or trained on again from now on."""
        if self._replay_ns is None:
            self._replay_ns = time.monotonic_ns()

    def arrived(self, saved: "Resumption") -> None:
        """Log how the run reached the batch of a checkpoint, and the number of batches before it. Later calls do nothing."""
        if self._has_arrived:
            return
        self._has_arrived = True
        if self._replay_ns is not None:
            self.part(REPLAY, self._replay_ns)
        self._log.point(MODE, saved.replay)
        self._log.point(SKIPPED if saved.jumps else REPLAYED, saved.point.step)

    def part(self, name: str, begin_ns: int) -> None:
        """Log a part of the run that began at `begin_ns` (CLOCK_MONOTONIC) and ends now."""
        duration_ns = time.monotonic_ns() - begin_ns
        self._log.line("INTERVAL_END", name, {"start": begin_ns, "duration": duration_ns}, {})
