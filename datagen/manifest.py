"""What a data set's directory says about itself: manifest.json when it is whole, a journal while it is being written.

The manifest holds no times and no machine, so that the same request gives the same bytes everywhere.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from datagen.files import Piece
from tracing_tools.trace.errors import IotwinError

MANIFEST_NAME = "manifest.json"
JOURNAL_NAME = ".iotwin-generate.jsonl"
NODE_JOURNAL_PATTERN = ".iotwin-generate-of-*.jsonl"
GENERATOR = 2  # raised whenever the same request would give other bytes or checksums


class Request(msgspec.Struct, frozen=True):
    """What was asked for: everything that decides the data set's bytes."""

    workload: str
    layout: dict[str, Any]
    samples: int
    seed: int
    generator: int = GENERATOR


class DataSetManifest(msgspec.Struct, frozen=True):
    """A finished data set."""

    request: Request
    size_bytes: int
    pieces: list[Piece]  # by file name and offset
    kind: str = "iotwin data set"


class JournalEntry(msgspec.Struct, frozen=True):
    """One finished unit of work; its pieces are on disk."""

    unit: int
    pieces: list[Piece]


def encode_manifest(manifest: DataSetManifest) -> bytes:
    """Return the content of manifest.json."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def decode_manifest(content: bytes, place: object) -> DataSetManifest:
    """Return what `content`, found at `place`, says; IotwinError when it is not one of our manifests."""
    try:
        return msgspec.json.decode(content, type=DataSetManifest)
    except msgspec.DecodeError as error:
        raise IotwinError(f"{place} is not the manifest of an iotwin data set: {error}") from None


def write_manifest(directory: Path, manifest: DataSetManifest) -> None:
    """Write the manifest so that a reader sees the old one or the new one, never half of either."""
    temporary = directory / (MANIFEST_NAME + ".partial")
    with temporary.open("wb") as file:
        file.write(encode_manifest(manifest))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / MANIFEST_NAME)


def read_manifest(directory: Path) -> DataSetManifest:
    """Return the manifest of the data set in `directory`; IotwinError when there is none or it is not one of ours."""
    path = directory / MANIFEST_NAME
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise IotwinError(f"{directory} is not a finished iotwin data set: it has no {MANIFEST_NAME}") from None
    return decode_manifest(content, path)


def read_journal(directory: Path) -> tuple[Request | None, dict[int, list[Piece]]]:
    """Return the unfinished request in `directory` (None if there is none) and the pieces of its finished units.

    The journals of all nodes count. A line torn by a kill, to which a later call may have added its first one, is dropped: its
    units are written again.
    """
    request, done = _read_lines(directory / JOURNAL_NAME)
    for path in sorted(directory.glob(NODE_JOURNAL_PATTERN)):
        same, entries = _read_lines(path)
        if same == request:
            done |= entries
    return request, done


def _read_lines(path: Path) -> tuple[Request | None, dict[int, list[Piece]]]:
    try:
        lines = path.read_bytes().split(b"\n")
        request = msgspec.json.decode(lines[0], type=Request)
    except (FileNotFoundError, msgspec.DecodeError):
        return None, {}
    done = {}
    for line in lines[1:-1]:
        with suppress(msgspec.DecodeError):
            entry = msgspec.json.decode(line, type=JournalEntry)
            done[entry.unit] = entry.pieces
    return request, done


def start_journal(directory: Path, request: Request, name: str = JOURNAL_NAME) -> None:
    """Begin the journal of `request`, replacing any other of that name."""
    temporary = directory / (name + ".partial")
    temporary.write_bytes(msgspec.json.encode(request) + b"\n")
    temporary.replace(directory / name)


def remove_journals(directory: Path) -> None:
    """Remove the journals of all nodes, the one that says there is an unfinished data set last."""
    for path in (*directory.glob(NODE_JOURNAL_PATTERN), directory / JOURNAL_NAME):
        path.unlink(missing_ok=True)
