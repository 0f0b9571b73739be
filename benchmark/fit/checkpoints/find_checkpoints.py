"""The checkpoints of a traced job: when, which files, in what writes, how they were made safe, and whether training went on."""

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
from iotwin.benchmark.fit.look import Job
from iotwin.benchmark.fit.passes import Pass
from iotwin.trace_store import schema

# What counts checkpoints in a name, or is drawn anew for each: digits, a random identifier (RFC 9562).
_NUMBER = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+)")
LATE = 0.25  # another thread may open a checkpoint's file this share of a step after the next one has begun
_IN_FLIGHT = 8  # so many checkpoints, the last ones, may still be being written
_ACCELERATORS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/davinci", "/dev/neuron")  # of those that compute
_BESIDE = 0.25  # checkpoints are asynchronous if training went on during this share of them; not all show it


@dataclass
class SeenCheckpoint:
    """The files written at one time."""

    epoch: int  # training epochs that had ended by then; 0: written before the first
    steps: int  # training steps done by then
    beside: bool  # written by another thread or process than the rank's, while training went on
    files: list[SeenFile]


@dataclass
class SeenCheckpoints:
    """All of them in order of time, and the folder that holds their files."""

    folder: str
    each: list[SeenCheckpoint]
    between_epochs: bool  # all, rather than after some steps
    lead_s: NDArray[np.float64]  # seconds from the start of each logged checkpoint to its first file
    tail_s: NDArray[np.float64]  # seconds of each outside of lead, serialization and calls on its files
    directory_sync: bool = False  # folders were made safe, too
    keep: int | None = None  # newest that stay when older ones are removed; None: all
    before: Sequence[str] = ()  # a file's name of each that was there already, oldest first
    keep_epoch_ends: bool = False  # those of ends of epochs stay besides
    on_processors: bool = False  # the job trains on the processors that write: it opened no accelerator
    logged: bool | None = None  # by the job, as phases; None: it logged none at all

    @property
    def asynchronous(self) -> bool:
        """Whether training goes on while they are written."""
        return sum(point.beside for point in self.each) > _BESIDE * len(self.each)

    @property
    def seconds_between(self) -> float | None:
        """Seconds after which another is due, where a clock decides."""
        begun = [point.files[0].start_ns for point in self.each if point.files]
        return find_seconds([point.steps for point in self.each], np.array(begun)) if len(begun) == len(self.each) else None

    @property
    def in_flight(self) -> int:
        """The most that were being written at a time."""
        begun = [min(file.start_ns for file in point.files) for point in self.each]
        whole = [max(file.whole_ns for file in point.files) for point in self.each]
        return max((sum(end > begin for end in whole[:number]) + 1 for number, begin in enumerate(begun)), default=1)


def find_checkpoints(job: Job, training: Sequence[Pass]) -> SeenCheckpoints:
    """Return the checkpoints, held against the training passes."""
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
    # What is written in the background may begin when the next epoch's first step is done.
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
    """Set, in each file, when the next checkpoint begins, and what is done to the file while later ones are written."""
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
    """Whether the folder of the checkpoints, or one below it, was synced."""
    folders = job.files[job.files["kind"] == "directory"]
    own = folders[(folders["path"] == folder) | folders["path"].str.startswith(f"{folder}/")]
    return len(job.calls_on(own["file_id"].tolist(), schema.SYNC_OPS)) > 0


def _removals(job: Job) -> pd.DataFrame:
    return job.calls[job.calls["op"].isin(REMOVALS) & (job.calls["result"] >= 0)]


def _before(job: Job, folder: str, each: Sequence[SeenCheckpoint]) -> list[list[tuple[str, int]]]:
    """Return the files (name, file_id) of each checkpoint that the job found and did not write, oldest first.

    They are known by names that are like its own but for the numbers.
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
    """What sorts names by their numbers; identifiers, which have no order, come last."""
    return [(int(part), "") if part.isdigit() else (sys.maxsize, part) for part in _NUMBER.findall(number)]


def _kept(job: Job, each: Sequence[SeenCheckpoint], before: Sequence[Sequence[tuple[str, int]]]) -> tuple[int | None, list[str]]:
    """Return how many whole checkpoints there were, the newest included, when files of an older one had been removed.

    Sets in each file how many files of its kind stay. The second result has a name of each checkpoint from `before` the job that
    was removed, or is among those that stay; the job does not remove others.
    """
    removed = _removals(job).set_index("file_id")["start_ns"]
    removed = removed if removed.index.is_unique else removed.iloc[:0]
    own = [file for point in each for file in point.files]
    left: list[int] = []
    for shape in {_shape(file.name) for file in own}:
        files = [(-1, file_id) for found in before for name, file_id in found if _shape(name) == shape]
        files += [(file.whole_ns, file.file_id) for file in own if _shape(file.name) == shape]
        whole = np.sort([whole_ns for whole_ns, _ in files])
        numbered = [(index, file_id) for index, (_, file_id) in enumerate(files) if file_id in removed.index]
        of_shape = [int(np.searchsorted(whole, removed[file_id])) - index - 1 for index, file_id in numbered]
        for file in (file for file in own if _shape(file.name) == shape):
            file.keep = _mode(of_shape)
        left += of_shape
    keep = _mode(left)
    first = 0 if keep is None else len(before) + len(each) - keep
    stay = [found for index, found in enumerate(before) if index >= first or any(each in removed.index for _, each in found)]
    return keep, [found[0][0] for found in stay]


def _mode(counts: Sequence[int]) -> int | None:
    """The count above 0 that comes most often; of several such, the least."""
    found, times = np.unique([count for count in counts if count > 0], return_counts=True)
    return int(found[times.argmax()]) if len(found) else None


def _shape(name: str) -> str:
    return _NUMBER.sub("#", name)


def _epoch_ends_kept(job: Job, each: Sequence[SeenCheckpoint], ends: NDArray[np.int64]) -> bool:
    """Whether of those that have newer ones just one stayed at each of the epochs' `ends`, in steps, that had a checkpoint."""
    removed = set(_removals(job)["file_id"])
    numbered = [[file for file in point.files if _numbered(file.name) is not None] for point in each]
    newest = max((index for index, files in enumerate(numbered) if any(file.file_id in removed for file in files)), default=-1)
    older = [(point, files) for point, files in zip(each[: newest + 1], numbered, strict=False) if files]
    stayed = [point for point, files in older if all(file.file_id not in removed for file in files)]

    def at_ends(points: Sequence[SeenCheckpoint]) -> list[int]:
        """Return the ends at which a checkpoint came, or a step later if training went on meanwhile."""
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
    """Return the checkpoint that a file belongs to; None: it begins another.

    One that was still being written when others began has files to come, which are known by the number that its files share.
    """
    for point in reversed([point for point in each[-_IN_FLIGHT:] if point.beside or point is each[-1]]):
        numbers = {_numbered(other.name) for other in point.files} - {None}
        if _numbered(file.name) in numbers and all(file.name != other.name for other in point.files):
            return point
    return None if not each or _is_new(each[-1], file, ended, before, taken) else each[-1]


def _folder(file: SeenFile) -> PurePosixPath:
    return PurePosixPath(file.name).parent


def _numbered(name: str) -> str | None:
    """What numbers a file: the last of its folders that has a number, or else its name without the suffix if that has one."""
    path = PurePosixPath(name)
    return next((part for part in (*path.parts[-2::-1], path.stem) if _NUMBER.search(part)), None)


def _is_new(point: SeenCheckpoint, file: SeenFile, ended: int, before: int, taken: NDArray[np.int64]) -> bool:
    """Return whether a file belongs to another checkpoint than `point`. It does if

    * the point has a file of that name already,
    * it is in another folder, and folders are renamed as wholes,
    * training went on since the same rank began a file of another number, or
    * training went on, or an epoch ended, since the last file was whole; unless another thread writes it within a step.
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
    """Whether a rank that reads by itself was at a batch while the file was written."""
    return any(
        bool(((part.requested_ns < file.end_ns) & (part.delivered_ns > file.start_ns)).any())
        for part in training
        if not part.loaders
    )


def leads_and_tails_s(phases: pd.DataFrame, files: Sequence[SeenFile]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (lead_s, tail_s) of each logged checkpoint: before its first file, and spent outside its files."""
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
    """Put `number` (such as '{epoch}') in the place of what counts checkpoints in the names of their files.

    Names that differ only in digits are compared. A run of digits counts checkpoints if no two of them share it, or if each has
    one value and not all have the same (an epoch next to its steps). Numbers of the parts of a checkpoint stay. Folders that are
    renamed as wholes all get the most common name; one of another name was a second attempt at the same number.
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
                if counting and alike[file.name] > 1:  # they differed by what counts checkpoints, too
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
