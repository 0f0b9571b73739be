"""Read and write the metadata of a data set: manifest.json if it is finished, journals if it is not.

The manifest contains no times and no machine, so that the same request results in the same bytes everywhere.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.files import struct_json
from iotwin.common.paths_below import open_beneath, read_beneath, rename_beneath, stays_within
from iotwin.common.removal import remove_file, unlink_beneath
from iotwin.common.untrusted_files import decode_foreign
from iotwin.datagen.data_set_files import Piece
from iotwin.datagen.layouts import LARGEST_FILE_BYTES

MANIFEST_NAME = "manifest.json"
JOURNAL_NAME = ".iotwin-generate.jsonl"
NODE_JOURNAL_PATTERN = ".iotwin-generate-of-*.jsonl"
KIND = "iotwin data set"
_LARGEST_LIST_BYTES = 1 << 30  # largest manifest or journal, with about five million files
GENERATOR = 2  # version of the generator, which increases if the same request results in other bytes or checksums


class Request(msgspec.Struct, frozen=True):
    """The request for a data set, which determines every byte of the data set."""

    workload: str
    layout: dict[str, Any]
    samples: int
    seed: int
    generator: int = GENERATOR


class DataSetManifest(msgspec.Struct, frozen=True):
    """The manifest of a finished data set."""

    request: Request
    size_bytes: int
    pieces: list[Piece]  # sorted by file name and offset
    kind: str = KIND


class JournalEntry(msgspec.Struct, frozen=True):
    """A line of a journal: a finished unit of work and its pieces, which are flushed to disk."""

    unit: int
    pieces: list[Piece]


def decode_manifest(content: bytes, place: object) -> DataSetManifest:
    """Return the manifest in `content`, which was read from `place`. Raises IotwinError if iotwin did not write it."""
    try:
        manifest = decode_foreign(content, DataSetManifest, "it")
    except IotwinError as error:
        raise IotwinError(f"{place} is not the manifest of an iotwin data set: {error}") from None
    if manifest.kind != KIND:
        raise IotwinError(f"{place} is not the manifest of an iotwin data set: it is of the kind {manifest.kind!r}")
    for piece in manifest.pieces:
        if not _is_possible(piece):
            raise IotwinError(
                f"{place} names {piece.name!r}, which is no file of a data set in its own directory; do not trust it"
            )
    return manifest


def _is_possible(piece: Piece) -> bool:
    """Return True if iotwin can have written `piece`: its name leads to a file in the directory, and numbers are in range."""
    return stays_within(piece.name) and 0 <= piece.offset <= LARGEST_FILE_BYTES and 0 <= piece.size_bytes <= LARGEST_FILE_BYTES


def write_manifest(directory: Path, manifest: DataSetManifest) -> None:
    """Write `manifest` as manifest.json in `directory`, whole or not at all."""
    _write(directory, MANIFEST_NAME, struct_json(manifest))


def read_manifest(directory: Path) -> DataSetManifest:
    """Return the manifest of the data set in `directory`. Raises IotwinError if there is none or iotwin did not write it."""
    try:
        content = read_beneath(directory, MANIFEST_NAME, _LARGEST_LIST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise IotwinError(f"{directory} is not a finished iotwin data set: it has no {MANIFEST_NAME}") from None
    return decode_manifest(content, directory / MANIFEST_NAME)


def read_journal(directory: Path) -> tuple[Request | None, dict[int, list[Piece]]]:
    """Return (the unfinished request in `directory` or None, the pieces of its finished units, by unit).

    The journals of all nodes are read. Damaged lines, as after a kill, are ignored, so their units are written again.
    """
    request, done = _read_lines(directory, JOURNAL_NAME)
    for path in sorted(directory.glob(NODE_JOURNAL_PATTERN)):
        same, entries = _read_lines(directory, path.name)
        if same == request:
            done |= entries
    return request, done


def _read_lines(directory: Path, name: str) -> tuple[Request | None, dict[int, list[Piece]]]:
    try:
        lines = read_beneath(directory, name, _LARGEST_LIST_BYTES).split(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return None, {}
    try:
        request = decode_foreign(lines[0], Request, name)
    except IotwinError:
        return None, {}
    done = {}
    for line in lines[1:-1]:
        with suppress(IotwinError):
            entry = decode_foreign(line, JournalEntry, name)
            if all(map(_is_possible, entry.pieces)):
                done[entry.unit] = entry.pieces
    return request, done


def start_journal(directory: Path, request: Request, name: str = JOURNAL_NAME) -> None:
    """Create the journal `name` of `request` in `directory`. An existing file of that name is replaced."""
    _write(directory, name, msgspec.json.encode(request) + b"\n")


def _write(directory: Path, name: str, content: bytes) -> None:
    temporary = name + ".partial"
    unlink_beneath(directory, temporary)
    with os.fdopen(open_beneath(directory, temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    rename_beneath(directory, temporary, name)


def remove_journals(directory: Path) -> None:
    """Remove the journals of all nodes. The one that marks the data set as unfinished is removed last."""
    for path in (*directory.glob(NODE_JOURNAL_PATTERN), directory / JOURNAL_NAME):
        remove_file(path)
