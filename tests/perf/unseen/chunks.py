"""One file of chunks and labels, as HDF5 keeps them: a sample is three reads; validation in the same file."""

import sys
import time
from pathlib import Path

import numpy as np
from job_parts import Loader, batches, make_files, save

_SAMPLES, _TRAINING, _CHUNK = 400, 320, 98_304


def main(folder: Path, seed: int) -> None:
    path = make_files(folder / "chunks", ["data.h5"], [4096 + 400 * 544 + _SAMPLES * _CHUNK + _SAMPLES * 8])[0]
    out = folder / f"out{seed}"
    out.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)

    def fetch(indices: list[int]) -> bytes:
        for index in indices:
            for offset, size in (
                (4096 + index // 8 * 544, 544),
                (300_000 + index * _CHUNK, _CHUNK),
                (path.stat().st_size - 4096, 8),
            ):
                file.seek(offset)
                file.read(size)
            time.sleep(0.001)
        return bytes(4000)

    for epoch in range(4):
        for samples, compute_s in ((rng.permutation(_TRAINING), 0.05), (np.arange(_TRAINING, _SAMPLES), 0.02)):
            with path.open("rb", buffering=0) as file:
                file.read(512)
                loader = Loader(fetch)
                for _ in loader.epoch(batches(samples.tolist(), 8), compute_s):
                    pass
                loader.close()
        save(out / f"epoch_{epoch}.pt", 6_000_000)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
