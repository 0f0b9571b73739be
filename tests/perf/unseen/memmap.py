"""A loop of one's own on a mapped array, without loaders: random crops with replacement, a pickled state now and then."""

import pickle
import time
from argparse import Namespace

import numpy as np
from command_line import command_line
from job_parts import make_files

_TOKENS, _BLOCK, _STEPS = 20_000_000, 256, 300


def main(job: Namespace) -> None:
    path = make_files(job.folder / "tokens", ["train.bin"], [2 * _TOKENS])[0]
    (out := job.folder / f"out{job.seed}").mkdir(exist_ok=True)
    tokens, rng = np.memmap(path, np.uint16, "r"), np.random.default_rng(job.seed)
    state = {"embedding": np.zeros((5000, 128), np.float32), "output": np.zeros((128, 5000), np.float32)}
    for step in range(1, _STEPS + 1):
        starts = rng.integers(_TOKENS - _BLOCK, size=16 * job.scale)
        batch = np.stack([tokens[start : start + _BLOCK].astype(np.int32) for start in starts])
        state["embedding"][batch % 5000] += 0.001
        time.sleep(0.04 * job.scale)
        if step % 75 == 0:
            with (out / f"state_{step}.pkl").open("wb") as file:
                pickle.dump(state, file)


if __name__ == "__main__":
    main(command_line())
