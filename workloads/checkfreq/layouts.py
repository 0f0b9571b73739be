"""Where a job's checkpoints lie: in the shared store, or in the files of the original (`--layout theirs`)."""

import contextlib
import fcntl
import itertools
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import torch

from common.checkpoints import Found, Manifest, Position, checkpoints, newest, read_rank, verify
from common.commit import LOCK, Retention, Store
from common.errors import IotwinError, UsageError
from common.files import fsync_directory
from common.tensor_file import Tensor
from workloads.state.stateful import unflatten

if TYPE_CHECKING:
    from workloads.checkfreq.sharded import Sharding

State = dict[str, Any]


class Restored(NamedTuple):
    """A checkpoint that was read. `generators` (of each rank), `position` and `job` are None where the layout has none."""

    path: Path
    step: int
    objects: State
    additional: State | None
    generators: list[Any] | None
    position: Position | None
    job: State | None


class Layout(Protocol):
    """The checkpoints of one job. Used as a context by the rank that writes, which holds a lock on them meanwhile."""

    @property
    def store(self) -> Store | None:
        """Return what another process can write to."""

    def __enter__(self) -> Self:
        """Claim the directory; UsageError, IotwinError where it cannot be used."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Let it go."""

    def commit(self, manifest: Manifest, tensors: Iterable[Tensor], values: State, waited: bool = False) -> None:
        """Write a checkpoint durably, `waited` for by training or beside it; IotwinError where that fails."""

    def latest_step(self) -> int:
        """Return the step of the latest one, 0 without any."""

    def latest(self, refused: Callable[[str], None]) -> Path | None:
        """Return the newest that is whole; `refused` gets a line for each newer one."""

    def read(self, refused: Callable[[str], None]) -> Restored | None:
        """Return what `latest` finds."""

    def read_epoch(self, epoch: int) -> Restored:
        """Return that of the end of `epoch`; IotwinError without one."""


class OurLayout:
    """The shared store. With `sharding` it is a context of every rank, and all of them commit and read."""

    def __init__(self, directory: Path, keep_epoch_ends: bool, overwrite: bool, sharding: "Sharding | None" = None) -> None:
        self.directory, self._sharding = directory, sharding
        retention = Retention(last=1, epoch_ends=keep_epoch_ends) if overwrite else Retention()
        self._store = Store(directory, retention, sharding)
        self.store: Store | None = self._store if sharding is None else None  # another process is not among the ranks

    def __enter__(self) -> Self:
        self._store.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._store.__exit__(kind, error, trace)

    def commit(self, manifest: Manifest, tensors: Iterable[Tensor], values: State, waited: bool = False) -> None:
        """Write it."""
        self._store.commit(manifest, tensors, values)

    def latest_step(self) -> int:
        """Return the largest step."""
        return max((found.manifest.step for found in checkpoints(self.directory) if found.manifest), default=0)

    def latest(self, refused: Callable[[str], None]) -> Path | None:
        """Return its folder."""
        found = newest(self.directory, refused) if self.directory.is_dir() else None
        return found.path if found else None

    def read(self, refused: Callable[[str], None]) -> Restored | None:
        """Return the newest."""
        found = newest(self.directory, refused)
        return self._read(found) if found is not None else None

    def read_epoch(self, epoch: int) -> Restored:
        """Return that of the end of `epoch`."""
        for found in checkpoints(self.directory):
            manifest = found.manifest
            if manifest is not None and manifest.reason == "epoch" and manifest.epoch == epoch and not verify(found).reason:
                return self._read(found)
        raise _no_epoch(self.directory, epoch)

    def _read(self, found: Found) -> Restored:
        manifest = found.manifest
        if manifest is None:
            raise IotwinError(f"{found.path} holds no job's state")
        first, ranks = _state_of(found, 0), {file.rank for file in manifest.files}
        objects = first["objects"]
        if self._sharding is not None:
            others = (_state_of(found, rank)["objects"] for rank in sorted(ranks - {0}))
            objects = self._sharding.joined(itertools.chain([objects], others))
        elif len(ranks) > 1:
            raise IotwinError(f"{found.path} is of state that is sharded over {len(ranks)} ranks, this job's is not")
        return Restored(
            found.path, manifest.step, objects, first["additional"], first["generators"], manifest.position, manifest.job
        )


def _state_of(found: Found, rank: int) -> State:
    tensors, values = read_rank(found, rank)
    state: State = unflatten(values.get("state"), tensors)
    if not isinstance(state, dict) or "objects" not in state:
        raise IotwinError(f"{found.path} holds no job's state")
    return state


def _no_epoch(directory: Path, epoch: int) -> IotwinError:
    return IotwinError(f"{directory} has no whole checkpoint of the end of epoch {epoch}")


class TheirLayout:
    """One file a checkpoint, as the original writes and reads them: PREFIXnumber.chk, or PREFIXnumber_sync.chk where it waits.

    Ends of epochs are there once more as epoch/PREFIXnumber_epoch.chk. A file is what torch.save makes of the objects' states by
    name and of what the job adds; random generators are not in it. Unlike the original's, a file has its name when it is whole
    and durable, numbers go on after a restart, and what is no checkpoint is passed over. The original takes every file of the
    directory for a checkpoint, so what is unfinished and the lock lie in epoch/.
    """

    store: Store | None = None

    def __init__(self, directory: Path, keep_epoch_ends: bool, overwrite: bool, prefix: str, tracked: Iterable[str]) -> None:
        self.directory, self._epochs = directory, directory / "epoch"
        self._keep_epoch_ends, self._overwrite = keep_epoch_ends or not overwrite, overwrite
        self._prefix, self._tracked = prefix, tuple(tracked)
        self._name = re.compile(re.escape(prefix) + r"(\d{1,18})(_sync)?\.chk")
        self._lock: int | None = None

    def __enter__(self) -> Self:
        try:
            self._epochs.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._epochs / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(f"{self.directory}: {error.strerror}; choose another directory") from None
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.__exit__(None, None, None)
            raise IotwinError(f"{self.directory} is being written by another job; choose another directory") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def commit(self, manifest: Manifest, tensors: Iterable[Tensor], values: State, waited: bool = False) -> None:
        """Write it under another name, sync it, give it its name, and take away the older one."""
        before = self._numbered()
        number = before[0][0] + 1 if before else 0
        suffix = "_sync" if waited else ""
        final = self.directory / f"{self._prefix}{number}{suffix}.chk"
        unfinished = self._epochs / "unfinished"
        state = unflatten(values["state"], {tensor.name: tensor for tensor in tensors})
        try:
            with unfinished.open("wb") as file:
                torch.save({**state["objects"], **(state["additional"] or {})}, file)
                file.flush()
                os.fsync(file.fileno())
            if manifest.reason == "epoch" and self._keep_epoch_ends:
                kept = self._epochs / f"{self._prefix}{number}_{manifest.epoch}{suffix}.chk"
                kept.unlink(missing_ok=True)  # of a job that ended between this and the next line but one
                kept.hardlink_to(unfinished)
            unfinished.rename(final)
            fsync_directory(self._epochs)
            fsync_directory(self.directory)
            for _, path in before if self._overwrite else ():
                path.unlink()
        except (OSError, RuntimeError) as error:  # torch tells a full disk by a RuntimeError
            with contextlib.suppress(OSError):
                unfinished.unlink()
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]
            raise IotwinError(
                f"{final}: the checkpoint cannot be written ({reason}); make room there or choose another place"
            ) from None

    def _numbered(self) -> list[tuple[int, Path]]:
        """Return (number, file), newest first."""
        if not self.directory.is_dir():
            return []
        matches = [(self._name.fullmatch(entry.name), entry) for entry in os.scandir(self.directory) if entry.is_file()]
        return sorted(((int(match[1]), Path(entry.path)) for match, entry in matches if match), reverse=True)

    def latest_step(self) -> int:
        """Return 0: the files tell only by what the job has added, which `read` gives back."""
        return 0

    def latest(self, refused: Callable[[str], None]) -> Path | None:
        """Return its file."""
        found = self.read(refused)
        return found.path if found else None

    def read(self, refused: Callable[[str], None]) -> Restored | None:
        """Return the newest that loads."""
        for _, path in self._numbered():
            try:
                return self._loaded(path)
            except IotwinError as error:
                refused(str(error))
        return None

    def read_epoch(self, epoch: int) -> Restored:
        """Return that of the end of `epoch`."""
        name = re.compile(re.escape(self._prefix) + rf"(\d{{1,18}})_{epoch}(_sync)?\.chk")
        named = [(name.fullmatch(path.name), path) for path in self._epochs.iterdir()] if self._epochs.is_dir() else []
        found = sorted(((int(match[1]), path) for match, path in named if match), reverse=True)
        if not found:
            raise _no_epoch(self.directory, epoch)
        return self._loaded(found[0][1])

    def _loaded(self, path: Path) -> Restored:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises what it likes for a damaged file
            raise IotwinError(f"{path} is not used: {(str(error) or type(error).__name__).splitlines()[0]}") from None
        if not isinstance(state, dict) or not set(self._tracked) <= state.keys():
            raise IotwinError(f"{path} is not used: it does not hold {', '.join(self._tracked)}")
        objects = {name: state.pop(name) for name in self._tracked}
        step = state.get("steps_so_far", 0)
        return Restored(path, step if isinstance(step, int) else 0, objects, state or None, None, None, None)
