"""Checkpoints as they lie in a store: what their manifests say, which are whole, and which is the newest that loads.

How they are written is said in `common.commit`. `sequence` grows with every commit, so that neither a run that went back to an
earlier step nor a clock that was set back makes an old checkpoint the newest.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from common.errors import IotwinError
from common.tensor_file import Damaged, Tensor, checksum_of, crc32c, decode_index, read_checked, read_small, size_of, tensors_in

VERSION = 1
MANIFEST, LATEST = "manifest.json", "LATEST"
CHECKPOINT = re.compile(r"step-(\d{1,18})(?:\.(\d{1,9}))?")  # .1, .2 ...: the step once more, after a return to an earlier one
_MOST_MANIFEST_BYTES = 64 << 20
_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Ranks = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]  # of a file in the folder, nowhere else
_Checksum = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class Position(msgspec.Struct, frozen=True):
    """How far the data is consumed: `position` of the `samples` of epoch `epoch` (from 1), by all ranks together."""

    seed: _Natural
    epoch: _Natural
    position: _Natural
    samples: _Natural
    batch_size: _Natural  # per rank
    world_size: _Ranks
    kept: _Natural = 0  # samples that the epoch consumes; those after them fill no step of the ranks that began it


class StoredFile(msgspec.Struct, frozen=True):
    """One file of a checkpoint."""

    name: _Name
    rank: _Natural
    size_bytes: _Natural
    crc32c: _Checksum


class Manifest(msgspec.Struct, frozen=True):
    """What a checkpoint is, and what it must hold. `crc32c`, the last key, is that of the bytes before it."""

    version: int
    step: _Natural
    epoch: _Natural
    position: Position
    world_size: _Ranks
    files: list[StoredFile] = []
    code_sha256: str = ""
    versions: dict[str, str] = {}
    reason: str = ""  # why it was written: "epoch", "steps", "seconds", "list", "signal", "end"
    metric: float | None = None  # of the newest evaluation; higher is better
    job: dict[str, Any] = {}  # what must agree for a job to go on from here
    sequence: _Natural = 0
    crc32c: _Checksum = 0


class _OfVersion(msgspec.Struct):
    version: int


@dataclass(frozen=True)
class Found:
    """A checkpoint in a store: usable when `reason` is None."""

    path: Path
    manifest: Manifest | None
    reason: str | None = None

    @property
    def name(self) -> str:
        """Return the folder's name."""
        return self.path.name

    @property
    def size_bytes(self) -> int:
        """Return the bytes of its files, as the manifest tells; 0 without one."""
        return sum(file.size_bytes for file in self.manifest.files) if self.manifest else 0


def look(path: Path) -> Found:
    """Return the checkpoint at `path` by its manifest and its files' sizes, without reading them."""
    try:
        manifest = _read_manifest(path / MANIFEST)
    except Damaged as damage:
        return Found(path, None, f"{MANIFEST} {damage}")
    for file in manifest.files:
        try:
            if (found := size_of(path / file.name)) != file.size_bytes:
                return Found(path, manifest, f"{file.name} has {found} bytes instead of {file.size_bytes}")
        except Damaged as damage:
            return Found(path, manifest, f"{file.name}: {damage}")
    return Found(path, manifest)


def _read_manifest(path: Path) -> Manifest:
    content = read_small(path, _MOST_MANIFEST_BYTES)
    try:
        version = msgspec.json.decode(content, type=_OfVersion).version
        if version > VERSION:
            raise Damaged(f"is of version {version}, newer than this program's {VERSION}; use the newer program")
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"is no manifest: {error}") from None
    ending = b"%d}" % manifest.crc32c
    if not content.endswith(ending) or crc32c(content[: -len(ending)]) != manifest.crc32c:
        raise Damaged("does not have its own checksum")
    return manifest


def encode(manifest: Manifest) -> bytes:
    """Return the manifest as JSON, whose last value is the checksum of all before it."""
    ending = b"0}"
    content = msgspec.json.encode(msgspec.structs.replace(manifest, crc32c=0)).removesuffix(ending)
    return content + b"%d}" % crc32c(content)


def verify(found: Found) -> Found:
    """Return `found` after reading all its files: with a reason when one is not what was written."""
    if found.reason is not None or found.manifest is None:
        return found
    for file in found.manifest.files:
        try:
            if checksum_of(found.path / file.name) != file.crc32c:
                return replace(found, reason=f"{file.name} does not have its checksum")
        except Damaged as damage:
            return replace(found, reason=f"{file.name}: {damage}")
    return found


def checkpoints(directory: Path) -> list[Found]:
    """Return what `directory` holds by `look`, newest first, before them those without a manifest; IotwinError without it."""
    try:
        names = [
            entry.name
            for entry in os.scandir(directory)
            if CHECKPOINT.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        ]
    except OSError as error:
        raise IotwinError(f"{directory}: {error.strerror}; name a directory that holds checkpoints") from None
    found = [look(directory / name) for name in names]
    return sorted(found, key=_age, reverse=True)


def _age(found: Found) -> tuple[bool, int, int]:
    step = int(CHECKPOINT.fullmatch(found.name)[1])  # type: ignore[index]
    return found.manifest is None, found.manifest.sequence if found.manifest else 0, step


def named_latest(directory: Path) -> str | None:
    """Return the name in LATEST, whether or not it exists; None when it cannot be a checkpoint's."""
    try:
        name = read_small(directory / LATEST, 4096).decode("ascii", "replace").strip()
    except Damaged:
        return None
    return name if CHECKPOINT.fullmatch(name) else None


def newest(directory: Path, refused: Callable[[str], None]) -> Found | None:
    """Return the newest checkpoint of `directory` all of whose bytes are right; `refused` gets a line for each newer one."""
    for found in checkpoints(directory):
        checked = verify(found)
        if checked.reason is None:
            return checked
        refused(f"{checked.path} is not used: {checked.reason}")
    return None


def open_checkpoint(path: Path, refused: Callable[[str], None]) -> Found:
    """Return the checkpoint that `path` is, or the newest of the store that it is; IotwinError when there is none that loads."""
    if (path / MANIFEST).is_file():
        found = verify(look(path))
        if found.reason is not None:
            raise IotwinError(f"{path} cannot be used: {found.reason}")
        return found
    if (chosen := newest(path, refused)) is None:
        raise IotwinError(f"{path} holds no checkpoint that loads; iotwin checkpoints verify {path} says why")
    return chosen


def read_rank(found: Found, rank: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors by name and the plain values that `rank` saved; IotwinError when the files are not what was written."""
    files = {file.name: file for file in found.manifest.files} if found.manifest else {}
    try:
        raw, index = files[f"rank-{rank}.raw"], files[f"rank-{rank}.json"]
        name = index.name
        decoded = decode_index(read_checked(found.path / name, index.size_bytes, index.crc32c).tobytes())
        name = raw.name
        content = read_checked(found.path / name, raw.size_bytes, raw.crc32c)
        return {tensor.name: tensor for tensor in tensors_in(decoded, content)}, decoded.values
    except KeyError:
        raise IotwinError(f"{found.path} has no state of rank {rank}") from None
    except Damaged as damage:
        raise IotwinError(f"{found.path / name}: {damage}") from None
