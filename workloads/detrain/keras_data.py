"""The batches that Keras's fit reads, with a position that a resumed run can restore. Imports Keras."""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
from keras.src.trainers.data_adapters.array_data_adapter import can_convert_arrays
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from tensorflow.python.eager import context

from iotwin.common.errors import IotwinError

_UNKNOWN_SIZE = 32  # length of unknown axes, except the first, in a batch of zeros
_Seen = Callable[[Any], None]


class IndexedBatches(PyDatasetAdapter):
    """The batches of a PyDataset. It calls `seen` with each batch.

    This process reads a batch when a step needs it. Keras's workers would read ahead, and the random numbers that they draw could
    not be drawn again. `order`: the indices of this pass, None before its first batch or if it never ends; `position`: number of
    batches that the pass has read.
    """

    def __init__(self, data: Any, class_weight: Any, shuffle: bool, seen: _Seen) -> None:
        super().__init__(data, class_weight, shuffle)
        self.enqueuer = None  # its worker processes; None: this process reads
        self._seen = seen
        self.begin()

    def begin(self, order: list[int] | None = None, position: int = 0) -> None:
        """Set the `order` of the next pass (None: the pass draws one) and the number of its batches to skip."""
        self.order, self.position = order, position

    def _get_iterator(self) -> Iterator[Any]:
        count = self.py_dataset.num_batches
        if count is not None and self.order is None:
            self.order = list(range(count))
            if self.shuffle:
                random.shuffle(self.order)
        indices: Iterable[int] = itertools.count() if self.order is None else self.order
        for index in itertools.islice(indices, self.position, None):
            batch = self._standardize_batch(self.py_dataset[index])
            self._seen(batch)
            self.position += 1
            yield batch

    def get_tf_dataset(self) -> Any:
        """Return the pipeline that fit reads."""
        return _serial(super().get_tf_dataset())


class GeneratedBatches(GeneratorDataAdapter):
    """The batches of a generator, read when a step needs them; it calls `seen` with each."""

    def __init__(self, generator: Iterator[Any], seen: _Seen) -> None:
        super().__init__(generator)
        self._batches, self._seen = vars(self)["generator"], seen
        self.generator = self._seen_batches

    def _seen_batches(self) -> Iterator[Any]:
        for batch in self._batches():
            self._seen(batch)
            yield batch

    def get_tf_dataset(self) -> Any:
        """Return the pipeline that fit reads."""
        return _serial(super().get_tf_dataset())


def _serial(dataset: Any) -> Any:
    """Return the pipeline that Keras has made from Python code, changed so that it does not read ahead."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    return dataset._input_dataset.with_options(options)


def is_dataset(value: Any) -> bool:
    """Return whether a value is a pipeline of tf.data."""
    return isinstance(value, tf.data.Dataset)


def are_arrays(values: Any) -> bool:
    """Return whether fit takes values for arrays."""
    return bool(can_convert_arrays(values))


def is_seeded() -> bool:
    """Return True if the script has set a seed for TensorFlow's random operations."""
    return context.global_seed() is not None


def draws_without_seed(dataset: Any) -> bool:
    """Return True if a step of the pipeline `dataset` draws random numbers without a seed of the script."""
    seeds = [getattr(dataset, name, None) for name in ("_seed", "_seed2")]
    if "Shuffle" in type(dataset).__name__ and not any(int(seed) for seed in seeds if seed is not None):
        return True
    operations = (each for function in dataset._functions() for each in function.function.graph.get_operations())
    drawn = (each for each in operations if each.type.startswith("Random") and "Dataset" not in each.type)
    return any(not (each.get_attr("seed") or each.get_attr("seed2")) for each in drawn) or any(
        map(draws_without_seed, dataset._inputs())
    )


def global_seeds() -> Any:
    """Return the generator that seeds the random draws of Keras's own functions; None if none has drawn yet."""
    return global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)


def make_variables(model: Any, dataset: Any) -> None:
    """Let a model, its optimizer and its metrics make their variables, by a step on zeros. Raises IotwinError if that fails."""

    def zeros(spec: Any) -> Any:
        return tf.zeros([size or (_UNKNOWN_SIZE if axis else 1) for axis, size in enumerate(spec.shape)], spec.dtype)

    try:
        batch = tf.nest.map_structure(zeros, dataset.element_spec)
        # A dataset with the shapes and types of the script's batches, so that the script's step is not compiled again.
        batches = tf.data.Dataset.from_generator(lambda: iter([batch]), output_signature=dataset.element_spec)
        model.train_function(iter(batches))
    except (tf.errors.OpError, ValueError, TypeError, AttributeError) as error:
        raise IotwinError(
            f"a step on zeros, to make the model's variables, failed ({str(error).splitlines()[0]}); resume with --replay full"
        ) from None
