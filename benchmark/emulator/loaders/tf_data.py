"""Load by TensorFlow's own tf.data (`reader.data_loader: tensorflow`)."""

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from iotwin.benchmark.emulator.data.dataset import SampleSet
from iotwin.benchmark.emulator.data.order import Batch
from iotwin.benchmark.emulator.loaders.base import Fetched, Fetcher, Loader
from iotwin.benchmark.emulator.loaders.record_stream import StreamPlan, preprocessing_s
from iotwin.common.errors import IotwinError
from iotwin.common.numbers.draws import DrawnTime
from iotwin.common.numbers.permutation import Permutation
from iotwin.datagen.formats.tfrecord import FRAME_BYTES


def _tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no notes on the processor's features
    try:
        import tensorflow
    except ImportError:
        raise IotwinError(
            "reader.data_loader tensorflow needs TensorFlow; install it with: pip install 'iotwin[tensorflow]', or use native"
        ) from None
    return tensorflow


_NUMBERS = 4  # the first four fields of Fetched are integers


class TfRecordLoader(Loader):
    """Loads TFRecords by tf.data: TFRecordDataset, interleave, shuffle, batch and prefetch over the rank's files."""

    def __init__(self, samples: SampleSet, preprocess: DrawnTime | None, plan: StreamPlan) -> None:
        self._tensorflow = _tensorflow()
        self._files, self._preprocess, self._plan = samples.files, preprocess, plan

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        if not len(batches):
            return
        size, taken = len(batches[0]), 0
        try:
            for lengths in self._pipeline(epoch, size, len(batches[-1]) == size):
                if taken == len(batches):
                    continue  # reads the files to the end, as the job does, although no step follows
                first = taken * size
                seconds = preprocessing_s(self._preprocess, self._plan.rank, epoch, range(first, first + len(lengths)))
                time.sleep(seconds)
                taken += 1
                read_bytes = int(lengths.numpy().sum()) + FRAME_BYTES * len(lengths)
                yield Fetched(len(lengths), read_bytes, 0, int(seconds * 1e9))
                if taken == len(batches) and not self._plan.whole_files:
                    return
        except self._tensorflow.errors.OpError as error:
            raise IotwinError(f"tf.data failed in epoch {epoch}: {' '.join(error.message.split())}") from None

    def _pipeline(self, epoch: int, size: int, full: bool) -> Any:
        data, plan = self._tensorflow.data, self._plan
        key = epoch if plan.fresh_each_epoch else 0
        order = np.arange(len(self._files))
        if plan.shuffle_files:
            order = Permutation(len(order), plan.seed, key)(order)
        share = order[plan.rank :: plan.ranks] if len(order) >= plan.ranks else order
        parallel = plan.threads if plan.threads > 1 else None
        records = data.Dataset.from_tensor_slices([path for number in share for path in self._files[number]]).interleave(
            lambda path: data.TFRecordDataset(path, buffer_size=plan.buffer_bytes),
            cycle_length=plan.cycle,
            block_length=1,
            num_parallel_calls=parallel,
        )
        if len(order) < plan.ranks:
            records = records.shard(plan.ranks, plan.rank)
        if plan.shuffle_records:
            records = records.shuffle(plan.shuffle_records, seed=(plan.seed + key) % 2**31)
        if not plan.whole_files:
            records = records.repeat()
        return records.map(self._tensorflow.strings.length).batch(size, drop_remainder=full).prefetch(plan.prefetch)


class TfMapLoader(Loader):
    """Loads formats other than TFRecord by tf.data, which calls the emulator's readers for `threads` batches at a time."""

    def __init__(self, fetcher: Fetcher, threads: int, prefetch: int) -> None:
        self._tensorflow = _tensorflow()
        self._fetcher, self._threads, self._prefetch = fetcher, max(1, threads), prefetch

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        tensorflow, failed = self._tensorflow, []

        def fetch(number: Any) -> Any:
            try:
                return np.array(self._fetcher.clone().fetch(epoch, batches[int(number)])[:_NUMBERS], np.int64)
            except IotwinError as error:  # collected, since tf.data would wrap the exception in a traceback
                failed.append(error)
                return np.zeros(_NUMBERS, np.int64)

        numbers = tensorflow.data.Dataset.range(len(batches))
        read = numbers.map(
            lambda one: tensorflow.numpy_function(fetch, [one], tensorflow.int64), num_parallel_calls=self._threads
        )
        for row in read.prefetch(self._prefetch):
            if failed:
                raise failed[0]
            yield Fetched(*row.numpy().tolist())
