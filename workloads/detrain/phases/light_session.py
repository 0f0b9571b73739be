"""The session that the instrumented loops of a traced script call: it logs where phases begin and end.

It runs within the traced job, before the script's first line. So it imports only modules that are built into the interpreter,
for which Python reads no file.
"""

from __future__ import annotations

import _thread
import atexit
import builtins
import posix
import sys
import time

TYPE_CHECKING = False  # `typing` would be read from a file
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

_STDOUT = 1
_CALLBACKS = 5  # index of `callbacks` among the arguments of Keras's `fit`
_HELD = ("step", "checkpoint")  # ends of these phases are written with the next line: one write per step


class PhaseSession:
    """Logs the phases of one process. `output`: number of a free descriptor, which becomes a copy of stdout.

    `has_epochs`: the script has a loop around its batch loop; otherwise all its batches are one block of steps. `is_for`: the
    batch loop is a `for`, whose iterator shows its begin and end. `fetches`: the body of the loop fetches the batch, and reports
    it by `data`. Epochs, and the steps of each epoch, count from 1.
    """

    class Skipped(BaseException):
        """Never raised: no part of an epoch is skipped."""

    def __init__(self, output: int, has_epochs: bool, is_for: bool, fetches: bool) -> None:
        try:
            posix.dup2(_STDOUT, output, False)  # the copy still leads to the job's stdout if the script redirects stdout
        except OSError:  # `output` exceeds the limit on descriptors, or stdout is closed
            output = _STDOUT
        self._output, self._key = output, "epoch" if has_epochs else "block"
        self._has_epochs, self._is_for, self._fetches = has_epochs, is_for, fetches
        self._epoch = self._step = 0
        self._open: set[str] = set()  # phases that have begun
        self._held = ""  # lines to write together with the next line
        self._saved = ""  # the phase whose end is in the last held line
        self._thread, self._is_forked, self._rank = _thread.get_ident(), False, _rank(False)
        atexit.register(self._end_pass)
        posix.register_at_fork(after_in_child=self._fork)

    def opens(self, kind: str) -> None:
        """Do nothing: called before the iterator of a loop is made."""
        if kind == "batch":
            self._begin_pass()

    def epochs(self, _: None, values: Iterable[Any]) -> Iterator[Any]:
        """Yield the `values` of the loop of epochs, and log each as an epoch."""
        try:
            for value in values:  # noqa: UP028 - `yield from` would close a file that is left early
                yield value
        finally:
            self._end_pass()

    def epoch(self) -> bool:
        """Log the begin of an epoch. Returns False: the loop need not set variables."""
        if not self._is_for:
            self._begin_pass()
        return False

    def batches(self, _: None, values: Iterable[Any]) -> Iterator[Any]:
        """Yield the `values` of the batch loop. Each step lasts while the loop's body handles one of them."""
        own = self._epoch
        try:
            for value in values:
                if not self._fetches:
                    self._begin_step()
                yield value
                self._end("step")
        finally:
            if self._epoch == own:  # otherwise Python closes the iterator of an earlier pass only now
                self._end_pass()

    turns = batches  # for loops whose body fetches the batches

    def left(self) -> None:
        """Do nothing: called after the batch loop."""

    def batch(self) -> bool:
        """Log the begin of a step at the start of the loop's body. Returns False: the loop need not set variables."""
        if not self._is_for:
            if not self._open and not self._has_epochs:
                self._begin_pass()
            self._end("step")
            if not self._fetches:
                self._begin_step()
        return False

    def data(self, *_: Any) -> None:
        """Log that the loop's body has fetched its batch."""
        self._begin_step()

    def skips(self) -> bool:
        """Return False: all batches are trained on."""
        return False

    def has(self, _: str) -> bool:
        """Return False: no variable has a saved value."""
        return False

    def take(self, name: str) -> Any:
        """Never called, as `has` returns False."""
        raise KeyError(name)

    def evaluates(self, values: Iterable[Any]) -> Iterable[Any]:
        """Yield the `values` of a loop that evaluates, and log the loop as an evaluation."""
        return values if "evaluation" in self._open else self._evaluation(values)

    def _evaluation(self, values: Iterable[Any]) -> Iterator[Any]:
        self._begin("evaluation")
        try:
            for value in values:  # noqa: UP028 - as above
                yield value
        finally:
            self._end("evaluation")

    def saves(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `function` to log its calls as checkpoints, unless it runs in another thread than training."""
        if _thread.get_ident() != self._thread or "checkpoint" in self._open:
            return function

        def save(*arguments: Any, **options: Any) -> Any:
            self._begin("checkpoint")
            try:
                return function(*arguments, **options)
            finally:
                self._end("checkpoint")

        return save

    def fits(self, fit: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `fit` of a Keras model to log its epochs, steps and evaluations. Return other functions as they are."""
        callbacks = _callbacks_of(fit)
        if callbacks is None:
            return fit

        def fitted(*arguments: Any, **options: Any) -> Any:
            own = callbacks.LambdaCallback(
                on_epoch_begin=lambda *_, **__: self._begin_pass(),
                on_epoch_end=lambda *_, **__: self._end_pass(),
                on_train_batch_begin=lambda *_, **__: self._begin_step(),
                on_train_batch_end=lambda *_, **__: self._end("step"),
            )
            own.on_test_begin = lambda *_, **__: self._begin("evaluation")
            own.on_test_end = lambda *_, **__: self._end("evaluation")
            is_named = len(arguments) <= _CALLBACKS
            given: Any = (options.get("callbacks") if is_named else arguments[_CALLBACKS]) or []
            is_theirs = isinstance(given, callbacks.CallbackList)  # an object of the script, which may use it again
            if is_theirs:
                given.append(own)
            else:
                given = [*(given if isinstance(given, list | tuple) else [given]), own]
            if is_named:
                options["callbacks"] = given
            else:
                arguments = (*arguments[:_CALLBACKS], given, *arguments[_CALLBACKS + 1 :])
            try:
                return fit(*arguments, **options)
            finally:
                if is_theirs and own in given.callbacks:
                    given.callbacks.remove(own)

        return fitted

    def _begin_pass(self) -> None:
        self._end_pass()
        self._rank = _rank(self._is_forked)
        self._epoch, self._step = self._epoch + 1, 0
        self._begin(self._key)

    def _end_pass(self) -> None:
        self._end("step")
        self._end(self._key)
        self._write("")

    def _begin_step(self) -> None:
        self._end("step")
        self._step += 1
        self._begin("step")

    def _begin(self, key: str) -> None:
        self._open.add(key)
        if key == self._saved == "checkpoint":  # several saves in a row are one checkpoint
            self._held, self._saved = "", ""
        else:
            self._write(self._line(key, "START"))

    def _end(self, key: str) -> None:
        if key not in self._open:
            return
        self._open.discard(key)
        self._held, self._saved = self._held + self._line(key, "END"), key
        if key not in _HELD:
            self._write("")

    def _line(self, key: str, edge: str) -> str:
        """Return the log line for the begin or end (`edge`) of a phase `key` at this moment, in the format of common/mllog.py."""
        now_ns = time.time_ns()
        numbers = f', "epoch_num": {self._epoch}' if self._has_epochs and self._epoch else ""
        if key == "step":
            numbers += f', "step_num": {self._step}'
        return (
            f':::MLLOG {{"namespace": "iotwin", "time_ms": {now_ns // 1_000_000}, "time_ns": {now_ns}, "event_type": '
            f'"INTERVAL_{edge}", "key": "{key}", "value": null, "metadata": {{"rank": {self._rank}{numbers}}}}}\n'
        )

    def _write(self, line: str) -> None:
        text, self._held, self._saved = self._held + line, "", ""
        if text and self._rank is not None:
            try:
                posix.write(self._output, text.encode())
            except OSError:  # the job continues without logging phases
                self._rank = None

    def _fork(self) -> None:
        self._open.clear()
        self._held, self._is_forked, self._rank = "", True, None


def _rank(is_forked: bool) -> int | None:
    """Return the rank of this process in its job; None in a forked process whose rank is unknown, such as a loader."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    rank: bytes = posix.environ.get(b"RANK", b"0")
    return None if is_forked else int(rank) if rank.isdigit() else 0


def _callbacks_of(fit: Any) -> Any:
    """Return Keras's module of callbacks if `fit` is a method of a Keras model, else None."""
    packages = {str(each.__module__).partition(".")[0] for each in type(getattr(fit, "__self__", None)).__mro__}
    keras = next((sys.modules[name] for name in ("keras", "tf_keras") if name in packages and name in sys.modules), None)
    return getattr(keras, "callbacks", None)  # None for a module of the job that happens to have Keras's name


def begin(name: str, output: int, has_epochs: bool, is_for: bool, fetches: bool) -> None:
    """Make the session, and make it available under `name` to all instrumented modules."""
    setattr(builtins, name, PhaseSession(output, has_epochs, is_for, fetches))
