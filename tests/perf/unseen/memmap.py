"""A loop of one's own on a mapped array, without loaders: random crops with replacement, a pickled state now and then."""

import pickle
import time
from pathlib import Path

import numpy as np
from command_line import JobOptions
from job_parts import launch, make_files

_TOKENS, _BLOCK, _STEPS = 20_000_000, 256, 300


def _made(job: JobOptions) -> Path:
    return make_files(job.data("tokens"), ["train.bin"], [job.samples(2 * _TOKENS)])[0]


def main(job: JobOptions, path: Path) -> None:
    tokens, rng = np.memmap(path, np.uint16, "r"), np.random.default_rng(job.seed + 1000 * job.rank)
    state = {"embedding": np.zeros((5000, 128), np.float32), "output": np.zeros((128, 5000), np.float32)}
    for step in range(1, job.steps(_STEPS) + 1):
        starts = rng.integers(len(tokens) - _BLOCK, size=job.batch(16))
        batch = np.stack([tokens[start : start + _BLOCK].astype(np.int32) for start in starts])
        state["embedding"][batch % 5000] += 0.001
        time.sleep(job.step_s(0.04))
        job.meet()
        if step % 75 == 0 and job.rank == 0:
            with (job.out / f"state_{step}.pkl").open("wb") as file:
                pickle.dump(state, file)


if __name__ == "__main__":
    launch(_made, main)
