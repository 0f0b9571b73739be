"""Read checkpoints of a store: list them, verify them, and find the newest that loads.

`common.commit` writes them. `sequence` grows with every commit, so that neither a run that went back to an
earlier step nor a clock that was set back makes an old checkpoint the newest.
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

VERSION = 1
MANIFEST, LATEST = "manifest.json", "LATEST"
# .1, .2 ...: the step once more, after a return to an earlier one
CHECKPOINT = re.compile(r"step-([0-9]{1,19})(?:\.[0-9]{1,9})?")
_MOST_MANIFEST_BYTES = 64 << 20
_MOST_SEQUENCE = 2**53  # a commit each microsecond for 285 years
_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Ranks = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]  # of a file in the folder, nowhere else
_Checksum = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_verified: dict[int, str | None] = {}  # what `verify` found, by the state of the files that it read


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


class CheckpointManifest(msgspec.Struct, frozen=True):
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
    sequence: Annotated[int, msgspec.Meta(ge=0, le=_MOST_SEQUENCE)] = 0
    crc32c: _Checksum = 0


class _OfVersion(msgspec.Struct):
    version: int


@dataclass(frozen=True)
class Found:
    """A checkpoint in a store. It is usable if `reason` is None."""

    path: Path
    manifest: CheckpointManifest | None
    reason: str | None = None

    @property
    def name(self) -> str:
        """Return the folder's name."""
        return self.path.name

    @property
    def size_bytes(self) -> int:
        """Return the bytes of its files, by its manifest; 0 if it has no manifest."""
        return sum(file.size_bytes for file in self.manifest.files) if self.manifest else 0


def look(path: Path) -> Found:
    """Return the checkpoint at `path` by its manifest and its files' sizes, without reading them."""
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
    """Return the files that the ranks will write, without sizes and checksums, which are known only afterwards."""
    return [StoredFile(f"rank-{rank}.{kind}", rank, 0, 0) for rank in range(ranks) for kind in ("raw", "json")]


def decode(content: bytes) -> CheckpointManifest:
    """Return the manifest in `content`. Raises Damaged if it is no manifest or lists no complete state of a job."""
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
    # One rank may write for all of them.
    if ranks not in (1, manifest.world_size) or listed != sorted((file.name, file.rank) for file in files_of_ranks(ranks)):
        raise Damaged(f"does not list the files of {manifest.world_size} ranks, nor those of one")
    return manifest


def encode(manifest: CheckpointManifest) -> bytes:
    """Return the manifest as JSON, whose last value is the checksum of all before it."""
    ending = b"0}"
    content = msgspec.json.encode(msgspec.structs.replace(manifest, crc32c=0)).removesuffix(ending)
    return content + b"%d}" % crc32c(content)


def verify(found: Found) -> Found:
    """Read all files of `found`; return it, with a reason if a file differs from what was written."""
    if found.reason is not None or found.manifest is None:
        return found
    state = _state_of_files(found)
    checked = replace(found, reason=_flaw(found.path, found.manifest.files))
    if state is not None:
        _verified[state] = checked.reason
    return checked


def verify_once(found: Found) -> Found:
    """Return what `verify` returns, but skip files that this process has read or written and that are unchanged since."""
    state = _state_of_files(found)
    if found.reason is None and state in _verified:
        return replace(found, reason=_verified[state])
    return verify(found)


def trust(found: Found) -> None:
    """Let `verify_once` count `found`, which this process has just written, as verified."""
    if found.reason is None and (state := _state_of_files(found)) is not None:
        _verified[state] = None


def _state_of_files(found: Found) -> int | None:
    """Return a number that changes with every write to a file; None if a file is missing. Decay on disk does not change it."""
    if found.manifest is None:
        return None
    try:
        stats = [os.lstat(found.path / file.name) for file in found.manifest.files]
    except OSError:
        return None
    times = tuple((each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in stats)
    return hash((found.manifest.crc32c, times))


def _flaw(folder: Path, files: list[StoredFile]) -> str | None:
    """Return how the bytes of `files` differ from what was written; None if they do not."""
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
