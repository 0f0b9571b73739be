"""The second phase of a checkpoint: a thread or a process writes snapshots to the store, in the order of their submission."""

import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

from iotwin.common.checkpoints import CheckpointManifest
from iotwin.common.commit import Store
from iotwin.common.errors import IotwinError
from iotwin.common.tensor_file import Entry, Tensor
from iotwin.workloads.state.snapshot import Buffer, StateSnapshot
from iotwin.workloads.state.writer_process import WriteRequest, WriterProcess

THREAD, PROCESS = "thread", "process"


@dataclass(frozen=True)
class Persisted:
    """The size and costs of one written checkpoint."""

    step: int
    size_bytes: int
    copy_s: float  # seconds to copy the state
    start_ns: int  # time at which writing began, CLOCK_MONOTONIC
    write_s: float
    cpu_s: float  # CPU time of the writing thread or process


class Destination(Protocol):
    """The place where a job's checkpoints are written. `store` is None if a writer process cannot write there."""

    store: Store | None

    def commit(
        self, manifest: CheckpointManifest, tensors: Iterable[Tensor], values: dict[str, Any], waited: bool = False
    ) -> None:
        """Write a checkpoint durably. `waited`: True if training blocks until the write ends. Raises IotwinError on failure."""


class _Write(NamedTuple):
    snapshot: StateSnapshot
    manifest: CheckpointManifest
    worker: str  # THREAD or PROCESS
    sent_ns: int = 0  # time at which the request was sent to the writer process, CLOCK_MONOTONIC; 0 if it was not sent


class Persister:
    """Writes snapshots to `destination`, at most `in_flight` at once, each from a separate buffer.

    The writing thread calls `done` after each write. If a write fails, the next call of `check`, `buffer`, `wait` or `close`
    raises the error.
    """

    def __init__(self, destination: Destination, in_flight: int, done: Callable[[Persisted], None]) -> None:
        self._destination, self._done = destination, done
        self._writes: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._free = [Buffer() for _ in range(in_flight)]
        self._buffers = tuple(self._free)
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self.process = WriterProcess()
        self._thread = threading.Thread(target=self._run, name="persist", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error of a write that failed since the last call, if one did."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def buffer(self) -> Buffer:
        """Wait for a free buffer and return it. The caller must then `submit` a snapshot in it, or `give_back` the buffer."""
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._error)
            self.check()
            return self._free.pop()

    @property
    def writing(self) -> bool:
        """True if a buffer is in use: its snapshot is being taken or written."""
        return len(self._free) < len(self._buffers)

    @property
    def has_room(self) -> bool:
        """True if a buffer is free."""
        return bool(self._free)

    def give_back(self, buffer: Buffer) -> None:
        """Mark a buffer, which `buffer` returned, as free."""
        with self._changed:
            self._free.append(buffer)
            self._changed.notify_all()

    def submit(self, snapshot: StateSnapshot, manifest: CheckpointManifest, worker: str) -> None:
        """Queue a snapshot for the writing thread, which copies the snapshot's pending tensors and writes it.

        If all tensors are copied and the writer process is idle, the calling thread sends the request itself. A request by the
        writing thread would delay the caller longer, since both threads would compete for the interpreter lock.
        """
        write = _Write(snapshot, manifest, worker)
        idle = len(self._free) == len(self._buffers) - 1
        store = self._destination.store
        if worker == PROCESS and store is not None and idle and snapshot.copied.is_set() and self.process.pid:
            write = write._replace(sent_ns=time.monotonic_ns())
            try:
                self.process.send(_request(store, write), snapshot.buffer.descriptor)
            except IotwinError as error:
                self._error = error
                self.give_back(snapshot.buffer)
                return
        self._writes.put(write)

    def wait(self) -> None:
        """Wait until every submitted snapshot is durable."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._free) == len(self._buffers))
        self.check()

    def close(self) -> None:
        """Wait for all writes, then end the writing thread and the writer process."""
        if not self._thread.is_alive():
            return
        self._writes.put(None)
        self._thread.join()
        self.process.close()
        for buffer in self._buffers:
            buffer.close()
        self.check()

    def _run(self) -> None:
        while (write := self._writes.get()) is not None:
            try:
                write.snapshot.finish()
                self._write(write)
            except BaseException as error:  # all errors are caught here; `check` raises them in the training loop
                self._error = error
            finally:
                write.snapshot.copied.set()  # if the copy failed, an update must not wait for it forever
                self.give_back(write.snapshot.buffer)

    def _write(self, write: _Write) -> None:
        begin_ns, cpu_s = write.sent_ns or time.monotonic_ns(), time.thread_time()
        snapshot, store = write.snapshot, self._destination.store
        if write.worker == PROCESS and store is not None:
            if not write.sent_ns:
                self.process.send(_request(store, write), snapshot.buffer.descriptor)
            cpu_s = self.process.receive(str(store.directory))
        else:
            self._destination.commit(write.manifest, snapshot.tensors, {"state": snapshot.values})
            cpu_s = time.thread_time() - cpu_s
        write_s = (time.monotonic_ns() - begin_ns) / 1e9
        self._done(Persisted(write.manifest.step, snapshot.size_bytes, snapshot.copy_s, begin_ns, write_s, cpu_s))


def _request(store: Store, write: _Write) -> WriteRequest:
    snapshot = write.snapshot
    if not snapshot.size_bytes:
        raise IotwinError("the state holds no tensor, so a writer process cannot write it; let a thread write it")
    tensors = [
        Entry(name, dtype, shape, offset, data.size)
        for (name, dtype, shape, data), offset in zip(snapshot.tensors, snapshot.offsets, strict=True)
    ]
    return WriteRequest(
        str(store.directory),
        asdict(store.retention),
        write.manifest,
        snapshot.size_bytes,
        tensors,
        {"state": snapshot.values},
    )
