"""Shards read as a stream by loaders, the next one opened before the last is closed, batches from a buffer filled by many."""

import sys
from pathlib import Path

import numpy as np
from job_parts import Loader, make_files, save

_SHARDS, _SHARD_BYTES, _RECORD_BYTES, _BATCH = 12, 4 << 20, 40_000, 16


class Stream:
    """What a worker reads: its shards one after the other, records until a batch is full."""

    def __init__(self, shards: list[Path], seed: int) -> None:
        self._shards, self._rng, self._left, self._file = shards, np.random.default_rng(seed), [], None
        self._buffered = 0

    def fetch(self, _indices: list[int]) -> bytes:
        while self._buffered < _BATCH * _RECORD_BYTES:
            if self._file is None or not (part := self._file.read(1 << 18)):
                self._left = self._left or list(self._rng.permutation(len(self._shards)))
                following = self._shards[self._left.pop()].open("rb", buffering=0)
                if self._file:
                    self._file.close()
                self._file = following
                continue
            self._buffered += len(part)
        self._buffered -= _BATCH * _RECORD_BYTES
        return bytes(4000)


def main(folder: Path, seed: int) -> None:
    names = [f"shard-{i:05}.tar" for i in range(_SHARDS)]
    shards = make_files(folder / "shards", names, [_SHARD_BYTES] * _SHARDS)
    out = folder / f"out{seed}"
    out.mkdir(exist_ok=True)
    streams: dict[int, Stream] = {}

    def fetch(indices: list[int]) -> bytes:
        worker = indices[0] % 2
        stream = streams.setdefault(worker, Stream(shards[worker::2], seed + worker))
        return stream.fetch(indices)

    loader = Loader(fetch)
    for step in loader.epoch([[i] for i in range(160)], 0.04):
        if step % 50 == 49:
            save(out / f"step_{step}.ckpt", 6_000_000)
    loader.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
