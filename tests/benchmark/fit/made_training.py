"""A synthetic job of one or several ranks that train and evaluate with loaders of PyTorch's kind. Nothing is logged."""

import numpy as np

from iotwin.trace_store.reader import Trace
from tests.benchmark.made_trace import Made

COMPUTE_MS, EVALUATION_MS, BATCH = 50.0, 20.0, 4


class Training:
    """Ranks with two loaders each; a step begins when its batch is there, and two batches a loader are asked for ahead."""

    def __init__(self, ranks: int, persistent: bool) -> None:
        self.made, self.persistent, self.ranks = Made(), persistent, [1000 + 100 * rank for rank in range(ranks)]
        for rank in self.ranks:
            self.made.process(rank, 1, "rank")
        self.train = [self.made.file(f"/d/train/{i:03}.jpg", size=90_000 + 100 * i) for i in range(48)]
        self.val = [self.made.file(f"/d/val/{i:03}.jpg", size=80_000 + 100 * i) for i in range(16)]
        self.kept: dict[tuple[int, str], tuple] = {}
        self.pids = 5000
        self.at_once = 4  # batches that are asked for as a pass begins

    def loaders(self, rank: int, name: str, now: float) -> tuple:
        if (rank, name) not in self.kept or not self.persistent:
            pids = [self.made.process(self.pids + i, rank, "loader", now + i) for i in range(2)]
            self.pids += 2
            asked = [self.made.file(f"pipe:[{pid}]", "pipe") for pid in pids]
            self.kept[rank, name] = (pids, asked, self.made.file(f"pipe:[{pids[0]}-]", "pipe"))
        return self.kept[rank, name]

    def run(self, rank: int, name: str, files: list[int], now: float, most: int | None = None) -> float:
        """Make one pass, or `most` steps of it, and return its end."""
        again = self.persistent and (rank, name) in self.kept
        pids, asked, given = self.loaders(rank, name, now)
        call = self.made.call
        for pid, pipe in zip(pids, asked, strict=True) if again else ():  # as torch begins an epoch with the same loaders
            call(now + 1, rank, "write", pipe, None, 90)
            call(now + 2, pid, "read", pipe, None, 90)
            call(now + 3, pid, "write", given, None, 84)
            call(now + 4, rank, "read", given, None, 84)
        now += 5
        batches = [files[i : i + BATCH] for i in range(0, len(files), BATCH)]
        compute = COMPUTE_MS if name == "train" else EVALUATION_MS
        ready: list[float] = []
        taken: list[float] = []
        free, step_end = [now, now], now
        for number, batch in enumerate(batches[: most and most + self.at_once]):
            worker = number % 2
            ask = now if number < self.at_once else taken[number - self.at_once]
            call(ask + 0.01 * number, rank, "write", asked[worker], None, 30, 0.005)
            t = call(max(ask + 0.5, free[worker]), pids[worker], "read", asked[worker], None, 30)
            for file in batch:
                t = self.made.read_file(t, pids[worker], file) + 0.5
            free[worker] = call(t, pids[worker], "write", given, None, 3000)
            ready.append(free[worker])
            if most is not None and number >= most:  # read ahead, and not taken
                continue
            call(step_end, rank, "poll", -1, None, 0, max(ready[-1] - step_end, 0.01))
            begin = call(max(step_end, ready[-1]) + 0.02, rank, "read", given, None, 3000)
            taken.append(begin)
            step_end = begin + compute
        return step_end

    def trace(self, folder, epochs: int = 3, validated: bool = True, slow_epoch: int | None = None, before: int = 0) -> Trace:
        rng, now = np.random.default_rng(1), 10.0
        if before:
            now = self.run(self.ranks[0], "val", self.val, now, before) + 40
        for epoch in range(epochs):
            self.at_once = 2 if epoch == slow_epoch else 4
            order = rng.permutation(self.train).tolist()
            share = len(self.ranks)
            now = max(self.run(rank, "train", order[i::share], now) for i, rank in enumerate(self.ranks))
            if validated:
                now = max(self.run(rank, "val", self.val[i::share], now) for i, rank in enumerate(self.ranks))
            now = self.made.write_file(now + 1, self.ranks[0], f"/out/epoch_{epoch}.pt", 3_000_000)
        return self.made.trace(folder / "t")
