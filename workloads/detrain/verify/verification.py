"""Verifies a script: runs it again, resumes it at chosen batches, compares all steps, and names the first difference."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from iotwin.common.checkpoints import checkpoints
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import make_folder
from iotwin.common.ranks import claimed_ports
from iotwin.common.untrusted_files import read_foreign_end, read_foreign_json
from iotwin.workloads.detrain.randomness.determinism import OFF
from iotwin.workloads.detrain.resumption import RESTORE
from iotwin.workloads.detrain.saving.script_store import FOLDER
from iotwin.workloads.detrain.script_ranks import path_of_rank
from iotwin.workloads.detrain.verify.compared_steps import LoggedStep, StepDifference, first_difference_of_ranks, read_steps
from iotwin.workloads.detrain.verify.events import StepEvent, first_differing_event, read_events
from iotwin.workloads.detrain.verify.observed_run import LOADER, RunRequest
from iotwin.workloads.detrain.verify.script_runs import ScriptRuns

Point = tuple[int, int]  # epoch and batch, from 0
_PLAIN, _SAVING = "plain", "saving"  # folder of runs that save nothing; folder of runs that save or resume
_FRESH = ("--resume", "never")
_MORE_WORKERS = 2  # additional worker processes of a resumed run if "workers" is dropped


class VerifiedScript(NamedTuple):
    """What to verify, and how it runs. `output`: an existing folder; `inst`: file with the script's loops, in it.

    `replay`: how resumed runs reach their batch, as in `iotwin detrain run`.
    """

    script: Path
    arguments: Sequence[str]
    output: Path
    inst: Path
    determinism: str
    seed: int
    ranks: int = 1
    replay: str = RESTORE


class ScriptRun(NamedTuple):
    """How a run ended.

    `steps`: steps of each rank; `error`: the last line that it printed if it failed; `document`: its run.json.
    """

    steps: list[list[LoggedStep]]
    document: dict[str, Any]
    error: str | None


class Verifier:
    """Runs the script on a server and compares each run with the first, the reference.

    `workers`: worker processes of each data loader in all runs, None for the script's own number. `drop`: what resumed runs leave
    out: rng, loader, scaler, threads or workers.
    """

    def __init__(self, script: VerifiedScript, server: ScriptRuns, workers: int | None = None, drop: str | None = None) -> None:
        self._script, self._server, self.workers, self._drop = script, server, workers, drop
        self._label = "" if workers is None else f"-{workers}-workers"
        self._plain = script.output / _PLAIN  # output directory of runs that save nothing
        self.saved_in = script.output / f"{_SAVING}{self._label}"  # output directory of the run that saves
        self._reference_events: dict[tuple[int, int], list[StepEvent]] = {}  # by rank and step
        self._count = 0

    # Runs

    def run_reference(self) -> list[LoggedStep]:
        """Run the script for the first time and return the steps of rank 0. Raises IotwinError if it fails."""
        self.reference = self._run(f"reference{self._label}", self._plain, _FRESH)
        if self.reference.error is not None:
            raise IotwinError(f"{self._script.script} must run to its end to be verified, but it failed: {self.reference.error}")
        return self.reference.steps[0]

    def is_like(self, other: "Verifier") -> bool:
        """Return whether the reference runs of both verifiers have equal steps."""
        return self._difference(other.reference, 0) is None

    def save_at(self, points: Sequence[Point]) -> dict[str, Any]:
        """Run the script again, saving its state before the batches at `points`. Return whether its steps remain equal."""
        at = ",".join(f"{epoch}:{batch}" for epoch, batch in points)
        return self._compared(self._run(f"saving{self._label}", self.saved_in, (*_FRESH, "--at", at)))

    def rerun(self) -> dict[str, Any]:
        """Run the script again. Return whether its steps equal the reference's, and the first difference, None if equal."""
        return self._compared(self._run(self._new_name("rerun"), self._plain, _FRESH))

    def _compared(self, run: ScriptRun) -> dict[str, Any]:
        difference = self._located(self._difference(run, 0), self._plain, _FRESH, {})
        equal = difference is None and run.error is None
        return {"equal": equal, "workers": self.workers, "first_difference": difference, "error": run.error}

    def resume(self, point: Point, without: Sequence[str] = ()) -> dict[str, Any]:
        """Resume at a saved batch, in a new process. Return whether all later steps equal the reference's.

        The document also has the first difference.
        `without`: parts of the state that are not restored.
        """
        run, difference = self._resumed(point, without)
        elsewhere = run.document.get("differs_from_saved", [])
        options, observed = self._resuming(point, without)
        return {
            "epoch": point[0], "batch": point[1], "replay": run.document.get("replay"), "workers": self.workers,
            "equal": difference is None and run.error is None and not elsewhere,
            "first_difference": self._located(difference, self.saved_in, options, observed),
            "differs_from_saved": elsewhere, "error": run.error,
        }  # fmt: skip

    def resumes_without(self, point: Point, without: Sequence[str]) -> bool:
        """Return whether a run that resumes without these parts of the state has the same later steps as the reference."""
        run, difference = self._resumed(point, without)
        return difference is None and run.error is None

    def _resumed(self, point: Point, without: Sequence[str]) -> tuple[ScriptRun, StepDifference | None]:
        first = next(index for index, step in enumerate(self.reference.steps[0]) if (step.epoch, step.batch) == point)
        options, observed = self._resuming(point, without)
        run = self._run(self._new_name("resumed"), self.saved_in, options, **observed)
        return run, self._difference(run, first)

    def _resuming(self, point: Point, without: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
        """Return the options of a run that resumes at a point, and further fields of its RunRequest."""
        dropped = [name for name in ("rng", "scaler") if name == self._drop or name in without]
        more = ["--workers", str((self.workers or 0) + _MORE_WORKERS)] if self._drop == "workers" else []
        observed: dict[str, Any] = {"without": [*without, *([LOADER] if self._drop == LOADER else [])]}
        if self._drop == "threads":
            observed["threads"] = 1 if self.reference.document["manifest"]["threads"] != 1 else 2
        drops = [word for name in dropped for word in ("--drop", name)]
        return ["--resume", self.checkpoint(point), "--replay", self._script.replay, *more, *drops], observed

    def last_loss(self) -> float | None:
        """Run the script without determinism and return its last loss, None if it has none."""
        run = self._run(self._new_name("off"), self._plain, (*_FRESH, "--determinism", OFF))
        return next((float.fromhex(step.loss[-1]) for step in reversed(run.steps[0]) if step.loss), None)

    def _run(self, name: str, folder: Path, options: Sequence[str], **observed: Any) -> ScriptRun:
        """Run the script with `options` in addition to those of all runs. `name`: file name of its steps log and its output."""
        script = self._script
        runs = script.output / "runs"
        make_folder(runs)
        log, printed = runs / f"{name}.jsonl", runs / f"{name}.txt"
        command = [
            *("-o", str(folder), "--steps-log", str(log), "--inst", str(script.inst), "--force"),
            *("--determinism", script.determinism, "--seed", str(script.seed)),
            *([] if self.workers is None else ["--workers", str(self.workers)]),
            *options,
            *(str(script.script), *script.arguments),
        ]
        with claimed_ports(1) as port:
            request = RunRequest(
                options=command,
                output=str(printed),
                keys_items=self._drop != "workers",
                ranks=script.ranks,
                port=port,
                **observed,
            )
            end = self._server.run(request)
        error = None if end.status == 0 else _last_line(path_of_rank(printed, end.rank)) or f"exit status {end.status}"
        if error and script.ranks > 1:
            error = f"rank {end.rank}: {error}"
        logs = [path_of_rank(log, rank) for rank in range(script.ranks)]
        steps = [read_steps(each) if each.exists() or error is None else [] for each in logs]
        return ScriptRun(steps, {} if error else read_foreign_json(folder / "run.json"), error)

    def _new_name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}{self._label}"

    def checkpoint(self, point: Point) -> str:
        """Return the name of the checkpoint at a point. Raises IotwinError if none was saved there."""
        for found in checkpoints(self.saved_in / FOLDER):
            if found.manifest is not None and (found.manifest.epoch, found.manifest.position.position) == point:
                return found.name
        raise IotwinError(f"epoch {point[0]}, batch {point[1]}: the script has saved no checkpoint there")

    # Differences

    def _difference(self, run: ScriptRun, first: int) -> StepDifference | None:
        """Return the first difference of a run that began with step `first` from the reference.

        If the run failed, steps that it lacks are no difference.
        """
        return first_difference_of_ranks(self.reference.steps, run.steps, first, run.error is not None)

    def _located(
        self, difference: StepDifference | None, folder: Path, options: Sequence[str], observed: dict[str, Any]
    ) -> StepDifference | None:
        """Return the first tensor and operation that differ in the step, after both runs are repeated up to it, with a record."""
        if difference is None or difference.step >= len(self.reference.steps[difference.rank]):
            return difference
        rank, step = at = difference.rank, difference.step
        if at not in self._reference_events:
            self._reference_events[at] = self._events(self._plain, _FRESH, rank, step, {})
        expected, found = self._reference_events[at], self._events(folder, options, rank, step, observed)
        located = first_differing_event(step, expected, found) if expected and found else None
        return msgspec.structs.replace(located, rank=rank) if located else difference

    def _events(self, folder: Path, options: Sequence[str], rank: int, step: int, observed: dict[str, Any]) -> list[StepEvent]:
        """Return the events of a step of a rank; [] if the run does not reach the step."""
        at, name = self.reference.steps[rank][step], self._new_name("recorded")
        record = self._script.output / "runs" / f"{name}.record"
        self._run(name, folder, options, record=str(record), record_at=(at.epoch, at.batch), **observed)
        record = path_of_rank(record, rank)
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
