"""Read a finished data set and compare it with the sizes and checksums in its manifest."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from iotwin.common.errors import IotwinError
from iotwin.common.paths_below import size_beneath
from iotwin.common.progress import progress
from iotwin.common.units import counted
from iotwin.datagen.data_set_files import Piece, read_piece_beneath
from iotwin.datagen.manifest import GENERATOR, DataSetManifest, read_manifest
from iotwin.datagen.pool import UnitWriter, run_units


def verify(directory: Path, workers: int | None = None) -> DataSetManifest:
    """Read the whole data set in `directory` and return its manifest. Raises IotwinError if the data differ from it."""
    size_bytes = partial(size_beneath, directory)
    return compare(str(directory), read_manifest(directory), size_bytes, partial(_read_piece, directory), workers)


def compare(
    place: str,
    manifest: DataSetManifest,
    size_bytes: Callable[[str], int | None],
    reader: Callable[[list[Piece], int, Callable[[int], None]], list[Piece]],
    workers: int | None,
) -> DataSetManifest:
    """Return `manifest` if the data set at `place` matches it, else raise IotwinError.

    `size_bytes` returns the size of a file by name, None if it is missing. `reader`, called with a list of pieces and an index,
    returns that piece with the size and checksum that it has at `place`; it must be picklable.
    """
    if manifest.request.generator != GENERATOR:
        raise IotwinError(f"{place} was made by another version of iotwin, with other checksums; generate it again with --force")
    faults = _wrong_sizes(manifest, size_bytes)
    pieces = [piece for piece in manifest.pieces if piece.name not in faults]
    read: UnitWriter = partial(reader, pieces)
    with progress("verifying", sum(piece.size_bytes for piece in pieces)) as advance:
        for index, (found,) in run_units(read, range(len(pieces)), workers or len(os.sched_getaffinity(0)), advance):
            if found != pieces[index]:
                faults[found.name] = "its content differs"
    if faults:
        name, fault = min(faults.items())
        files = len({piece.name for piece in manifest.pieces})
        raise IotwinError(
            f"{place}: {counted(len(faults), 'file')} of {files} differ from the manifest, first {name}: {fault}; "
            "generate the data set again with --force"
        )
    return manifest


def _wrong_sizes(manifest: DataSetManifest, size_bytes: Callable[[str], int | None]) -> dict[str, str]:
    sizes: dict[str, int] = {}
    for piece in manifest.pieces:
        sizes[piece.name] = sizes.get(piece.name, 0) + piece.size_bytes
    faults = {}
    for name, expected_bytes in sizes.items():
        found_bytes = size_bytes(name)
        if found_bytes is None:
            faults[name] = "it is missing"
        elif found_bytes != expected_bytes:
            faults[name] = f"it has {found_bytes} bytes instead of {expected_bytes}"
    return faults


def _read_piece(directory: Path, pieces: list[Piece], index: int, read: Callable[[int], None]) -> list[Piece]:
    return [read_piece_beneath(directory, pieces[index], read)]
