"""An experiment: one YAML that says which training jobs run how, as a grid of cells."""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from common.errors import UsageError, nearest
from common.units import parse_duration
from common.workloads import EMULATED, workload_named
from datagen.dlio.yaml12 import parse, read_text

EMULATOR_IMAGE = "dlio:latest"  # as the benchmark scripts call it
SHIPPED = Path(__file__).parents[2] / "experiments"
_WITHOUT = "without"  # in a cell's name, for an option that it lacks
_ORDER = 0xE59E  # what the draw of the order is keyed by, beside the seed

Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]+$", max_length=64)]


class DataSet(msgspec.Struct, forbid_unknown_fields=True):
    """A data set: a folder that is there, or what `iotwin generate` is told to make one."""

    workload: str
    folder: str | None = None
    generate: list[str] | None = None  # options of iotwin generate after the workload, without -o


class Jobs(msgspec.Struct, forbid_unknown_fields=True):
    """The cells of one workload: the product of all lists."""

    workload: str
    data: list[Name]
    variant: Annotated[list[str], msgspec.Meta(min_length=1)]
    ranks: Annotated[list[Positive], msgspec.Meta(min_length=1)] = msgspec.field(default_factory=lambda: [1])
    batch: Annotated[list[Positive], msgspec.Meta(min_length=1)] = msgspec.field(default_factory=lambda: [1])
    # Loader processes of a rank.
    workers: Annotated[list[Count], msgspec.Meta(min_length=1)] = msgspec.field(default_factory=lambda: [1])
    options: dict[str, str | int | float | bool] = {}  # of the workload's program; a boolean true is a bare --name
    # Options whose values are cells of their own; null is the cell without the option, what the others are held against.
    sweep: dict[str, Annotated[list[str | int | float | None], msgspec.Meta(min_length=1)]] = {}
    sleep: str | None = None  # of the variant sleep: measured or regression (the paper's V100s), or what --sleep takes
    emulate: list[str] = []  # of the variant emulated: a YAML or workload=NAME, then overrides


class Experiment(msgspec.Struct, forbid_unknown_fields=True):
    """What an experiment's YAML says."""

    name: Name
    data: dict[Name, DataSet]
    jobs: Annotated[list[Jobs], msgspec.Meta(min_length=1)]
    seed: Count = 1  # of the order of the cells and of the jobs
    repeats: Positive = 1
    container: bool = True  # each cell in a container of its image; else as processes of this machine
    gpus: bool = False  # a GPU for each rank; else ranks compute on CPUs
    time_limit: str = "1h"  # for a cell
    plot: Literal["timeline", "steps"] | None = None  # what is drawn of the cells that finished
    # image:tag of a workload, default WORKLOAD:{variant}, where `{variant}` stands for the variant; and of the emulator.
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
    swept: tuple[str | int | float | None, ...]  # a value of each option of the jobs' sweep
    repeat: int

    @property
    def options(self) -> dict[str, str | int | float | bool]:
        """The options of the workload's program."""
        given = self.jobs.options | dict(zip(self.jobs.sweep, self.swept, strict=True))
        return {name: value for name, value in given.items() if value is not None}

    @property
    def name(self) -> str:
        """What tells it from all others; also its directory."""
        swept = [_WITHOUT if value is None else value for value in self.swept]
        sizes = "".join(f"-{value}" for value in (f"r{self.ranks}", f"b{self.batch}", f"w{self.workers}", *swept))
        return f"{self.jobs.workload}-{self.variant}-{self.data}{sizes}-{self.repeat}"

    def parameters(self) -> dict[str, Any]:
        """The cell's values on the axes of the grid."""
        return {"workload": self.jobs.workload, "variant": self.variant, "data": self.data, "ranks": self.ranks,
                "batch": self.batch, "workers": self.workers, "repeat": self.repeat,
                **({"options": dict(zip(self.jobs.sweep, self.swept, strict=True))} if self.swept else {})}  # fmt: skip


def read_experiment(source: Path) -> Experiment:
    """Return the experiment of the YAML at `source`, or of that name among those shipped; UsageError when it is none."""
    path = source
    if not source.exists():
        path = SHIPPED / f"{source.name.removesuffix('.yaml')}.yaml"
        if len(source.parts) != 1 or not path.exists():
            known = sorted(each.stem for each in SHIPPED.glob("*.yaml"))
            raise UsageError(f"{source}: no such experiment{nearest(source.name, known)}; give a YAML, or {', '.join(known)}")
    try:
        experiment = msgspec.convert(parse(read_text(path), str(source)), Experiment)
    except OSError as error:
        raise UsageError(f"{source}: {error.strerror}") from None
    except msgspec.ValidationError as error:
        raise UsageError(f"{source}: {error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not YAML: {error}") from None
    _check(experiment, source)
    return experiment


def _check(experiment: Experiment, source: Path) -> None:
    """Refuse what types cannot: names that lead nowhere and options without what they need."""
    if experiment.limit_s <= 0:
        raise UsageError(f"{source}: time_limit is 0; give for example 30min")
    for name in [*(data.workload for data in experiment.data.values()), *(jobs.workload for jobs in experiment.jobs)]:
        workload_named(name)
    for name in experiment.images:
        if name != EMULATED:
            workload_named(name)
    for name, data in experiment.data.items():
        if (data.folder is None) == (data.generate is None):
            raise UsageError(f"{source}: data.{name} needs either folder or generate")
    for index, jobs in enumerate(experiment.jobs):
        where = f"{source}: jobs[{index}]"
        for name in jobs.data:
            if name not in experiment.data:
                raise UsageError(f"{where}: no data set '{name}'{nearest(name, list(experiment.data))}")
            if experiment.data[name].workload != jobs.workload:
                raise UsageError(f"{where}: data set '{name}' is for {experiment.data[name].workload}, not {jobs.workload}")
        for variant in jobs.variant:
            known = list(workload_named(jobs.workload).variants)
            if variant not in known:
                raise UsageError(f"{where}: no variant '{variant}'{nearest(variant, known)}; known: {', '.join(known)}")
        for value in itertools.chain(*jobs.sweep.values()):
            if value is not None and not re.fullmatch(r"[A-Za-z0-9_.+-]{1,40}", str(value)):
                raise UsageError(
                    f"{where}: sweep value '{value}' cannot be part of a directory's name; use letters, digits, . _ + -"
                )
        if "sleep" in jobs.variant and jobs.sleep is None:
            raise UsageError(f"{where}: the variant sleep needs sleep: measured, regression, SECONDS or MEAN,STDEV")
        if EMULATED in jobs.variant and not jobs.emulate:
            raise UsageError(f"{where}: the variant emulated needs emulate: [TWIN.yaml or workload=NAME, ...]")
    names = [cell.name for cell in cells(experiment)]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"{source}: the cell {twice} is there twice; merge the jobs that make it")


def cells(experiment: Experiment) -> list[Cell]:
    """Return all cells in the order in which they run: random, keyed by the seed, a repeat after the other.

    Cells that differ in swept options alone run next to one another, in random order too, as they are there to be compared.
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
