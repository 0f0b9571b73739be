"""The session that an instrumented script calls in its loops: it counts epochs and batches, saves checkpoints, and resumes."""

import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from iotwin.common.errors import IotwinError
from iotwin.common.progress import note
from iotwin.workloads.detrain.loaders import LoaderTracker
from iotwin.workloads.detrain.phases.run_phases import RESTORE, RunPhases
from iotwin.workloads.detrain.randomness.machine_manifest import differences
from iotwin.workloads.detrain.resumption import REPLAY_DATA, Resumption, certify, check_inputs
from iotwin.workloads.detrain.saving.generators import generator_states, set_generator_states
from iotwin.workloads.detrain.saving.gradient_buckets import sum_each_gradient
from iotwin.workloads.detrain.saving.provider import NotBuilt
from iotwin.workloads.detrain.saving.saved_state import ScriptState
from iotwin.workloads.detrain.saving.script_state import Part, frames_of, put_variables
from iotwin.workloads.detrain.saving.script_store import ResumePoint, ScriptStore
from iotwin.workloads.detrain.script_ranks import ScriptRanks
from iotwin.workloads.detrain.steps_log import StepsLog, inputs_sha256
from iotwin.workloads.policies.cadence import LoopPosition, Policy

State = dict[str, Any]


class Skipped(BaseException):
    """Raised to leave the rest of a skipped epoch. No `except Exception` of the script catches it."""


@dataclass
class Progress:
    """How far the script has come. Epochs and batches count from 0; `batch` is -1 before the first batch of an epoch."""

    epoch: int = -1
    batch: int = -1
    step: int = 0  # batches that have been begun, in the whole run


@dataclass
class Session:
    """One run of a script. The script's loops call the methods up to `take`.

    `resume`: the checkpoint that the run has yet to reach. `certifies`: one whose state a run from the start must reproduce.
    """

    policy: Policy
    log: StepsLog | None
    loaders: LoaderTracker
    manifest: Callable[[], State]  # returns what results depend on besides code and data
    gradients: bool = True  # save gradients: a batch may begin with those of the previous batch
    dead: frozenset[str] = frozenset()  # variables of the batch loop's function whose values no step needs
    drop: frozenset[str] = frozenset()  # parts not to restore, for a test whether they are needed
    ranks: ScriptRanks = field(default_factory=ScriptRanks)
    phases: RunPhases = field(default_factory=RunPhases)
    store: ScriptStore | None = None
    resume: Resumption | None = None
    certifies: Resumption | None = None
    progress: Progress = field(default_factory=Progress)
    resumed: ResumePoint | None = None
    saved: list[str] = field(default_factory=list)
    overhead_s: float = 0.0  # time that the session itself took, over all batches
    differs_from_saved: list[str] = field(default_factory=list)  # differences of the machine that forbid a bitwise equal run

    Skipped = Skipped

    def __post_init__(self) -> None:
        self._state = ScriptState(self._assign, self.dead)
        self._variables: dict[tuple[str, str], Any] = {}  # by function and name: values for the script to take
        self._epoch_start: State = {}
        self._starts: list[State] = []  # by epoch: the generators' states at its start
        self._item: Any = None  # the batch that a `for` loop has fetched
        self._frame: types.FrameType | None = None  # frame of the loop, during a step
        self._reason: str | None = None  # why a checkpoint is saved before the batch that is being fetched
        self._has_built = False  # the run has made a step so that the script's objects have their variables
        self._fetch: State | None = None  # the generators' states before the current batch was fetched

    def opens(self, kind: str) -> None:
        """Prepare for a loop.

        If it is the batch loop (`kind` is "batch"), track iterators of loaders until its first batch arrives.
        """
        if kind == "batch":
            resume = self.resume
            restores = resume is not None and resume.jumps and resume.is_in(self.progress.epoch)
            self.loaders.opens(resume.state["loop"] if resume and restores else [])

    def epochs(self, _: None, values: Iterable[Any]) -> Iterator[Any]:
        """Yield the epochs, from the one in which the run resumes."""
        iterator = iter(values)
        if self.resume is not None and self.resume.jumps:
            for _epoch in range(self.resume.point.epoch):
                next(iterator, None)
        yield from iterator

    def epoch(self) -> bool:
        """Begin an epoch. Return whether the loop must set its function's variables from the checkpoint."""
        return self.begin_epoch(sys._getframe(1))

    def begin_epoch(self, frame: types.FrameType) -> bool:
        """As `epoch`, for the loop that runs in `frame`."""
        progress, resume = self.progress, self.resume
        self._end_step()
        parts = self._begin_state(frame)
        jumps = resume is not None and resume.jumps
        progress.epoch, progress.batch = resume.point.epoch if resume and jumps else progress.epoch + 1, -1
        self.phases.epoch(progress.epoch)
        if not jumps and (resume or self.certifies):
            self.phases.replays()
        if resume is None:
            if self.store is not None:
                plain = {"plain": {}, "made": {}} if parts else self._state.plain(frame)  # a walk takes milliseconds
                self._epoch_start = {"plain": plain, "generators": generator_states()}
                self._starts.append(self._epoch_start["generators"])
            return False
        if not resume.is_in(progress.epoch):
            set_generator_states(resume.state["starts"][progress.epoch])
            return False
        start = resume.state["epoch_start"]
        if start:
            self._state.restore_plain(start["plain"], frame, parts)
        if start and "rng" not in self.drop:
            set_generator_states(start["generators"])
        return True

    def batches(self, _: None, values: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches, from the one at which the run resumes."""
        yield from self._batches(sys._getframe(1), iter(values))

    def _batches(self, frame: types.FrameType, iterator: Iterator[Any]) -> Iterator[Any]:
        if self.resume is not None:
            self._pass_over(self.resume, iterator, frame)
        try:
            while True:
                self._before_fetch(frame)
                try:
                    self._item = next(iterator)
                except StopIteration:
                    return
                finally:
                    self.loaders.opened_all()
                yield self._item
                # The step had to create the variables of the script's objects. Train on the batch again, with the restored
                # state.
                if self.resume is not None:
                    yield self._item
        finally:
            self._end_step()

    def turns(self, _: None, values: Iterable[Any]) -> Iterator[Any]:
        """Like `batches`, for a loop whose body fetches the batches."""
        if self.resume is None or self.resume.replay != REPLAY_DATA:
            yield from self._batches(sys._getframe(1), iter(values))
            return
        try:
            for self._item in values:
                yield self._item
        finally:
            self._end_step()

    def left(self) -> None:
        """Leave a skipped epoch: called after the batch loop."""
        if self.resume is not None and not self.resume.is_in(self.progress.epoch):
            raise Skipped

    def skips(self) -> bool:
        """Return whether the script must skip training on the batch that the loop's body fetches next."""
        if self.resume is None or self.resume.replay != REPLAY_DATA:
            return False
        skips = self.resume.is_after(self.progress.epoch, self.progress.batch + 1)
        self.progress.batch += skips
        return skips

    def data(self, *values: Any) -> None:
        """Record the batch that the loop's body has fetched."""
        if self.log is not None:
            self.log.inputs(values)

    def batch(self) -> bool:
        """Begin a batch. Return whether the loop must set its function's variables from the checkpoint."""
        return self.begin_batch(sys._getframe(1))

    def begin_batch(self, frame: types.FrameType) -> bool:
        """As `batch`, for the loop that runs in `frame`."""
        begin = time.perf_counter()
        progress, resume = self.progress, self.resume
        self._end_step()
        progress.epoch = max(progress.epoch, 0)
        self._begin_state(frame)
        if resume is not None:
            if resume.replay == REPLAY_DATA and resume.is_after(progress.epoch, progress.batch + 1):
                raise IotwinError(
                    "the loop trains in the statement that gets the batch, so earlier ones cannot be read only; "
                    "resume with --replay full"
                )
            if not self._resumes(resume, frame):
                return False
        else:
            progress.batch += 1
            if self.certifies is not None and self.certifies.point[:2] == (progress.epoch, progress.batch):
                self._certifies(self.certifies, frame)
            self._save_if_due(frame)
        progress.step += 1
        self._frame = frame
        self.phases.step(progress.batch)
        if self.log is not None:
            self.log.begin(progress.epoch, progress.batch, self._item)
        self.overhead_s += time.perf_counter() - begin
        return resume is not None

    def end_batch(self, trained: bool) -> None:
        """End the batch that has begun. If the script did not train on it (not `trained`), it does not count."""
        if not trained and self._frame is not None:
            self._frame, self.progress.batch, self.progress.step = None, self.progress.batch - 1, self.progress.step - 1
        self._end_step()

    def has(self, name: str) -> bool:
        """Return whether the checkpoint has a value for a variable of the calling function."""
        return (sys._getframe(1).f_code.co_name, name) in self._variables

    def take(self, name: str) -> Any:
        """Return the checkpoint's value for a variable of the calling function."""
        return self._variables.pop((sys._getframe(1).f_code.co_name, name))

    def taken_by(self, function: str) -> dict[str, Any]:
        """Return all values that the checkpoint has for variables of a function."""
        own = [key for key in self._variables if key[0] == function]
        return {name: self._variables.pop((function, name)) for _, name in own}

    def finish(self) -> None:
        """End the run. Raises IotwinError if the script ended before the batch at which it had to resume."""
        self._end_step()
        self.phases.end()
        if missed := self.resume or self.certifies:
            raise IotwinError(
                f"the script ended before batch {missed.point.batch} of epoch {missed.point.epoch}, where {missed.name} was "
                "saved; if its loops run several times, resume with --replay full"
            )

    def _begin_state(self, frame: types.FrameType) -> dict[str, Part] | None:
        """As `ScriptState.begin`, unless this run neither saves nor restores any state."""
        uses_state = self.store is not None or self.resume is not None or self.certifies is not None
        return self._state.begin(frame) if uses_state else None

    def _assign(self, function: str, name: str, value: Any) -> None:
        self._variables[function, name] = value

    def _pass_over(self, resume: Resumption, iterator: Iterator[Any], frame: types.FrameType) -> None:
        """Skip the batches before the point at which the run resumes. Raises Skipped if the whole epoch precedes that point."""
        while resume.is_after(self.progress.epoch, self.progress.batch + 1):
            try:
                next(iterator)
            except StopIteration:
                break
            self.progress.batch += 1
        if not resume.is_in(self.progress.epoch):
            raise Skipped
        if resume.is_after(self.progress.epoch, self.progress.batch + 1):
            raise IotwinError(
                f"{resume.name} was saved at batch {resume.point.batch}, but the loop has {self.progress.batch + 1} batches: it "
                "runs several times, and no loop of epochs is known; resume with --replay full, or name that loop in --inst"
            )
        if resume.state["fetch"] is not None and "rng" not in self.drop:
            self._state.set_generators(resume.state["fetch"]["own"], frame)
            set_generator_states(resume.state["fetch"]["global"])

    def _before_fetch(self, frame: types.FrameType) -> None:
        """Decide whether to save before the next batch. If so, remember the present states of the random generators."""
        self._end_step()
        if self.store is not None and self.resume is None:
            self._reason = self._due(self.progress.batch + 1)
            if self._reason is not None:
                self.loaders.about_to_save()
                self._fetch = {"global": generator_states(), "own": self._state.generators(frame)}

    def _end_step(self) -> None:
        self.phases.end_step()
        if self._frame is not None:
            if self.log is not None:
                self.log.end(self._frame)
            self._frame, self._reason, self._fetch = None, None, None

    def _due(self, batch: int) -> str | None:
        """Return the reason to save before `batch`, None if there is none. Rank 0 decides, as it alone may get a signal."""
        here = [max(self.progress.epoch, 0), batch]
        reason, *first = self.ranks.from_first([self._reason_to_save(batch), *here])
        if first != here:
            raise IotwinError(
                f"rank {self.ranks.rank} is at batch {here[1]} of epoch {here[0]}, "
                f"rank 0 at batch {first[1]} of epoch {first[0]}; "
                "ranks with different numbers of batches cannot be saved together; let them have equally many"
            )
        return reason

    def _reason_to_save(self, batch: int) -> str | None:
        progress, now = self.progress, time.monotonic()
        if batch == 0 and progress.epoch > 0:
            reason = self.policy.due(LoopPosition(progress.epoch, progress.step, epoch_ended=True), now)
            if reason is not None:
                return reason
        return self.policy.due(LoopPosition(max(progress.epoch, 0), progress.step, batch=batch), now)

    def _save_if_due(self, frame: types.FrameType) -> None:
        if self.store is None:
            return
        progress, fetched = self.progress, self._item is not None
        reason = self._reason if fetched else self._due(progress.batch)
        if reason is None:
            return
        begin = time.monotonic()
        state = self._state.capture(frame, self.gradients)
        loop, unrestorable = self.loaders.states(fetched)
        replays = self._state.unsaved or unrestorable or not self._starts
        state |= {
            "loop": loop, "fetch": self._fetch, "epoch_start": self._epoch_start, "starts": self._starts,
            "global": generator_states(), "inputs_sha256": inputs_sha256(self._item), "manifest": self.manifest(),
            "replays_only": [*self._state.unsaved, *unrestorable], "left": list(self._state.left.values()),
            "passes": self.loaders.history() if replays else {}, "last_batches": self.loaders.last_batches(),
        }  # fmt: skip
        point = ResumePoint(progress.epoch, progress.batch, progress.step)
        with self.phases.checkpoint():
            self.saved.append(self.store.save(point, reason, state))
        self.policy.saved(time.monotonic() - begin, time.monotonic())

    def _resumes(self, resume: Resumption, frame: types.FrameType) -> bool:
        """Restore the checkpoint. Return False if the script's objects need a first step, which makes their variables."""
        state = resume.state
        self.differs_from_saved = differences(state["manifest"], self.manifest())
        if self.differs_from_saved:
            note(
                f"{resume.name} was saved elsewhere ({self.differs_from_saved[0]}), so later steps may differ in their last bits"
            )
        for value in state["left"]:
            note(f"{value}, which was new and cannot be saved; the script may make it again, or later steps differ")
        if resume.replay == REPLAY_DATA:
            self.loaders.replayed()
        self._check_inputs(resume)
        self.phases.arrived(resume)
        begin_ns = time.monotonic_ns()
        try:
            self._state.restore(state, frame, frozenset({"GradScaler"} if "scaler" in self.drop else ()))
        except NotBuilt as missing:
            if self._has_built:
                raise IotwinError(f"{resume.name}: {missing}; resume with its own script") from None
            self._has_built = True
            sum_each_gradient(always=True)
            return False
        self.phases.part(RESTORE, begin_ns)
        sum_each_gradient(always=False)
        for outer in frames_of(frame)[1:]:
            put_variables(outer, self.taken_by(outer.f_code.co_name))
        if "rng" not in self.drop:
            set_generator_states(state["global"])
        progress = self.progress
        progress.epoch, progress.batch, progress.step = resume.point
        self._epoch_start, self._starts = state["epoch_start"], state["starts"]
        self.resumed, self.resume = resume.point, None
        return True

    def _check_inputs(self, saved: Resumption) -> None:
        check_inputs(saved, self._item)

    def _certifies(self, saved: Resumption, frame: types.FrameType) -> None:
        """Raise IotwinError unless the run from the start has the same state here as the checkpoint."""
        self._check_inputs(saved)
        self.phases.arrived(saved)
        self._state.keep(saved.state)
        certify(saved, self._state.capture(frame, self.gradients))
        self.resumed, self.certifies = saved.point._replace(step=0), None
