"""Find the checkpoints of a traced job: their times, files, writes and syncs, and whether training continued meanwhile."""

import re
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.checkpoints.cadences import find_seconds
from iotwin.benchmark.fit.checkpoints.checkpoint_files import REMOVALS, SeenFile, find_files, folder_of, without_leaving
from iotwin.benchmark.fit.passes import Pass
from iotwin.benchmark.fit.traced_job import Job
from iotwin.trace_store import schema

# The parts of a name that differ between checkpoints: digits, or a random identifier (RFC 9562).
_NUMBER = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+)")
LATE = 0.25  # a background thread may open a checkpoint's file up to this share of a step after the next step's begin
_IN_FLIGHT = 8  # most checkpoints that may be written at the same time
_ACCELERATORS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/davinci", "/dev/neuron")  # devices
_BESIDE = 0.25  # checkpoints are asynchronous if training went on during more than this share of them


@dataclass
class SeenCheckpoint:
    """One checkpoint of the job, and the files that were written for it."""

    epoch: int  # number of training epochs that had ended when the checkpoint began, but at least 1; 0: before training began
    steps: int  # number of training steps done when the checkpoint began
    beside: bool  # a background thread or process wrote it while training went on
    files: list[SeenFile]


@dataclass
class SeenCheckpoints:
    """All checkpoints of the job, oldest first, and the folder that contains their files."""

    folder: str
    each: list[SeenCheckpoint]
    between_epochs: bool  # True if all came between epochs
    lead_s: NDArray[np.float64]  # seconds from the start of each logged checkpoint to its first file
    tail_s: NDArray[np.float64]  # other seconds of each logged checkpoint: without lead, serialization and calls
    directory_sync: bool = False  # the job synced folders, too
    keep: int | None = None  # number of newest checkpoints that remain; None: all
    before: Sequence[str] = ()  # one file name of each checkpoint from before the job, oldest first
    keep_epoch_ends: bool = False  # checkpoints at ends of epochs remain, too
    on_processors: bool = False  # the job opened no accelerator, so it trains on the processors that also write
    logged: bool | None = None  # True if the job logged its checkpoints as phases; None if it logged no phases at all

    @property
    def asynchronous(self) -> bool:
        """True if training goes on while checkpoints are written."""
        return sum(point.beside for point in self.each) > _BESIDE * len(self.each)

    @property
    def seconds_between(self) -> float | None:
        """Seconds between checkpoints if a clock triggers them; None if it does not, or if that is unknown."""
        begun = [point.files[0].start_ns for point in self.each if point.files]
        return find_seconds([point.steps for point in self.each], np.array(begun)) if len(begun) == len(self.each) else None

    @property
    def in_flight(self) -> int:
        """Most checkpoints that were written at the same time."""
        begun = [min(file.start_ns for file in point.files) for point in self.each]
        whole = [max(file.whole_ns for file in point.files) for point in self.each]
        return max((sum(end > begin for end in whole[:number]) + 1 for number, begin in enumerate(begun)), default=1)


def find_checkpoints(job: Job, training: Sequence[Pass]) -> SeenCheckpoints:
    """Return the checkpoints of the job. `training`: one Pass per epoch, which dates them in epochs and steps."""
    files = find_files(job)
    if not files:
        return SeenCheckpoints("", [], True, np.zeros(0), np.zeros(0))
    taken = np.sort(np.concatenate([part.taken_ns for part in training]))
    ends = np.array([int(part.taken_ns.max()) for part in training])
    each: list[SeenCheckpoint] = []
    late_ns = round(LATE * float(np.median(np.diff(taken)))) if len(taken) > 1 else 0
    for file in files:
        elsewhere = (file.pid, file.tid) != (training[0].rank, training[0].rank)
        due_ns = file.start_ns - late_ns * elsewhere
        before, after = (int(np.searchsorted(taken, time_ns)) for time_ns in (due_ns, file.end_ns))
        ended = int((ends <= file.start_ns).sum())
        point = _point_of(each, file, ended, before, taken)
        if point is None:
            begun = file.start_ns >= training[0].requested_ns[0]
            point = SeenCheckpoint(max(ended, int(begun)), before, False, [])
            each.append(point)
        point.beside |= elsewhere and (after > before or _reads_between(training, file))
        point.files.append(file)
    _note_looks(each)
    whole = np.cumsum([0, *(len(part.taken_ns) for part in training)])
    # A background checkpoint may begin after the first step of the next epoch.
    between = all(np.abs(whole - point.steps).min() <= int(point.beside) for point in each)
    leads_s, tails_s = leads_and_tails_s(job.phases, files)
    synced = _folders_synced(job, folder_of(files))
    logged = None if job.phases.empty else bool((job.phases["phase"] == "checkpoint").any())
    keep, there = _kept(job, each, _before(job, folder_of(files), each))
    return SeenCheckpoints(
        folder_of(files), each, between, leads_s, tails_s, synced, keep, there, _epoch_ends_kept(job, each, whole),
        not job.files["path"].str.startswith(_ACCELERATORS).any(), logged,
    )  # fmt: skip


def _note_looks(each: Sequence[SeenCheckpoint]) -> None:
    """Set `next_ns` and `looked_at` of each file. `each`: all checkpoints, oldest first."""
    begins = np.array([min(file.start_ns for file in point.files) for point in each], np.int64)
    ends = np.array([max(file.end_ns for file in point.files) for point in each], np.int64)
    for number, point in enumerate(each[:-1]):
        for file in point.files:
            file.next_ns = int(begins[number + 1])
            during = [int(np.searchsorted(begins, begin_ns, side="right")) - 1 for begin_ns, _ in file.visits]
            own = zip(during, file.visits, strict=True)
            looks = [reads for later, (begin_ns, reads) in own if later > number and begin_ns <= ends[later]]
            file.looked_at = None if not looks else "read" if any(looks) else "opened"


def _folders_synced(job: Job, folder: str) -> bool:
    """True if the job synced `folder` or a folder below it."""
    folders = job.files[job.files["kind"] == "directory"]
    own = folders[(folders["path"] == folder) | folders["path"].str.startswith(f"{folder}/")]
    return len(job.calls_on(own["file_id"].tolist(), schema.SYNC_OPS)) > 0


def _removals(job: Job) -> pd.DataFrame:
    return job.calls[job.calls["op"].isin(REMOVALS) & (job.calls["result"] >= 0)]


def _before(job: Job, folder: str, each: Sequence[SeenCheckpoint]) -> list[list[tuple[str, int]]]:
    """Return, oldest first, the files (name, file_id) of each checkpoint that existed before the job.

    Such a file's name differs from names of the job's own files only in numbers.
    """
    shapes = {_shape(file.name) for point in each for file in point.files}
    own = {_numbered(file.name) for point in each for file in point.files}
    files = job.files[job.files["path"].str.startswith(f"{folder}/") & (job.files["kind"] != "missing")]
    found: dict[str, list[tuple[str, int]]] = {}
    for file_id, path in zip(files["file_id"], files["path"], strict=True):
        name = without_leaving(path).removeprefix(f"{folder}/")
        number = _numbered(name)
        if number is not None and number not in own and _shape(name) in shapes:
            found.setdefault(number, []).append((name, int(file_id)))
    return [found[number] for number in sorted(found, key=_in_order)]


def _in_order(number: str) -> list[tuple[int, str]]:
    """Return the sort key of a numbered name. Random identifiers have no order and come last."""
    return [(int(part), "") if part.isdigit() else (sys.maxsize, part) for part in _NUMBER.findall(number)]


def _kept(job: Job, each: Sequence[SeenCheckpoint], before: Sequence[Sequence[tuple[str, int]]]) -> tuple[int | None, list[str]]:
    """Return (number of newest checkpoints that remain, or None if all do; names of checkpoints from before the job).

    Also sets `keep` of each file. Each name is of one file of a checkpoint in `before` that the job removed, or that is among
    the newest that remain.
    """
    removed = _removals(job).set_index("file_id")["start_ns"]
    removed = removed if removed.index.is_unique else removed.iloc[:0]
    own = [file for point in each for file in point.files]
    left: list[int] = []
    for shape in {_shape(file.name) for file in own}:
        # For each checkpoint its files of this shape: there may be several, such as one for each rank.
        written = [[(-1, file_id) for name, file_id in found if _shape(name) == shape] for found in before]
        written += [[(file.whole_ns, file.file_id) for file in point.files if _shape(file.name) == shape] for point in each]
        written = [files for files in written if files]
        whole = np.sort([max(whole_ns for whole_ns, _ in files) for files in written])
        numbered = [(index, id_) for index, files in enumerate(written) for _, id_ in files if id_ in removed.index]
        of_shape = [int(np.searchsorted(whole, removed[file_id])) - index - 1 for index, file_id in numbered]
        for file in (file for file in own if _shape(file.name) == shape):
            file.keep = _mode(of_shape)
        left += of_shape
    keep = _mode(left)
    first = 0 if keep is None else len(before) + len(each) - keep
    stay = [found for index, found in enumerate(before) if index >= first or any(each in removed.index for _, each in found)]
    return keep, [found[0][0] for found in stay]


def _mode(counts: Sequence[int]) -> int | None:
    """Return the most frequent positive number in `counts`, the least one in a tie; None if there is none."""
    found, times = np.unique([count for count in counts if count > 0], return_counts=True)
    return int(found[times.argmax()]) if len(found) else None


def _shape(name: str) -> str:
    return _NUMBER.sub("#", name)


def _epoch_ends_kept(job: Job, each: Sequence[SeenCheckpoint], ends: NDArray[np.int64]) -> bool:
    """True if the job removed older checkpoints except one per end of an epoch.

    `ends`: steps done at each end, the first at 0.
    """
    removed = set(_removals(job)["file_id"])
    numbered = [[file for file in point.files if _numbered(file.name) is not None] for point in each]
    newest = max((index for index, files in enumerate(numbered) if any(file.file_id in removed for file in files)), default=-1)
    older = [(point, files) for point, files in zip(each[: newest + 1], numbered, strict=False) if files]
    stayed = [point for point, files in older if all(file.file_id not in removed for file in files)]

    def at_ends(points: Sequence[SeenCheckpoint]) -> list[int]:
        """Return the indices of the epochs at whose end a checkpoint came; an asynchronous one may come a step later."""
        return [
            number for number, end in enumerate(ends.tolist()[1:]) for point in points if 0 <= point.steps - end <= point.beside
        ]

    return (
        bool(stayed)
        and len(at_ends(stayed)) == len(stayed)
        and set(at_ends(stayed)) == set(at_ends([point for point, _ in older]))
    )


def _point_of(
    each: Sequence[SeenCheckpoint], file: SeenFile, ended: int, before: int, taken: NDArray[np.int64]
) -> SeenCheckpoint | None:
    """Return the checkpoint in `each` to which `file` belongs; None if `file` is the first one of a new checkpoint.

    Several checkpoints may be written at the same time. Then the number in the file's name shows the checkpoint.
    """
    for point in reversed([point for point in each[-_IN_FLIGHT:] if point.beside or point is each[-1]]):
        numbers = {_numbered(other.name) for other in point.files} - {None}
        if _numbered(file.name) in numbers and all(file.name != other.name for other in point.files):
            return point
    return None if not each or _is_new(each[-1], file, ended, before, taken) else each[-1]


def _folder(file: SeenFile) -> PurePosixPath:
    return PurePosixPath(file.name).parent


def _numbered(name: str) -> str | None:
    """Return the innermost numbered folder in the path `name`, or else its numbered file name without suffix; else None."""
    path = PurePosixPath(name)
    return next((part for part in (*path.parts[-2::-1], path.stem) if _NUMBER.search(part)), None)


def _is_new(point: SeenCheckpoint, file: SeenFile, ended: int, before: int, taken: NDArray[np.int64]) -> bool:
    """Return True if `file` belongs to a later checkpoint than `point`. It does in each of these cases:

    * `point` already has a file of that name;
    * the job renames whole folders, and the file is in another folder;
    * a step began since the rank opened a file of `point` whose name differs only in numbers;
    * a step began or an epoch ended since the last file of `point` was whole, unless a background thread opens the file sooner
      than one step after that.
    """
    if file.folder_renamed and any(other.folder_renamed and _folder(other) != _folder(file) for other in point.files):
        return True
    whole_ns, shape = point.files[-1].whole_ns, _shape(file.name)
    alike = [other for other in point.files if other.rank == file.rank and _shape(other.name) == shape]
    if any(file.name == other.name for other in point.files):
        return True
    if any(np.searchsorted(taken, other.start_ns) < before for other in alike):
        return True
    elsewhere = (file.pid, file.tid) != (file.rank, file.rank)
    if elsewhere and len(taken) > 1 and file.start_ns - whole_ns < np.median(np.diff(taken)):
        return False
    return before > int(np.searchsorted(taken, whole_ns)) or ended > max(point.epoch, 1)


def _reads_between(training: Sequence[Pass], file: SeenFile) -> bool:
    """True if a rank without loaders read a batch while the file was written."""
    return any(
        bool(((part.requested_ns < file.end_ns) & (part.delivered_ns > file.start_ns)).any())
        for part in training
        if not part.loaders
    )


def leads_and_tails_s(phases: pd.DataFrame, files: Sequence[SeenFile]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (seconds before the first file, other seconds not spent on files), each an array over the logged checkpoints."""
    logged = phases.loc[phases["phase"] == "checkpoint", ["start_ns", "end_ns"]].itertuples(index=False)
    leads, tails = [], []
    for start_ns, end_ns in logged:
        own = [file for file in files if start_ns <= file.start_ns < end_ns]
        if own:
            leads.append((min(file.start_ns for file in own) - start_ns) / 1e9)
            at_files_s = sum(file.serialization_s + file.calls_s for file in own)
            tails.append(max((end_ns - start_ns) / 1e9 - leads[-1] - at_files_s, 0.0))
    return np.array(leads, np.float64), np.array(tails, np.float64)


def unnumbered(each: Sequence[SeenCheckpoint], number: str) -> None:
    """Replace the numbers that count checkpoints in the names of all files by `number`, such as '{epoch}'.

    Names that differ only in their numbers form a group. Each position of a number in a group's names is judged by itself. Its
    numbers count checkpoints in two cases, if the group has files of two or more checkpoints:

    * each checkpoint has a single number there, and these numbers are not all equal, or
    * no checkpoint has a number there that the next checkpoint also has.

    Other numbers remain, such as those of the parts of a checkpoint. If files of one checkpoint get equal names, the later ones
    get '.1', '.2' and so on after the last `number`.

    All renamed folders get the most common of their names: a differing one is taken for a second attempt to write a checkpoint.
    """
    shapes: dict[tuple[str, ...], dict[int, list[tuple[SeenFile, list[str]]]]] = {}
    for index, point in enumerate(each):
        for file in point.files:
            parts = _NUMBER.split(file.name)
            shapes.setdefault(tuple(parts[::2]), {}).setdefault(index, []).append((file, parts))
    for points in shapes.values():
        fields = len(next(iter(points.values()))[0][1])
        counting = [field for field in range(1, fields, 2) if _differs(points.values(), field)]
        for own in points.values():
            alike = Counter[str]()
            for file, parts in own:
                for field in counting:
                    parts[field] = number
                file.name = "".join(parts)
                alike[file.name] += 1
                if counting and alike[file.name] > 1:  # two files of one checkpoint have the same name now
                    parts[counting[-1]] = f"{number}.{alike[file.name] - 1}"
                    file.name = "".join(parts)
    committed = [file for point in each for file in point.files if file.folder_renamed and _folder(file) != PurePosixPath()]
    if committed:
        [(usual, _)] = Counter(map(_folder, committed)).most_common(1)
        for file in committed:
            file.name = str(usual / PurePosixPath(file.name).name)


def _differs(checkpoints: Collection[list[tuple[SeenFile, list[str]]]], field: int) -> bool:
    values = [{parts[field] for _, parts in files} for files in checkpoints]
    apart = all(not one & other for one, other in pairwise(values))
    one_each = all(len(own) == 1 for own in values) and len(set.union(*values)) > 1
    return len(values) > 1 and (apart or one_each)
