"""Verifies a script: runs it again, resumes it at chosen batches, compares all steps, and names the first difference."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

from iotwin.common.checkpoints import checkpoints
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import make_folder
from iotwin.common.foreign_files import read_foreign_end, read_foreign_json
from iotwin.workloads.detrain.randomness.determinism import OFF, environment
from iotwin.workloads.detrain.saving.script_store import FOLDER
from iotwin.workloads.detrain.verify.compared_steps import LoggedStep, StepDifference, first_difference, read_steps
from iotwin.workloads.detrain.verify.events import StepEvent, first_differing_event, read_events
from iotwin.workloads.detrain.verify.observed_run import LOADER, RunRequest
from iotwin.workloads.detrain.verify.script_runs import ScriptRuns

Point = tuple[int, int]  # epoch and batch, from 0
DROPS = ("rng", "loader", "scaler", "threads", "workers")
_PLAIN, _SAVING = "plain", "saving"  # folders of runs that save nothing, and of those that save or resume
_FRESH = ("--resume", "never")
_OTHER_WORKERS = 2


class VerifiedScript(NamedTuple):
    """What to verify, and how it runs. `output`: an existing folder; `inst`: file with the script's loops, in it."""

    script: Path
    arguments: Sequence[str]
    output: Path
    inst: Path
    determinism: str
    seed: int


class ScriptRun(NamedTuple):
    """How a run ended. `error`: the last line that it printed if it failed; `document`: its run.json."""

    steps: list[LoggedStep]
    document: dict[str, Any]
    error: str | None


class Verifier:
    """Runs the script and compares each run with the first, the reference. `drop`: a member of DROPS that resumed runs lack."""

    def __init__(self, script: VerifiedScript, drop: str | None) -> None:
        self._script, self._drop = script, drop
        self._reference_events: dict[int, list[StepEvent]] = {}
        self._count = 0

    def __enter__(self) -> Self:
        self._opened = ExitStack()
        self._runs = self._opened.enter_context(ScriptRuns(environment(self._script.determinism, self._script.seed)))
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()

    @property
    def saved_in(self) -> Path:
        """The output directory of the run that saves."""
        return self._script.output / _SAVING

    # Runs

    def run_reference(self) -> list[LoggedStep]:
        """Run the script for the first time and return its steps. Raises IotwinError if it fails."""
        self.reference = self._run(self._runs, "reference", _PLAIN, _FRESH)
        if self.reference.error is not None:
            raise IotwinError(f"{self._script.script} must run to its end to be verified, but it failed: {self.reference.error}")
        return self.reference.steps

    def save_at(self, points: Sequence[Point]) -> dict[str, Any]:
        """Run the script again, and save its state before the batches at `points`. Return whether this has changed its steps."""
        at = ",".join(f"{epoch}:{batch}" for epoch, batch in points)
        return self._compared(self._run(self._runs, "saving", _SAVING, (*_FRESH, "--at", at)))

    def rerun(self) -> dict[str, Any]:
        """Run the script again. Return whether its steps are equal, and their first difference."""
        return self._compared(self._run(self._runs, self._new_name("rerun"), _PLAIN, _FRESH))

    def _compared(self, run: ScriptRun) -> dict[str, Any]:
        difference = self._located(first_difference(self.reference.steps, run.steps), _PLAIN, _FRESH, {})
        return {"equal": difference is None and run.error is None, "first_difference": difference, "error": run.error}

    def resume(self, point: Point, workers: int | None, without: Sequence[str] = ()) -> dict[str, Any]:
        """Resume at a saved batch, in a new process. Return whether the later steps are equal, and their first difference.

        `workers`: of all data loaders, None for the script's own. `without`: parts of the state that are not restored.
        """
        first = next(index for index, step in enumerate(self.reference.steps) if (step.epoch, step.batch) == point)
        options, observed = ("--resume", self.checkpoint(point), *self._options_of(workers, without)), self._observed(without)
        run = self._run(self._runs, self._new_name("resumed"), _SAVING, options, **observed)
        difference = first_difference(self.reference.steps, run.steps, first)
        elsewhere = run.document.get("differs_from_saved", [])
        return {
            "epoch": point[0], "batch": point[1], "replay": run.document.get("replay"), "workers": workers,
            "equal": difference is None and run.error is None and not elsewhere,
            "first_difference": self._located(difference, _SAVING, options, observed),
            "differs_from_saved": elsewhere, "error": run.error,
        }  # fmt: skip

    def variance(self, runs: int) -> dict[str, Any] | None:
        """Return how far the last loss of `runs` runs spreads without determinism, None without two losses."""
        losses = []
        with ScriptRuns({}) as server:  # without the environment that fixes the hashes of strings
            for _ in range(runs):
                run = self._run(server, self._new_name("off"), _PLAIN, (*_FRESH, "--determinism", OFF))
                losses += [float.fromhex(step.loss[-1]) for step in run.steps if step.loss][-1:]
        mean = sum(losses) / max(len(losses), 1)
        if len(losses) < 2 or not math.isfinite(mean):
            return None
        spread = max(losses) - min(losses)
        return {"determinism": OFF, "relative_spread": spread / abs(mean) if spread else 0.0}

    def _run(self, server: ScriptRuns, name: str, folder: str, options: Sequence[str], **observed: Any) -> ScriptRun:
        """Run the script with `options` besides those of all runs. `name`: of its steps log and of what it prints."""
        script, output = self._script, self._script.output
        make_folder(output / "runs")
        log, printed = output / "runs" / f"{name}.jsonl", output / "runs" / f"{name}.txt"
        command = [
            *("-o", str(output / folder), "--steps-log", str(log), "--inst", str(script.inst), "--force"),
            *("--determinism", script.determinism, "--seed", str(script.seed)),
            *options,
            *(str(script.script), *script.arguments),
        ]
        request = RunRequest(options=command, output=str(printed), keys_items=self._drop != "workers", **observed)
        status = server.run(request)
        error = None if status == 0 else _last_line(printed) or f"exit status {status}"
        steps = read_steps(log) if log.exists() or error is None else []
        document = output / folder / "run.json"
        return ScriptRun(steps, {} if error else read_foreign_json(document), error)

    def _new_name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}"

    def checkpoint(self, point: Point) -> str:
        """Return the name of the checkpoint at a point. Raises IotwinError if none was saved there."""
        for found in checkpoints(self.saved_in / FOLDER):
            if found.manifest is not None and (found.manifest.epoch, found.manifest.position.position) == point:
                return found.name
        raise IotwinError(f"epoch {point[0]}, batch {point[1]}: the script has saved no checkpoint there")

    def _options_of(self, workers: int | None, without: Sequence[str]) -> list[str]:
        if self._drop == "workers":
            workers = _OTHER_WORKERS
        dropped = [name for name in ("rng", "scaler") if name == self._drop or name in without]
        number = [] if workers is None else ["--workers", str(workers)]
        return [*number, *(word for name in dropped for word in ("--drop", name))]

    def _observed(self, without: Sequence[str]) -> dict[str, Any]:
        observed: dict[str, Any] = {"without": [*without, *([LOADER] if self._drop == LOADER else [])]}
        if self._drop == "threads":
            observed["threads"] = 1 if self.reference.document["manifest"]["threads"] != 1 else 2
        return observed

    # Differences

    def _located(
        self, difference: StepDifference | None, folder: str, options: Sequence[str], observed: dict[str, Any]
    ) -> StepDifference | None:
        """Return the tensor and the operation that differ first in the step: both runs are repeated up to it and record it."""
        if difference is None or difference.step >= len(self.reference.steps):
            return difference
        step = difference.step
        if step not in self._reference_events:
            self._reference_events[step] = self._events(_PLAIN, _FRESH, step, {})
        expected, found = self._reference_events[step], self._events(folder, options, step, observed)
        located = first_differing_event(step, expected, found) if expected and found else None
        return located or difference

    def _events(self, folder: str, options: Sequence[str], step: int, observed: dict[str, Any]) -> list[StepEvent]:
        """Return the events of a step, none if the run does not come to it."""
        at, name = self.reference.steps[step], self._new_name("recorded")
        record = self._script.output / "runs" / f"{name}.record"
        self._run(self._runs, name, folder, options, record=str(record), record_at=(at.epoch, at.batch), **observed)
        return read_events(record) if record.exists() else []


def resume_points(text: str, steps: Sequence[LoggedStep], seed: int) -> list[Point]:
    """Return the points of --resume-at: `all`, `sample:N` or `E:B,...`. Raises UsageError for others, or a batch without step.

    A sample has the first and the last batch, the first of a later epoch, and batches drawn from all of them.
    """
    from iotwin.common.numbers.keyed import Purpose, generator
    from iotwin.workloads.detrain.options import points

    known = [(step.epoch, step.batch) for step in steps]
    if text == "all":
        return known
    kind, _, count = text.partition(":")
    if kind == "sample":
        if not (count.isdecimal() and int(count)):
            raise UsageError(f"--resume-at {text}: give sample:N with a number above 0")
        starts = [point for point in known[1:] if point[1] == 0][:1]
        drawn = [known[index] for index in generator(seed, Purpose.ITEM).permutation(len(known))]
        chosen = list(dict.fromkeys([known[len(known) // 2], *starts, known[-1], known[0], *drawn]))
        return sorted(chosen[: int(count)])
    wanted = points(text)
    if missing := [point for point in wanted if point not in known]:
        raise UsageError(f"--resume-at: the run has no batch {missing[0][1]} in epoch {missing[0][0]}; its last is {known[-1]}")
    return wanted


def _last_line(printed: Path) -> str:
    lines = [line.strip() for line in read_foreign_end(printed).splitlines() if line.strip()]
    return lines[-1] if lines else ""
