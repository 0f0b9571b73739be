"""Pickles of a folder that a multiprocessing.Pool reads and decodes for the trainer (imap): a task a batch, an epoch ahead."""

import multiprocessing
import pickle
import time
from pathlib import Path

import numpy as np
from command_line import JobOptions
from job_parts import batches, launch, save

_SAMPLES, _EPOCHS = 480, 4


def _decoded(paths: list[Path]) -> np.ndarray:
    samples = []
    for path in paths:
        with path.open("rb") as file:
            samples.append(pickle.load(file)["image"][:64, :64].astype(np.float32))
    return np.stack(samples)


def _made(job: JobOptions) -> list[Path]:
    (folder := job.data("pickles")).mkdir(exist_ok=True)
    rng, paths = np.random.default_rng(7), [folder / f"{i:05}.pkl" for i in range(job.samples(_SAMPLES))]
    for path in (path for path in paths if not path.exists()):
        side = int(rng.integers(160, 240))
        path.write_bytes(pickle.dumps({"image": rng.integers(0, 256, (side, side), np.uint8), "label": 0}))
    return paths


def main(job: JobOptions, paths: list[Path]) -> None:
    rng = np.random.default_rng(job.seed)
    with multiprocessing.get_context("fork").Pool(job.workers) as pool:
        for epoch in range(job.epochs(_EPOCHS)):
            for _ in pool.imap(_decoded, batches(job, rng.permutation(paths).tolist(), job.batch(8))):
                time.sleep(job.step_s(0.05))
                job.meet()
            save(job, f"epoch_{epoch}.pkl", 6_000_000)


if __name__ == "__main__":
    launch(_made, main)
