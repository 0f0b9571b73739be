"""What an instrumented script calls in its loops: it counts epochs and batches, saves checkpoints, and resumes at one."""

import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from iotwin.common.errors import IotwinError
from iotwin.common.progress import note
from iotwin.workloads.detrain.loaders import IteratorState, LoaderTracker
from iotwin.workloads.detrain.machine_manifest import differences
from iotwin.workloads.detrain.saved_state import ScriptState, State
from iotwin.workloads.detrain.script_store import ResumePoint, ScriptStore
from iotwin.workloads.detrain.steps_log import StepsLog, inputs_sha256
from iotwin.workloads.policies.cadence import LoopPosition, Policy
from iotwin.workloads.state.gathering import encode
from iotwin.workloads.state.torch_state import TorchGenerators

RESTORE, SKIP_READS, REPLAY_DATA, FULL = "restore", "skip-reads", "replay-data", "full"
REPLAYS = (RESTORE, SKIP_READS, REPLAY_DATA, FULL)


class Skipped(BaseException):
    """Leaves the rest of an epoch that is skipped. No `except Exception` of the script catches it."""


@dataclass
class Progress:
    """How far the script is. Epochs and batches count from 0; `batch` is -1 before the first batch of an epoch."""

    epoch: int = -1
    batch: int = -1
    step: int = 0  # batches that have been begun, in the whole run


class _Resume(NamedTuple):
    name: str
    point: ResumePoint
    state: State


@dataclass
class Session:
    """One run of a script. `replay`: how what comes before the point of resumption is passed over."""

    policy: Policy
    log: StepsLog | None
    loaders: LoaderTracker
    manifest: Callable[[], dict[str, Any]]  # what results depend on besides code and data
    replay: str = RESTORE
    gradients: bool = True  # a batch may begin with gradients of the one before
    drop: frozenset[str] = frozenset()  # parts of the state that are not restored, to show that they are needed
    store: ScriptStore | None = None
    resume: _Resume | None = None
    resumed_name: str | None = None
    progress: Progress = field(default_factory=Progress)
    saved: list[str] = field(default_factory=list)
    overhead_s: float = 0.0
    differs_from_saved: list[str] = field(default_factory=list)  # what forbids to expect a bitwise equal run

    Skipped = Skipped

    def __post_init__(self) -> None:
        self._state = ScriptState(self._assign)
        self._variables: dict[tuple[str, str], Any] = {}
        self._generators = TorchGenerators()
        self._epoch_start: State = {}
        self._starts: list[Any] = []  # by epoch: the generators' states at its start
        self._item: Any = None  # the batch that a `for` has got
        self._frame: types.FrameType | None = None  # of the loop, during a step
        self._reason: str | None = None  # why the batch that is fetched is saved
        self._fetch: State | None = None  # the generators' states before it was fetched
        self._certified: _Resume | None = None  # what a run from the start must come to
        self.resumed: ResumePoint | None = None

    def use(self, store: ScriptStore | None, replay: str, resume: tuple[str, ResumePoint, State] | None) -> None:
        """Save to `store`, and resume at a checkpoint: its name, point and state."""
        self.store, self.replay, found = store, replay, None if resume is None else _Resume(*resume)
        self.resumed_name = found.name if found else None
        if self.replay == FULL:
            self._certified = found
        else:
            self.resume = found

    # Called by the script

    def opens(self, kind: str) -> None:
        """A loop is about to begin: iterators of loaders that begin now are the loop's."""
        if kind == "batch":
            restores = self.resume is not None and self.replay in (RESTORE, SKIP_READS) and self._is_resumed_epoch()
            found = self.resume.state["loop"] if restores and self.resume else None
            self.loaders.opens([IteratorState(**each) for each in found] if found else None)

    def epochs(self, _: None, values: Iterable[Any]) -> Iterator[Any]:
        """Yield the epochs, from the one on in which the run resumes."""
        iterator = iter(values)
        if self.resume is not None and self.replay in (RESTORE, SKIP_READS):
            for _ in range(self.resume.point.epoch):
                next(iterator, None)
                self.progress.epoch += 1
        yield from iterator

    def epoch(self) -> bool:
        """An epoch begins. Return whether the variables of its function are to be taken from the checkpoint."""
        frame = sys._getframe(1)
        self._end_step()
        self._state.begin(frame)
        if self.resume is None:
            self.progress.epoch, self.progress.batch = self.progress.epoch + 1, -1
            if self.store is not None:
                self._epoch_start = {"plain": self._state.plain(frame), "generators": self._generators.state_dict()}
                self._starts.append(self._epoch_start["generators"])
            return False
        point = self.resume.point
        jumps = self.replay in (RESTORE, SKIP_READS)
        self.progress.epoch, self.progress.batch = point.epoch if jumps else self.progress.epoch + 1, -1
        start = self.resume.state["epoch_start"]
        if self.progress.epoch < point.epoch:
            self._generators.load_state_dict(self.resume.state["starts"][self.progress.epoch])
            return False
        self._state.restore_plain(start.get("plain", {}), self._state.parts(frame))
        if start and "rng" not in self.drop:
            self._generators.load_state_dict(start["generators"])
        return True

    def batches(self, _: None, values: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches, from the one on at which the run resumes."""
        frame = sys._getframe(1)
        iterator = iter(values)
        if self.resume is not None:
            self._pass_over(iterator, frame)
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
        finally:
            self._end_step()

    def _before_fetch(self, frame: types.FrameType) -> None:
        """Decide whether the coming batch is saved; then its loader must begin with the generators as they are now."""
        self._end_step()
        if self.store is not None and self.resume is None:
            self._reason = self._due(self.progress.batch + 1)
            if self._reason is not None:
                self._fetch = {"global": self._generators.state_dict(), "own": self._state.generators(frame)}

    def _pass_over(self, iterator: Iterator[Any], frame: types.FrameType) -> None:
        """Take the batches before the point of resumption, and leave an epoch before it."""
        assert self.resume is not None
        before = not self._is_resumed_epoch()
        while before or self.progress.batch + 1 < self.resume.point.batch:
            try:
                next(iterator)
            except StopIteration:
                break
            self.progress.batch += 1
        if before:
            raise Skipped
        fetch = self.resume.state["fetch"]
        if fetch is not None and "rng" not in self.drop:
            self._state.set_generators(fetch["own"], frame)
            self._generators.load_state_dict(fetch["global"])

    def skips(self) -> bool:
        """Return whether the batch that the body gets next is not trained on."""
        if self.resume is None or self.replay != REPLAY_DATA:
            return False
        self.progress.batch += 1
        skips = not self._is_resumed_epoch() or self.progress.batch < self.resume.point.batch
        self.progress.batch -= not skips
        return skips

    def data(self, *values: Any) -> None:
        """Learn which batch the body has got."""
        self._item = values
        if self.log is not None:
            self.log.inputs(values)

    def batch(self) -> bool:
        """A batch begins. Return whether the variables of its function are to be taken from the checkpoint."""
        frame = sys._getframe(1)
        begin = time.perf_counter()
        self._end_step()
        progress, self._frame = self.progress, frame
        progress.epoch = max(progress.epoch, 0)
        if progress.step == 0:
            self._state.begin(frame)
        resumes = self.resume is not None
        progress.batch = self._resumes(frame) if resumes else progress.batch + 1
        if self._certified is not None and self._certified.point[:2] == (progress.epoch, progress.batch):
            self._certify(frame)
        if not resumes and self.store is not None:
            reason = self._reason or (self._due(progress.batch) if self._item is None else None)
            if reason is not None:
                self._save(frame, reason)
        progress.step += 1
        if self.log is not None:
            self.log.begin(progress.epoch, progress.batch, self._item)
        self.overhead_s += time.perf_counter() - begin
        return resumes

    def has(self, name: str) -> bool:
        """Return whether the checkpoint has a value for a variable of the calling function."""
        return (sys._getframe(1).f_code.co_name, name) in self._variables

    def take(self, name: str) -> Any:
        """Return that value."""
        return self._variables.pop((sys._getframe(1).f_code.co_name, name))

    # The rest

    def finish(self) -> None:
        """The script has ended."""
        self._end_step()

    def _assign(self, function: str, name: str, value: Any) -> None:
        self._variables[function, name] = value

    def _is_resumed_epoch(self) -> bool:
        assert self.resume is not None
        return max(self.progress.epoch, 0) == self.resume.point.epoch

    def _end_step(self) -> None:
        if self._frame is not None:
            if self.log is not None:
                self.log.end(self._frame)
            self._frame, self._reason, self._fetch = None, None, None

    def _due(self, batch: int) -> str | None:
        progress, now = self.progress, time.monotonic()
        if batch == 0 and progress.epoch > 0:
            reason = self.policy.due(LoopPosition(progress.epoch, progress.step, epoch_ended=True), now)
            if reason is not None:
                return reason
        return self.policy.due(LoopPosition(progress.epoch, progress.step, batch=batch), now)

    def _save(self, frame: types.FrameType, reason: str) -> None:
        assert self.store is not None
        progress = self.progress
        opened, fetched = self.loaders.opened or [], self._item is not None  # the loop has got its batch already
        state = self._state.capture(frame, self.gradients)
        state |= {
            "loop": [each.state()._replace(position=each.position - fetched)._asdict() for each in opened], "fetch": self._fetch,
            "epoch_start": self._epoch_start, "starts": self._starts,
            "global": self._generators.state_dict(), "inputs_sha256": inputs_sha256(self._item),
            "manifest": self.manifest(),
            "replays_only": [*self._state.unsaved, *(f"the loop's loader {i}" for i, each in enumerate(opened) if not each.restorable)],
        }  # fmt: skip
        point = ResumePoint(progress.epoch, progress.batch, progress.step)
        self.saved.append(self.store.save(point, reason, state))
        self.policy.restart(time.monotonic())

    def _resumes(self, frame: types.FrameType) -> int:
        """Restore the checkpoint, and return the index of the batch that comes now."""
        assert self.resume is not None
        name, point, state = self.resume
        self.differs_from_saved = differences(state["manifest"], self.manifest())
        if self.differs_from_saved:
            note(f"{name} was saved elsewhere ({self.differs_from_saved[0]}), so later steps may differ in their last bits")
        self._check_inputs(state)
        if "all" not in self.drop:
            self._state.restore(state, frame)
            if "rng" not in self.drop:
                self._generators.load_state_dict(state["global"])
        self.progress.step = point.step
        self._epoch_start, self._starts = state["epoch_start"], state["starts"]
        self.resumed, self.resume = point, None
        return point.batch

    def _certify(self, frame: types.FrameType) -> None:
        """Raise IotwinError unless the run has come to the same state as the checkpoint."""
        assert self._certified is not None
        name, point, saved = self._certified
        self._check_inputs(saved)
        state = self._state.capture(frame, self.gradients)
        for key in ("objects", "gradients", "generators", "tensors", "plain"):
            for path in state[key].keys() | saved[key].keys():
                if encode(state[key].get(path)) != encode(saved[key].get(path)):
                    raise IotwinError(
                        f"{path} differs from {name} when the run comes there again; find the cause with iotwin detrain verify"
                    )
        self.resumed, self._certified = point._replace(step=0), None

    def _check_inputs(self, state: State) -> None:
        """Raise IotwinError if the loop's batch is not the one that it was before the interruption."""
        wanted, found = state["inputs_sha256"], inputs_sha256(self._item)
        if self._item is not None and wanted is not None and wanted != found and "loader" not in self.drop:
            raise IotwinError(
                f"the loader gives another batch {self.progress.batch + 1} than before the interruption, since its samples do not "
                "only depend on the generators' states; resume with --replay full, or make randomness depend on the sample alone "
                "(--determinism seeded)"
            )
