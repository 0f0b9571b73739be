"""Generate a data set: plan it, check the space, write it in parallel, and leave a manifest of checksums."""

import os
import shutil
from functools import partial
from pathlib import Path

import msgspec

from datagen.files import PARTIAL_SUFFIX, Piece
from datagen.layouts import Unet3dLayout
from datagen.manifest import (
    JOURNAL_NAME,
    MANIFEST_NAME,
    DataSetManifest,
    JournalEntry,
    Request,
    read_journal,
    read_manifest,
    start_journal,
    write_manifest,
)
from datagen.pool import UnitWriter, run_units
from tracing_tools.trace.errors import IotwinError, UsageError
from tracing_tools.trace.progress import note, progress
from tracing_tools.trace.units import format_size

_SEED_LIMIT = 1 << 63


def generate(
    layout: Unet3dLayout,
    directory: Path,
    *,
    samples: int | None = None,
    size_bytes: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    force: bool = False,
) -> DataSetManifest:
    """Write the data set of `samples` samples, or as many as fit whole into `size_bytes`, and return its manifest.

    The bytes depend on layout, samples and seed only. An interrupted call leaves a journal, from which the same call goes on;
    a finished data set is returned as it is. `force` replaces another data set of ours in `directory` and ignores strangers.
    Raises UsageError for a request that makes no data set, IotwinError for a directory or disk that cannot take it.
    """
    request = Request(layout.workload, msgspec.to_builtins(layout), plan_samples(layout, samples, size_bytes, seed), seed)
    if finished := _prepare(directory, request, force):
        return finished
    _, done = read_journal(directory)
    total_bytes = sum(
        file.size_bytes for unit in _units(layout, request) for file in layout.unit_files(seed, request.samples, unit)
    )
    _check_space(directory, total_bytes - sum(piece.size_bytes for pieces in done.values() for piece in pieces))
    if done:
        note(f"going on after {len(done)} of {layout.unit_count(request.samples)} finished units in {directory}")
    _write_units(layout, request, directory, done, workers or len(os.sched_getaffinity(0)), total_bytes)
    manifest = DataSetManifest(
        request, total_bytes, sorted((piece for pieces in done.values() for piece in pieces), key=lambda p: (p.name, p.offset))
    )
    write_manifest(directory, manifest)
    (directory / JOURNAL_NAME).unlink()
    return manifest


def plan_samples(layout: Unet3dLayout, samples: int | None, size_bytes: int | None, seed: int) -> int:
    """Return the number of samples that was asked for, either as such or as a size; UsageError when that is none."""
    if not 0 <= seed < _SEED_LIMIT:
        raise UsageError(f"seed {seed} is out of range; give a whole number from 0 to {_SEED_LIMIT - 1}")
    if samples is not None and size_bytes is None:
        if samples < 1:
            raise UsageError(f"{samples} samples make no data set; ask for at least 1")
        return samples
    if size_bytes is None or samples is not None:
        raise UsageError("give either a size or a number of samples, for example --size 512MiB")
    if fitting := layout.samples_within(size_bytes, seed):
        return fitting
    one = format_size(sum(file.size_bytes for file in layout.unit_files(seed, 1, 0)))
    raise UsageError(f"size {format_size(size_bytes)} is too small for one {layout.workload} sample of {one}; ask for more")


def _units(layout: Unet3dLayout, request: Request) -> range:
    return range(layout.unit_count(request.samples))


def _prepare(directory: Path, request: Request, force: bool) -> DataSetManifest | None:
    """Make `directory` ready for `request`; return the manifest if it already holds exactly that data set."""
    directory.mkdir(parents=True, exist_ok=True)
    if (directory / MANIFEST_NAME).exists() and not force:
        manifest = read_manifest(directory)
        if manifest.request == request:
            note(f"{directory} already holds this data set; check it with --verify")
            return manifest
        raise IotwinError(f"{directory} already holds another data set; choose another directory or replace it with --force")
    unfinished, _ = read_journal(directory)
    if unfinished == request and not force:
        return None
    if any(directory.iterdir()) and not force:
        what = "another, unfinished data set" if unfinished else "files that are not this data set's"
        raise IotwinError(f"{directory} holds {what}; choose an empty directory or go ahead with --force")
    _remove_ours(directory)
    start_journal(directory, request)
    return None


def _remove_ours(directory: Path) -> None:
    """Remove a finished or unfinished data set of ours, and nothing else."""
    _, done = read_journal(directory)
    pieces = [piece for unit in done.values() for piece in unit]
    if (directory / MANIFEST_NAME).exists():
        pieces += read_manifest(directory).pieces
        (directory / MANIFEST_NAME).unlink()
    for name in {piece.name for piece in pieces}:
        (directory / name).unlink(missing_ok=True)
    for path in directory.rglob("*" + PARTIAL_SUFFIX):
        path.unlink()


def _check_space(directory: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(directory).free
    if needed_bytes > free_bytes:
        raise IotwinError(
            f"{directory}: {format_size(needed_bytes)} are needed but {format_size(free_bytes)} are free; "
            "ask for less or choose another disk"
        )


def _unit_writer(layout: Unet3dLayout, request: Request, directory: Path) -> UnitWriter:
    from datagen.unet3d import write_case

    return partial(write_case, layout, request.seed, directory)


def _write_units(
    layout: Unet3dLayout, request: Request, directory: Path, done: dict[int, list[Piece]], workers: int, total_bytes: int
) -> None:
    """Write every unit that is not `done`, add it to `done`, to the journal and, under its final name, to the directory."""
    todo = [unit for unit in _units(layout, request) if unit not in done]
    with (
        progress(f"generating {request.workload}", total_bytes) as advance,
        (directory / JOURNAL_NAME).open("ab", buffering=0) as journal,
    ):
        advance(sum(piece.size_bytes for pieces in done.values() for piece in pieces))
        writer = _unit_writer(layout, request, directory)
        for unit, pieces in run_units(writer, iter(todo), min(workers, len(todo)) or 1, advance):
            _publish(directory, pieces)
            journal.write(msgspec.json.encode(JournalEntry(unit, pieces)) + b"\n")
            done[unit] = pieces


def _publish(directory: Path, pieces: list[Piece]) -> None:
    for piece in pieces:
        (directory / (piece.name + PARTIAL_SUFFIX)).replace(directory / piece.name)
