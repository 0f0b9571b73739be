"""Kills a script at many points, resumes it each time by the script's own code, and compares it with the uninterrupted run."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.files import make_folder
from iotwin.common.ranks import claimed_ports
from iotwin.common.removal import remove_own
from iotwin.common.untrusted_files import read_foreign_end
from iotwin.workloads.detrain.court.final_files import FinalFiles, compare_files
from iotwin.workloads.detrain.court.first_difference import Difference, first_difference_of_ranks, resumed_at
from iotwin.workloads.detrain.court.held_calls import unavailable_reason
from iotwin.workloads.detrain.court.kill_points import CALLS, CallLog, KillPoint, checkpoints_in, drawn, kill_points
from iotwin.workloads.detrain.court.own_resume import resume_arguments, resume_template
from iotwin.workloads.detrain.court.script_process import Run, ScriptProcesses, imported_names
from iotwin.workloads.detrain.court.update_log import Update, read_updates
from iotwin.workloads.detrain.forked_runs import RunEnd
from iotwin.workloads.detrain.script_ranks import path_of_rank

EXACT, DIFFERS, FAILS, LOST, NOT_REACHED = "exact", "differs", "does not resume", "lost", "not reached"
NOT_EXACT, NOT_REPEATABLE = "not exact", "not repeatable"
_HASH_SEEDS = (1, 2)  # PYTHONHASHSEED of killed and of resumed runs: they differ, as in restarted processes
# A run counts as hung after this time, or this many times the uninterrupted run's if that is longer.
_LEAST_LIMIT_S, _LIMIT_FACTOR = 120.0, 10.0
_NEXT_SECOND_S = 1.1
_WORK = "{work}"


class CourtCase(NamedTuple):
    """The script to judge. `arguments`: {work} stands for the run's folder; `resume`: arguments to resume, None to find them."""

    script: Path
    arguments: list[str]
    folder: Path
    resume: str | None
    kinds: tuple[str, ...]
    kills: int | None  # None for all
    seed: int
    ranks: int = 1


class Kill(msgspec.Struct):
    """A kill and its verdict. `resumed_at_step`: index from 0 of the first update after the kill; None without an update."""

    at: str
    point: KillPoint
    resumed_at_step: int | None
    verdict: str
    first_difference: Difference | None = None
    bytes_equal: bool | None = None
    error: str | None = None  # the last line that the script printed on standard error


class _Outcome(NamedTuple):
    """A run that has ended. `updates`: updates of each rank."""

    ended: RunEnd
    updates: list[list[Update]]
    calls: CallLog
    work: Path
    errors: Path

    def last_error(self) -> str:
        errors = path_of_rank(self.errors, self.ended.rank)
        lines = [line for line in read_foreign_end(errors).splitlines() if line.strip()]
        rank = f"rank {self.ended.rank}: " if len(self.updates) > 1 else ""
        return rank + (lines[-1].strip() if lines else f"it ended with status {self.ended.status}")


class Trial:
    """The trial of one script. Use it as a context manager: its end also ends the processes that run the script."""

    def __init__(self, case: CourtCase) -> None:
        self._case = case
        names = imported_names(case.script)
        self.processes = tuple(ScriptProcesses(names, seed) for seed in _HASH_SEEDS)
        self._reason = unavailable_reason()
        self._holds = self._reason is None
        self._template = resume_template(case.script) if case.resume is None else case.resume
        self._limit_s = float("inf")
        self._judged = 0

    def __enter__(self) -> "Trial":
        for each in self.processes:
            each.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        for each in self.processes:
            each.close()

    def run_uninterrupted(self) -> None:
        """Run the script twice without a kill. Raises IotwinError if a run fails, or if no weights are updated."""
        begin = time.monotonic()
        self._whole = self._checked(self._run(self._case.folder / "uninterrupted", self._case.seed))
        self._limit_s = max(_LEAST_LIMIT_S, _LIMIT_FACTOR * (time.monotonic() - begin))
        self._checkpoints = self._whole.calls.checkpoints() if self._holds else checkpoints_in(self._whole.work)
        if not self._whole.updates[0]:
            raise IotwinError(f"{self._case.script}: no optimizer of PyTorch updated weights, so there is nothing to compare")
        # File names and contents may contain the time in seconds. Two runs in the same second would look repeatable.
        time.sleep(_NEXT_SECOND_S)
        again = self._checked(self._run(self._case.folder / "repeat", self._case.seed, restarted=True))
        self.repeat_difference = first_difference_of_ranks(self._whole.updates, again.updates, 0)
        # Files that differ between two runs without a kill, such as those with times, are not compared after kills.
        self._varying = set(compare_files(self._whole.work, again.work, self._checkpoints).differing)
        self._repeats_bytes = self._files(again.work).bytes_equal
        remove_own(self._case.folder / "repeat")

    def points(self) -> list[KillPoint]:
        """Return the points at which the script is killed; [] if two runs differ even without a kill."""
        if self.repeat_difference:
            return []
        points = kill_points(len(self._whole.updates[0]), self._whole.calls, self._case.kinds)
        if not points:
            why = self._reason or "it wrote no checkpoint into its folder after its first update"
            raise IotwinError(f"{self._case.script}: there is nothing to kill it at ({why}); add batches to --kill-at")
        return points if self._case.kills is None else drawn(points, self._case.kills, self._case.seed)

    def judged(self, points: Sequence[KillPoint]) -> Iterator[Kill]:
        """Kill and resume the script at each point, and yield the results. Folders of kills that are not EXACT remain."""
        for point in points:
            folder = self._case.folder / "kills" / f"{self._judged:03d}"
            self._judged += 1
            kill = self._judge(folder, point)
            if kill.verdict == EXACT:
                remove_own(folder)
            yield kill

    def _judge(self, folder: Path, point: KillPoint) -> Kill:
        killed = self._run(folder, self._case.seed, point)
        is_same = all(done == all_[: len(done)] for all_, done in zip(self._whole.updates, killed.updates, strict=True))
        if killed.ended.status != -9 or len(killed.updates[0]) != point.update or not is_same:
            difference = first_difference_of_ranks(self._whole.updates, killed.updates, 0)
            return Kill(point.at, point, None, NOT_REACHED, difference)
        arguments = resume_arguments(self._template, killed.work, self._checkpoints)
        resumed = self._run(folder, self._case.seed + 1, resume=arguments, restarted=True)
        if resumed.ended.status != 0:
            why = "it did not end in time" if resumed.ended.timed_out else resumed.last_error()
            return Kill(point.at, point, None, FAILS, error=why)
        at = resumed_at(self._whole.updates[0], resumed.updates[0], point.update)
        files = self._files(killed.work)
        difference = first_difference_of_ranks(self._whole.updates, resumed.updates, at) or files.difference
        verdict = DIFFERS if difference else EXACT
        if at == 0 and (difference or self._whole.calls.has_whole_checkpoint(point.call, point.update)):
            verdict = LOST
        bytes_equal = files.bytes_equal if self._repeats_bytes else None
        return Kill(point.at, point, at, verdict, difference, bytes_equal)

    def _files(self, work: Path) -> FinalFiles:
        return compare_files(self._whole.work, work, self._checkpoints - self._varying)

    def _run(
        self, folder: Path, seed: int, killed: KillPoint | None = None, resume: Sequence[str] = (), restarted: bool = False
    ) -> _Outcome:
        """Run the script in `folder`/work to its end, or to the point `killed`.

        `seed`: for the global random generators; `resume`: further arguments; `restarted`: use another hash seed of Python, as a
        new process has.
        """
        work, name = folder / "work", "killed" if killed else "run"
        make_folder(work)
        log, output, errors = (folder / f"{name}.{suffix}" for suffix in ("updates", "stdout", "stderr"))
        calls = CallLog(work, log, killed.call if killed else None)
        killed_after = killed.update if killed and killed.call is None else None
        arguments = [word.replace(_WORK, str(work)) for word in [*self._case.arguments, *resume]]
        ranks = self._case.ranks
        with claimed_ports(1) as port:
            run = Run(
                script=str(self._case.script), arguments=arguments, folder=str(work), log=str(log), output=str(output),
                errors=str(errors), seed=seed, holds_calls=self._holds, killed_after=killed_after, ranks=ranks, port=port,
            )  # fmt: skip
            ended = self.processes[restarted].run(run, calls, self._limit_s)
        return _Outcome(ended, [read_updates(path_of_rank(log, rank)) for rank in range(ranks)], calls, work, errors)

    def _checked(self, outcome: _Outcome) -> _Outcome:
        if outcome.ended.status:
            raise IotwinError(
                f"{self._case.script}: fails without any kill ({outcome.last_error()}); "
                "it runs in an empty folder, so relative paths in its arguments lead there"
            )
        return outcome

    def notes(self) -> list[str]:
        """Return sentences about what this trial could not check."""
        notes = [f"no kills at calls: {self._reason}"] if self._reason and CALLS in self._case.kinds else []
        if elsewhere := self._whole.calls.outside():
            notes.append(f"{elsewhere[0]} was changed, which all runs share; let the script write below {_WORK}")
        if not self._checkpoints:
            notes.append("the script wrote no checkpoint into its folder, so every resumed run began anew")
        if self._varying:
            notes.append(f"{', '.join(sorted(self._varying))}: not compared, as two runs without a kill differ")
        return notes

    def document(self, kills: Sequence[Kill]) -> dict[str, Any]:
        """Return the result of the trial as the values for court.json."""
        exact = sum(kill.verdict == EXACT for kill in kills)
        verdict = NOT_REPEATABLE if self.repeat_difference else EXACT if exact == len(kills) else NOT_EXACT
        return {
            "script": str(self._case.script), "arguments": self._case.arguments, "resume_arguments": self._template,
            "seed": self._case.seed, "ranks": self._case.ranks, "updates": len(self._whole.updates[0]),
            "calls": len(self._whole.calls.points),
            "checkpoints": sorted(self._checkpoints), "repeat_difference": self.repeat_difference,
            "bytes_repeat": self._repeats_bytes, "notes": self.notes(), "kills": kills, "exact": exact, "verdict": verdict,
        }  # fmt: skip
