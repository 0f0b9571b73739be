"""Marks that a script may set itself, if iotwin cannot find its loops in its source.

    from iotwin.workloads.detrain import record_batch, record_epoch

    for epoch in range(epochs):
        record_epoch()
        for x, y in loader:
            if not record_batch():
                continue  # before the checkpoint that the run resumes at

Without ``iotwin detrain run``, marks of epochs and batches do nothing. Within ``iotwin detrain run``, they save and resume. A
resumed run reads the earlier batches of its epoch again, but skips training on them.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from iotwin.workloads.detrain.saving.generators import generator_states, set_generator_states
from iotwin.workloads.detrain.saving.script_state import put_variables

if TYPE_CHECKING:
    from iotwin.workloads.detrain.session import Session

_Function = TypeVar("_Function", bound=Callable[..., Any])
_session: "Session | None" = None
_ignored: list[dict[str, Any]] = []  # the generators' states at each open `ignore_start`


def use(session: "Session") -> None:
    """Connect the marks with the session of a run."""
    global _session
    _session = session
    if session.resume is not None:
        session.resume = session.resume._replace(replay="replay-data")


def record_epoch(epoch: int | None = None) -> bool:
    """Mark the begin of an epoch. Returns False if the run resumes in a later epoch: the batches of this one are then skipped.

    `epoch`: its index, from 0; by default epochs are counted.
    """
    if _session is None:
        return True
    frame = sys._getframe(1)
    if epoch is not None:
        _session.progress.epoch = epoch - 1
    if _session.begin_epoch(frame):
        put_variables(frame, _session.taken_by(frame.f_code.co_name))
    return _session.resume is None or _session.resume.is_in(_session.progress.epoch)


def record_batch(batch: int | None = None) -> bool:
    """Mark the begin of a batch. Returns False if the script must skip this batch.

    `batch`: its index in the epoch, from 0; by default batches are counted.
    """
    if _session is None:
        return True
    progress, resume, frame = _session.progress, _session.resume, sys._getframe(1)
    if batch is not None:
        progress.batch = batch - 1
    if resume is not None and resume.is_after(progress.epoch, progress.batch + 1):
        progress.batch += 1
        return False
    if _session.begin_batch(frame):
        put_variables(frame, _session.taken_by(frame.f_code.co_name))
    return True


def ignore_start() -> None:
    """Save the random generators' states, so that code up to `ignore_end`, such as a plot, does not change training."""
    _ignored.append(generator_states())


def ignore_end() -> None:
    """Restore the random generators' states of the last `ignore_start`."""
    if _ignored:
        set_generator_states(_ignored.pop())


def checkpoint(*_values: Any) -> None:
    """Save a checkpoint before the next batch, in addition to those that the options request.

    The original DETrain saves the values of its arguments. Here, all changed state is saved, so the arguments are ignored.
    """
    if _session is not None:
        _session.policy.ask()


def next_batch(function: _Function) -> _Function:
    """Decorate the function that returns the next batch, so that the steps log contains the batch's digest."""

    def marked(*arguments: Any, **options: Any) -> Any:
        found = function(*arguments, **options)
        if _session is not None:
            _session.data(found)
        return found

    return marked  # type: ignore[return-value]


def register_iter(function: _Function) -> _Function:
    """Return the decorated function unchanged. The original needs this mark to save positions of the iterators that it makes."""
    return function


def without_effect(*_arguments: Any, **_options: Any) -> None:
    """Do nothing: stands for those marks of the original that iotwin does not need, such as where training begins."""


enter_main = train_loop_start = train_loop_end = hint = without_effect
