"""Compares the steps logs of two runs, in the order in which one difference causes the next."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.untrusted_files import decode_foreign, read_foreign_lines

_MOST_LINE_BYTES = 64 << 20
What = Literal["indices", "input", "loss", "gradient", "parameter", "optimizer", "rng"]


class LoggedStep(msgspec.Struct, frozen=True):
    """A line of a steps log: the inputs of the step, what it computed, and the state after it."""

    epoch: int
    batch: int
    indices: Any
    inputs_sha256: str | None
    loss: list[str]
    parameters_sha256: str
    optimizer_sha256: str
    rng_sha256: str


class StepDifference(msgspec.Struct, frozen=True):
    """The first difference of two runs. `step` counts from 0 over all epochs; `name` and `op` are '' if they are not known.

    `rank`: rank of the process that differs, 0 if the script is one process.
    """

    step: int
    what: What
    name: str = ""
    op: str = ""
    rank: int = 0


# In the order of causes: a step reads samples, computes on them, changes the weights, and leaves the generators in a new state.
_CAUSES: tuple[tuple[What, str], ...] = (
    ("indices", "epoch"),
    ("indices", "batch"),
    ("indices", "indices"),
    ("input", "inputs_sha256"),
    ("loss", "loss"),
    ("parameter", "parameters_sha256"),
    ("optimizer", "optimizer_sha256"),
    ("rng", "rng_sha256"),
)


def first_difference_of_ranks(
    reference: Sequence[list[LoggedStep]], found: Sequence[list[LoggedStep]], first: int, is_cut: bool
) -> StepDifference | None:
    """Return the first difference of any rank (see `first_difference`). Of several at the same step, return the likely cause.

    `reference` and `found` have the steps of each rank. If `is_cut`, steps that are missing at the end are no difference.
    """
    differences = []
    for rank, (expected, steps) in enumerate(zip(reference, found, strict=True)):
        difference = first_difference(expected[: first + len(steps)] if is_cut else expected, steps, first)
        if difference is not None:
            differences.append(msgspec.structs.replace(difference, rank=rank))
    return min(differences, key=lambda each: (each.step, get_args(What).index(each.what)), default=None)


def read_steps(path: Path) -> list[LoggedStep]:
    """Read a steps log. Raises IotwinError if the file is missing, or is no steps log."""
    try:
        return [decode_foreign(line, LoggedStep, path) for line in read_foreign_lines(path, _MOST_LINE_BYTES)]
    except FileNotFoundError:
        raise IotwinError(f"{path}: the run has logged no step; the script's loop has not been reached") from None


def first_difference(reference: list[LoggedStep], found: list[LoggedStep], first: int = 0) -> StepDifference | None:
    """Return the first difference between `reference`, from step `first` on, and the steps of a run that began there."""
    for step, (expected, actual) in enumerate(zip(reference[first:], found, strict=False), first):
        for what, key in _CAUSES:
            if getattr(expected, key) != getattr(actual, key):
                return StepDifference(step, what)
    if len(found) != len(reference) - first:
        return StepDifference(first + min(len(found), len(reference) - first), "indices", "number of steps")
    return None
