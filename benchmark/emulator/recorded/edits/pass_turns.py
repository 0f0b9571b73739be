"""Decides which recorded passes an edited rank plays, in which order, and which of their steps it makes."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from iotwin.common.errors import UsageError
from iotwin.common.units import counted
from iotwin.workload_yaml import TwinResume


class PassTurn(NamedTuple):
    """A pass of the edited run. `number`: index of the recorded pass; `copy`: how often this pass was played before, 0 if never.

    `before`: index of the rank's calls that are played before the pass, None for none. `begins`: this is the first training pass.

    In a resumed run, `done` is the number of steps that are skipped; if `replays`, their batches are read. `left_out`: number of
    steps of earlier passes, which are neither made nor read for. `resumes`: training continues in this pass.
    """

    number: int
    copy: int = 0
    before: int | None = None
    done: int = 0
    replays: bool = False
    left_out: int = 0
    begins: bool = False
    resumes: bool = False


def whole_run(count: int, training: list[int], period: int, epochs: int) -> list[PassTurn]:
    """Return the passes of a run of `epochs` epochs. Epochs beyond the recorded ones repeat the last `period` of these.

    `count`: number of recorded passes; `training`: which of them train.
    """
    if epochs <= len(training):
        last = count if epochs == len(training) else training[epochs]
        return [PassTurn(number, before=number) for number in range(last)]
    found = [PassTurn(number, before=number) for number in range(count)]
    for further in range(epochs - len(training)):
        epoch = len(training) - period + further % period
        end = [*training, count][epoch + 1]
        again = further // period + 1
        found += [PassTurn(number, again, number or None) for number in range(training[epoch], end)]  # 0: the start-up
    return found


def resumed_run(
    whole: list[PassTurn], training: list[int], resume: TwinResume, steps: Callable[[PassTurn], int]
) -> list[PassTurn]:
    """Return the passes of a run that resumes, chosen from those of the `whole` run.

    `steps(turn)`: number of steps of a training pass. What the rank does before the first epoch, it does before the resumed
    epoch. Raises UsageError if the epoch has fewer steps than `resume.step`.
    """
    epochs = [index for index, turn in enumerate(whole) if turn.number in training]
    at = epochs[resume.epoch - 1]
    earlier, resumed = [whole[index] for index in epochs[: resume.epoch - 1]], whole[at]
    if resume.step > (count := steps(resumed)):
        raise UsageError(f"twin.resume.step: {resume.step} is after the last of the {counted(count, 'step')} of an epoch")
    replays = resume.mode in ("replay_data", "replay_all")
    turns = [resumed._replace(done=0 if resume.mode == "full" else resume.step, replays=replays, resumes=True)]
    if resume.mode == "replay_all":
        turns = [*(turn._replace(done=steps(turn), replays=True) for turn in earlier), *turns]
    else:
        turns[0] = turns[0]._replace(left_out=sum(map(steps, earlier)))
    turns[0] = turns[0]._replace(before=training[0], begins=True)
    return [*whole[: epochs[0]], *turns, *whole[at + 1 :]]


def period_of(done: Sequence[tuple[Any, ...]]) -> int:
    """Return the least period with which the items of `done` repeat; 1 if they do not repeat.

    An item repeats an earlier one if it is equal to it or to its beginning.
    """
    for period in range(1, len(done) // 2 + 1):
        if all(a[: len(b)] == b for a, b in zip(done, done[period:], strict=False)):
            return period
    return 1
