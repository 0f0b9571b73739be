"""The one commit protocol of checkpoints: a power cut at any instant leaves the checkpoint before, or the new one.

step-N.tmp/                 made by rank 0
  rank-R.raw, rank-R.json   each rank: tensors, their index and plain values, fsynced; then all ranks wait for one another
  manifest.json             rank 0: what was written, with checksums; fsynced, then the folder is
step-N/                     by rename, then fsync of the store: from here on it is durable
LATEST                      names it, replaced by rename; for people, as the manifests tell which is the newest
the older ones              leave, but for those that the retention keeps
"""

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Protocol, Self

import msgspec

from common.checkpoints import CHECKPOINT, LATEST, MANIFEST, Found, Manifest, StoredFile, checkpoints, encode, verify
from common.errors import IotwinError, UsageError
from common.files import fsync_directory, open_whole
from common.tensor_file import Damaged, Index, Packed, Tensor, crc32c, read_small, write_durably, write_tensors

LOCK = "store.lock"
_UNFINISHED = re.compile(CHECKPOINT.pattern + r"\.(tmp|gone)")
_OURS = re.compile(r"rank-\d{1,9}\.(raw|json)|manifest\.json")
_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay: the `last`, each `every`-th step, the `best` by metric, ends of epochs; all of them by default."""

    last: int = 0
    every: int = 0
    best: int = 0
    epoch_ends: bool = False

    def kept(self, newest_first: list[Manifest]) -> list[bool]:
        """Return for each checkpoint whether it stays; the newest always does."""
        if not (self.last or self.every or self.best or self.epoch_ends):
            return [True] * len(newest_first)
        scored = [index for index, manifest in enumerate(newest_first) if manifest.metric is not None]
        best = sorted(scored, key=lambda number: newest_first[number].metric or 0.0, reverse=True)[: self.best]
        return [
            index < max(1, self.last)
            or (self.every > 0 and manifest.step % self.every == 0)
            or index in best
            or (self.epoch_ends and manifest.position.position == 0)
            for index, manifest in enumerate(newest_first)
        ]


class Together(Protocol):
    """The ranks that write one checkpoint."""

    @property
    def rank(self) -> int:
        """Return this rank's number."""

    @property
    def world_size(self) -> int:
        """Return how many there are."""

    def sum(self, *values: float) -> list[float]:
        """Return each value summed over all ranks, when all have called it."""


class Alone:
    """A job of one rank."""

    rank, world_size = 0, 1

    def sum(self, *values: float) -> list[float]:
        """Return the values."""
        return list(values)


class Store:
    """The checkpoints of one job. Used as a context by every rank; rank 0 holds the store's lock meanwhile.

    Raises UsageError when the directory holds others' files, IotwinError when another job writes there or it cannot be written.
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
            os.close(self._lock)
            self._lock = None

    def _claim(self) -> None:
        """Make the directory, check that it is ours, and lock it."""
        _make_durably(self.directory)
        ours = (self.directory / LOCK).exists() or any(found.manifest for found in checkpoints(self.directory))
        if not ours and any(self.directory.iterdir()):
            raise UsageError(f"{self.directory} holds other files than checkpoints; choose another directory")
        self._lock = os.open(self.directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # Not flock: loader processes would inherit it and hold it for seconds after a kill.
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = None
            raise IotwinError(
                f"{self.directory} is being written by another job; wait for it or choose another directory"
            ) from None

    @contextlib.contextmanager
    def _agreed(self) -> Iterator[None]:
        """Run a block that all ranks run; when it fails on one, it fails on all."""
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

    def commit(self, manifest: Manifest, tensors: Iterable[Tensor] | Packed, values: dict[str, Any]) -> Path:
        """Write a checkpoint of this rank's `tensors` and `values` with those of all ranks; return its folder on rank 0.

        `manifest` needs neither files nor sequence. When it returns, the checkpoint outlasts a loss of power and the older ones
        that the retention does not keep are gone. Every rank must call it.
        """
        folder, rank = self.directory / f"step-{manifest.step}.tmp", self._together.rank
        try:
            with self._agreed():
                if rank == 0:
                    self._begin(folder)
            with self._agreed():
                write_rank(folder, rank, tensors, values)
            with self._agreed():
                return self._finish(folder, manifest) if rank == 0 else folder
        except BaseException:
            if rank == 0:
                _remove_if_ours(folder)
            raise
        raise AssertionError  # _agreed re-raises what the last block raised

    def prune(self) -> list[Found]:
        """Verify all, then remove what was never finished and those that the retention does not keep; return the latter."""
        try:
            remove_unfinished(self.directory)
            return prune([verify(found) for found in checkpoints(self.directory)], self.retention)
        except OSError as error:
            raise IotwinError(f"{error.filename or self.directory}: {error.strerror}; nothing more was removed") from None

    def _begin(self, folder: Path) -> None:
        remove_unfinished(self.directory)
        folder.mkdir()

    def _finish(self, folder: Path, manifest: Manifest) -> Path:
        before = checkpoints(self.directory)
        sequence = 1 + max((found.manifest.sequence for found in before if found.manifest), default=0)
        files = [_stored(folder, rank, kind) for rank in range(self._together.world_size) for kind in ("raw", "json")]
        whole = msgspec.structs.replace(manifest, files=files, sequence=sequence)
        write_durably(folder / MANIFEST, encode(whole))
        fsync_directory(folder)
        final = _free_name(self.directory / f"step-{manifest.step}")
        folder.rename(final)
        fsync_directory(self.directory)
        with open_whole(self.directory / LATEST, durable=True) as file:
            file.write(f"{final.name}\n".encode())
        prune([Found(final, whole), *before], self.retention)
        return final


def write_rank(folder: Path, rank: int, tensors: Iterable[Tensor] | Packed, values: dict[str, Any]) -> None:
    """Write the files of one rank into an unfinished checkpoint, each fsynced; OSError when that fails."""
    entries, size_bytes, checksum = write_tensors(folder / f"rank-{rank}.raw", tensors)
    # Rank 0 reads the checksum of the other ranks' tensors here, so that only sums need to pass between ranks.
    index = {**msgspec.to_builtins(Index(entries, values)), "size_bytes": size_bytes, "crc32c": checksum}
    write_durably(folder / f"rank-{rank}.json", msgspec.json.encode(index))


class _Written(msgspec.Struct):
    size_bytes: _Natural
    crc32c: _Natural


def _stored(folder: Path, rank: int, kind: str) -> StoredFile:
    name = f"rank-{rank}.{kind}"
    try:
        content = read_small(folder / f"rank-{rank}.json")
    except Damaged as damage:
        raise IotwinError(f"{folder}/rank-{rank}.json: {damage}; all ranks must write to the same file system") from None
    if kind == "json":
        return StoredFile(name, rank, len(content), crc32c(content))
    written = msgspec.json.decode(content, type=_Written)
    return StoredFile(name, rank, written.size_bytes, written.crc32c)


def prune(newest_first: list[Found], retention: Retention) -> list[Found]:
    """Remove the checkpoints that `retention` does not keep and return them; damaged ones are neither counted nor touched.

    The first must be durable. Each is renamed before its files go, so that none is ever found half.
    """
    usable = [found for found in newest_first if found.reason is None and found.manifest is not None]
    kept = retention.kept([found.manifest for found in usable if found.manifest is not None])
    leaving = [found for found, stays in zip(usable, kept, strict=True) if not stays]
    for found in leaving:
        gone = found.path.with_name(found.name + ".gone")
        found.path.rename(gone)
        shutil.rmtree(gone)
    return leaving


def remove_unfinished(directory: Path) -> None:
    """Remove what a killed commit or prune has left; UsageError when others' files are in it."""
    for entry in list(os.scandir(directory)):
        if _UNFINISHED.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            _remove_if_ours(Path(entry.path))
        elif entry.name.startswith(f".{LATEST}.") and entry.name.endswith(".partial"):
            Path(entry.path).unlink()


def _free_name(path: Path) -> Path:
    number = 0
    candidate = path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}.{number}")
    return candidate


def _remove_if_ours(folder: Path) -> None:
    """Remove an unfinished checkpoint; UsageError when it holds anything that no checkpoint of ours has."""
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if not _OURS.fullmatch(entry.name):
            raise UsageError(f"{folder} holds {entry.name}, which is no part of a checkpoint; move it elsewhere")
    shutil.rmtree(folder)


def _make_durably(directory: Path) -> None:
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        fsync_directory(path.parent)
