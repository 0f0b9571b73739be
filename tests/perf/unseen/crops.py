"""Random stretches of one file (or of two of unequal size, with --two), with replacement; checkpoints larger than the reads."""

import sys
import time
from pathlib import Path

import numpy as np
from job_parts import Loader, batches, make_files, save


def main(folder: Path, seed: int, two: bool) -> None:
    sizes = [20_000_000, 31_000_000] if two else [20_000_000]
    files = make_files(folder / ("two" if two else "one"), ["a.bin", "b.bin"][: len(sizes)], sizes)
    out = folder / f"out{seed}"
    out.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    opened = [path.open("rb", buffering=0) for path in files]

    def fetch(indices: list[int]) -> bytes:
        own = np.random.default_rng(indices[0] + 1000 * seed)
        for _ in indices:
            which = int(own.integers(len(opened)))
            size = int(own.integers(60_000, 100_000)) if two else 100_000
            opened[which].seek(int(own.integers(sizes[which] - size)))
            opened[which].read(size)
            time.sleep(0.001)
        return bytes(4000)

    loader = Loader(fetch)
    for step in loader.epoch(batches(rng.permutation(1200).tolist(), 8), 0.04):
        if step % 50 == 49:
            save(out / f"model_{step}.ckpt", 60_000_000)
    loader.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), "--two" in sys.argv)
