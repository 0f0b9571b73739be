"""Finds work that a rank and its helpers do only after few of its steps, and decides when an edited rank does it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.recorded.edits.process_line import ProcessLine
from iotwin.benchmark.emulator.recorded.edits.rank_pass import RankPass
from iotwin.benchmark.emulator.recorded.edits.row_builder import RowBuilder
from iotwin.benchmark.emulator.recorded.edits.think_clock import ProcessRows, Stretch
from iotwin.workload_yaml.recording import Op, TwinRecording

_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class RareSteps:
    """The rare steps: training steps, of all epochs, after which the rank does more than after other steps.

    `steps`: their indices in the run; `within`: their indices in their epochs; `epochs`: their epochs; `lengths`: number of steps
    of each recorded epoch. `evaluated`: an evaluation follows each epoch.
    """

    steps: list[int]
    within: list[int]
    epochs: list[int]
    lengths: list[int]
    evaluated: bool = False

    def due(self, epoch: int, index: int, step: int, length: int, asked: int | None = None) -> int | None:
        """Return which of the rare steps an edited rank repeats after the step at `index` of `epoch`, None for none.

        `step`: index of the step in the edited run; `length`: steps of the edited epoch. `asked`: the interval of the edited run,
        in steps. If it is not given, the first rule that fits the recording applies:

        * Rare steps and the evaluations after epochs divide each edited epoch evenly, as they divided the recorded ones.
        * A regular interval in steps of the run remains.
        * The same steps of each epoch are rare.
        * Steps at the same shares of epochs are rare.
        """
        every, late = self._interval
        every = asked or every
        if every and (asked or not self._divide_epochs):
            number, rest = divmod(step + 1 - late, every)
            return (number - 1) % len(self.steps) if rest == 0 and number > 0 else None
        first, are_alike = self._first_epoch
        if self._divide_epochs:
            first = [(part + 1) * length // (len(first) + 1) - 1 for part in range(len(first))]
        if self._divide_epochs or are_alike:
            return first.index(index) if index in first else None
        own = epoch % len(self.lengths)
        found = [
            number
            for number, (at, each) in enumerate(zip(self.within, self.epochs, strict=True))
            if each == own and at * length // self.lengths[own] == index
        ]
        return found[0] if found else None

    @cached_property
    def _first_epoch(self) -> tuple[list[int], bool]:
        """Return (indices of the rare steps within the first epoch that has some, True if those of all such epochs are equal)."""
        of_epochs: dict[int, list[int]] = {}
        for at, epoch in zip(self.within, self.epochs, strict=True):
            of_epochs.setdefault(epoch, []).append(at)
        first, *others = of_epochs.values()
        return first, bool(others) and all(each == first for each in others)

    @cached_property
    def _divide_epochs(self) -> bool:
        """Return True if an evaluation follows each epoch, and rare steps and ends of epochs together come at even intervals."""
        ends = np.cumsum(self.lengths) - 1
        intervals = np.diff(np.sort(np.concatenate([[-1], self.steps, ends])))
        return self.evaluated and bool(np.ptp(intervals) <= 1)

    @cached_property
    def _interval(self) -> tuple[int, int]:
        """Return (interval between rare steps in steps of the run, 0 if it is irregular; steps until the calls appear).

        Calls of a thread that saves may appear in the step after the one that started the save.
        """
        first = self.steps[0]
        every = round((self.steps[-1] - first) / (len(self.steps) - 1)) if len(self.steps) > 1 else first + 1
        regular = first + every * np.arange(len(self.steps))
        late = first + 1 - every
        return (every, late) if np.abs(regular - self.steps).max() <= 1 and 0 <= late <= 1 else (0, 0)


class LastingHelpers:
    """The recorded helpers of the rank `process`: processes that make calls on files for it in several of its steps.

    Loaders of evaluations are an example. In the edited run, the rank starts new helpers for each stretch with calls of helpers.

    A child of the rank is a helper if it uses a pipe that the rank also uses, and is not in `others`. `keep_those_within` then
    drops helpers that worked in only one stretch.

    `kept`: mask of the recorded rows that stay in the edited run; `others`: ranks and loaders of passes.
    """

    def __init__(self, recording: TwinRecording, process: int, kept: NDArray[np.bool_], others: set[int]) -> None:
        columns, header = recording.columns, recording.header
        owner = np.array(header.threads, np.int64)[columns["thread"]]
        on_pipe = np.isin(columns["op"], [Op.PIPE_READ, Op.PIPE_WRITE])
        pipes = np.unique(columns["subject"][on_pipe & (owner == process)])
        served = set(owner[on_pipe & np.isin(columns["subject"], pipes)].tolist())
        own = {child for child, parent in enumerate(header.parents) if parent == process} & served - others
        on_file = columns["op"] < Op.PIPE_WRITE
        self._calls_ns = {each: np.sort(columns["at_ns"][on_file & (owner == each)]) for each in sorted(own)}
        self._rows = {each: ProcessRows(recording, each, kept & on_file) for each in self._calls_ns}

    def __contains__(self, process: int) -> bool:
        return process in self._calls_ns

    def calls(self, stretches: Sequence[Stretch]) -> _Ints:
        """Return how many calls on files helpers made in each of the stretches, which are in order of time."""
        found = np.zeros(len(stretches), np.int64)
        for times in self._calls_ns.values():
            places = _places(times, stretches)
            found += np.bincount(places[places >= 0], minlength=len(stretches))
        return found

    def keep_those_within(self, stretches: Sequence[Stretch]) -> bool:
        """Forget helpers that made calls on files in one of the stretches only, or outside of all; return whether any were."""
        before, in_order = len(self._calls_ns), sorted(stretches, key=lambda stretch: (stretch.begin_ns, stretch.end_ns))
        for helper, times in list(self._calls_ns.items()):
            places = _places(times, in_order)
            if (places < 0).any() or len(np.unique(places)) < 2:
                del self._calls_ns[helper]
        return len(self._calls_ns) < before

    def start(self, builder: RowBuilder, rank: ProcessLine, stretch: Stretch) -> list[int]:
        """Append the starts of new helpers that make the calls of the stretch. Return their processes."""
        found = []
        for helper, times in self._calls_ns.items():
            if (_places(times, [stretch]) >= 0).any():
                line = ProcessLine(builder, builder.new_process(rank.process))
                [part] = self._rows[helper].cut(np.array([stretch.begin_ns, stretch.end_ns]))
                line.play(part)
                line.main.add(Op.END, 0)
                rank.main.add(Op.START, line.process)
                found.append(line.process)
        return found


def _places(times_ns: _Ints, stretches: Sequence[Stretch]) -> _Ints:
    """Return, for each time, the index of the stretch that contains it; -1 if none does. Stretches are in order of time."""
    bounds = np.array([(stretch.begin_ns, stretch.end_ns) for stretch in stretches], np.int64).reshape(-1, 2)
    places = np.searchsorted(bounds[:, 0], times_ns, side="right") - 1
    found: _Ints = np.where((places >= 0) & (times_ns < np.append(bounds[:, 1], 0)[places]), places, -1)
    return found


def find_rare_steps(
    passes: list[RankPass], helpers: LastingHelpers, elsewhere: list[Stretch]
) -> tuple[RareSteps, list[NDArray[np.bool_]]]:
    """Return the rare steps of training, and by epoch a mask of its rare steps: those with over twice the usual calls.

    Of neighbouring rare steps, only the first counts, because a thread that saves may continue while later steps compute.
    `helpers` loses the helpers that also work outside of rare steps and of the stretches `elsewhere`.
    """
    epochs = [each.steps for each in passes if each.training]
    evaluated = all(not later for own, later in pairwise([*(each.training for each in passes), True]) if own)
    while True:
        counts = [np.array([_calls(stretch) for stretch in steps], np.int64) + helpers.calls(steps) for steps in epochs]
        usual = float(np.median(np.concatenate(counts))) if counts else 0.0
        rare = [count > 2 * usual for count in counts]
        found = [steps[at] for steps, own in zip(epochs, rare, strict=True) for at in np.flatnonzero(own).tolist()]
        if not helpers.keep_those_within([*found, *elsewhere]):
            break
    begins = np.append(0, np.cumsum([len(each) for each in rare]))
    first = [(int(begins[epoch]) + run[0], run[0], epoch) for epoch, each in enumerate(rare) for run in runs_of(each)]
    steps, within, numbers = ([each[i] for each in first] for i in range(3))
    return RareSteps(steps, within, numbers, [len(each) for each in rare], evaluated), rare


def rare_stretches(passes: list[RankPass], rare: list[NDArray[np.bool_]]) -> list[tuple[Stretch, bool]]:
    """Return, for each rare step, what the rank did in addition to computing, and whether it did that before it computed."""
    found = []
    for each, is_rare in zip((each for each in passes if each.training), rare, strict=True):
        for run in runs_of(is_rare):
            parts = [after_computation(each.steps, is_rare, index) for index in run]
            found.append((reduce(Stretch.followed_by, [stretch for stretch, _ in parts]), parts[0][1]))
    return found


def after_computation(steps: list[Stretch], rare: NDArray[np.bool_], index: int) -> tuple[Stretch, bool]:
    """Return what the rank did in a rare step in addition to a usual step, and True if it did so before its computation."""
    usual = [stretch.think_ns for stretch, is_rare in zip(steps, rare.tolist(), strict=True) if not is_rare]
    computation, stretch = int(np.median(usual or [0])), steps[index]
    first, last = (int(stretch.at[at]) for at in (0, -1)) if len(stretch.at) else (stretch.end, stretch.end)
    before = min(computation, first - stretch.begin)
    end = max(stretch.end - (computation - before), last)
    return replace(stretch, begin=stretch.begin + before, end=end), 2 * before < computation


def runs_of(rare: NDArray[np.bool_]) -> list[list[int]]:
    """Return the runs of neighbouring indices at which `rare` is True."""
    at = np.flatnonzero(rare)
    return [run.tolist() for run in np.split(at, np.flatnonzero(np.diff(at) > 1) + 1) if len(run)]


def _calls(stretch: Stretch) -> int:
    return len(stretch.rows) + sum(len(rows) for _, rows, _ in stretch.others)
