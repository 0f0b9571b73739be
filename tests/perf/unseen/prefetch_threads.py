"""A .npy file a sample, which the threads of a pool read for the two batches that come next; no loader processes."""

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from command_line import JobOptions
from job_parts import batches, launch, save

_SAMPLES, _EPOCHS, _AHEAD = 320, 4, 2


def _made(job: JobOptions) -> list[Path]:
    (folder := job.data("arrays")).mkdir(exist_ok=True)
    rng, paths = np.random.default_rng(7), [folder / f"{i:05}.npy" for i in range(job.samples(_SAMPLES))]
    for path in (path for path in paths if not path.exists()):
        np.save(path, rng.random(int(rng.integers(10_000, 30_000)), np.float32))
    return paths


def main(job: JobOptions, paths: list[Path]) -> None:
    rng = np.random.default_rng(job.seed)
    with ThreadPoolExecutor(job.workers) as pool:
        for epoch in range(job.epochs(_EPOCHS)):
            ahead: deque = deque()
            for batch in [*batches(job, rng.permutation(paths).tolist(), job.batch(8)), *[[]] * _AHEAD]:
                ahead.append([pool.submit(np.load, path) for path in batch])
                if len(ahead) > _AHEAD:
                    np.stack([array.result()[:10_000] for array in ahead.popleft()])
                    time.sleep(job.step_s(0.06))
                    job.meet()
            save(job, f"epoch_{epoch}.ckpt", 6_000_000)


if __name__ == "__main__":
    launch(_made, main)
