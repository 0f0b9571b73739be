"""Write checkpoints: after a power cut at any instant, the store holds the previous checkpoint or the new one.

step-N.tmp/                 rank 0 creates the folder
  rank-R.raw, rank-R.json   each rank writes and fsyncs tensors, their index and plain values, and waits for the other ranks
  manifest.json             rank 0 writes and fsyncs the list of files with checksums, and fsyncs the folder
step-N/                     rank 0 renames the folder and fsyncs the store; now the checkpoint is durable
LATEST                      name of the newest checkpoint, for people only: programs compare the manifests
step-M.gone/                an older checkpoint during its removal; the folder remains if it holds files of others
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Protocol, Self

import msgspec

from iotwin.common.checkpoints import (
    CHECKPOINT,
    LATEST,
    MANIFEST,
    CheckpointManifest,
    Found,
    StoredFile,
    checkpoints,
    decode,
    encode,
    files_of_ranks,
    look,
    trust,
    verify,
)
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import fsync_directory, make_folder, new_folder, open_whole, rename
from iotwin.common.locks import hold_lock, release_lock
from iotwin.common.progress import note
from iotwin.common.removal import remove_empty, unlink_beneath
from iotwin.common.retention import Retention, superseded
from iotwin.common.tensor_file import Damaged, Index, Packed, Tensor, crc32c, read_small, write_durably, write_tensors

LOCK = "store.lock"
# Folders that a killed commit or a killed removal leaves.
_LEFT = re.compile(CHECKPOINT.pattern + r"\.(?:(?P<unfinished>tmp)|gone(?:\.[0-9]+)?)")
_OURS = re.compile(r"rank-\d{1,9}\.(raw|json)|manifest\.json")


class Together(Protocol):
    """Interface to the group of ranks that write a checkpoint together."""

    @property
    def rank(self) -> int:
        """Return this rank's index."""

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""

    def sum(self, *values: float) -> list[float]:
        """Return the sum of each value over all ranks. Blocks until all ranks have called this method."""


class Alone:
    """The `Together` of a job that has one rank."""

    rank, world_size = 0, 1

    def sum(self, *values: float) -> list[float]:
        """Return `values`, since there is only one rank."""
        return list(values)


class Store:
    """The directory of one job's checkpoints. Every rank enters it by `with`; meanwhile, rank 0 holds the directory's lock.

    `with` raises UsageError if the directory contains other files. It raises IotwinError if another job writes there, or if the
    directory is not writable.
    """

    def __init__(self, directory: Path, retention: Retention | None = None, together: Together | None = None) -> None:
        self.directory, self.retention, self._together = directory, retention or Retention(), together or Alone()
        self._lock: int | None = None

    def __enter__(self) -> Self:
        with self._agreed():
            if self._together.rank == 0:
                self._claim()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._lock is not None:
            release_lock(self._lock)
            self._lock = None

    def _claim(self) -> None:
        _make_durably(self.directory)
        ours = (self.directory / LOCK).is_file() or any(found.manifest for found in checkpoints(self.directory))
        if not ours and any(self.directory.iterdir()):
            raise UsageError(f"{self.directory} holds other files than checkpoints; choose another directory")
        self._lock = hold_lock(self.directory / LOCK)

    @contextlib.contextmanager
    def _agreed(self) -> Iterator[None]:
        """Run the `with` block on all ranks. If it fails on one rank, raise an IotwinError on every rank."""
        failure: Exception | None = None
        try:
            yield
        except (OSError, IotwinError) as error:
            failure = error
        [failed] = self._together.sum(float(failure is not None))
        if isinstance(failure, IotwinError):
            raise failure
        if isinstance(failure, OSError):
            what = failure.filename or self.directory
            raise IotwinError(
                f"{what}: the checkpoint cannot be written ({failure.strerror}); make room there or choose another place"
            )
        if failed:
            raise IotwinError(f"{self.directory}: another rank could not write its part of the checkpoint")

    def commit(self, manifest: CheckpointManifest, tensors: Iterable[Tensor] | Packed, values: dict[str, Any]) -> Path:
        """Write a checkpoint of the `tensors` and `values` of all ranks. Return the checkpoint's folder on rank 0.

        Every rank must call `commit`, which sets the manifest's `files` and `sequence`. On return, the checkpoint is durable, and
        older checkpoints that the retention does not keep are removed.
        """
        folder, rank = self.directory / f"step-{manifest.step}.tmp", self._together.rank
        try:
            with self._agreed():
                if rank == 0:
                    manifest = self._begin(folder, manifest)
            with self._agreed():
                write_rank(folder, rank, tensors, values)
            with self._agreed():
                return self._finish(folder, manifest) if rank == 0 else folder
        except BaseException:
            if rank == 0:
                with contextlib.suppress(OSError, IotwinError):
                    _remove_unfinished(folder)
            raise
        raise AssertionError  # _agreed re-raises what the last block raised

    def prune(self) -> list[Found]:
        """Verify all checkpoints. Remove unfinished ones, and those that the retention does not keep; return the latter.

        Files that no manifest lists are not removed. A folder that still holds such files no longer counts as a checkpoint.
        """
        try:
            for path in leftovers(self.directory):
                _remove_leftover(path)
            leaving = superseded([verify(found) for found in checkpoints(self.directory)], self.retention)
            for found in leaving:
                _remove(found)
        except OSError as error:
            raise IotwinError(f"{error.filename or self.directory}: {error.strerror}; nothing more was removed") from None
        return leaving

    def _begin(self, folder: Path, manifest: CheckpointManifest) -> CheckpointManifest:
        """Create the checkpoint's temporary `folder`. Return `manifest` with the names of the files that the ranks will write.

        Raises UsageError, before anything is written, if no later run could read the manifest.
        """
        manifest = msgspec.structs.replace(manifest, files=files_of_ranks(self._together.world_size))
        self._encoded(manifest)
        for path in leftovers(self.directory):
            with contextlib.nullcontext() if path == folder else _noted(path):
                _remove_leftover(path)
        new_folder(folder)
        return manifest

    def _encoded(self, manifest: CheckpointManifest) -> tuple[bytes, CheckpointManifest]:
        content = encode(manifest)
        try:
            return content, decode(content)
        except Damaged as damage:
            raise UsageError(f"{self.directory}: step {manifest.step} is not written, as its {MANIFEST} {damage}") from None

    def _finish(self, folder: Path, manifest: CheckpointManifest) -> Path:
        before = checkpoints(self.directory)
        sequence = 1 + max((found.manifest.sequence for found in before if found.manifest), default=0)
        files = [_stored(folder, file) for file in manifest.files]
        content, whole = self._encoded(msgspec.structs.replace(manifest, files=files, sequence=sequence))
        write_durably(folder / MANIFEST, content)
        fsync_directory(folder)
        final = _free_name(self.directory / f"step-{manifest.step}")
        rename(folder, final)
        fsync_directory(self.directory)
        # The checkpoint is durable now, so no failure below may end the job.
        with _noted(self.directory / LATEST), open_whole(self.directory / LATEST, durable=True) as file:
            file.write(f"{final.name}\n".encode())
        written = Found(final, whole)
        trust(written)
        for found in superseded([written, *before], self.retention):
            with _noted(found.path):
                if (kept := _remove(found)) is not None:
                    note(f"{kept} keeps files that are no part of the checkpoint that was removed; move them elsewhere")
        return final


@contextlib.contextmanager
def _noted(path: Path) -> Iterator[None]:
    """If the `with` block fails with an OSError or IotwinError on `path`, print a note instead of raising the error."""
    try:
        yield
    except IotwinError as error:
        note(f"{error}; no checkpoint is lost by that")
    except OSError as error:
        note(f"{path} stays as it is: {error.strerror}; no checkpoint is lost by that")


def write_rank(folder: Path, rank: int, tensors: Iterable[Tensor] | Packed, values: dict[str, Any]) -> None:
    """Write and fsync the two files of `rank` in the unfinished checkpoint `folder`. Raises OSError if a write fails."""
    entries, size_bytes, checksum = write_tensors(folder / f"rank-{rank}.raw", tensors)
    # Ranks exchange only sums, so rank 0 reads the size and checksum of every rank's tensors from the rank's index file.
    index = {**msgspec.to_builtins(Index(entries, values)), "size_bytes": size_bytes, "crc32c": checksum}
    write_durably(folder / f"rank-{rank}.json", msgspec.json.encode(index))


class _Written(msgspec.Struct):
    size_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    crc32c: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


def _stored(folder: Path, file: StoredFile) -> StoredFile:
    path = folder / f"rank-{file.rank}.json"
    try:
        content = read_small(path)
        raw = msgspec.json.decode(content, type=_Written)
    except (Damaged, msgspec.DecodeError, UnicodeDecodeError) as damage:
        raise IotwinError(f"{path}: {damage}; all ranks must write to the same file system") from None
    if file.name == path.name:
        return StoredFile(file.name, file.rank, len(content), crc32c(content))
    return StoredFile(file.name, file.rank, raw.size_bytes, raw.crc32c)


def _remove(found: Found) -> Path | None:
    """Remove a checkpoint, after renaming its folder so that no reader finds half of it. Return the folder if files are left."""
    gone = _free_name(found.path.with_name(f"{found.name}.gone"))
    rename(found.path, gone)
    return None if _remove_listed(gone, found.manifest) else gone


def _remove_listed(gone: Path, manifest: CheckpointManifest | None) -> bool:
    """Remove the folder `gone`, the manifest and the files that it lists. Return False if `gone` holds other files."""
    for name in (*(file.name for file in manifest.files), MANIFEST) if manifest else ():
        unlink_beneath(gone, name)
    return remove_empty(gone) or not any(gone.iterdir())


def leftovers(directory: Path) -> list[Path]:
    """Return what killed commits and removals left in the store `directory`: folders, and unfinished files of LATEST."""
    return [
        Path(entry.path)
        for entry in os.scandir(directory)
        if (_LEFT.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False))
        or (entry.name.startswith(f".{LATEST}.") and entry.name.endswith(".partial"))
    ]


def _remove_leftover(path: Path) -> None:
    match = _LEFT.fullmatch(path.name)
    if match is None:
        unlink_beneath(path.parent, path.name)
    elif match["unfinished"]:
        _remove_unfinished(path)
    else:
        _remove_listed(path, look(path).manifest)


def _free_name(path: Path) -> Path:
    number = 0
    candidate = path
    while os.path.lexists(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}.{number}")
    return candidate


def _remove_unfinished(folder: Path) -> None:
    """Remove an unfinished checkpoint. Raises UsageError if `folder` holds a file that is not a checkpoint's."""
    names = [entry.name for entry in os.scandir(folder)]
    for name in names:
        if not _OURS.fullmatch(name):
            raise UsageError(f"{folder} holds {name}, which is no part of a checkpoint; move it elsewhere")
    for name in names:
        unlink_beneath(folder, name)
    remove_empty(folder)


def _make_durably(directory: Path) -> None:
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        make_folder(path)
        fsync_directory(path.parent)
