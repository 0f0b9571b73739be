"""Stream files of records as tf.data does: interleaved files, a shuffle buffer, batches, and threads that read ahead.

Like tf.data's interleave, TFRecordDataset and shuffle,

* `cycle` open files deliver one record each in turn, and the next file replaces a file that ends;
* a file is read buffer by buffer with pread(2), and a short read is followed by one more read that detects the end;
* with threads, twice `cycle` further files are opened in advance, and two records of each open file are read ahead;
* records are delivered from a shuffle buffer, which is filled before the first record is delivered.

The stream holds the sizes of records instead of their content.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Self, TypeAlias

import numpy as np

from iotwin.benchmark.emulator import waits
from iotwin.benchmark.emulator.data.dataset import SampleSet
from iotwin.benchmark.emulator.data.order import Batch
from iotwin.benchmark.emulator.data.train_eval_files import Paths
from iotwin.benchmark.emulator.loaders.base import Fetched, Loader
from iotwin.benchmark.emulator.readers.access import check_within, damaged, unreadable
from iotwin.benchmark.emulator.threads import BoundedQueue, ClockThread, TaskThreads
from iotwin.common.errors import IotwinError
from iotwin.common.numbers.draws import DrawnTime
from iotwin.common.numbers.keyed import Purpose, generator
from iotwin.common.numbers.permutation import Permutation
from iotwin.datagen.formats.tfrecord import FRAME_BYTES, HEAD_BYTES
from iotwin.workloads.policies.read_ahead import OPENED_AHEAD

TF_BUFFER_BYTES = 1 << 18  # default buffer size of TFRecordDataset
_LENGTH_BYTES = 8
_RECORDS_AHEAD = 2  # records that threads keep ready in each open file (tf.data's buffer_output_elements)
_DRAWS = 4096  # random numbers drawn at a time
_EXIT_PATIENCE_S = 5.0

_Made: TypeAlias = "BoundedQueue[Fetched | IotwinError | None]"


@dataclass(frozen=True)
class StreamPlan:
    """The settings of a stream."""

    cycle: int  # number of files that deliver records in turn
    buffer_bytes: int  # size of one read
    threads: int  # threads that open files and read ahead; with fewer than 2 threads in all, nothing is read ahead
    prefetch: int  # batches prepared in advance
    shuffle_files: bool
    shuffle_records: int  # size of the shuffle buffer; 0: no buffer
    seed: int
    fresh_each_epoch: bool  # shuffle differently in each epoch
    whole_files: bool  # an epoch reads its files to the end, even if the last records fill no batch
    rank: int = 0
    ranks: int = 1


class StreamLoader(Loader):
    """Delivers the batches of a stream. A thread prepares batches in advance."""

    def __init__(self, samples: SampleSet, preprocess: DrawnTime | None, plan: StreamPlan) -> None:
        self._files, self._plan, self._preprocess = samples.files, plan, preprocess
        self._stop = waits.Flag()  # set to end the present epoch
        # Holds the files of an epoch open until the next epoch, as the iterator of a job does.
        self._records = ExitStack()

    def __exit__(self, *exception: object) -> None:
        """End the thread of the present epoch, and close the open files."""
        self._stop.set()
        self._records.close()

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        """Yield the result of each batch's reads, with the number and sizes of `batches`. The files are repeated if they end.

        Raises IotwinError, which names the file, if a file cannot be read or is incomplete.
        """
        made: _Made = BoundedQueue(self._plan.prefetch)
        sizes = (len(batch) for batch in batches)
        self._stop = stop = waits.Flag()
        self._records.close()
        thread = ClockThread(partial(self._make, epoch, sizes, made, stop), "stream")
        try:
            while (fetched := made.get()) is not None:
                if isinstance(fetched, IotwinError):
                    raise fetched
                yield fetched
        finally:
            stop.set()
            made.room.give()  # the thread may wait for room in the queue
            thread.join(_EXIT_PATIENCE_S)

    def _make(self, epoch: int, sizes: Iterator[int], made: _Made, stop: waits.Flag) -> None:
        try:
            records = self._records.enter_context(_RecordStream(self._files, self._plan, epoch))
            for fetched in self._batches(epoch, sizes, records):
                if not made.put(fetched, stop):
                    return
            if self._plan.whole_files:
                records.drain()
            made.put(None, stop)
        except IotwinError as error:
            made.put(error, stop)

    def _batches(self, epoch: int, sizes: Iterator[int], records: "_RecordStream") -> Iterator[Fetched]:
        sleeper, sample = waits.new_sleeper(), 0
        for size in sizes:
            begin_ns = waits.now_ns()
            size_bytes = sum(next(records) for _ in range(size))
            read_ns = waits.now_ns() - begin_ns
            seconds = preprocessing_s(self._preprocess, self._plan.rank, epoch, range(sample, sample + size))
            sleeper.sleep(seconds)
            sample += size
            yield Fetched(size, size_bytes, read_ns, int(seconds * 1e9))


def preprocessing_s(preprocess: DrawnTime | None, rank: int, epoch: int, samples: range) -> float:
    """Return the seconds of preprocessing `samples`; 0 if `preprocess` is None."""
    return sum(preprocess.seconds(rank, epoch, sample) for sample in samples) if preprocess else 0.0


class _RecordStream:
    """Yields the sizes of a rank's records, including their frames, in the order of delivery. The files are repeated."""

    def __init__(self, files: Sequence[Paths], plan: StreamPlan, epoch: int) -> None:
        self._files, self._plan, self._epoch = files, plan, epoch
        # An executor for each thread, so that the threads read in turns.
        self._threads = [TaskThreads(1, "read-ahead") for _ in range(plan.threads)] if plan.threads > 1 else []
        self._turns = cycle(self._threads) if self._threads else None
        self._open: list[_File | None] = []
        self._upcoming: deque[_File] = deque()
        self._passes = 0
        self._pass: Iterator[int] = iter(())
        self._sizes = self._forever()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for file in (*self._open, *self._upcoming):
            if file is not None:
                file.close()
        for thread in self._threads:
            thread.end()

    def __next__(self) -> int:
        return next(self._sizes)

    def drain(self) -> None:
        """Read the rest of the rank's files without delivering records, unless all files have been read once."""
        if self._passes == 0:
            for _ in self._pass:
                pass

    def _forever(self) -> Iterator[int]:
        while True:
            count = 0
            self._pass = self._shuffle(self._one_pass()) if self._plan.shuffle_records else self._one_pass()
            for size in self._pass:
                count += 1
                yield size
            if not count:
                raise IotwinError(f"{self._files[0][0]}: neither it nor another file of rank {self._plan.rank} holds a record")
            self._passes += 1

    def _shuffle(self, source: Iterator[int]) -> Iterator[int]:
        plan, passes = self._plan, 1 + self._passes
        draws = generator(plan.seed, Purpose.ORDER, plan.rank, self._epoch_key(), passes)
        kept = list(islice(source, self._plan.shuffle_records))
        while kept:
            for fraction in draws.random(_DRAWS).tolist():
                position = int(fraction * len(kept))
                yield kept[position]
                following = next(source, None)
                if following is not None:
                    kept[position] = following
                    continue
                kept[position] = kept[-1]
                kept.pop()
                if not kept:
                    return

    def _epoch_key(self) -> int:
        return self._epoch if self._plan.fresh_each_epoch else 0

    def _paths(self) -> Iterator[str]:
        """Yield the rank's files in the order of the present pass: every R-th file for R ranks, or all of fewer than R files."""
        plan, count = self._plan, len(self._files)
        if plan.shuffle_files:
            # If an epoch reads the files several times, each time has another order.
            order = Permutation(count, plan.seed + self._passes, self._epoch_key())
        share = range(plan.rank, count, plan.ranks) if count >= plan.ranks else range(count)
        for position in share:
            number = int(order(np.array([position]))[0]) if plan.shuffle_files else position
            yield from self._files[number]

    def _one_pass(self) -> Iterator[int]:
        every = 1 if len(self._files) >= self._plan.ranks else self._plan.ranks
        for index, size in enumerate(self._interleaved(self._paths())):
            if every == 1 or index % every == self._plan.rank:
                yield size

    def _following(self, paths: Iterator[str]) -> "_File | None":
        """Return the next file to read; None after the last one. Files that follow it in `paths` are opened in advance."""
        ahead = OPENED_AHEAD * self._plan.cycle if self._turns else 0
        for path in islice(paths, max(0, ahead + 1 - len(self._upcoming))):
            self._upcoming.append(_File(path, self._plan, self._turns))
        return self._upcoming.popleft() if self._upcoming else None

    def _interleaved(self, paths: Iterator[str]) -> Iterator[int]:
        self._open = [None] * self._plan.cycle
        ended = 0
        for slot in cycle(range(self._plan.cycle)):
            file = self._open[slot]
            if file is None:
                file = self._open[slot] = self._following(paths)
            size = None if file is None else file.next_size()
            if size is not None:
                ended = 0
                yield size
            elif file is not None:
                file.close()
                self._open[slot] = None
            else:
                # No file is left for this slot. All files have been read when all slots are empty.
                ended += 1
                if ended >= self._plan.cycle and not any(self._open):
                    return


class _File:
    """A file that is read buffer by buffer. If `threads` is given, they open the file and read ahead."""

    def __init__(self, path: str, plan: StreamPlan, threads: Iterator[TaskThreads] | None) -> None:
        self._path, self._plan, self._threads = path, plan, threads
        self._descriptor = -1
        self._cutter: _Frames | None = None  # divides the file into records; None until the file is open
        self._ready: deque[int] = deque()  # sizes of the records that were read whole and not delivered
        self._end = 0  # offset up to which the file was read
        self._at_end = False
        self._ahead: Future[None] | None = None
        self._read_ahead()

    def next_size(self) -> int | None:
        """Return the size in bytes of the next record, including its frame; None at the end of the file."""
        if not self._ready:
            if self._ahead is not None:
                waits.result(self._ahead)
            self._fill(1)
        size = self._ready.popleft() if self._ready else None
        self._read_ahead()
        return size

    def _read_ahead(self) -> None:
        waits = len(self._ready) < _RECORDS_AHEAD and not self._at_end
        if self._threads is not None and waits and (self._ahead is None or self._ahead.done()):
            self._ahead = next(self._threads).submit(self._fill, _RECORDS_AHEAD)

    def _fill(self, records: int) -> None:
        """Read until `records` records are ready or the file ends."""
        while len(self._ready) < records and not self._at_end:
            cutter = self._cutter or self._opened()
            content = self._read()
            self._end += len(content)
            self._ready.extend(cutter.take(content, self._end))
            if len(content) < self._plan.buffer_bytes:
                cutter.check_end(self._end)
                self._at_end = True

    def _opened(self) -> "_Frames":
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(self._path, error) from None
        self._cutter = _Frames(self._path, os.fstat(self._descriptor).st_size)
        return self._cutter

    def _read(self) -> bytes:
        wanted_bytes = self._plan.buffer_bytes
        try:
            content = os.pread(self._descriptor, wanted_bytes, self._end)
            if 0 < len(content) < wanted_bytes:
                content += os.pread(self._descriptor, wanted_bytes - len(content), self._end + len(content))
            return content
        except OSError as error:
            raise unreadable(self._path, error) from None

    def close(self) -> None:
        """Close the file after the pending reads."""
        if self._ahead is not None:
            waits.wait_on_clock(self._ahead.done)
            self._ahead.exception()
        if self._descriptor >= 0:
            os.close(self._descriptor)


class _Frames:
    """Finds the ends of the TFRecords in a file that is read buffer by buffer."""

    def __init__(self, path: str, file_bytes: int) -> None:
        self._path, self._file_bytes = path, file_bytes
        self._begun = 0  # size, with frame, of a record whose end was not read yet; 0: none
        self._carried = b""  # beginning of a frame's head whose rest is in the next buffer
        self._next_frame = 0  # offset of the next frame

    def take(self, content: bytes, end: int) -> list[int]:
        """Return the sizes of the records that `content` completes. `content` follows the last call's and ends at offset `end`.

        Raises IotwinError if a record would end after the end of the file.
        """
        sizes = []
        known, start = self._carried + content, end - len(content) - len(self._carried)
        if self._begun and end >= self._next_frame:
            sizes.append(self._begun)
            self._begun = 0
        while not self._begun and self._next_frame + HEAD_BYTES <= end:
            length = int.from_bytes(known[self._next_frame - start : self._next_frame - start + _LENGTH_BYTES], "little")
            check_within(self._path, self._file_bytes, self._next_frame, length + FRAME_BYTES)
            self._next_frame += length + FRAME_BYTES
            if self._next_frame <= end:
                sizes.append(length + FRAME_BYTES)
            else:
                self._begun = length + FRAME_BYTES
        self._carried = known[self._next_frame - start :] if self._next_frame < end else b""
        return sizes

    def check_end(self, end: int) -> None:
        """Raise IotwinError if `end` is within a record."""
        if self._begun or self._carried:
            raise damaged(self._path, f"ends after {end} bytes, in the middle of a record")
