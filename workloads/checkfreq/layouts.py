"""The two layouts of a job's checkpoints: iotwin's store (`--layout ours`), and CheckFreq's own files (`--layout theirs`)."""

import itertools
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import torch

from iotwin.common.checkpoints import CheckpointManifest, Found, Position, checkpoints, newest, read_rank, verify
from iotwin.common.commit import LOCK, Store
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import fsync_directory, link, make_folder, open_rewritten, rename
from iotwin.common.locks import hold_lock, release_lock
from iotwin.common.removal import remove_file, remove_own
from iotwin.common.retention import Retention
from iotwin.common.tensor_file import Tensor
from iotwin.workloads.state.snapshot_writer import Destination
from iotwin.workloads.state.torch_state import unflatten

if TYPE_CHECKING:
    from iotwin.workloads.state.sharding import Sharding

State = dict[str, Any]


class Restored(NamedTuple):
    """A checkpoint in memory. `generators` has an entry per rank. Fields that the layout does not save are None."""

    path: Path
    step: int
    objects: State
    additional: State | None
    generators: list[Any] | None
    position: Position | None
    job: State | None


class CheckpointLayout(Destination, Protocol):
    """How the checkpoints of a job are stored in a directory. As a context manager, it locks the directory."""

    def __enter__(self) -> Self:
        """Lock the directory. Raises UsageError or IotwinError if it is unusable."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Release the lock."""

    def latest_step(self) -> int:
        """Return the largest step among the checkpoints, 0 if there is none."""

    def latest(self, refused: Callable[[str], None]) -> Path | None:
        """Return the newest valid checkpoint, None if there is none. Calls `refused` with a line for each newer, invalid one."""

    def read(self, refused: Callable[[str], None]) -> Restored | None:
        """Return the content of the checkpoint that `latest` returns; None if there is none."""

    def epoch_end(self, epoch: int) -> Path | None:
        """Return the path of the checkpoint taken at the end of `epoch`, None if there is none."""

    def read_epoch(self, epoch: int) -> Restored:
        """Return the content of the checkpoint that `epoch_end` returns. Raises IotwinError if there is none."""


class OurLayout:
    """Checkpoints in the checkpoint store. If state is sharded (`sharding`), every rank enters the context, commits and reads."""

    def __init__(self, directory: Path, keep_epoch_ends: bool, overwrite: bool, sharding: "Sharding | None" = None) -> None:
        self.directory, self._sharding = directory, sharding
        retention = Retention(last=1, epoch_ends=keep_epoch_ends) if overwrite else Retention()
        self._store = Store(directory, retention, sharding)
        self.store: Store | None = self._store if sharding is None else None  # a writer process cannot write sharded state

    def __enter__(self) -> Self:
        self._store.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._store.__exit__(kind, error, trace)

    def commit(self, manifest: CheckpointManifest, tensors: Iterable[Tensor], values: State, waited: bool = False) -> None:
        """Commit the checkpoint to the store."""
        self._store.commit(manifest, tensors, values)

    def latest_step(self) -> int:
        """Return the largest step among the checkpoints in the store."""
        return max((found.manifest.step for found in checkpoints(self.directory) if found.manifest), default=0)

    def latest(self, refused: Callable[[str], None]) -> Path | None:
        """Return the folder of the newest valid checkpoint, None if there is none. `refused` gets a line for each invalid one."""
        found = newest(self.directory, refused) if self.directory.is_dir() else None
        return found.path if found else None

    def read(self, refused: Callable[[str], None]) -> Restored | None:
        """Return the content of the newest valid checkpoint, None if there is none. `refused` gets a line per invalid one."""
        found = newest(self.directory, refused)
        return self._read(found) if found is not None else None

    def _end_of(self, epoch: int) -> Found | None:
        for found in checkpoints(self.directory):
            manifest = found.manifest
            if manifest is not None and manifest.reason == "epoch" and manifest.epoch == epoch and not verify(found).reason:
                return found
        return None

    def epoch_end(self, epoch: int) -> Path | None:
        """Return the folder of the checkpoint taken at the end of `epoch`, None if there is none."""
        found = self._end_of(epoch)
        return found.path if found else None

    def read_epoch(self, epoch: int) -> Restored:
        """Return the content of the checkpoint taken at the end of `epoch`. Raises IotwinError if there is none."""
        if (found := self._end_of(epoch)) is None:
            raise _no_epoch(self.directory, epoch)
        return self._read(found)

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
            raise IotwinError(f"{found.path} holds state that is sharded over {len(ranks)} ranks; this job's state is not")
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
    return IotwinError(f"{directory} has no valid checkpoint of the end of epoch {epoch}")


class TheirLayout:
    """One file per checkpoint, as CheckFreq's own code writes them.

    Files are named PREFIXnumber.chk or, if training waited, PREFIXnumber_sync.chk. epoch/PREFIXnumber_epoch.chk is a link to the
    checkpoint of an epoch's end. torch.save writes the objects' states by name and the job's additional state, but no random
    generators. Unlike with CheckFreq's code, a file gets its name only when it is durable, numbers continue after a restart, and
    other files are ignored. Unfinished files and the lock are in epoch/: CheckFreq loads any file of the directory.
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
            make_folder(self._epochs, below=self.directory)
        except OSError as error:
            raise UsageError(f"{self.directory}: {error.strerror}; choose another directory") from None
        self._lock = hold_lock(self._epochs / LOCK)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._lock is not None:
            release_lock(self._lock)
            self._lock = None

    def commit(self, manifest: CheckpointManifest, tensors: Iterable[Tensor], values: State, waited: bool = False) -> None:
        """Write `values` and `tensors` to one file, which has a temporary name until it is synced.

        `waited`: True if training waits for the write; the file's name then ends in `_sync.chk`. If this layout overwrites, older
        checkpoints are then removed. Raises IotwinError if the write fails.
        """
        before = self._numbered()
        number = before[0][0] + 1 if before else 0
        suffix = "_sync" if waited else ""
        final = self.directory / f"{self._prefix}{number}{suffix}.chk"
        unfinished = self._epochs / "unfinished"
        state = unflatten(values["state"], {tensor.name: tensor for tensor in tensors})
        try:
            with open_rewritten(unfinished) as file:
                torch.save({**state["objects"], **(state["additional"] or {})}, file)
                file.flush()
                os.fsync(file.fileno())
            if manifest.reason == "epoch" and self._keep_epoch_ends:
                kept = self._epochs / f"{self._prefix}{number}_{manifest.epoch}{suffix}.chk"
                remove_file(kept)  # it exists if a job was killed between `link` and `rename`
                link(unfinished, kept)
            rename(unfinished, final)
            fsync_directory(self._epochs)
            fsync_directory(self.directory)
            for _, path in before if self._overwrite else ():
                remove_file(path)
        except (OSError, RuntimeError) as error:  # torch raises RuntimeError on a full disk
            remove_own(unfinished)
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]
            raise IotwinError(
                f"{final}: the checkpoint cannot be written ({reason}); free space or choose another directory"
            ) from None

    def _numbered(self) -> list[tuple[int, Path]]:
        """Return (number in the file's name, file) of each checkpoint, the newest first."""
        if not self.directory.is_dir():
            return []
        matches = [(self._name.fullmatch(entry.name), entry) for entry in os.scandir(self.directory) if entry.is_file()]
        return sorted(((int(match[1]), Path(entry.path)) for match, entry in matches if match), reverse=True)

    def latest_step(self) -> int:
        """Return 0, because these files hold the step in their additional state, which is known only after `read`."""
        return 0

    def latest(self, refused: Callable[[str], None]) -> Path | None:
        """Return the file of the newest checkpoint that torch can load, None if none loads.

        Calls `refused` with the reason for each newer checkpoint that torch cannot load.
        """
        found = self.read(refused)
        return found.path if found else None

    def read(self, refused: Callable[[str], None]) -> Restored | None:
        """Load the newest checkpoint that torch can load, None if none loads.

        Calls `refused` with the reason for each newer checkpoint that torch cannot load.
        """
        for _, path in self._numbered():
            try:
                return self._loaded(path)
            except IotwinError as error:
                refused(str(error))
        return None

    def epoch_end(self, epoch: int) -> Path | None:
        """Return the file of the checkpoint taken at the end of `epoch`, None if there is none."""
        name = re.compile(re.escape(self._prefix) + rf"(\d{{1,18}})_{epoch}(_sync)?\.chk")
        named = [(name.fullmatch(path.name), path) for path in self._epochs.iterdir()] if self._epochs.is_dir() else []
        return max(((int(match[1]), path) for match, path in named if match), default=(0, None))[1]

    def read_epoch(self, epoch: int) -> Restored:
        """Return the content of the checkpoint taken at the end of `epoch`. Raises IotwinError if there is none."""
        if (found := self.epoch_end(epoch)) is None:
            raise _no_epoch(self.directory, epoch)
        return self._loaded(found)

    def _loaded(self, path: Path) -> Restored:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises errors of many types for a damaged file
            raise IotwinError(f"{path} is not used: {(str(error) or type(error).__name__).splitlines()[0]}") from None
        if not isinstance(state, dict) or not set(self._tracked) <= state.keys():
            raise IotwinError(f"{path} is not used: it does not hold {', '.join(self._tracked)}")
        objects = {name: state.pop(name) for name in self._tracked}
        step = state.get("steps_so_far", 0)
        return Restored(path, step if isinstance(step, int) else 0, objects, state or None, None, None, None)
