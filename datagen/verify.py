"""Read a finished data set again and compare every byte with its manifest."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from datagen.files import Piece, read_piece
from datagen.manifest import DataSetManifest, read_manifest
from datagen.pool import run_units
from tracing_tools.trace.errors import IotwinError
from tracing_tools.trace.progress import progress


def verify(directory: Path, workers: int | None = None) -> DataSetManifest:
    """Return the manifest of the data set in `directory` after reading all of it; IotwinError if any byte differs."""
    manifest = read_manifest(directory)
    faults = _wrong_sizes(directory, manifest)
    pieces = [piece for piece in manifest.pieces if piece.name not in faults]
    with progress("verifying", sum(piece.size_bytes for piece in pieces)) as advance:
        reader = partial(_read_piece, directory, pieces)
        for index, (found,) in run_units(reader, range(len(pieces)), workers or len(os.sched_getaffinity(0)), advance):
            if found != pieces[index]:
                faults[found.name] = "its content differs"
    if faults:
        name, fault = min(faults.items())
        files = len({piece.name for piece in manifest.pieces})
        raise IotwinError(
            f"{directory}: {len(faults)} of {files} files do not match the manifest, first {name}: {fault}; "
            "generate the data set again with --force"
        )
    return manifest


def _wrong_sizes(directory: Path, manifest: DataSetManifest) -> dict[str, str]:
    """Return what is wrong with the files whose size alone tells, by name."""
    sizes: dict[str, int] = {}
    for piece in manifest.pieces:
        sizes[piece.name] = sizes.get(piece.name, 0) + piece.size_bytes
    faults = {}
    for name, size_bytes in sizes.items():
        try:
            found_bytes = (directory / name).stat().st_size
        except FileNotFoundError:
            faults[name] = "it is missing"
        else:
            if found_bytes != size_bytes:
                faults[name] = f"it has {found_bytes} bytes instead of {size_bytes}"
    return faults


def _read_piece(directory: Path, pieces: list[Piece], index: int, read: Callable[[int], None]) -> list[Piece]:
    """Return piece `index` with the checksum of what is on disk."""
    piece = pieces[index]
    return [read_piece(directory / piece.name, piece.name, piece.offset, piece.size_bytes, read)]
