"""The points at which a script is killed: after each update of weights, and before each call that changes its checkpoints."""

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from iotwin.workloads.detrain.court.held_calls import HeldCall

BATCHES, CALLS = "batches", "calls"
BATCH = "batch"
# Logs are no checkpoints: no script resumes from them.
_LOG = re.compile(r"\.(log|csv|tsv|txt|jsonl|out|err|lock)$|tfevents|(^|/)\.", re.IGNORECASE)
_NO_DISKS = ("dev", "proc", "sys")
_TEMPORARY = re.compile(r"\.(tmp|temp|part|partial|new)\b|\btmp|~$", re.IGNORECASE)


class KillPoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A point of a run at which the script is killed. `update`: number of updates of weights done before; the next is not done.

    `call`: index, from 1, among the run's calls that change checkpoints. The script is killed before this call happens. None if
    the kill follows an update.
    """

    at: str  # batch, write, truncate, fsync, rename or unlink
    update: int
    call: int | None = None
    path: str | None = None  # file that `call` changes, relative to the run's folder


class CallLog:
    """The calls of one run that change checkpoints: all files below `folder`, except logs, count as checkpoints.

    `updates_log`: file with one line per update of rank 0, by which updates are counted; the logs of other ranks have names that
    begin with its name. `killed_at`: index of the call before which the run is killed, None for never.
    """

    def __init__(self, folder: Path, updates_log: Path, killed_at: int | None = None) -> None:
        self.points: list[KillPoint] = []
        self.renamed: set[str] = set()  # temporary names: the files were renamed later
        self._outside: set[Path] = set()
        self._folder, self._log, self._killed_at, self._updates = folder, updates_log, killed_at, 0

    def __call__(self, call: HeldCall) -> bool:
        """Record a held call. Returns True if the run must be killed before this call."""
        if call.paths and str(call.paths[0]).startswith(str(self._log)):
            self._updates += call.paths[0] == self._log
            return False
        names = [str(path.relative_to(self._folder)) for path in call.paths if path.is_relative_to(self._folder)]
        if not names:
            self._outside.update(call.paths)
            return False
        if all(_LOG.search(name) for name in names):
            return False
        if call.kind == "rename" and len(names) == len(call.paths):
            self.renamed.add(names[0])
        self.points.append(KillPoint(call.kind, self._updates, len(self.points) + 1, names[-1]))
        return len(self.points) == self._killed_at

    def checkpoints(self) -> set[str]:
        """Return the final names, relative to the folder, of all files written after the first update."""
        names = {str(point.path) for point in self.points if point.update and point.at != "unlink"}
        return _final(names - self.renamed)

    def outside(self) -> list[Path]:
        """Return the changed files outside of the run's folder that still exist."""
        paths = (path for path in self._outside if path.is_absolute() and path.parts[1] not in _NO_DISKS)
        return sorted(path for path in paths if path.is_file())

    def has_whole_checkpoint(self, call: int | None, update: int) -> bool:
        """Return whether all checkpoint calls that follow some earlier update had been done when the run was killed.

        The run was killed before `call`, or after `update` if `call` is None.
        """
        last_calls = {point.update: point.call or 0 for point in self.points if point.update}
        if call is None:
            return any(earlier < update for earlier in last_calls)
        return any(last < call for last in last_calls.values())


def checkpoints_in(folder: Path) -> set[str]:
    """Return the names of the files below `folder` that may be checkpoints. Used for runs whose calls are not held."""
    return _final(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _final(names: Iterable[str]) -> set[str]:
    return {name for name in names if not _LOG.search(name) and not _TEMPORARY.search(name)}


def kill_points(updates: int, log: CallLog, kinds: Sequence[str]) -> list[KillPoint]:
    """Return all kill points of a run with `updates` updates.

    `kinds`: BATCHES (after each update), CALLS (before each call), or both.

    Calls before the first update are left out, since they prepare data.
    """
    points = [KillPoint(BATCH, update) for update in range(1, updates + 1)] if BATCHES in kinds else []
    return points + ([point for point in log.points if point.update] if CALLS in kinds else [])


def drawn(points: Sequence[KillPoint], count: int, seed: int) -> list[KillPoint]:
    """Draw `count` points, spread over the run, as many at batches as at calls if possible; return them in their order."""
    by_kind: dict[str, list[KillPoint]] = defaultdict(list)
    for point in points:
        by_kind[point.at].append(point)
    chosen: list[KillPoint] = []
    left = min(count, len(points))
    for index, kind in enumerate(sorted(by_kind, key=lambda kind: len(by_kind[kind]))):
        share = min(len(by_kind[kind]), -(-left // (len(by_kind) - index)))
        chosen += _spread(by_kind[kind], share, random.Random(f"{seed} {kind}"))  # noqa: S311 - no secret
        left -= share
    return [point for point in points if point in set(chosen)]


def _spread(points: Sequence[KillPoint], count: int, draw: random.Random) -> list[KillPoint]:
    """Divide the points into `count` groups of consecutive points of equal size, and draw one point from each group."""
    bounds = [round(index * len(points) / count) for index in range(count + 1)] if count else [0]
    return [points[draw.randrange(begin, end)] for begin, end in pairwise(bounds)]
