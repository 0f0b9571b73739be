"""An experiment: a YAML that describes training jobs as a grid of cells. A cell is one run of one job."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from iotwin.common.errors import UsageError, nearest
from iotwin.common.units import parse_duration
from iotwin.common.workloads import EMULATED, workload_named
from iotwin.workload_yaml.yaml12 import parse, read_text

EMULATOR_IMAGE = "dlio:latest"  # name of the emulator's image in the scripts of benchmark/
SHIPPED = Path(__file__).parents[2] / "experiments"
_WITHOUT = "without"  # stands in a cell's name for an option of `sweep` that the cell does not have
_ORDER = 0xE59E  # together with the seed, the key of the random order of cells
_MOST_CELLS = 10_000  # most cells of an experiment; each takes seconds at least
# Options of jobs that iotwin run sets: another value would move the results, or contradict the cell's name.
_OPTIONS_OF_CELLS = ("data", "output", "batch-size", "variant", "seed", "workers")
# options with which iotwin generate writes elsewhere, or nothing
_NOT_TO_GENERATE = ("--output", "--dry-run", "--verify", "--help")

Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Name = Annotated[str, msgspec.Meta(pattern=r"\A(?!\.{1,2}\Z)[A-Za-z0-9_.-]+\Z", max_length=64)]


class ExperimentDataSet(msgspec.Struct, forbid_unknown_fields=True):
    """A data set: an existing folder, or options of `iotwin generate`."""

    workload: str
    folder: str | None = None
    generate: list[str] | None = None  # options of iotwin generate after the workload, without -o


class Jobs(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of `jobs`: describes a cell of one workload for each combination of the values in its lists."""

    workload: str
    data: list[Name]
    variant: Annotated[list[str], msgspec.Meta(min_length=1)]
    ranks: Annotated[list[Positive], msgspec.Meta(min_length=1)] = msgspec.field(default_factory=lambda: [1])
    batch: Annotated[list[Positive], msgspec.Meta(min_length=1)] = msgspec.field(default_factory=lambda: [1])
    # Number of loader processes of each rank.
    workers: Annotated[list[Count], msgspec.Meta(min_length=1)] = msgspec.field(default_factory=lambda: [1])
    # options of the workload's program; true stands for an option without a value
    options: dict[str, str | int | float | bool] = {}
    # Options with a cell for each value. The value null is a cell without the option, as a reference for the others.
    sweep: dict[str, Annotated[list[str | int | float | None], msgspec.Meta(min_length=1)]] = {}
    sleep: str | None = None  # value for the variant sleep: measured or regression (the paper's V100s), or a value of --sleep
    emulate: list[str] = []  # arguments for the variant emulated: a YAML or workload=NAME, then overrides


class Experiment(msgspec.Struct, forbid_unknown_fields=True):
    """The content of an experiment's YAML."""

    name: Name
    data: dict[Name, ExperimentDataSet]
    jobs: Annotated[list[Jobs], msgspec.Meta(min_length=1)]
    seed: Count = 1  # seed of the cells' order, and of the jobs
    repeats: Positive = 1
    container: bool = True  # run each cell in a container; else as processes of this machine
    hosts: list[str] = []  # hosts that ssh knows, on all of which each cell runs; if empty, on this machine
    gpus: bool = False  # give each rank a GPU; else ranks compute on CPUs
    time_limit: str = "1h"  # a cell that runs longer is ended
    plot: Literal["timeline", "steps"] | None = None  # pictures to draw of the finished cells
    # Container image of each workload (default WORKLOAD:{variant}, with the variant's name) and of the emulator.
    images: dict[str, str] = {}

    @property
    def limit_s(self) -> float:
        """Seconds that a cell may take."""
        return parse_duration(self.time_limit) / 1e9


@dataclass(frozen=True)
class Cell:
    """One run of one job."""

    jobs: Jobs
    variant: str
    data: str
    ranks: int
    batch: int
    workers: int
    swept: tuple[str | int | float | None, ...]  # one value for each key of the jobs' `sweep`
    repeat: int

    @property
    def options(self) -> dict[str, str | int | float | bool]:
        """The options of the workload's program, without those that iotwin run itself sets."""
        given = self.jobs.options | dict(zip(self.jobs.sweep, self.swept, strict=True))
        return {name: value for name, value in given.items() if value is not None}

    @property
    def name(self) -> str:
        """Unique name of the cell, and of its directory."""
        swept = [_WITHOUT if value is None else value for value in self.swept]
        sizes = "".join(f"-{value}" for value in (f"r{self.ranks}", f"b{self.batch}", f"w{self.workers}", *swept))
        return f"{self.jobs.workload}-{self.variant}-{self.data}{sizes}-{self.repeat}"

    def parameters(self) -> dict[str, Any]:
        """The cell's values on the axes of the grid."""
        return {"workload": self.jobs.workload, "variant": self.variant, "data": self.data, "ranks": self.ranks,
                "batch": self.batch, "workers": self.workers, "repeat": self.repeat,
                **({"options": dict(zip(self.jobs.sweep, self.swept, strict=True))} if self.swept else {})}  # fmt: skip


def read_experiment(source: Path) -> Experiment:
    """Return the experiment in the YAML `source`, or the shipped one of that name. Raises UsageError if it is not valid."""
    path = source
    if not source.exists():
        path = SHIPPED / f"{source.name.removesuffix('.yaml')}.yaml"
        if len(source.parts) != 1 or not path.exists():
            known = sorted(each.stem for each in SHIPPED.glob("*.yaml"))
            raise UsageError(f"{source}: no such experiment{nearest(source.name, known)}; give a YAML, or {', '.join(known)}")
    try:
        experiment = msgspec.convert(parse(read_text(path), str(source)), Experiment)
    except msgspec.ValidationError as error:
        raise UsageError(f"{source}: {error}") from None
    _check(experiment, source)
    return experiment


def _check(experiment: Experiment, source: Path) -> None:
    """Raise UsageError for errors that types cannot exclude: unknown names, too many cells, keys that a variant lacks."""
    if experiment.limit_s <= 0:
        raise UsageError(f"{source}: time_limit is 0; give for example 30min")
    for name in [*(data.workload for data in experiment.data.values()), *(jobs.workload for jobs in experiment.jobs)]:
        workload_named(name)
    for name in experiment.images:
        if name != EMULATED:
            workload_named(name)
    for name, data in experiment.data.items():
        _check_data(data, f"{source}: data.{name}")
    for index, jobs in enumerate(experiment.jobs):
        _check_jobs(jobs, experiment.data, f"{source}: jobs[{index}]")
    if experiment.repeats * sum(map(_cells_of, experiment.jobs)) > _MOST_CELLS:
        raise UsageError(f"{source}: it has more than {_MOST_CELLS} cells; shorten its lists, its sweeps or repeats")
    for name, times in Counter(cell.name for cell in cells(experiment)).most_common(1):
        if times > 1:
            raise UsageError(f"{source}: the cell {name} is there twice; merge the jobs that make it")


def _check_data(data: ExperimentDataSet, where: str) -> None:
    """Raise UsageError if a data set has both `folder` and `generate` or neither, or if its options choose a folder.

    `generate` has options of `iotwin generate`. `where` begins the message: the entry's place in the file.
    """
    if (data.folder is None) == (data.generate is None):
        raise UsageError(f"{where} needs either folder or generate")
    for word in data.generate or ():
        if word.startswith(("-o", "-h")) or _shortens(word, _NOT_TO_GENERATE):
            raise UsageError(f"{where}: generate cannot take '{word}': iotwin run chooses the data's directory")


def _check_jobs(jobs: Jobs, data: dict[str, ExperimentDataSet], where: str) -> None:
    """Raise UsageError if jobs name an unknown data set or variant, or lack the key that a variant requires."""
    for name in jobs.data:
        if name not in data:
            raise UsageError(f"{where}: no data set '{name}'{nearest(name, list(data))}")
        if data[name].workload != jobs.workload:
            raise UsageError(f"{where}: data set '{name}' is for {data[name].workload}, not {jobs.workload}")
    for variant in jobs.variant:
        known = list(workload_named(jobs.workload).variants)
        if variant not in known:
            raise UsageError(f"{where}: no variant '{variant}'{nearest(variant, known)}; known: {', '.join(known)}")
    if "sleep" in jobs.variant and jobs.sleep is None:
        raise UsageError(f"{where}: the variant sleep needs sleep: measured, regression, SECONDS or MEAN,STDEV")
    if EMULATED in jobs.variant and not jobs.emulate:
        raise UsageError(f"{where}: the variant emulated needs emulate: [TWIN.yaml or workload=NAME, ...]")
    _check_options(jobs, where)


def _check_options(jobs: Jobs, where: str) -> None:
    """Raise UsageError if a swept value cannot name a directory, or if the cell itself sets an option."""
    for value in itertools.chain(*jobs.sweep.values()):
        if value is not None and not re.fullmatch(r"[A-Za-z0-9_.+-]{1,40}", str(value)):
            raise UsageError(f"{where}: sweep value '{value}' cannot be part of a directory's name; use letters, digits, . _ + -")
    for name in (*jobs.options, *jobs.sweep):
        if _shortens(f"--{name}", tuple(f"--{own}" for own in _OPTIONS_OF_CELLS)):
            raise UsageError(f"{where}: the option '{name}' is the cell's own; use the keys data, batch, workers, seed")


def _shortens(word: str, options: tuple[str, ...]) -> bool:
    """Return whether argparse takes `word` for one of `options`, which may be shortened or end in "=VALUE"."""
    name = word.partition("=")[0]
    return name.startswith("--") and any(option.startswith(name) for option in options)


def _cells_of(jobs: Jobs) -> int:
    lists: tuple[Sized, ...] = (jobs.variant, jobs.data, jobs.ranks, jobs.batch, jobs.workers, *jobs.sweep.values())
    return math.prod(len(each) for each in lists)


def cells(experiment: Experiment) -> list[Cell]:
    """Return all cells in the order in which they run: repeat by repeat, each in a random order keyed by the seed.

    Cells that differ in swept options only are run in succession, also in random order, since their results are compared.
    """
    rng = np.random.default_rng((experiment.seed, _ORDER))
    found: list[Cell] = []
    for repeat in range(1, experiment.repeats + 1):
        alike = [
            [Cell(jobs, *values, swept, repeat) for swept in itertools.product(*jobs.sweep.values())]
            for jobs in experiment.jobs
            for values in itertools.product(jobs.variant, jobs.data, jobs.ranks, jobs.batch, jobs.workers)
        ]
        for index in rng.permutation(len(alike)):
            cells_of = alike[index]
            found += [cells_of[each] for each in (rng.permutation(len(cells_of)) if len(cells_of) > 1 else (0,))]
    return found
