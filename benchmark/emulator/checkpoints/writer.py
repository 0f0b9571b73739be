"""Write, sync, rename, remove and read back checkpoint files. A file appears under its final name only when it is whole.

A checkpoint whose size follows from the model is a folder `global_epoch{E}_step{S}` with the files of every rank. It is whole
if every file of every rank has its full size. Ranks need not agree on that, because an unfinished file has a temporary name.
"""

import atexit
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

from iotwin.benchmark.emulator.checkpoints import folders, recovery
from iotwin.benchmark.emulator.checkpoints.background import Background, Took, Written
from iotwin.benchmark.emulator.checkpoints.one_file import LARGEST_BYTES, CheckpointContent, FileWriter
from iotwin.benchmark.emulator.checkpoints.own_files import OwnFiles, existing_files
from iotwin.benchmark.emulator.checkpoints.plan import (
    checkpoint_name,
    checkpoint_number,
    ever_written,
    files_read,
    files_written,
    rank_read,
)
from iotwin.benchmark.emulator.checkpoints.planned import JobTimes, PlannedFile, Spent
from iotwin.benchmark.emulator.checkpoints.retention import CheckpointRetention, Number
from iotwin.benchmark.emulator.checkpoints.slots import make_slots
from iotwin.benchmark.emulator.checkpoints.snapshot import EmulatedSnapshot
from iotwin.benchmark.emulator.ranks import Rank
from iotwin.common.errors import IotwinError
from iotwin.common.files import fsync_directory
from iotwin.common.numbers.sleeper import Sleeper
from iotwin.common.removal import unlink_beneath
from iotwin.workload_yaml import Config
from iotwin.workload_yaml.checkpoint_names import found_first

_POLL_S = 1e-3  # of a background thread that waits for other ranks


class CheckpointWriter:
    """Writes the files of the workload's checkpoints as `rank` (None: the only rank).

    The constructor raises UsageError if a file that the writer would replace exists and no emulator wrote it: a twin that was
    derived on the job's machine names the job's own checkpoints.

    note: the index in the name of the note of written files; None: the rank's. It differs if several processes write as rank 0
    """

    def __init__(self, config: Config, rank: Rank | None = None, note: int | None = None) -> None:
        self._member = member = rank or Rank()
        self._in_folders = config.twin.checkpoint.commit == "folder"
        self._config, self._rank, self._ranks = config, member.index, member.count
        self._folder = Path(config.checkpoint.checkpoint_folder)
        self._note = self._rank if note is None else note
        self._own = self._claim()
        section, seed = config.twin.checkpoint, config.train.seed
        self._job_times = JobTimes(section, seed, self._rank)
        self._snapshot = EmulatedSnapshot(section.snapshot_time, seed, self._rank) if section.asynchronous else None
        self._sleeper = Sleeper()
        ever = ever_written(config, self._rank, self._ranks)
        largest = max((size for file in ever for size, _ in file.write_sizes), default=1)
        self._content = CheckpointContent(largest, seed if config.checkpoint.randomize_tensor else None, self._rank)
        slots = None
        if section.format == "slots":
            slots = make_slots(self._folder, section.in_flight, ever, self._own, self._content)
        self._files = FileWriter(self._folder, config.checkpoint.fsync, section, self._content, slots.write if slots else None)
        self._retention = CheckpointRetention(section, self._earlier())
        self._under_way: list[Background] = []
        self._gathered: list[Written] = []  # whole files that no call has returned yet
        self._took: list[Took] = []  # costs of checkpoints that ended since the last call of `progress`
        if section.asynchronous:
            atexit.register(self._abandon)

    def _planned(self, epoch: int, step: int) -> list[PlannedFile]:
        return files_written(self._config, epoch, step, self._rank, self._ranks)

    def _claim(self) -> OwnFiles:
        """Return the list of emulators' files in the folder. Raises UsageError if another file has a name that they need."""
        own = OwnFiles(self._folder, self._note)
        own.refuse_others(self._existing_names() if self._config.twin.checkpoint.files else self._names_of_others(own))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            own.begin()
        except OSError as error:
            raise IotwinError(
                f"{self._folder}: cannot be written: {error.strerror}; change checkpoint.checkpoint_folder"
            ) from None
        return own

    def _ever_of_all(self) -> list[PlannedFile]:
        return [file for rank in range(self._ranks) for file in ever_written(self._config, rank, self._ranks)]

    def _earlier(self) -> list[Number]:
        """Return the (epoch, step) of the checkpoints from before this run, which count as the run's own.

        For checkpoints that the traced job found, this creates stand-in files.
        """
        twin = self._config.twin
        if not twin.checkpoint.files or not twin.checkpoint.before:
            return self._existing() if twin.resume is not None and twin.checkpoint.files else []
        data = Path(self._config.dataset.data_folder)
        sizes = {end: recovery.size_bytes(data / name) for name, end in found_first(self._config).items()}
        for number in twin.checkpoint.before:  # every rank creates all, since each may read them before the ranks meet
            for file in self._of_all(*number):
                for name in {file.name, folders.leaving(file.name)} if self._in_folders else {file.name}:
                    self._own.add(name)
                try:
                    recovery.stand_in(self._folder, file.name, sizes.get(file.name) or file.size_bytes)
                except OSError as error:
                    raise IotwinError(
                        f"{self._folder / file.name}: cannot be made: {error.strerror}; change checkpoint.checkpoint_folder"
                    ) from None
        return list(twin.checkpoint.before)

    def _existing_names(self) -> Iterator[str]:
        """Yield the names of existing files that match the name of a recorded file."""
        names = [file.name for file in self._ever_of_all()]
        names += [folders.unfinished(name) for name in names if self._in_folders]
        return (name for name, _ in existing_files(self._folder, names))

    def _names_of_others(self, own: OwnFiles) -> Iterator[str]:
        """Yield the checkpoint folders without a file of an emulator, and existing files with the name of a file of slots."""
        for number in self._on_disk():
            name = checkpoint_name(*number)
            if (self._folder / name).is_symlink() or not own.below(name):
                yield name
        slots = [file.name for file in self._ever_of_all() if file.slots]
        yield from (name for name, _ in existing_files(self._folder, slots))

    def save(self, epoch: int, step: int = 0) -> list[Written]:
        """Write the checkpoint after `epoch` and `step`. If asynchronous, take its snapshot and write it in the background.

        Returns the files that became whole since the last call. Raises IotwinError, which names the file, if a file of this
        checkpoint or of one in the background cannot be written, for example because the disk is full.
        """
        twin = self._config.twin.checkpoint
        spent = self._job_times.draw(self._planned(epoch, step), epoch, step)
        if self._snapshot is None:
            written = self._persist(epoch, step, spent)
            self._took.append(Took(0.0, 0.0))
            return written
        self.settle()
        written = self._collect(twin.in_flight - 1)
        if twin.snapshot == "device":
            self._take_snapshot(epoch, step)
        else:
            self._snapshot.begin()
        last = self._under_way[-1] if self._under_way and self._ranks > 1 else None
        self._under_way.append(Background(lambda: self._persist_in_background(epoch, step, spent, last), spent.seconds))
        return written

    def keep_epoch_end(self, epoch: int, step: int) -> None:
        """Never remove the checkpoint after `epoch` and `step`."""
        self._retention.keep_epoch_end((epoch, step))

    def settle(self) -> None:
        """Wait until the background thread has taken its snapshot. The weights must not change before."""
        if self._snapshot is not None:
            self._snapshot.settle()

    def progress(self) -> tuple[bool, list[Took]]:
        """Return (whether a checkpoint is being written, costs of the checkpoints that were completed since the last call)."""
        self._gathered = self._collect(len(self._under_way))
        took, self._took = self._took, []
        return bool(self._under_way), took

    def finish(self) -> list[Written]:
        """Wait for the checkpoints under way and return their files. Raises IotwinError if a file cannot be written."""
        try:
            return self._collect(0)
        finally:
            self._own.settle()

    def _collect(self, left: int) -> list[Written]:
        """Wait until at most `left` checkpoints are under way, and return the files of the completed ones."""
        written, self._gathered = self._gathered, []
        while self._under_way and (len(self._under_way) > left or self._under_way[0].done()):
            checkpoint = self._under_way.pop(0)
            written += checkpoint.result()
            self._took.append(checkpoint.took)
        return written

    def _abandon(self) -> None:
        """Stop the checkpoints under way if the process ends early, so that no unfinished file remains on disk."""
        self._files.abandoned = True
        wait(self._under_way)

    def _persist_in_background(self, epoch: int, step: int, spent: Spent, last: Background | None) -> list[Written]:
        """Take a `host` snapshot if configured, then write the checkpoint. It is committed after the checkpoint `last`."""
        if self._config.twin.checkpoint.snapshot == "host":
            self._take_snapshot(epoch, step)
        return self._persist(epoch, step, spent, last)

    def _meet(self) -> None:
        """Wait until all ranks have called this, in the background if checkpoints are asynchronous."""
        if self._config.twin.checkpoint.asynchronous:
            self._wait(self._member.arrive())
        else:
            self._member.meet()

    def _wait(self, until: Callable[[], bool]) -> None:
        """Wait in the background until `until` returns True."""
        while not until():
            if self._files.abandoned:
                raise IotwinError(f"{self._folder}: the checkpoint was given up, as the run ended")
            time.sleep(_POLL_S)

    def _take_snapshot(self, epoch: int, step: int) -> None:
        if self._snapshot is not None:
            self._snapshot.take(epoch, step, sum(file.size_bytes for file in self._planned(epoch, step)), self._content.buffer)

    def _persist(self, epoch: int, step: int, spent: Spent, last: Background | None = None) -> list[Written]:
        planned = self._planned(epoch, step)
        self._sleeper.sleep(spent.lead_s)
        # Files outside of folders name a folder, so they are written after it has its final name.
        first = [self._in_folders and folders.folder_name(file.name) is not None for file in planned]
        commits = self._in_folders and any(folders.folder_name(file.name) for file in self._of_all(epoch, step))
        written = []
        for in_folder in (True, False):
            own = [
                pair
                for pair, is_first in zip(zip(planned, spent.files_s, strict=True), first, strict=True)
                if is_first == in_folder
            ]
            written += self._save_files([(file, time_s) for file, time_s in own if not file.commits], epoch)
            if self._config.twin.checkpoint.format == "dcp":
                self._await_turn(last)
                self._meet()
            written += self._save_files([(file, time_s) for file, time_s in own if file.commits], epoch)
            if in_folder and commits:
                self._await_turn(last)
                self._commit(epoch, step)
        if self._config.twin.checkpoint.directory_sync:
            loose = [file for file, is_first in zip(planned, first, strict=True) if not is_first]
            for folder in sorted({(self._folder / file.name).parent for file in loose}):
                self._sync_folder(folder)
        self._sleeper.sleep(spent.tail_s)
        self._retention.saved.append((epoch, step))
        self._remove_old(epoch, step)
        return written

    def _await_turn(self, last: Background | None) -> None:
        """Wait until the checkpoint `last` is done, so that all ranks meet for the same checkpoint."""
        if last is not None:
            self._wait(last.done)
            if last.exception() is not None:
                raise IotwinError(f"{self._folder}: the checkpoint was given up, as the one before failed")

    def _commit(self, epoch: int, step: int) -> None:
        """Wait until every rank has written its files; then rank 0 renames the checkpoint's folders to their final names."""
        self._meet()
        if self._rank == 0:
            self._inspect_all()
            for file in self._of_all(epoch, step):
                self._own.add(file.name)
            for folder in dict.fromkeys(folders.folder_name(file.name) for file in self._of_all(epoch, step)):
                if folder is None:
                    continue
                try:
                    if (self._folder / folder).exists():  # an earlier run wrote it
                        folders.remove(self._folder, folder, self._own.below(folder))
                    folders.commit(self._folder, folder, self._config.twin.checkpoint.directory_sync)
                except OSError as error:
                    raise IotwinError(
                        f"{self._folder / folder}: the checkpoint cannot be renamed: {error.strerror}; change its folder"
                    ) from None
        self._meet()

    def _of_all(self, epoch: int, step: int) -> list[PlannedFile]:
        """Return the files of all ranks for the checkpoint after `epoch` and `step`."""
        return [file for rank in range(self._ranks) for file in files_written(self._config, epoch, step, rank, self._ranks)]

    def _save_files(self, files: Sequence[tuple[PlannedFile, float]], epoch: int) -> list[Written]:
        """Write `files`, pairs of (file, serialization seconds), by `persist_threads` threads, and return their records."""
        threads = min(self._config.twin.checkpoint.persist_threads, len(files))
        if threads < 2:
            return [self._save_file(file, epoch, time_s, self._sleeper) for file, time_s in files]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda own: self._save_file(own[0], epoch, own[1], Sleeper()), files))

    def _save_file(self, file: PlannedFile, epoch: int, serialization_s: float, sleeper: Sleeper) -> Written:
        name = folders.unfinished(file.name) if self._in_folders else file.name
        final = self._folder / name
        for own in {name, file.name, folders.leaving(file.name)} if self._in_folders else {name}:
            self._own.add(own)
        self._retention.removed.discard(file.name)
        start_ns = time.monotonic_ns()
        try:
            self._files.write(name, file, serialization_s, sleeper)
            if file.read_back:
                recovery.read_back(final, file.read_back)
        except OSError as error:
            raise IotwinError(
                f"{final}: the checkpoint cannot be written: {error.strerror}; free space or change its folder"
            ) from None
        return Written(epoch, file.name, file.size_bytes, start_ns, time.monotonic_ns() - start_ns)

    def _sync_folder(self, folder: Path) -> None:
        """Sync `folder`, so that new names in it survive a loss of power. fsync(2) of a file does not sync its name."""
        try:
            fsync_directory(folder)
        except OSError as error:
            raise IotwinError(
                f"{folder}: cannot be synced: {error.strerror}; set twin.checkpoint.directory_sync to false"
            ) from None

    def _remove_old(self, epoch: int, step: int) -> None:
        """Remove old checkpoints by the retention rules, after the one after `epoch` and `step` is whole on every rank."""
        keep = self._config.twin.checkpoint.keep
        if (keep is None and not any(file.keep for file in self._planned(epoch, step))) or not self._whole(epoch, step):
            return
        if self._config.twin.checkpoint.files:
            for _, leaving in reversed(list(self._retention.files(self._planned))):
                self._remove_own(leaving)
                self._retention.removed.update(leaving)
            return
        stay = self._retention.staying()
        before = [number for number in self._on_disk() if number < (epoch, step) and number not in stay]
        older = [number for number in before if self._own.below(checkpoint_name(*number))]
        for number in older[: max(0, len(older) + 1 - (keep or 0))]:
            planned = {
                file.name for rank in range(self._ranks) for file in files_written(self._config, *number, rank, self._ranks)
            }
            self._remove_own(planned.union(self._own.below(checkpoint_name(*number))))
            with suppress(OSError):  # the folder contains files of others
                (self._folder / checkpoint_name(*number)).rmdir()

    def _remove_own(self, names: Iterable[str]) -> None:
        """Remove those of the files `names` that an emulator wrote. Another rank may remove them at the same time."""
        for name in names:
            folder = folders.folder_name(name) if self._in_folders else None
            if folder is None:
                with suppress(OSError):
                    unlink_beneath(self._folder, name)
            elif self._rank == 0 and (self._folder / folder).exists():
                folders.remove(self._folder, folder, self._own.below(folder))

    def _on_disk(self) -> list[Number]:
        """Return the (epoch, step) of the checkpoints whose folders exist, whole or not, oldest first."""
        return sorted(number for path in self._folder.glob("global_epoch*") if (number := checkpoint_number(path.name)))

    def _whole(self, epoch: int, step: int) -> bool:
        """True if every file of every rank exists with its full size."""
        files = self._of_all(epoch, step)
        return bool(files) and all(recovery.size_bytes(self._folder / file.name) == file.size_bytes for file in files)

    def _inspect_all(self) -> None:
        """Inspect the existing checkpoints, newest first, as a job does before it adds or loads a checkpoint."""
        for files, _ in self._retention.files(self._of_all):
            recovery.inspect(self._folder, files)

    def _existing(self) -> list[Number]:
        """Return the (epoch, step) of all checkpoints in the folder, whole or not, oldest first."""
        if self._config.twin.checkpoint.files:
            names = [file.name for file in self._ever_of_all()]
            return sorted({number for _, number in existing_files(self._folder, names)})
        return self._on_disk()

    def newest(self) -> Number | None:
        """Return the (epoch, step) of the checkpoint to recover from; None if no checkpoint is whole.

        It is the last checkpoint that this writer saved, or otherwise the latest whole one on disk.
        """
        candidates = [*self._existing(), *self._retention.saved]
        return next((number for number in reversed(candidates) if self._whole(*number)), None)

    def load(self) -> list[Written]:
        """Read the files of the newest whole checkpoint that this rank needs, and return their records.

        If `checkpoint.recovery_rank_shift` is set, the rank reads the files of a rank on the next node. All checkpoint folders
        are inspected first. Raises IotwinError, which names the folder or the file, if no checkpoint is whole or a read fails.
        """
        number = self.newest()
        if number is None:
            raise IotwinError(
                f"{self._folder}: holds no whole checkpoint of {self._ranks} ranks; write one first, or correct its folder"
            )
        own = files_read(self._config, *number, rank_read(self._config, self._member), self._ranks)
        if not self._in_folders:
            return [recovery.read_whole(self._folder, file, number[0], LARGEST_BYTES) for file in own]
        self._inspect_all()
        shared = files_read(self._config, *number, 0, self._ranks)
        read = recovery.of_state([*self._of_all(*number), *shared, *own])
        return [recovery.read_whole(self._folder, file, number[0], recovery.CHECKED_BYTES) for file in read]
