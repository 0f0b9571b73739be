"""The second phase of a checkpoint: snapshots written to the store beside training, in their order, by a thread or a process."""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import NamedTuple

from common.checkpoints import Manifest
from common.commit import Store
from common.errors import IotwinError
from common.tensor_file import Entry
from workloads.checkfreq.layouts import Layout
from workloads.checkfreq.snapshot import Buffer, Snapshot
from workloads.checkfreq.writer import Request, WriterProcess

THREAD, PROCESS = "thread", "process"


@dataclass(frozen=True)
class Persisted:
    """How one checkpoint was written."""

    step: int
    size_bytes: int
    copy_s: float
    start_ns: int  # of the writing, CLOCK_MONOTONIC
    write_s: float
    cpu_s: float  # of whoever wrote it


class _Job(NamedTuple):
    snapshot: Snapshot
    manifest: Manifest
    worker: str  # THREAD or PROCESS
    sent_ns: int = 0  # when the process began to write it, if it has; CLOCK_MONOTONIC


class Persister:
    """Writes snapshots of at most `in_flight` buffers; `done` is called for each on the writing thread.

    What goes wrong there is raised by `check`, `buffer`, `wait` and `close`, whichever is called next.
    """

    def __init__(self, layout: Layout, in_flight: int, done: Callable[[Persisted], None]) -> None:
        self._layout, self._done = layout, done
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._free = [Buffer() for _ in range(in_flight)]
        self._buffers = tuple(self._free)
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self.process = WriterProcess()
        self._thread = threading.Thread(target=self._run, name="persist", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what went wrong since the last call, if anything did."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def buffer(self) -> Buffer:
        """Return a buffer that is free, waiting for one; its owner must `submit` it or `give_back` it."""
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._error)
            self.check()
            return self._free.pop()

    @property
    def writing(self) -> bool:
        """Whether anything is on its way."""
        return len(self._free) < len(self._buffers)

    @property
    def has_room(self) -> bool:
        """Whether a snapshot can be taken at once."""
        return bool(self._free)

    def give_back(self, buffer: Buffer) -> None:
        """Let the next snapshot have the buffer."""
        with self._changed:
            self._free.append(buffer)
            self._changed.notify_all()

    def submit(self, snapshot: Snapshot, manifest: Manifest, worker: str) -> None:
        """Have a snapshot finished and written.

        A whole one is sent to a process that has nothing else to do from here: a thread that did so would cost the caller more,
        by waits for the interpreter.
        """
        job = _Job(snapshot, manifest, worker)
        idle = len(self._free) == len(self._buffers) - 1
        if worker == PROCESS and self._layout.store is not None and idle and snapshot.copied.is_set() and self.process.pid:
            job = job._replace(sent_ns=time.monotonic_ns())
            try:
                self.process.send(_request(self._layout.store, job), snapshot.buffer.descriptor)
            except IotwinError as error:
                self._error = error
                self.give_back(snapshot.buffer)
                return
        self._jobs.put(job)

    def wait(self) -> None:
        """Wait until all that was submitted is durable."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._free) == len(self._buffers))
        self.check()

    def close(self) -> None:
        """Wait, and end the thread and the process."""
        if not self._thread.is_alive():
            return
        self._jobs.put(None)
        self._thread.join()
        self.process.close()
        for buffer in self._buffers:
            buffer.close()
        self.check()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job.snapshot.finish()
                self._write(job)
            except BaseException as error:  # of any kind: the training loop is to hear of it
                self._error = error
            finally:
                job.snapshot.copied.set()  # so that nobody waits for ever for what has failed
                self.give_back(job.snapshot.buffer)

    def _write(self, job: _Job) -> None:
        begin_ns, cpu_s = job.sent_ns or time.monotonic_ns(), time.thread_time()
        snapshot, store = job.snapshot, self._layout.store
        if job.worker == PROCESS and store is not None:
            if not job.sent_ns:
                self.process.send(_request(store, job), snapshot.buffer.descriptor)
            cpu_s = self.process.receive(str(store.directory))
        else:
            self._layout.commit(job.manifest, snapshot.tensors, {"state": snapshot.values})
            cpu_s = time.thread_time() - cpu_s
        write_s = (time.monotonic_ns() - begin_ns) / 1e9
        self._done(Persisted(job.manifest.step, snapshot.size_bytes, snapshot.copy_s, begin_ns, write_s, cpu_s))


def _request(store: Store, job: _Job) -> Request:
    snapshot = job.snapshot
    if not snapshot.size_bytes:
        raise IotwinError("the state holds no tensor; let a thread write it")
    tensors = [
        Entry(name, dtype, shape, offset, data.size)
        for (name, dtype, shape, data), offset in zip(snapshot.tensors, snapshot.offsets, strict=True)
    ]
    return Request(
        str(store.directory),
        asdict(store.retention),
        job.manifest,
        snapshot.size_bytes,
        tensors,
        {"state": snapshot.values},
    )
