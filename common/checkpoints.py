"""Read the checkpoints that `common.commit` writes: list them, verify them, and find the newest undamaged one.

The newest checkpoint is the one with the largest `sequence` in its manifest. This number grows with every commit; steps and
clocks may go back.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.tensor_file import (
    Damaged,
    Tensor,
    check_index,
    checksum_of,
    crc32c,
    decode_index,
    read_checked,
    read_small,
    size_of,
    tensors_in,
)
from iotwin.common.units import counted

VERSION = 1
MANIFEST, LATEST = "manifest.json", "LATEST"
# A job that returned to an earlier step writes step-N again, as step-N.1, step-N.2 and so on.
CHECKPOINT = re.compile(r"step-([0-9]{1,19})(?:\.[0-9]{1,9})?")
_MOST_MANIFEST_BYTES = 64 << 20
_MOST_SEQUENCE = 2**53  # reached if a job commits every microsecond for 285 years
_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Ranks = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]  # a file name without a folder
_Checksum = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_verified: dict[int, str | None] = {}  # result of `verify`, keyed by `_state_of_files`


class Position(msgspec.Struct, frozen=True):
    """Progress through the data: all ranks together consumed `position` of the `samples` samples of epoch `epoch` (from 1)."""

    seed: _Natural
    epoch: _Natural
    position: _Natural
    samples: _Natural
    batch_size: _Natural  # per rank
    world_size: _Ranks
    kept: _Natural = 0  # samples of the epoch that are consumed; the rest would not fill one more step on every rank


class StoredFile(msgspec.Struct, frozen=True):
    """One file of a checkpoint, as the manifest lists it."""

    name: _Name
    rank: _Natural
    size_bytes: _Natural
    crc32c: _Checksum


class CheckpointManifest(msgspec.Struct, frozen=True):
    """The manifest of a checkpoint: step, files and their checksums. `crc32c`, the last key, covers the bytes before it."""

    version: int
    step: _Natural
    epoch: _Natural
    position: Position
    world_size: _Ranks
    files: list[StoredFile] = []
    code_sha256: str = ""
    versions: dict[str, str] = {}
    reason: str = ""  # cause of the checkpoint: "epoch", "steps", "seconds", "list", "signal", "end"
    metric: float | None = None  # result of the newest evaluation; higher is better
    job: dict[str, Any] = {}  # settings that a job must share to resume from this checkpoint
    sequence: Annotated[int, msgspec.Meta(ge=0, le=_MOST_SEQUENCE)] = 0
    crc32c: _Checksum = 0


class _OfVersion(msgspec.Struct):
    version: int


@dataclass(frozen=True)
class Found:
    """A checkpoint in a store. It is usable if `reason` is None; otherwise, `reason` describes the damage."""

    path: Path
    manifest: CheckpointManifest | None
    reason: str | None = None

    @property
    def name(self) -> str:
        """Return the name of the checkpoint's folder."""
        return self.path.name

    @property
    def size_bytes(self) -> int:
        """Return the total size in bytes of the files that the manifest lists; 0 without a manifest."""
        return sum(file.size_bytes for file in self.manifest.files) if self.manifest else 0


def look(path: Path) -> Found:
    """Return the checkpoint in the folder `path`, after checking its manifest and file sizes. File contents are not read."""
    try:
        manifest = decode(read_small(path / MANIFEST, _MOST_MANIFEST_BYTES))
    except Damaged as damage:
        return Found(path, None, f"{MANIFEST} {damage}")
    for file in manifest.files:
        try:
            if (found := size_of(path / file.name)) != file.size_bytes:
                return Found(path, manifest, f"{file.name} has {found} bytes instead of {file.size_bytes}")
        except Damaged as damage:
            return Found(path, manifest, f"{file.name}: {damage}")
    return Found(path, manifest)


def files_of_ranks(ranks: int) -> list[StoredFile]:
    """Return manifest entries for the two files that each of `ranks` ranks will write. Sizes and checksums are 0."""
    return [StoredFile(f"rank-{rank}.{kind}", rank, 0, 0) for rank in range(ranks) for kind in ("raw", "json")]


def decode(content: bytes) -> CheckpointManifest:
    """Return the manifest in `content`. Raises Damaged if it is no manifest or does not list the files of every rank."""
    if len(content) > _MOST_MANIFEST_BYTES:
        raise Damaged(f"has {len(content)} bytes, more than any such file")
    try:
        version = msgspec.json.decode(content, type=_OfVersion).version
        if version > VERSION:
            raise Damaged(f"is of version {version}, newer than this program's {VERSION}; use the newer program")
        manifest = msgspec.json.decode(content, type=CheckpointManifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"is no manifest: {error}") from None
    ending = b"%d}" % manifest.crc32c
    if not content.endswith(ending) or crc32c(content[: -len(ending)]) != manifest.crc32c:
        raise Damaged("does not have its own checksum")
    ranks = len(manifest.files) // 2
    listed = sorted((file.name, file.rank) for file in manifest.files)
    # Rank 0 may write the files of all ranks.
    if ranks not in (1, manifest.world_size) or listed != sorted((file.name, file.rank) for file in files_of_ranks(ranks)):
        raise Damaged(f"does not list the files of {counted(manifest.world_size, 'rank')}, nor those of one")
    return manifest


def encode(manifest: CheckpointManifest) -> bytes:
    """Return the manifest as JSON. Its last value is the CRC-32C of all bytes before that value."""
    ending = b"0}"
    content = msgspec.json.encode(msgspec.structs.replace(manifest, crc32c=0)).removesuffix(ending)
    return content + b"%d}" % crc32c(content)


def verify(found: Found) -> Found:
    """Read all files of `found`. Return it, with `reason` set if the content of a file does not match the file's checksum."""
    if found.reason is not None or found.manifest is None:
        return found
    state = _state_of_files(found)
    checked = replace(found, reason=_flaw(found.path, found.manifest.files))
    if state is not None:
        _verified[state] = checked.reason
    return checked


def verify_once(found: Found) -> Found:
    """Verify `found` as `verify` does, but skip files that this process wrote or verified and that nobody has changed since."""
    state = _state_of_files(found)
    if found.reason is None and state in _verified:
        return replace(found, reason=_verified[state])
    return verify(found)


def trust(found: Found) -> None:
    """Mark the checkpoint `found`, which this process has just written, as verified, so that `verify_once` does not read it."""
    if found.reason is None and (state := _state_of_files(found)) is not None:
        _verified[state] = None


def _state_of_files(found: Found) -> int | None:
    """Return a hash of the files' inodes, sizes and times; None if a file is missing. Every write to a file changes the hash."""
    if found.manifest is None:
        return None
    try:
        stats = [os.lstat(found.path / file.name) for file in found.manifest.files]
    except OSError:
        return None
    times = tuple((each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in stats)
    return hash((found.manifest.crc32c, times))


def _flaw(folder: Path, files: list[StoredFile]) -> str | None:
    sizes = {file.name: file.size_bytes for file in files}
    for file in files:
        try:
            if checksum_of(folder / file.name) != file.crc32c:
                return f"{file.name} does not have its checksum"
            if file.name.endswith(".json"):
                check_index(decode_index(read_small(folder / file.name)), sizes[f"rank-{file.rank}.raw"])
        except Damaged as damage:
            return f"{file.name}: {damage}"
    return None


def checkpoints(directory: Path) -> list[Found]:
    """Return the checkpoints in `directory`: first those without a valid manifest, then the others from newest to oldest.

    File contents are not read. Raises IotwinError if `directory` cannot be listed.
    """
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
    """Return the checkpoint name in the file LATEST; None if LATEST has no such name. The checkpoint may no longer exist."""
    try:
        name = read_small(directory / LATEST, 4096).decode("ascii", "replace").strip()
    except Damaged:
        return None
    return name if CHECKPOINT.fullmatch(name) else None


def newest(directory: Path, refused: Callable[[str], None]) -> Found | None:
    """Return the newest undamaged checkpoint in `directory`, after reading all its files; None if there is none.

    `refused` is called with a message for each damaged checkpoint that is newer.
    """
    for found in checkpoints(directory):
        checked = verify(found)
        if checked.reason is None:
            return checked
        refused(f"{checked.path} is not used: {checked.reason}")
    return None


def open_checkpoint(path: Path, refused: Callable[[str], None]) -> Found:
    """Return the checkpoint at `path`. If `path` is a store, return the newest undamaged checkpoint in it (see `newest`).

    Raises IotwinError if the checkpoint is damaged or the store has no undamaged one.
    """
    if _has_manifest(path):
        found = verify(look(path))
        if found.reason is not None:
            raise IotwinError(f"{path} cannot be used: {found.reason}")
        return found
    if (chosen := newest(path, refused)) is None:
        raise IotwinError(f"{path} holds no checkpoint that loads; find the reason with: iotwin checkpoints verify {path}")
    return chosen


def _has_manifest(path: Path) -> bool:
    try:
        return (path / MANIFEST).is_file()
    except OSError:  # `checkpoints` reports the error
        return False


def read_rank(found: Found, rank: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return (tensors by name, plain values) that `rank` saved. Raises IotwinError if the rank's files are missing or damaged."""
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
