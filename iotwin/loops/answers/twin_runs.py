"""Run variants of a twin alternately, and compare their training."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from iotwin.command_lines import own_command
from iotwin.common.errors import IotwinError
from iotwin.common.files import scratch_folder
from iotwin.common.numbers.confidence import Estimate, mean
from iotwin.common.progress import note
from iotwin.common.untrusted_files import read_foreign_json
from iotwin.loops.page_cache_state import evict, fetch

_LONGEST_LINE = 500  # characters of an error that are repeated


@dataclass(frozen=True)
class TwinVariant:
    """A variant of a twin: words such as ++workload.reader.read_threads=4, and whether its data are evicted before a run."""

    name: str
    overrides: tuple[str, ...] = ()
    is_cold: bool = False


class TrainingFigures(NamedTuple):
    """The training of one run, as in `iotwin.training` of its summary. `au`: 0 to 1, or None if it is unknown."""

    step_s: float
    epoch_s: float  # mean over epochs
    au: float | None
    summary: dict[str, Any]


def run_variants(
    twin: Path, variants: Sequence[TwinVariant], runs: int, data: Sequence[Path] = (), clock: str = "real"
) -> dict[str, list[TrainingFigures]]:
    """Run each variant of the workload `twin` `runs` times, in turn, and return the figures of its runs by the variant's name.

    `data`: files of the data set, which are read or evicted before each run, so that all runs of a variant find the same cache.
    Nothing is written outside of a temporary folder. Raises IotwinError with the reason if a run fails, or trains no step.
    """
    found: dict[str, list[TrainingFigures]] = {variant.name: [] for variant in variants}
    with scratch_folder() as folder:
        for turn in range(runs):
            for variant in variants:
                note(f"{variant.name}: run {turn + 1} of {runs}")
                for path in data:
                    (evict if variant.is_cold else fetch)(path)
                found[variant.name].append(_run(twin, variant, folder / f"{turn}-{len(found[variant.name])}", clock))
    return found


def ratios(changed: Sequence[TrainingFigures], unchanged: Sequence[TrainingFigures], of_run: bool = False) -> Estimate | None:
    """Return the ratio of step times, changed by unchanged, with its 95 % interval over pairs of runs; None without pairs.

    `of_run`: the ratio of the durations of whole runs instead.
    """
    pairs = [
        [each.summary["iotwin"]["elapsed_s"] if of_run else each.step_s for each in pair]
        for pair in zip(changed, unchanged, strict=True)
    ]
    return mean(np.array([one / other for one, other in pairs]))


def _run(twin: Path, variant: TwinVariant, output: Path, clock: str) -> TrainingFigures:
    words = [
        *variant.overrides,
        f"++workload.output.folder={output}",
        f"++workload.checkpoint.checkpoint_folder={output}/checkpoints",
        *([] if clock == "real" else [f"++workload.twin.clock={clock}"]),
    ]
    done = subprocess.run(own_command("emulate", twin, *words, "--quiet"), capture_output=True, check=False, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1][:_LONGEST_LINE]
        raise IotwinError(f"{variant.name}: {reason.removeprefix('iotwin emulate: ')}")
    summary = read_foreign_json(output / "summary.json")
    training = summary["iotwin"]["training"]
    if training is None:
        raise IotwinError(f"{variant.name}: {twin} trains no step that can be timed")
    return TrainingFigures(training["step_s"], float(np.mean(training["epoch_s"])), training["au"], summary)
