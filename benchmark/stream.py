"""A stream of TFRecord files as tf.data reads it: files in turn, a shuffle buffer, batches, read ahead by threads.

What tf.data's interleave, TFRecordDataset and shuffle do, and this does too: `cycle` files are open at a time and give a record
each in turn; a file that ends gives its place to the next one. Each file is read by pread(2) of one buffer after the other, and
once more after a short read, to see its end. A record is delivered from a shuffle buffer, which is filled before the first one.
Records are not handed over and not kept: the buffer holds their sizes.
"""

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Self, TypeAlias

import numpy as np

from benchmark.dataset import Samples
from benchmark.draws import DrawnTime, Purpose, generator
from benchmark.files import Paths
from benchmark.loader import Fetched
from benchmark.order import Batch
from benchmark.permutation import Permutation
from benchmark.readers.access import check_within, damaged, unreadable
from benchmark.sleeper import Sleeper
from datagen.tfrecord import FRAME_BYTES, HEAD_BYTES
from tracing_tools.trace.errors import IotwinError

TF_BUFFER_BYTES = 1 << 18  # TFRecordDataset's default
_LENGTH_BYTES = 8
_DRAWS = 4096  # drawn at a time
_LOOK_AGAIN_S = 0.1
_EXIT_PATIENCE_S = 5.0

_Made: TypeAlias = "queue.Queue[Fetched | IotwinError | None]"


@dataclass(frozen=True)
class StreamPlan:
    """How the files are streamed."""

    cycle: int  # files open at a time
    buffer_bytes: int  # of one read
    threads: int  # that read ahead, one buffer for each open file; with none or one, files are read when their turn comes
    prefetch: int  # batches made ahead
    shuffle_files: bool
    shuffle_records: int  # size of the shuffle buffer; 0 for none
    seed: int
    fresh_each_epoch: bool
    whole_files: bool  # an epoch reads its files to the end, though the last records fill no batch
    rank: int = 0
    ranks: int = 1


class StreamLoader:
    """Delivers batches of a stream; a thread makes them ahead."""

    def __init__(self, samples: Samples, preprocess: DrawnTime, plan: StreamPlan) -> None:
        self._files, self._plan, self._preprocess = samples.files, plan, preprocess
        self._stop = threading.Event()  # of the epoch under way

    def __enter__(self) -> Self:
        """Return the loader; each epoch starts a thread."""
        return self

    def __exit__(self, *exception: object) -> None:
        """End the thread of an epoch that is under way."""
        self._stop.set()

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        """Yield what was read for each batch; as many and as large as `batches` are, over and over the files if need be.

        Raises IotwinError, naming the file, when one cannot be read or is not whole.
        """
        made: _Made = queue.Queue(self._plan.prefetch)
        sizes = (len(batch) for batch in batches)
        self._stop = stop = threading.Event()
        thread = threading.Thread(target=self._make, args=(epoch, sizes, made, stop), daemon=True, name="stream")
        thread.start()
        try:
            while (fetched := made.get()) is not None:
                if isinstance(fetched, IotwinError):
                    raise fetched
                yield fetched
        finally:
            stop.set()
            thread.join(_EXIT_PATIENCE_S)

    def _make(self, epoch: int, sizes: Iterator[int], made: _Made, stop: threading.Event) -> None:
        try:
            with _Records(self._files, self._plan, epoch) as records:
                for fetched in self._batches(epoch, sizes, records):
                    if not _put(made, fetched, stop):
                        return
                if self._plan.whole_files:
                    records.drain()
            _put(made, None, stop)
        except IotwinError as error:
            _put(made, error, stop)

    def _batches(self, epoch: int, sizes: Iterator[int], records: "_Records") -> Iterator[Fetched]:
        sleeper, sample = Sleeper(), 0
        for size in sizes:
            begin_ns = time.monotonic_ns()
            size_bytes = sum(next(records) for _ in range(size))
            read_ns = time.monotonic_ns() - begin_ns
            seconds = sum(self._preprocess.seconds(self._plan.rank, epoch, number) for number in range(sample, sample + size))
            sleeper.sleep(seconds)
            sample += size
            yield Fetched(size, size_bytes, read_ns, int(seconds * 1e9))


def _put(made: _Made, item: Fetched | IotwinError | None, stop: threading.Event) -> bool:
    """Put the item when there is room; False when nobody wants it any more."""
    while not stop.is_set():
        try:
            made.put(item, timeout=_LOOK_AGAIN_S)
            return True
        except queue.Full:
            continue
    return False


class _Records:
    """The framed sizes of a rank's records in the order in which they are delivered, pass after pass."""

    def __init__(self, files: Sequence[Paths], plan: StreamPlan, epoch: int) -> None:
        self._files, self._plan, self._epoch = files, plan, epoch
        self._pool = ThreadPoolExecutor(plan.threads, "read-ahead") if plan.threads > 1 else None
        self._open: list[_File | None] = []
        self._passes = 0
        self._pass: Iterator[int] = iter(())
        self._sizes = self._forever()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._open:
            if file is not None:
                file.close()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __next__(self) -> int:
        return next(self._sizes)

    def drain(self) -> None:
        """Read the files of the first pass to their ends."""
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
        draws = generator(self._plan.seed, Purpose.ORDER, self._plan.rank, self._epoch_key(), 1 + self._passes)
        kept = list(islice(source, self._plan.shuffle_records))
        while kept:
            for fraction in draws.random(_DRAWS).tolist():
                place = int(fraction * len(kept))
                yield kept[place]
                following = next(source, None)
                if following is not None:
                    kept[place] = following
                    continue
                kept[place] = kept[-1]
                kept.pop()
                if not kept:
                    return

    def _epoch_key(self) -> int:
        return self._epoch if self._plan.fresh_each_epoch else 0

    def _paths(self) -> Iterator[str]:
        """Yield the rank's files in their order of this pass: every R-th, or all where there are fewer than ranks."""
        plan, count = self._plan, len(self._files)
        if plan.shuffle_files:
            # Passes of one epoch differ as epochs do.
            order = Permutation(count, plan.seed + self._passes, self._epoch_key())
        share = range(plan.rank, count, plan.ranks) if count >= plan.ranks else range(count)
        for place in share:
            number = int(order(np.array([place]))[0]) if plan.shuffle_files else place
            yield from self._files[number]

    def _one_pass(self) -> Iterator[int]:
        every = 1 if len(self._files) >= self._plan.ranks else self._plan.ranks
        for number, size in enumerate(self._interleaved(self._paths())):
            if every == 1 or number % every == self._plan.rank:
                yield size

    def _interleaved(self, paths: Iterator[str]) -> Iterator[int]:
        self._open = [None] * self._plan.cycle
        place = idle = 0
        while idle < self._plan.cycle:
            file = self._open[place]
            if file is None and (path := next(paths, None)) is not None:
                file = self._open[place] = _File(path, self._plan.buffer_bytes, self._pool)
            size = None if file is None else file.next_size()
            if size is not None:
                idle = 0
                yield size
            elif file is not None:
                file.close()
                self._open[place] = None
                idle = 0
            else:
                idle += 1
            place = (place + 1) % self._plan.cycle


class _File:
    """A TFRecord file being read buffer by buffer; with a pool, the next buffer is read while the last one is consumed."""

    def __init__(self, path: str, buffer_bytes: int, pool: ThreadPoolExecutor | None) -> None:
        self._path, self._buffer_bytes, self._pool = path, buffer_bytes, pool
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(path, error) from None
        self._file_bytes = os.fstat(self._descriptor).st_size
        self._ready: deque[int] = deque()  # framed sizes of the records that are in memory whole
        self._begun = 0  # framed bytes of the record that is not
        self._carried = b""  # the beginning of a length that the last buffer cut through
        self._place = 0  # of the next frame
        self._end = 0  # of what has been read
        self._at_end = False
        self._ahead: Future[bytes] | None = None

    def next_size(self) -> int | None:
        """Return the bytes of the next record with its frame; None at the end of the file."""
        while not self._ready and not self._at_end:
            self._take(self._next_buffer())
        return self._ready.popleft() if self._ready else None

    def _next_buffer(self) -> bytes:
        content = self._read(self._end) if self._ahead is None else self._ahead.result()
        if self._pool is not None and len(content) == self._buffer_bytes:
            self._ahead = self._pool.submit(self._read, self._end + len(content))
        return content

    def _read(self, offset: int) -> bytes:
        try:
            content = os.pread(self._descriptor, self._buffer_bytes, offset)
            if 0 < len(content) < self._buffer_bytes:
                content += os.pread(self._descriptor, self._buffer_bytes - len(content), offset + len(content))
            return content
        except OSError as error:
            raise unreadable(self._path, error) from None

    def _take(self, content: bytes) -> None:
        """Note which records are whole with this buffer."""
        known, start = self._carried + content, self._end - len(self._carried)
        self._end += len(content)
        self._at_end = len(content) < self._buffer_bytes
        if self._begun and self._end >= self._place:
            self._ready.append(self._begun)
            self._begun = 0
        while not self._begun and self._place + HEAD_BYTES <= self._end:
            length = int.from_bytes(known[self._place - start : self._place - start + _LENGTH_BYTES], "little")
            check_within(self._path, self._file_bytes, self._place, length + FRAME_BYTES)
            self._place += length + FRAME_BYTES
            if self._place <= self._end:
                self._ready.append(length + FRAME_BYTES)
            else:
                self._begun = length + FRAME_BYTES
        self._carried = known[self._place - start :] if self._place < self._end else b""
        if self._at_end and (self._begun or self._carried):
            raise damaged(self._path, f"ends after {self._end} bytes, in the middle of a record")

    def close(self) -> None:
        """Close the file, after what is being read ahead."""
        if self._ahead is not None:
            self._ahead.exception()
        os.close(self._descriptor)
