"""The options of these jobs, and what follows from them for batches, steps, epochs, data and ranks."""

import argparse
from pathlib import Path
from typing import Any

_NOMINAL_EPOCHS = 4  # of a job that has a number of steps instead: N epochs more are N quarters more steps


class JobOptions(argparse.Namespace):
    """`folder`, `seed`, the options and the flags of a job; `rank` is the index of the process among the ranks."""

    rank = 0
    barrier: Any = None

    @property
    def out(self) -> Path:
        """The folder of the job's checkpoints."""
        return self.folder / f"out{self.seed}"

    def data(self, name: str) -> Path:
        """Return the path of the data of this name: another one if the job has more data than usual."""
        return self.folder / (name if self.data_factor == 1 else f"{name}_x{self.data_factor}")

    def samples(self, usual: int) -> int:
        """Return the number of samples or files instead of the usual number."""
        return usual * self.data_factor

    def batch(self, usual: int) -> int:
        """Return the number of samples in a training batch."""
        return max(1, round(usual * self.batch_factor))

    def step_s(self, usual: float) -> float:
        """Return the computation time of a training step, in seconds."""
        return usual * self.batch_factor * self.computation

    def validation_s(self, usual: float) -> float:
        """Return the computation time of a validation step, in seconds."""
        return usual * self.computation

    def epochs(self, usual: int) -> int:
        """Return the number of epochs."""
        return usual + self.epochs_more

    def steps(self, usual: int) -> int:
        """Return the number of steps of a job without epochs."""
        return usual + usual * self.epochs_more // _NOMINAL_EPOCHS

    def meet(self) -> None:
        """Wait for the other ranks, if there are any."""
        if self.barrier is not None:
            self.barrier.wait()


def command_line(*flags: str, **defaults: int) -> JobOptions:
    """Parse the command line of a job that has these `flags` and these `defaults` instead of the usual ones."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("--batch-factor", type=float, default=1.0, help="training batches so many times as large, steps as long")
    parser.add_argument("--workers", type=int, default=2, help="loaders of each rank")
    parser.add_argument("--computation", type=float, default=1.0, help="steps of training and validation so many times as long")
    parser.add_argument("--epochs-more", type=int, default=0, help="epochs more than usual, or quarters more of the steps")
    parser.add_argument("--data-factor", type=int, default=1, help="so many times as many samples or files, for validation, too")
    parser.add_argument("--ranks", type=int, default=1, help="data-parallel processes")
    for flag in flags:
        parser.add_argument(f"--{flag}", action="store_true")
    parser.set_defaults(**defaults)
    return parser.parse_args(namespace=JobOptions())
