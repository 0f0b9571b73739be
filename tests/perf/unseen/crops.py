"""Random stretches of one file (or of two of unequal size, with --two), with replacement; checkpoints larger than the reads."""

import time
from pathlib import Path

import numpy as np
from command_line import JobOptions
from job_parts import Loader, batches, launch, make_files, save


def _made(job: JobOptions) -> list[Path]:
    sizes = [job.samples(20_000_000), job.samples(31_000_000)]
    return (
        make_files(job.data("two"), ["a.bin", "b.bin"], sizes) if job.two else make_files(job.data("one"), ["a.bin"], sizes[:1])
    )


def main(job: JobOptions, files: list[Path]) -> None:
    opened, sizes = [path.open("rb", buffering=0) for path in files], [path.stat().st_size for path in files]

    def fetch(indices: list[int]) -> bytes:
        own = np.random.default_rng(indices[0] + 1000 * job.seed)
        for _ in indices:
            which = int(own.integers(len(opened)))
            size = int(own.integers(60_000, 100_000)) if job.two else 100_000
            opened[which].seek(int(own.integers(sizes[which] - size)))
            opened[which].read(size)
            time.sleep(0.001)
        return bytes(4000)

    loader, rng = Loader(job, fetch), np.random.default_rng(job.seed)
    for step in loader.epoch(batches(job, rng.permutation(job.steps(1200)).tolist(), job.batch(8)), job.step_s(0.04)):
        if step % 50 == 49:
            save(job, f"model_{step}.ckpt", 60_000_000)
    loader.close()


if __name__ == "__main__":
    launch(_made, main, "two")
