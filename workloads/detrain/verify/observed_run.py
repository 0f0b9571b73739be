"""One run of a script for the verifier: as `iotwin detrain run`, with parts of the state dropped and one step recorded."""

import contextlib
import random
import secrets
import sys
import types
from argparse import REMAINDER, ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from iotwin.common.detrain_options import add_run_options
from iotwin.workloads.detrain.forked_runs import RunOfRanks
from iotwin.workloads.detrain.resumption import RESTORE, Resumption
from iotwin.workloads.detrain.runner import run_script
from iotwin.workloads.detrain.script_ranks import path_of_rank
from iotwin.workloads.detrain.session import Session
from iotwin.workloads.detrain.steps_log import StepsLog
from iotwin.workloads.detrain.verify.step_record import StepRecord

LOADER = "loader"


class RunRequest(RunOfRanks, frozen=True, kw_only=True):
    """What to run. `options`: options of a run, then the script and its arguments; `output`: the file for what the script prints.

    * `record`: file for the record of the step at `record_at`, (epoch, batch), after which the run ends.
    * `without`: paths of parts of the state that are not restored, or LOADER for its position.
    * `keys_items`: whether data sets are keyed, unless determinism is off.
    * `threads`: number of torch's threads, whatever the script sets.
    """

    options: list[str]
    output: str
    record: str = ""
    record_at: tuple[int, int] | None = None
    without: Sequence[str] = ()
    keys_items: bool = True
    threads: int | None = None


class _Recorded(BaseException):
    """Ends the script after the step that was to be recorded; not an Exception, so that the script does not catch it."""


def run(request: RunRequest) -> None:
    """Run the script in this process. Exceptions of the script are raised."""
    parser = ArgumentParser()
    add_run_options(parser)
    parser.add_argument("arguments", nargs=REMAINDER)
    scramble_generators()  # forked processes inherit equal states from the server
    if request.threads is not None:
        torch.set_num_threads(request.threads)
        torch.set_num_threads = lambda _: None  # the script's calls change nothing
    session, log = partial(ObservedSession, request=request), partial(RecordingLog, request)
    with contextlib.suppress(_Recorded):
        run_script(parser.parse_args(request.options), session, log, request.keys_items)


@dataclass(kw_only=True)
class ObservedSession(Session):
    """A session that resumes with other random states than those of a new process, and drops parts of the state."""

    request: RunRequest

    def __post_init__(self) -> None:
        super().__post_init__()
        self._scrambled = False

    def opens(self, kind: str) -> None:
        """Prepare for a loop as `Session.opens` does, after two changes.

        Before a restored run, the random generators get other states than a new process has. If `self.request` drops the loader's
        state, the loops begin at position 0.
        """
        if self.resume is not None and self.resume.replay == RESTORE and not self._scrambled:
            scramble_generators()
            self._scrambled = True
        if self.resume is not None and LOADER in self.request.without:
            # An iterator without state begins anew. If the position is 0, a DataLoader's iterator begins anew in the saved order.
            loop = self.resume.state["loop"]
            loop[:] = [{**each, "position": 0} if each and "position" in each else None for each in loop]
            self.resume.state["iterators"].clear()
        super().opens(kind)

    def _pass_over(self, resume: Resumption, iterator: Iterator[Any], frame: types.FrameType) -> None:
        if LOADER in self.request.without and resume.is_in(self.progress.epoch):
            self.progress.batch = resume.point.batch - 1  # as if it had taken the batches before
        super()._pass_over(resume, iterator, frame)
        if "rng" in self.drop:
            scramble_generators()

    def _check_inputs(self, saved: Resumption) -> None:
        """Accept any batch: the verifier compares inputs itself."""

    def _before_fetch(self, frame: types.FrameType) -> None:
        super()._before_fetch(frame)
        if isinstance(self.log, RecordingLog):
            self.log.before_fetch(max(self.progress.epoch, 0), self.progress.batch + 1)

    def _resumes(self, resume: Resumption, frame: types.FrameType) -> bool:
        if resume.replay == RESTORE:
            scramble_generators()
        for path in self.request.without:
            for kind in ("objects", "gradients", "iterators", "tensors", "plain", "made"):
                resume.state[kind].pop(path, None)
        return super()._resumes(resume, frame)


class RecordingLog(StepsLog):
    """A steps log that records one step in detail."""

    def __init__(self, request: RunRequest, path: Path) -> None:
        super().__init__(path)
        self._record = StepRecord(path_of_rank(Path(request.record), request.rank)) if request.record else None
        self._record_at = request.record_at
        self._records = False  # the present step

    def before_fetch(self, epoch: int, batch: int) -> None:
        """Record the generators before the loop fetches a batch."""
        if self._record is not None and self._record_at == (epoch, batch):
            self._record.before_fetch()

    def begin(self, epoch: int, batch: int, item: Any) -> None:
        """Begin a step, and its record if it is the one to record."""
        super().begin(epoch, batch, item)
        self._records = self._record is not None and self._record_at == (epoch, batch)
        if self._record is not None and self._records:
            self._record.begin(sys._getframe(1), self._step["indices"], item)

    def inputs(self, item: Any) -> None:
        """Record the batch that the loop's body has fetched."""
        super().inputs(item)
        if self._record is not None and self._records:
            self._record.inputs(self._step["indices"], item)

    def end(self, frame: types.FrameType | None) -> None:
        """End a step. If it was the one to record, raise _Recorded, which ends the run."""
        if self._record is not None and self._records:
            self._record.end()
            self._record = None
            super().end(frame)
        if self._records:
            raise _Recorded
        super().end(frame)


def scramble_generators() -> None:
    """Set the global generators of Python, numpy and torch to unpredictable states."""
    random.seed(secrets.randbits(64))
    np.random.seed(secrets.randbits(32))
    torch.manual_seed(secrets.randbits(63))
