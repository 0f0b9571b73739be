"""States of TensorFlow: Keras objects and variables, its random generator, and positions in tf.data pipelines."""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from iotwin.common.errors import IotwinError
from iotwin.common.files import scratch_folder
from iotwin.workloads.detrain.saving.plain_values import decode, encode
from iotwin.workloads.detrain.saving.provider import NotBuilt, State


class KerasObjects:
    """Models, layers, optimizers, metrics and seed generators of Keras, variables and generators of TensorFlow."""

    draws = False

    def knows(self, value: Any) -> bool:
        keras, tensorflow = sys.modules.get("keras"), sys.modules.get("tensorflow")
        if keras is not None and hasattr(keras, "random"):
            kinds = (
                keras.layers.Layer,
                keras.optimizers.Optimizer,
                keras.metrics.Metric,
                keras.random.SeedGenerator,
                keras.Variable,
            )
            if isinstance(value, kinds):
                return True
        if tensorflow is None or not hasattr(tensorflow, "Module"):
            return False
        return isinstance(value, tensorflow.Module | tensorflow.Variable | tensorflow.random.Generator)

    def save(self, value: Any, unsaved: dict[str, str]) -> list[np.ndarray[Any, Any]]:
        return [np.array(each) for each in _variables(value)]

    def load(self, value: Any, saved: list[np.ndarray[Any, Any]]) -> None:
        variables = _variables(value)
        if len(variables) < len(saved):
            raise NotBuilt(f"has {len(variables)} variables instead of {len(saved)}")
        for variable, content in zip(variables, saved, strict=False):
            if tuple(variable.shape) != content.shape:
                raise IotwinError(f"a variable of shape {tuple(variable.shape)} does not take one of {content.shape}")
            variable.assign(content)


def is_keras(value: Any) -> bool:
    """Return whether an object is one that Keras or TensorFlow saves."""
    return KerasObjects().knows(value)


def is_callback(value: Any) -> bool:
    """Return whether an object is a callback of Keras, which counts epochs or keeps the best weights."""
    keras = sys.modules.get("keras")
    return keras is not None and hasattr(keras, "callbacks") and isinstance(value, keras.callbacks.Callback)


def held_by_model(value: Any) -> dict[str, Any]:
    """Return, by name, the objects that `compile` and `fit` give a Keras model: the optimizer, metrics, and the history."""
    keras = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "random") or not isinstance(value, keras.Model):
        return {}
    metrics = {f"metrics[{index}]": each for index, each in enumerate(value.metrics)}
    found = {"optimizer": getattr(value, "optimizer", None), "history": getattr(value, "history", None)} | metrics
    return {name: each for name, each in found.items() if each is not None}


def is_constant(value: Any) -> bool:
    """Return whether an object is a tensor of TensorFlow with a value."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and hasattr(tensorflow, "is_tensor") and tensorflow.is_tensor(value) and hasattr(value, "numpy")


def constant(content: np.ndarray[Any, Any]) -> Any:
    """Return a tensor of TensorFlow."""
    import tensorflow as tf

    return tf.constant(content)


def _variables(value: Any) -> list[Any]:
    """Return the variables of an object in an order that is the same in each run, those of seed generators among them."""
    if hasattr(value, "state") and not hasattr(value, "variables"):
        return [value.state]
    found = getattr(value, "variables", None)
    return [value] if found is None else list(found)


def generator_state() -> State | None:
    """Return the state of TensorFlow's global generator of seeds, None if the script does not use TensorFlow."""
    context = _context()
    if context is None:
        return None
    rng = getattr(context, "_rng", None)
    return {"rng": encode(rng.getstate()) if rng is not None else None}


def set_generator_state(state: State | None) -> None:
    """Set the generator to a state that `generator_state` returned."""
    rng = getattr(_context(), "_rng", None)
    if state is not None and state["rng"] is not None and rng is not None:
        rng.setstate(decode(state["rng"]))


def _context() -> Any:
    if "tensorflow" not in sys.modules:
        return None
    from tensorflow.python.eager import context

    return context.context()


def iterator_files(iterator: Any) -> State | None:
    """Return the files in which tf.data saves the position of an iterator; None if tf.data cannot save it."""
    import tensorflow as tf

    with scratch_folder() as folder:
        try:
            tf.train.Checkpoint(iterator=iterator).write(f"{folder}/iterator")
        except tf.errors.FailedPreconditionError:  # the pipeline draws random numbers itself
            return None
        return {path.name: np.fromfile(path, np.uint8) for path in folder.iterdir()}


def put_iterator_files(iterator: Any, files: State) -> None:
    """Restore the position that an iterator had when `iterator_files` returned these files."""
    import tensorflow as tf

    with scratch_folder() as folder:
        for name, content in files.items():
            content.tofile(folder / Path(name).name)
        tf.train.Checkpoint(iterator=iterator).read(f"{folder}/iterator").assert_consumed()


def passes_of(dataset: Any) -> int:
    """Return how many iterators of a tf.data pipeline have begun since the first loop did."""
    return int(dataset.__dict__.get("detrain_passes", 0))


class TrackedDatasetIterator:
    """The iterator of a loop over a tf.data pipeline. It starts at a saved state without reading what comes before.

    `passes`: number of iterators of the pipeline that began before. Each of them made the shuffling draw new seeds. So a resumed
    run makes as many iterators, without reading from them.
    """

    def __init__(self, dataset: Any, make: Callable[[Any], Any], passes: int, start: State | None) -> None:
        self.passes, self.position, self._skipped = passes, 0, 0
        if start is not None:
            for _ in range(start["passes"] - passes):
                make(dataset)
            self.passes, self._skipped = start["passes"], start["position"]
        self._real = make(dataset)
        self._remembered: State | None = None
        if start is not None:
            put_iterator_files(self._real, start["files"])

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.position += 1
        if self._skipped:
            self._skipped -= 1
            return None
        return next(self._real)

    def remember(self) -> None:
        """Save the position, for a checkpoint that is written when the next batch has been fetched."""
        files = iterator_files(self._real)
        self._remembered = files and {"position": self.position, "passes": self.passes, "files": files}

    def state(self, fetched: bool) -> State | None:
        """Return the position before the batch that was `fetched`; None if tf.data cannot save that."""
        if not fetched:
            self.remember()
        return self._remembered


class DatasetTracker:
    """Tracks the iterators of tf.data pipelines that begin while a loop opens. `begun` is called with each of them."""

    def __init__(self, begun: Callable[[TrackedDatasetIterator], None]) -> None:
        self._begun = begun
        self._make: Any = None
        self._opening, self._starts = False, deque[State | None]()

    def opens(self, starts: list[State | None]) -> None:
        """Prepare for a loop whose iterators start at `starts`, in order."""
        self._opening, self._starts = True, deque(starts)
        tensorflow = sys.modules.get("tensorflow")
        if self._make is None and tensorflow is not None and hasattr(tensorflow, "data"):
            from tensorflow.python.data.ops.dataset_ops import DatasetV2

            self._make, tracker = DatasetV2.__iter__, self
            DatasetV2.__iter__ = lambda dataset: tracker._iterator(dataset)

    def opened(self) -> None:
        """Note that the loop has its first batch: later iterators are not the loop's."""
        self._opening = False

    def _iterator(self, dataset: Any) -> Any:
        if not self._opening:
            dataset.__dict__["detrain_passes"] = passes_of(dataset) + 1
            return self._make(dataset)
        start = self._starts.popleft() if self._starts else None
        found = TrackedDatasetIterator(dataset, self._make, passes_of(dataset), start)
        dataset.__dict__["detrain_passes"] = found.passes + 1
        self._begun(found)
        return found
