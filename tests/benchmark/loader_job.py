"""A synthetic training job with loaders, played call by call: what a trace of PyTorch's DataLoader shows of it."""

from dataclasses import dataclass
from pathlib import Path

from iotwin.trace_store.reader import Trace
from tests.benchmark.made_trace import START_NS, Made
from tests.synthetic import MILLISECOND

RANK = 1000


@dataclass
class LoaderJob:
    """Each epoch reads all files once, in an order of its own, by new loaders, and then writes a checkpoint. Times are in ms."""

    files: int = 24
    batch: int = 4
    loaders: int = 2
    epochs: int = 2
    evaluated: int = 0  # files of a validation set that is read after each epoch
    compute_ms: float = 20
    save_after: int = 0  # also write a checkpoint after each so many steps of the run
    file_bytes: int = 100_000
    shards: bool = False  # each loader reads on in one big file of its own, instead of files

    def trace(self, folder: Path) -> Trace:
        """Write the trace and return it."""
        made, now, step = Made(), 5.0, 0
        made.process(RANK, 1, "rank")
        self._training = [made.file(f"/d/train/{i}.jpg", size=self.file_bytes) for i in range(self.files)]
        self._held = [made.file(f"/d/held/{i}.jpg", size=self.file_bytes) for i in range(self.evaluated)]
        self._shards = [made.file(f"/d/shard-{i}.tar", size=self.files * self.file_bytes) for i in range(self.loaders)]
        for epoch in range(self.epochs):
            order = [self._training[(5 * i + 7 * epoch) % self.files] for i in range(self.files)]
            now, step = self._pass(made, now, order, self.compute_ms, step, f"epoch{epoch}")
            if self._held:
                now, _ = self._pass(made, now, self._held, self.compute_ms / 2, 1 << 40, f"held{epoch}")
            now = made.write_file(now, RANK, f"/out/epoch_{epoch}.pt", 300_000) + 3
        made.processes[0]["exit_ns"] = START_NS + int(now * MILLISECOND)
        return made.trace(folder)

    def _pass(self, made: Made, now: float, order: list[int], compute_ms: float, step: int, name: str) -> tuple[float, int]:
        batches = [order[at : at + self.batch] for at in range(0, len(order), self.batch)]
        first = 2000 + len(made.processes)
        results, free, at = made.file(f"pipe:[{name}]", "pipe"), [], [0] * self.loaders
        pipes = [made.file(f"pipe:[{name}.{i}]", "pipe") for i in range(self.loaders)]
        for i in range(self.loaders):
            made.process(first + i, RANK, "loader", begin_ms=now)
            now += 1
            free.append(now + 2)
        delivered: dict[int, float] = {}

        def serve(index: int, asked: float) -> None:
            loader = index % self.loaders
            made.call(asked, RANK, "write", pipes[loader], None, 30 + self.batch, 0.05)
            begin = max(asked + 0.1, free[loader])
            begin = made.call(begin, first + loader, "read", pipes[loader], None, 30 + self.batch, 0.05) + 0.1
            for file in batches[index]:
                if self.shards:
                    begin = made.call(begin, first + loader, "read", self._shards[loader], at[loader], self.file_bytes) + 0.5
                    at[loader] += self.file_bytes
                else:
                    begin = made.read_file(begin, first + loader, file) + 0.5
            delivered[index] = made.call(begin, first + loader, "write", results, None, 3000, 0.05)
            free[loader] = delivered[index] + 0.05

        ahead = 2 * self.loaders
        for index in range(min(ahead, len(batches))):
            serve(index, now)
            now += 0.2
        for index, batch in enumerate(batches):
            wanted = now
            made.call(wanted, RANK, "read", results, None, 3000, max(0.05, delivered[index] + 0.05 - wanted))
            now = max(wanted + 0.05, delivered[index] + 0.05) + 0.05
            if index + ahead < len(batches):
                serve(index + ahead, now)
            now += compute_ms * len(batch) / self.batch
            step += 1
            if self.save_after and step % self.save_after == 0:
                now = made.write_file(now, RANK, f"/out/step_{step}.pt", 200_000)
        for i in range(self.loaders):
            now = made.call(now, RANK, "write", pipes[i], None, 8, 0.05) + 0.1
        for process in made.processes[-self.loaders :]:
            now += 0.5
            process["exit_ns"] = START_NS + int(now * MILLISECOND)
        return now + 1, step
