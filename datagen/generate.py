"""Generate a data set: plan it, check the free space, write its files in parallel, and write a manifest with checksums."""

import fcntl
import os
import shutil
from collections.abc import Callable
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import make_folder
from iotwin.common.paths_below import open_beneath
from iotwin.common.progress import note, progress
from iotwin.common.removal import remove_empty, unlink_beneath
from iotwin.common.units import format_size
from iotwin.common.untrusted_files import decode_foreign
from iotwin.datagen.data_set_files import PARTIAL_SUFFIX, Piece, Publisher
from iotwin.datagen.datasets.bert import write_shard
from iotwin.datagen.datasets.dlrm import write_day, write_unit
from iotwin.datagen.datasets.imagenet import write_images
from iotwin.datagen.datasets.recorded import write_file
from iotwin.datagen.datasets.unet3d import write_case
from iotwin.datagen.formats.choose_writer import write_files
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
from iotwin.datagen.pool import run_units
from iotwin.datagen.scale import ScaledFiles, ScaledRows, write_copy, write_rows

_SEED_LIMIT = 1 << 63
_MOST_SAMPLES = 1 << 50
_MOST_FILES = 1 << 27
_LARGEST_BYTES = float(1 << 60)

# What to do if the directory holds other files than the requested data set's. "refuse": raise IotwinError. "replace": remove an
# earlier data set of iotwin, but no other files. "keep": remove nothing, but overwrite files of the same names, as DLIO does.
Existing = Literal["refuse", "replace", "keep"]
REPLACING = "iotwin generate or scale --force"


class Plan(msgspec.Struct, frozen=True):
    """The plan of a data set: what to write, in which units of work."""

    layout: Layout
    request: Request
    unit_bytes: NDArray[np.int64]  # size of each unit of work

    @property
    def size_bytes(self) -> int:
        """Return the size of the whole data set in bytes: an estimate, or the exact size if layout.exact is True."""
        return int(self.unit_bytes.sum())  # cannot overflow, as `plan` has checked

    @property
    def files(self) -> int:
        """Return the number of files of the data set."""
        return self.layout.file_count(self.request.samples)

    def pieces(self, unit: int) -> list[PlannedPiece]:
        """Return the pieces of files that belong to the unit `unit`."""
        return self.layout.unit_pieces(self.request.samples, self.request.seed, unit)


def plan(layout: Layout, *, samples: int | None = None, size_bytes: int | None = None, seed: int = 0) -> Plan:
    """Return the plan of a data set of `samples` samples, or of as many as fit whole into `size_bytes`.

    Raises UsageError if not even one sample fits, or if the data set would be too large.
    """
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
    # Encoding and decoding turns tuples into lists, so that the request equals the same request read from a journal.
    request = Request(
        layout.workload, decode_foreign(msgspec.json.encode(layout), dict[str, object], "the layout"), samples, seed
    )
    unit_bytes = layout.unit_bytes(samples, seed)
    # Floats do not overflow. A sum of integers might, and then seem to fit on the disk.
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
    """Write a data set of `samples` samples, or of as many as fit whole into `size_bytes`, and return its manifest.

    The bytes depend only on layout, samples and seed. An interrupted call leaves a journal, from which the same call resumes. If
    the data set is already finished, its manifest is returned. `existing`: what to do about other files in `directory`.
    Raises UsageError as `plan` does, and IotwinError if `directory` has other files or the disk is too small or fails.
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
    """Prepare `directory` for the data set of `request`. Return its manifest if the data set is already there, else None.

    Raises IotwinError if `directory` holds other files and `existing` forbids that. Empty folders are allowed.
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
    """Remove the finished or unfinished data set in `directory`: the files in its manifest or journals, and no others.

    If `data` is False, remove only the manifest, the journals and unfinished files.
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
    """Remove the data set of iotwin in `directory`, then the empty folders, and `directory` itself if it is empty."""
    remove_ours(directory)
    for folder in (*sorted(directory.rglob("*"), reverse=True), directory):
        if folder.is_dir() and not folder.is_symlink():
            remove_empty(folder)


def finished_units(planned: Plan, directory: Path, publisher: Publisher) -> dict[int, list[Piece]]:
    """Return, by unit, the pieces of units that the journals in `directory` list as finished and whose files still exist.

    A stranger may have written a journal, so entries that differ from the plan are ignored.
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
    """Raise IotwinError if fewer than `needed_bytes` are free on the disk of `directory`."""
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
    """Write the units of `share` that are not in `done`, add them to `done` and to the journal, and publish whole files.

    `share`: the slice of all units that this node writes. `workers`: number of workers, None: one per CPU.
    """
    if done:
        note(f"going on after {len(done)} of {len(planned.unit_bytes)} finished parts in {directory}")
    ours = range(len(planned.unit_bytes))[share]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    # The largest units come first, so that no worker writes a large one alone at the end.
    todo = [unit for unit in np.argsort(-planned.unit_bytes, kind="stable").tolist() if unit in ours and unit not in done]
    with (
        progress(f"generating {planned.request.workload}", int(planned.unit_bytes[share].sum())) as advance,
        os.fdopen(open_beneath(directory, journal_name, flags), "ab", buffering=0) as journal,
    ):
        _lock(journal, directory)
        publish_done(planned, publisher, done)
        advance(sum(piece.size_bytes for unit, pieces in done.items() if unit in ours for piece in pieces))
        request = planned.request
        writer = partial(_WRITERS[type(planned.layout)], planned.layout, request.samples, request.seed, directory)
        for unit, pieces in run_units(writer, todo, workers or len(os.sched_getaffinity(0)), advance):
            journal.write(msgspec.json.encode(JournalEntry(unit, pieces)) + b"\n")
            _publish(publisher, planned, unit, pieces)
            done[unit] = pieces


def publish_done(planned: Plan, publisher: Publisher, done: dict[int, list[Piece]]) -> None:
    """Publish each file whose pieces are all in `done`."""
    for unit, pieces in done.items():
        _publish(publisher, planned, unit, pieces)


def whole(planned: Plan, done: dict[int, list[Piece]]) -> DataSetManifest:
    """Return the manifest of the data set of `planned`. `done`: the written pieces of all units, by unit."""
    pieces = sorted((piece for unit in done.values() for piece in unit), key=lambda piece: (piece.name, piece.offset))
    return DataSetManifest(planned.request, sum(piece.size_bytes for piece in pieces), pieces)


def _lock(journal: FileIO, directory: Path) -> None:
    """Lock `journal` until it is closed or this process ends, so that no two calls write the same files."""
    try:
        fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise IotwinError(f"another iotwin generate is writing {directory}; wait for it to end") from None


def _publish(publisher: Publisher, planned: Plan, unit: int, pieces: list[Piece]) -> None:
    for piece, expected in zip(pieces, planned.pieces(unit), strict=True):
        publisher.add(piece, expected.file_bytes)


# Functions that write one unit of a layout: (layout, samples, seed, directory, unit, function called with each write's bytes).
_WRITERS: dict[type, Callable[..., list[Piece]]] = {
    Unet3dLayout: write_case,
    DlrmLayout: write_unit,
    DlrmDaysLayout: write_day,
    BertLayout: write_shard,
    ImagenetLayout: write_images,
    FormatLayout: write_files,
    RecordedLayout: write_file,
    ScaledFiles: write_copy,
    ScaledRows: write_rows,
}
