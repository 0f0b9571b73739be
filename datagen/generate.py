"""Generate a data set: plan it, check the space, write it in parallel, and leave a manifest of checksums."""

import fcntl
import os
import shutil
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from iotwin.common.beneath import open_beneath
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import make_folder
from iotwin.common.foreign_files import decode_foreign
from iotwin.common.progress import note, progress
from iotwin.common.removal import remove_empty, unlink_beneath
from iotwin.common.units import format_size
from iotwin.datagen.files import PARTIAL_SUFFIX, Piece, Publisher
from iotwin.datagen.layouts import (
    BertLayout,
    DlrmDaysLayout,
    DlrmLayout,
    FormatLayout,
    ImagenetLayout,
    Layout,
    PlannedPiece,
    RecordedLayout,
    Unet3dLayout,
)
from iotwin.datagen.manifest import (
    JOURNAL_NAME,
    MANIFEST_NAME,
    DataSetManifest,
    JournalEntry,
    Request,
    read_journal,
    read_manifest,
    remove_journals,
    start_journal,
    write_manifest,
)
from iotwin.datagen.pool import UnitWriter, run_units
from iotwin.datagen.scale import ScaledFiles, ScaledRows, write_copy, write_rows

_SEED_LIMIT = 1 << 63
_MOST_SAMPLES = 1 << 50
_MOST_FILES = 1 << 27
_LARGEST_BYTES = float(1 << 60)

# What becomes of files in the directory that are not the requested data set. "refuse": IotwinError. "replace": another data set
# of ours is removed, other files stay. "keep": all stay, and files of the same names are written anew, as DLIO does.
Existing = Literal["refuse", "replace", "keep"]
REPLACING = "iotwin generate or scale --force"


class Plan(msgspec.Struct, frozen=True):
    """A data set before it is written."""

    layout: Layout
    request: Request
    unit_bytes: NDArray[np.int64]  # of every unit of work

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole data set; an estimate unless layout.exact."""
        return int(self.unit_bytes.sum())  # `plan` has seen that it fits

    @property
    def files(self) -> int:
        """Number of files."""
        return self.layout.file_count(self.request.samples)

    def pieces(self, unit: int) -> list[PlannedPiece]:
        """Return what unit `unit` writes."""
        return self.layout.unit_pieces(self.request.samples, self.request.seed, unit)


def plan(layout: Layout, *, samples: int | None = None, size_bytes: int | None = None, seed: int = 0) -> Plan:
    """Plan the data set of `samples` samples, or of as many as fit whole into `size_bytes`; UsageError if that makes none."""
    if not 0 <= seed < _SEED_LIMIT:
        raise UsageError(f"seed {seed} is out of range; give a whole number from 0 to {_SEED_LIMIT - 1}")
    if samples is None and size_bytes is not None:
        samples = layout.samples_within(size_bytes, seed)
        if samples == 0:
            one = format_size(int(layout.unit_bytes(layout.samples_per_file, seed).sum()))
            shrink = ", or shrink its volumes with --scale" if layout.workload == "unet3d" else ""
            raise UsageError(
                f"size {format_size(size_bytes)} is too small for one {layout.workload} sample of {one}; ask for more{shrink}"
            )
    elif samples is None or size_bytes is not None:
        raise UsageError("give either a size or a number of samples, for example --size 512MiB")
    if not 1 <= samples <= _MOST_SAMPLES:
        raise UsageError(f"{samples} samples make no data set; ask for at least 1 and at most {_MOST_SAMPLES}")
    if (files := layout.file_count(samples)) > _MOST_FILES:
        raise UsageError(f"{files} files are more than a data set may have ({_MOST_FILES}); ask for fewer samples")
    # As the manifest will hold it: tuples become lists, so that a journal's request compares equal.
    request = Request(
        layout.workload, decode_foreign(msgspec.json.encode(layout), dict[str, object], "the layout"), samples, seed
    )
    unit_bytes = layout.unit_bytes(samples, seed)
    # Summed as numbers that do not overflow: a wrong total would pass as one that fits the disk.
    if (total := unit_bytes.sum(dtype=np.float64)) > _LARGEST_BYTES or unit_bytes.min() < 0:
        raise UsageError(f"a data set of {total:.3g} bytes is no request that a disk could hold; ask for less")
    return Plan(layout, request, unit_bytes)


def generate(
    layout: Layout,
    directory: Path,
    *,
    samples: int | None = None,
    size_bytes: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    existing: Existing = "refuse",
) -> DataSetManifest:
    """Write the data set of `samples` samples, or as many as fit whole into `size_bytes`, and return its manifest.

    The bytes depend on layout, samples and seed only. An interrupted call leaves a journal, from which the same call goes on;
    a finished data set is returned as it is. `existing` decides about other files in `directory`.
    Raises UsageError for a request that makes no data set, IotwinError for a directory or disk that cannot take it.
    """
    planned = plan(layout, samples=samples, size_bytes=size_bytes, seed=seed)
    if finished := prepare(directory, planned.request, existing):
        return finished
    publisher = Publisher(directory)
    done = finished_units(planned, directory, publisher)
    try:
        check_space(directory, planned.size_bytes - sum(piece.size_bytes for unit in done.values() for piece in unit))
    except IotwinError:
        if not done:
            remove_ours(directory)
        raise
    write_units(planned, directory, publisher, done, workers)
    manifest = whole(planned, done)
    write_manifest(directory, manifest)
    remove_journals(directory)
    return manifest


def prepare(directory: Path, request: Request, existing: Existing) -> DataSetManifest | None:
    """Make `directory` ready for `request`; return the manifest if it already holds exactly that data set.

    Empty folders are no reason to refuse.
    """
    if directory.exists() and not directory.is_dir():
        raise IotwinError(f"{directory} is a file; name a directory to write the data set to")
    make_folder(directory)
    if os.path.lexists(directory / MANIFEST_NAME) and existing != "replace":
        manifest = read_manifest(directory)
        if manifest.request == request:
            note(f"{directory} already holds this data set; check it with iotwin generate --verify")
            return manifest
        if existing == "refuse":
            raise IotwinError(f"{directory} already holds another data set; choose another directory or replace it ({REPLACING})")
    unfinished, _ = read_journal(directory)
    if unfinished == request and existing != "replace":
        return None
    if existing == "refuse" and any(not path.is_dir() or path.is_symlink() for path in directory.rglob("*")):
        what = "another, unfinished data set" if unfinished else "files that are not this data set's"
        raise IotwinError(f"{directory} holds {what}; choose an empty directory or go ahead all the same ({REPLACING})")
    remove_ours(directory, data=existing == "replace")
    start_journal(directory, request)
    return None


def remove_ours(directory: Path, data: bool = True) -> None:
    """Remove a finished or unfinished data set of ours, and nothing else: files of its list, below its directory, by no link.

    Without `data` its whole files stay; their list and unfinished files are removed.
    """
    unfinished, done = read_journal(directory)
    names = set()
    if data:
        names |= {piece.name for unit in done.values() for piece in unit}
        if os.path.lexists(directory / MANIFEST_NAME):
            names |= {piece.name for piece in read_manifest(directory).pieces}
    if unfinished:
        names |= {str(path.relative_to(directory)) for path in directory.rglob("*" + PARTIAL_SUFFIX)}
    for name in (*names, MANIFEST_NAME):
        unlink_beneath(directory, name)
    remove_journals(directory)


def remove_data_set(directory: Path) -> None:
    """Remove the data set of ours in `directory` and the folders that are empty then, `directory` itself included."""
    remove_ours(directory)
    for folder in (*sorted(directory.rglob("*"), reverse=True), directory):
        if folder.is_dir() and not folder.is_symlink():
            remove_empty(folder)


def finished_units(planned: Plan, directory: Path, publisher: Publisher) -> dict[int, list[Piece]]:
    """Return the units that an interrupted call finished, by the journal in `directory`, and whose bytes are still there.

    Anybody may have written a journal: entries outside of the plan are ignored, and their units are written again.
    """
    _, done = read_journal(directory)
    return {
        unit: pieces
        for unit, pieces in done.items()
        if _is_planned(planned, unit, pieces) and all(publisher.has(piece) for piece in pieces)
    }


def _is_planned(planned: Plan, unit: int, pieces: list[Piece]) -> bool:
    if not 0 <= unit < len(planned.unit_bytes):
        return False
    return [(piece.name, piece.offset) for piece in pieces] == [(piece.name, piece.offset) for piece in planned.pieces(unit)]


def check_space(directory: Path, needed_bytes: int) -> None:
    """Raise IotwinError unless `needed_bytes` are free in `directory`."""
    free_bytes = shutil.disk_usage(directory).free
    if needed_bytes > free_bytes:
        raise IotwinError(
            f"{directory}: {format_size(needed_bytes)} are needed but {format_size(free_bytes)} are free; "
            "ask for less or choose another disk"
        )


def write_units(
    planned: Plan,
    directory: Path,
    publisher: Publisher,
    done: dict[int, list[Piece]],
    workers: int | None,
    share: slice = slice(None),
    journal_name: str = JOURNAL_NAME,
) -> None:
    """Write the `share` of the units that is not yet `done`, add it to `done` and to the journal, publish whole files."""
    if done:
        note(f"going on after {len(done)} of {len(planned.unit_bytes)} finished parts in {directory}")
    ours = range(len(planned.unit_bytes))[share]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    # Longest first, so that no worker is left alone with a big one at the end.
    todo = [unit for unit in np.argsort(-planned.unit_bytes, kind="stable").tolist() if unit in ours and unit not in done]
    with (
        progress(f"generating {planned.request.workload}", int(planned.unit_bytes[share].sum())) as advance,
        os.fdopen(open_beneath(directory, journal_name, flags), "ab", buffering=0) as journal,
    ):
        _lock(journal, directory)
        publish_done(planned, publisher, done)
        advance(sum(piece.size_bytes for unit, pieces in done.items() if unit in ours for piece in pieces))
        writer = _unit_writer(planned, directory)
        for unit, pieces in run_units(writer, todo, workers or len(os.sched_getaffinity(0)), advance):
            journal.write(msgspec.json.encode(JournalEntry(unit, pieces)) + b"\n")
            _publish(publisher, planned, unit, pieces)
            done[unit] = pieces


def publish_done(planned: Plan, publisher: Publisher, done: dict[int, list[Piece]]) -> None:
    """Publish the files that the `done` units make whole."""
    for unit, pieces in done.items():
        _publish(publisher, planned, unit, pieces)


def whole(planned: Plan, done: dict[int, list[Piece]]) -> DataSetManifest:
    """Return the manifest of the data set whose units are all `done`."""
    pieces = sorted((piece for unit in done.values() for piece in unit), key=lambda piece: (piece.name, piece.offset))
    return DataSetManifest(planned.request, sum(piece.size_bytes for piece in pieces), pieces)


def _lock(journal: FileIO, directory: Path) -> None:
    """Hold the journal until it is closed, so that two calls never write the same files; a kill lets go of it too."""
    try:
        fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise IotwinError(f"another iotwin generate is writing {directory}; wait for it to end") from None


def _publish(publisher: Publisher, planned: Plan, unit: int, pieces: list[Piece]) -> None:
    for piece, expected in zip(pieces, planned.pieces(unit), strict=True):
        publisher.add(piece, expected.file_bytes)


def _unit_writer(planned: Plan, directory: Path) -> UnitWriter:
    """Return the function that writes one unit of the layout; modules are imported when they are needed."""
    request = planned.request
    match planned.layout:
        case Unet3dLayout() as layout:
            from iotwin.datagen.datasets.unet3d import write_case

            return partial(write_case, layout, request.seed, directory)
        case DlrmLayout() as layout:
            from iotwin.datagen.datasets.dlrm import write_unit

            return partial(write_unit, layout, request.samples, request.seed, directory)
        case DlrmDaysLayout() as layout:
            from iotwin.datagen.datasets.dlrm import write_day

            return partial(write_day, layout, request.samples, request.seed, directory)
        case BertLayout() as layout:
            from iotwin.datagen.datasets.bert import write_shard

            return partial(write_shard, layout, request.samples, request.seed, directory)
        case ImagenetLayout() as layout:
            from iotwin.datagen.datasets.imagenet import write_images

            return partial(write_images, layout, request.samples, request.seed, directory)
        case FormatLayout() as layout:
            from iotwin.datagen.formats.write import write_files

            return partial(write_files, layout, request.samples, request.seed, directory)
        case RecordedLayout() as layout:
            from iotwin.datagen.datasets.recorded import write_file

            return partial(write_file, layout, request.seed, directory)
        case ScaledFiles() as layout:
            return partial(write_copy, layout, request.samples, request.seed, directory)
        case ScaledRows() as layout:
            return partial(write_rows, layout, request.samples, request.seed, directory)
    raise TypeError(f"no writer for {planned.layout}")
