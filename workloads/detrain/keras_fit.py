"""Lets the loops of Keras's `fit`, which are in no script's source, call the session."""

import functools
import inspect
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iotwin.common.errors import IotwinError
from iotwin.workloads.detrain.detectors.after_import import after_import
from iotwin.workloads.detrain.saving.provider import State
from iotwin.workloads.detrain.saving.script_state import frames_of, put_variables
from iotwin.workloads.detrain.saving.tensorflow_states import iterator_files, passes_of, put_iterator_files

if TYPE_CHECKING:
    from iotwin.workloads.detrain.resumption import Resumption
    from iotwin.workloads.detrain.session import Session

_HELD = "keras.fit"  # name of a module with the variables that fit holds for the script


class _Content:
    """Stands for a batch. Its text is the digest of the content, which is computed only for a checkpoint."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __repr__(self) -> str:
        from iotwin.workloads.detrain.steps_log import inputs_sha256

        return str(inputs_sha256(self._batch))


class _Position:
    """The position of the loop over fit's batches, before the next batch. `saves`: its state may be requested."""

    def __init__(self, batches: Any, saves: bool) -> None:
        self._batches, self._saves = batches, saves  # indexed batches, or what Keras reads itself
        self._epochs: Any = None
        self._iterator: Any = None
        self._begin: State | None = None

    def move(self, epochs: Any, iterator: Any) -> None:
        """Set the position to the next batch of an iterator of tf.data."""
        if self._iterator is not iterator:
            if self._is_indexed:
                self._batches.begin()
            elif self._saves:
                self._begin = iterator_files(iterator)
        self._epochs, self._iterator = epochs, iterator

    @property
    def _is_indexed(self) -> bool:
        return hasattr(self._batches, "py_dataset")

    def state(self, fetched: bool) -> State | None:
        """Return the position; None if a run can only reach it by reading all earlier batches."""
        read = {"order": self._batches.order, "position": self._batches.position} if self._is_indexed else {}
        files = {} if self._is_indexed else iterator_files(self._iterator)
        if files is None:
            return None
        # With a number of steps for each epoch, an iterator goes on in the next epoch.
        counts = {"seen": self._epochs._steps_seen, "batches": self._epochs._num_batches}
        return {"files": files, "begin": self._begin, "read": read, **counts}

    def put(self, state: State) -> None:
        """Let the iterator continue at the position `state`, which the method `state` returned."""
        self._epochs._steps_seen = state["seen"]
        if self._is_indexed:
            self._batches.begin(**state["read"])
        else:
            put_iterator_files(self._iterator, state["files"])
            # At the end of a pass, tf.data does not restore the seeds of the next pass's shuffling; before a pass it does.
            self._begin = state["begin"]
            put_iterator_files(iter(self._epochs._distributed_dataset), self._begin)


class KerasFit:
    """Patches Keras when the script imports it, so that its one call of `fit` can be saved and resumed."""

    def __init__(self, session: "Session", script: Path) -> None:
        self._session, self._script = session, script
        self._model: Any = None
        self._datasets: dict[str, Any] = {}  # pipelines other than the one that the model trains on
        self._held: Any = types.ModuleType(_HELD)
        self._held.__file__ = str(script)  # so that its variables are saved as the script's are
        after_import("keras", self._patch)

    def finish(self) -> None:
        """Note that the script has ended. Raises IotwinError if it has not called fit."""
        if self._model is None:
            raise IotwinError(f"{self._script}: has not called fit of a Keras model, so nothing was observed or saved")

    def _patch(self) -> None:
        import keras

        fit = keras.Model.fit

        @functools.wraps(fit)
        def fitted(*arguments: Any, **options: Any) -> Any:
            given = inspect.signature(fit).bind(*arguments, **options)
            given.apply_defaults()
            self._begin(given.arguments)
            return fit(*given.args, **given.kwargs)

        keras.Model.fit = fitted

    def _begin(self, given: dict[str, Any]) -> None:
        """Prepare a call of fit, and change its arguments, `given`."""
        import keras

        self._check(given)
        self._model = given["self"]
        callbacks = given["callbacks"] or []
        listed = callbacks.callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else keras.tree.flatten(callbacks)
        held = self._held
        held.model, held.callbacks, held.passes = self._model, list(listed), {}
        held.data, held.validation = given["x"], given["validation_data"]
        sys.modules[_HELD] = held
        self._find_datasets(given)
        listed.insert(0, keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: self._begin_epoch(sys._getframe())))
        if listed is not getattr(callbacks, "callbacks", None):
            given["callbacks"] = listed
        if self._session.resume is not None:
            given["initial_epoch"] += self._session.resume.point.epoch
        self._track(given)

    def _check(self, given: dict[str, Any]) -> None:
        """Raise IotwinError if the run cannot restore what this call of fit reads or draws."""
        import keras

        if keras.backend.backend() != "tensorflow":
            raise self._refusal(f"Keras uses {keras.backend.backend()}; only its TensorFlow backend is supported")
        from iotwin.workloads.detrain import keras_data

        if self._model is not None:
            raise self._refusal("calls fit more than once; only one call of fit in a run can be saved and resumed")
        if given["self"].distribute_strategy.num_replicas_in_sync > 1:
            raise self._refusal("trains on several devices; only one is supported")
        if any(isinstance(each, keras.callbacks.BackupAndRestore) for each in keras.tree.flatten(given["callbacks"] or [])):
            raise self._refusal("resumes by its own BackupAndRestore; leave that callback out")
        x, validation = given["x"], given["validation_data"]
        pipelines = [each for each in (x, validation) if keras_data.is_dataset(each)]
        arrays = keras_data.are_arrays((x, given["y"], given["sample_weight"]))
        if not arrays and not keras_data.is_dataset(x) and not isinstance(x, keras.utils.PyDataset | types.GeneratorType):
            raise self._refusal(f"fit reads its batches from a {type(x).__name__}, whose position cannot be put back")
        if isinstance(validation, types.GeneratorType):
            raise self._refusal("its validation data are a generator, whose position cannot be put back")
        drawn = (arrays and given["shuffle"]) or any(map(keras_data.draws_without_seed, pipelines))
        if drawn and not keras_data.is_seeded():
            raise self._refusal("TensorFlow has no seed, so the samples' order cannot be put back; add --determinism seeded")

    def _refusal(self, why: str) -> IotwinError:
        return IotwinError(f"{self._script}: {why}")

    def _find_datasets(self, given: dict[str, Any]) -> None:
        from iotwin.workloads.detrain import keras_data

        found = {"validation": given["validation_data"]}
        for index, each in enumerate(self._held.callbacks):
            found |= {f"callback {index}, {name}": value for name, value in vars(each).items()}
        self._datasets = {name: each for name, each in found.items() if keras_data.is_dataset(each)}

    def _track(self, given: dict[str, Any]) -> None:
        """Let the loop over fit's batches call the session."""
        import keras
        from keras.src.backend.tensorflow.trainer import TFEpochIterator

        from iotwin.workloads.detrain import keras_data

        x = given["x"]
        if isinstance(x, keras.utils.PyDataset):
            x = keras_data.IndexedBatches(x, given["class_weight"], given["shuffle"], self._seen)
        elif isinstance(x, types.GeneratorType):
            x = keras_data.GeneratedBatches(x, self._seen)
        given["x"] = x
        loaders = self._session.loaders
        self._session.opens("batch")
        loaders.opened_all()
        self._position = _Position(x, saves=self._session.store is not None)
        loaders.opened = [self._position]
        begun: list[Any] = []
        make, go = TFEpochIterator.__init__, TFEpochIterator.__iter__

        def made(epochs: Any, *arguments: Any, **options: Any) -> None:
            make(epochs, *arguments, **options)
            begun.append(epochs)

        TFEpochIterator.__init__ = made
        TFEpochIterator.__iter__ = lambda epochs: self._batches(epochs) if epochs is begun[0] else go(epochs)

    def _seen(self, batch: Any) -> None:
        self._session.data(batch)
        self._session.loaders.read("fit", _Content(batch))

    def _begin_epoch(self, frame: types.FrameType) -> None:
        if self._session.begin_epoch(frame):
            self._put_variables(frame)

    def _put_variables(self, frame: types.FrameType) -> None:
        for own in frames_of(frame)[:1]:
            put_variables(own, self._session.taken_by(own.f_code.co_name))

    def _batches(self, epochs: Any) -> Iterator[tuple[int, int, Any]]:
        """Yield, for each batch of an epoch, what Keras's loop takes: its first and last step, and the iterator."""
        session, frame, resume = self._session, sys._getframe(), self._session.resume
        if resume is not None:
            self._begin_resumed(resume, epochs, frame)
        for batch, (first, last, iterator) in enumerate(epochs._enumerate_iterator()):
            if resume is not None and batch < resume.point.batch:
                self._pass_over(resume, epochs, iterator)
                continue
            self._position.move(epochs, iterator)
            self._hold()
            if resume is not None:
                self._resume(resume, epochs, frame)
                resume = None
            else:
                session.begin_batch(frame)
            try:
                yield first, last, iterator
            except GeneratorExit:  # Keras left the loop, because of a callback or because there were no more batches
                self._end_batch(trained=self._model.stop_training)
                raise
            self._end_batch(trained=True)

    def _end_batch(self, trained: bool) -> None:
        log = self._session.log
        if log is not None and trained:
            log.losses(self._model.get_metrics_result())
        self._session.end_batch(trained)

    def _hold(self) -> None:
        from iotwin.workloads.detrain import keras_data

        self._held.passes.update({name: passes_of(each) for name, each in self._datasets.items()})
        if (seeds := keras_data.global_seeds()) is not None:
            self._held.seeds = seeds

    def _begin_resumed(self, resume: "Resumption", epochs: Any, frame: types.FrameType) -> None:
        """Read the epochs before the checkpoint's epoch, unless the run skips them without reading."""
        if resume.jumps and (start := resume.state["loop"][0]) is not None:
            epochs._num_batches = start["batches"]
        while not resume.is_in(self._session.progress.epoch):
            with epochs.catch_stop_iteration():
                for _, _, iterator in epochs._enumerate_iterator():
                    self._pass_over(resume, epochs, iterator)
            self._begin_epoch(frame)

    def _pass_over(self, resume: "Resumption", epochs: Any, iterator: Any) -> None:
        for _ in range(0 if resume.jumps else epochs.steps_per_execution):
            next(iterator)
        self._session.progress.batch += 1

    def _resume(self, resume: "Resumption", epochs: Any, frame: types.FrameType) -> None:
        """Restore the checkpoint before the batch that it was saved at."""
        from keras.src.random.seed_generator import global_seed_generator

        from iotwin.workloads.detrain import keras_data

        if f"{_HELD}:seeds" in resume.state["objects"]:
            self._held.seeds = global_seed_generator()
        if not self._session.begin_batch(frame):
            keras_data.make_variables(self._model, epochs._distributed_dataset)
            self._session.begin_batch(frame)
        self._put_variables(frame)
        for name, each in self._datasets.items():
            # each earlier pass had drawn new seeds for its shuffling
            for _ in range(self._held.passes.get(name, 0) - passes_of(each)):
                iter(each)
        if resume.jumps and (start := resume.state["loop"][0]) is not None:
            self._position.put(start)
