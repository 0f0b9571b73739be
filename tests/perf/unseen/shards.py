"""Shards read as a stream by loaders, the next one opened before the last is closed, batches from a buffer filled by many."""

from pathlib import Path

import numpy as np
from command_line import JobOptions
from job_parts import Loader, launch, make_files, save

_SHARDS, _SHARD_BYTES, _RECORD_BYTES, _BATCH = 12, 4 << 20, 40_000, 16


class Stream:
    """What a worker reads: its shards one after the other, records until a batch is full."""

    def __init__(self, shards: list[Path], seed: int, batch: int) -> None:
        self._shards, self._rng, self._left, self._file = shards, np.random.default_rng(seed), [], None
        self._batch_bytes, self._buffered = batch * _RECORD_BYTES, 0

    def fetch(self) -> bytes:
        while self._buffered < self._batch_bytes:
            if self._file is None or not (part := self._file.read(1 << 18)):
                self._left = self._left or list(self._rng.permutation(len(self._shards)))
                following = self._shards[self._left.pop()].open("rb", buffering=0)
                if self._file:
                    self._file.close()
                self._file = following
                continue
            self._buffered += len(part)
        self._buffered -= self._batch_bytes
        return bytes(4000)


def _made(job: JobOptions) -> list[Path]:
    names = [f"shard-{i:05}.tar" for i in range(job.samples(_SHARDS))]
    return make_files(job.data("shards"), names, [_SHARD_BYTES] * len(names))


def main(job: JobOptions, shards: list[Path]) -> None:
    streams: dict[int, Stream] = {}

    def fetch(indices: list[int]) -> bytes:
        worker = job.rank * job.workers + indices[0] % job.workers
        if worker not in streams:
            streams[worker] = Stream(shards[worker :: job.ranks * job.workers], job.seed + worker, job.batch(_BATCH))
        return streams[worker].fetch()

    loader = Loader(job, fetch)
    for step in loader.epoch([[i] for i in range(job.steps(160))], job.step_s(0.04)):
        if step % 50 == 49:
            save(job, f"step_{step}.ckpt", 6_000_000)
    loader.close()


if __name__ == "__main__":
    launch(_made, main)
