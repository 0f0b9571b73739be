"""One file of chunks and labels, as HDF5 keeps them: a sample is three reads; validation in the same file."""

import time
from pathlib import Path

import numpy as np
from command_line import JobOptions
from job_parts import Loader, batches, launch, make_files, save

_SAMPLES, _TRAINING, _CHUNK = 400, 320, 98_304


def _made(job: JobOptions) -> Path:
    samples = job.samples(_SAMPLES)
    return make_files(job.data("chunks"), ["data.h5"], [4096 + 400 * 544 + samples * _CHUNK + samples * 8])[0]


def main(job: JobOptions, path: Path) -> None:
    rng, validation = np.random.default_rng(job.seed), np.arange(job.samples(_TRAINING), job.samples(_SAMPLES))

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

    for epoch in range(job.epochs(4)):
        training = rng.permutation(job.samples(_TRAINING))
        for samples, size, compute_s in ((training, job.batch(8), job.step_s(0.05)), (validation, 8, job.validation_s(0.02))):
            with path.open("rb", buffering=0) as file:
                file.read(512)
                loader = Loader(job, fetch)
                for _ in loader.epoch(batches(job, samples.tolist(), size), compute_s):
                    pass
                loader.close()
        save(job, f"epoch_{epoch}.pt", 6_000_000)


if __name__ == "__main__":
    launch(_made, main)
