"""A synthetic training job with loaders, played call by call: what a trace of PyTorch's DataLoader shows of it."""

import copy
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iotwin.benchmark.fit.fit_trace import fit
from iotwin.benchmark.fit.fitted import Fitted
from iotwin.trace_store import schema
from iotwin.trace_store.reader import Trace
from tests.benchmark.made_trace import START_NS, Made
from tests.synthetic import MILLISECOND

RANK = 1000
_NEVER = 1 << 40  # a step of no run
_fitted: dict[str, Fitted] = {}


@dataclass
class LoaderJob:
    """Each epoch reads all files once, in an order of its own, by new loaders, and then writes a checkpoint. Times are in ms."""

    files: int = 24
    batch: int = 4
    loaders: int = 2
    epochs: int = 2
    evaluated: int = 0  # files of a validation set that is read after epochs
    held_loaders: int | None = None  # loaders of an evaluation; None: as many as of training
    evaluate_every: int = 1  # epochs between two evaluations
    interrupt_every: int = 0  # also evaluate after each so many steps of the run, while loaders hold batches of the epoch
    interrupts_at_ends: bool = False  # also if the epoch ends with such a step
    compute_ms: float = 20
    evenly: bool = False  # a short last batch takes as long as the others
    save_after: int = 0  # also write a checkpoint after each so many steps of the run
    saves_aside: bool = False  # another thread writes checkpoints, while training goes on
    syncs: bool = False  # checkpoints are synced before they are closed
    save_first: bool = False  # that checkpoint is written before the step computes, and not after it
    restored_bytes: int = 0  # it reads a checkpoint of so many bytes at its beginning, and overwrites it after each epoch
    file_bytes: int = 100_000
    persistent: bool = False  # the loaders of training live through all epochs
    held_lives: bool = False  # the loaders of evaluations live through all of them
    resumes: bool = False  # persistent loaders end each epoch by a message, ignore the last request, and are asked to resume
    root: str = "/d"
    shards: bool = False  # each loader reads on in one big file of its own, instead of files
    keeps_two: bool = (
        False  # reads the checkpoint of the epoch before when it has saved another one, and removes the one before it
    )
    tries_folder: bool = False  # the thread that sends a loader's first batch writes a temporary file while samples are read
    mapped: bool = False  # the job maps all files at its beginning, and a loader reads a sample by a page fault
    ranks: int = 1  # processes that share the samples of each epoch; the first one saves
    rank = RANK  # pid of the rank that is being played
    reads: int = 1  # times that a loader reads the file of a sample
    stats: int = 0  # calls for metadata before a loader reads a sample, of 0.1 ms and as much between them
    decode_ms: float = 0.5  # between two samples of a loader
    last_rank: dict[str, Any] = field(default_factory=dict)  # values that hold for the last rank alone, such as loaders
    pins: bool = False  # another thread of the rank reads what loaders deliver, as PyTorch's that pins memory does
    unpack_ms: float = 0  # between reading a batch that loaders deliver and requesting another one
    requests_at_end: bool = False  # the rank requests another batch at the end of a step, not when it has taken a batch
    of_torch: bool = False  # loaders have the name that PyTorch gives them
    mask_bytes: int = 0  # each sample also has a mask of so many bytes, in another file that is read after the image

    def trace(self, folder: Path) -> Trace:
        """Write the trace and return it."""
        made = Made()
        training, held = self._names()
        self._training, self._held = ([made.file(name, size=self.file_bytes) for name in names] for names in (training, held))
        names = [each["path"].replace(".jpg", ".png") for each in made.files] if self.mask_bytes else []
        self._masks = [made.file(name, size=self.mask_bytes) for name in names]
        self._shards = [made.file(f"{self.root}/{i}.tar", size=self.files * self.file_bytes) for i in range(self.loaders)]
        for number in range(self.ranks):
            self.rank = RANK + number
            player = copy.copy(self)
            player.__dict__.update(self.last_rank if number == self.ranks - 1 else {})
            player._play(made, number)
        for process in made.processes if self.of_torch else ():
            process["comm"] = "pt_data_worker" if process["role"] == "loader" else process["comm"]
        return made.trace(folder)

    def _play(self, made: Made, number: int) -> None:
        """Let the rank of this number train."""
        now, step, saved = 5.0, 0, list[int]()
        made.process(self.rank, 1, "rank")
        process = made.processes[-1]
        for file in [*self._training, *self._held] if self.mapped else ():
            now = made.call(now, self.rank, "mmap", file, 0, self.file_bytes, 0.01)
        found = made.file(f"{self.root}/out/found.pt", "checkpoint", self.restored_bytes)
        now = made.read_file(now, self.rank, found) + 1 if self.restored_bytes else now
        crew = self._evaluators = None
        for epoch in range(self.epochs):
            stride = (5, 7, 19)[epoch % 3]
            order = [self._training[(stride * i + 7 * epoch) % self.files] for i in range(number, self.files, self.ranks)]
            if crew is None:
                crew, now = _Crew.start(made, now, self.loaders, f"epoch{epoch}of{self.rank}", self.rank)
            if self.resumes and epoch:
                now = crew.message(made, now, 120, 60)
            now, step = self._pass(made, now, crew, order, self.compute_ms, step)
            if self.resumes:
                now = crew.message(made, crew.message(made, now, 30 + self.batch, 200), 30 + self.batch, 0)
            if not self.persistent or epoch == self.epochs - 1:
                now, crew = crew.end(made, now), None
            if self._held and (epoch + 1) % self.evaluate_every == 0:
                now = self._evaluate(made, now)
            if number:
                now += 5
                continue
            now = self._save(made, now, f"{self.root}/out/epoch_{epoch}.pt", 300_000) + 3
            saved.append(len(made.files) - 1)
            if self.restored_bytes:
                now = made.call(
                    now, self.rank, "openat", found, flags=schema.FLAG_CREATE | schema.FLAG_TRUNCATE | schema.FLAG_WRITABLE
                )
                now = made.call(now, self.rank, "write", found, 0, self.restored_bytes)
                now = made.call(now, self.rank, "close", found)
            for older in saved[-3:-1] if self.keeps_two else ():
                now = made.read_file(now, self.rank, older) + 0.1
            if self.keeps_two and epoch > 1:
                now = made.call(now, self.rank, "unlink", saved[-3]) + 0.1
        now = self._evaluators.end(made, now) if self._evaluators else now
        process["exit_ns"] = START_NS + int(now * MILLISECOND)

    def _evaluate(self, made: Made, now: float) -> float:
        """Read the validation set; return when training goes on."""
        if self._evaluators is None:
            name = f"held{len(made.files)}of{self.rank}"
            self._evaluators, now = _Crew.start(made, now, self.held_loaders or self.loaders, name, self.rank)
        else:
            now = self._evaluators.message(made, now, 120, 60)
        now, _ = self._pass(made, now, self._evaluators, self._held, self.compute_ms / 2, _NEVER)
        if not self.held_lives:
            now, self._evaluators = self._evaluators.end(made, now), None
        return now

    def _save(self, made: Made, now: float, path: str, size: int) -> float:
        """Write a checkpoint; return when training goes on."""
        end = made.write_file(now, self.rank, path, size, self.rank + 5000 if self.saves_aside else None, self.syncs)
        return now if self.saves_aside else end

    def write_data(self, folder: Path) -> None:
        """Write the files that the job reads, with a root that is relative to `folder`."""
        for name in (name for names in self._names() for name in names):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(bytes(self.file_bytes))

    def _names(self) -> tuple[list[str], list[str]]:
        training = [f"{self.root}/train/{i}.jpg" for i in range(self.files)]
        return training, [f"{self.root}/held/{i}.jpg" for i in range(self.evaluated)]

    def _pass(self, made: Made, now: float, crew: "_Crew", order: list[int], compute_ms: float, step: int) -> tuple[float, int]:
        """Let the crew read the files in this order; return when the last step ended, and the steps of the run so far."""
        batches = [order[at : at + self.batch] for at in range(0, len(order), self.batch)]
        delivered: dict[int, float] = {}

        def serve(index: int, asked: float) -> None:
            loader = index % len(crew.pids)
            made.call(asked, self.rank, "write", crew.requests[loader], None, 30 + self.batch, 0.05)
            begin = max(asked + 0.1, crew.free[loader])
            begin = made.call(begin, crew.pids[loader], "read", crew.requests[loader], None, 30 + self.batch, 0.05) + 0.1
            if self.tries_folder and index < len(crew.pids):
                self._try_folder(made, begin, crew.pids[loader])
            for file in batches[index]:
                begin = self._read_sample(made, begin, crew, loader, file)
            delivered[index] = made.call(begin, crew.pids[loader], "write", crew.results, None, 3000, 0.05)
            crew.free[loader] = delivered[index] + 0.05

        ahead = 2 * len(crew.pids)
        first = range(min(ahead, len(batches)))
        for index in first:
            serve(index, now)
            now += 0.2
        first_after = ahead - self.requests_at_end
        for index, batch in enumerate(batches):
            if self.requests_at_end and 0 < index < len(batches) - first_after:
                serve(index + first_after, now)
            wanted = now
            took, reader = max(0.05, delivered[index] + 0.05 - wanted), self.rank + 9000 * self.pins
            made.call(wanted, self.rank, "read", crew.results, None, 3000, took, tid=reader)
            now = max(wanted + 0.05, delivered[index] + 0.05) + 0.05 + self.unpack_ms
            if not self.requests_at_end and index + ahead < len(batches):
                serve(index + ahead, now)
            if self.save_first and self.save_after and step and step % self.save_after == 0:
                now = self._save(made, now, f"{self.root}/out/step_{step}.pt", 200_000)
            now += compute_ms * (1 if self.evenly else len(batch) / self.batch)
            step += 1
            if not self.save_first and self.save_after and step % self.save_after == 0:
                now = self._save(made, now, f"{self.root}/out/step_{step}.pt", 200_000)
            if self.interrupt_every and step < _NEVER and step % self.interrupt_every == 0:
                now = self._evaluate(made, now) if index < len(batches) - 1 or self.interrupts_at_ends else now
        return now, step

    def _read_sample(self, made: Made, now: float, crew: "_Crew", loader: int, file: int) -> float:
        """Let a loader read a sample; return when it begins with the next one."""
        pid = crew.pids[loader]
        if self.shards:
            offset, crew.read[loader] = crew.read[loader], crew.read[loader] + self.file_bytes
            return made.call(now, pid, "read", self._shards[loader], offset, self.file_bytes) + self.decode_ms
        if self.mapped:
            return made.call(now, pid, "page_fault", file, 0, 1 << 16) + self.decode_ms
        for _ in range(self.stats):
            now = made.call(now, pid, "newfstatat", file) + 0.1
        for _ in range(self.reads):
            now = made.read_file(now, pid, file)
        now += self.decode_ms
        for mask in self._masks[file : file + 1] if self.mask_bytes else ():
            now = made.read_file(now, pid, mask) + self.decode_ms
        return now

    def _try_folder(self, made: Made, now: float, loader: int) -> None:
        """Let another thread of a loader open, write, close and remove a file, each during another sample."""
        file = made.file(f"{self.root}/out/try{loader}", "other")
        for number, op in enumerate(("openat", "write", "close", "unlink")):
            flags = schema.FLAG_CREATE | schema.FLAG_WRITABLE if op == "openat" else 0
            made.call(now + number, loader, op, file, None, 4 if op == "write" else 0, tid=loader + 5000, flags=flags)


def fit_once(job: LoaderJob) -> Fitted:
    """Return a copy of the job's twin; a fit takes most of the time of a test that edits a twin, so each job has only one."""
    if repr(job) not in _fitted:
        with tempfile.TemporaryDirectory() as folder:
            _fitted[repr(job)] = fit(job.trace(Path(folder) / "t"))
    return copy.deepcopy(_fitted[repr(job)])


@dataclass
class _Crew:
    """The pid of the rank, loader processes, their pipes, when each is free again (ms), and how much it has read of its shard."""

    rank: int
    pids: list[int]
    requests: list[int]
    results: int
    free: list[float]
    read: list[int]

    @classmethod
    def start(cls, made: Made, now: float, count: int, name: str, rank: int) -> tuple["_Crew", float]:
        """Start loaders and return them, and when the last one has started."""
        first = 2000 + len(made.processes)
        pids = [made.process(first + i, rank, "loader", begin_ms=now + i) for i in range(count)]
        requests = [made.file(f"pipe:[{name}.{i}]", "pipe") for i in range(count)]
        results = made.file(f"pipe:[{name}]", "pipe")
        return cls(rank, pids, requests, results, [now + i + 3 for i in range(count)], [0] * count), now + count

    def message(self, made: Made, now: float, asked_bytes: int, answer_bytes: int) -> float:
        """Let each loader read a message and answer it, unless `answer_bytes` is 0; return when the rank has read the answers."""
        for loader, pid in enumerate(self.pids):
            now = made.call(now, self.rank, "write", self.requests[loader], None, asked_bytes, 0.05) + 0.1
            now = made.call(max(now, self.free[loader]), pid, "read", self.requests[loader], None, asked_bytes, 0.05)
            if answer_bytes:
                now = made.call(now, pid, "write", self.results, None, answer_bytes, 0.05)
                now = made.call(now, self.rank, "read", self.results, None, answer_bytes, 0.05)
        self.free = [now] * len(self.pids)
        return now

    def end(self, made: Made, now: float) -> float:
        """Let the loaders end, and return when the last one has."""
        for requests in self.requests:
            now = made.call(now, self.rank, "write", requests, None, 8, 0.05) + 0.1
        for process in made.processes:
            if process["pid"] in self.pids:
                now += 0.5
                process["exit_ns"] = START_NS + int(now * MILLISECOND)
        return now + 1
