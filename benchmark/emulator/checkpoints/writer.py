"""Write, sync, rename, remove and read back checkpoint files. A file appears under its final name only when it is whole.

A checkpoint whose size follows from the model is a folder `global_epoch{E}_step{S}` with the files of every rank. It is whole
if every file of every rank has its full size. Ranks need not agree on that, because an unfinished file has a temporary name.
"""

import atexit
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from iotwin.benchmark.emulator import waits
from iotwin.benchmark.emulator.checkpoints import checkpoint_folders, recovery
from iotwin.benchmark.emulator.checkpoints.background import Background, EmulatedSnapshot, Written
from iotwin.benchmark.emulator.checkpoints.mapped_slots import make_slots
from iotwin.benchmark.emulator.checkpoints.object_stores import RemoteCheckpoints
from iotwin.benchmark.emulator.checkpoints.one_file import LARGEST_BYTES, CheckpointContent, FileWriter, PlannedFile
from iotwin.benchmark.emulator.checkpoints.own_files import claim
from iotwin.benchmark.emulator.checkpoints.plan import CheckpointPlan, Number, checkpoint_name, rank_read
from iotwin.benchmark.emulator.plugins import CHECKPOINTS, load_plugin
from iotwin.benchmark.emulator.ranks import Rank
from iotwin.benchmark.emulator.threads import TaskThreads
from iotwin.common.errors import IotwinError
from iotwin.common.files import fsync_directory
from iotwin.common.numbers.draws import DrawnTime
from iotwin.common.numbers.keyed import Purpose
from iotwin.common.numbers.sleeper import Sleeper
from iotwin.common.removal import unlink_beneath
from iotwin.common.units import counted
from iotwin.workload_yaml import Config, Duration, TwinCheckpoint
from iotwin.workloads.policies.checkpoint_frequency import Took


class Checkpoints(Protocol):
    """Interface of the objects that write a rank's checkpoints and read them back."""

    def save(self, epoch: int, step: int = 0) -> list[Written]:
        """Write the checkpoint after `epoch` and `step`. Return the files that became whole since the last call."""

    def finish(self) -> list[Written]:
        """Wait for all unfinished files, and return the files that became whole since the last call."""

    def load(self) -> list[Written]:
        """Read the newest whole checkpoint and return its files. Raises IotwinError if no checkpoint is whole."""


def open_checkpoints(config: Config, rank: Rank | None = None) -> Checkpoints:
    """Return the checkpoint writer of `rank` (None: the only rank) for a directory or a URL, or the plug-in of the workload."""
    rank = rank or Rank()
    name = config.checkpoint.checkpoint_mechanism_classname
    if name is None and "://" in config.checkpoint.checkpoint_folder:
        return RemoteCheckpoints(config, rank)
    if name is None:
        return CheckpointWriter(config, rank)
    key = "checkpoint.checkpoint_mechanism_classname"
    checkpoints: Checkpoints = load_plugin(CHECKPOINTS, name, key, [])(config=config, rank=rank.index, ranks=rank.count)
    return checkpoints


class Spent(NamedTuple):
    """Seconds that the job spends before the first file, on each file, and after the last one."""

    lead_s: float
    files_s: list[float]
    tail_s: float


class JobTimes:
    """Draws the seconds, system calls excluded, that the job spends on each checkpoint of a rank."""

    def __init__(self, section: TwinCheckpoint, seed: int, rank: int) -> None:
        self._seed, self._rank, self._done = seed, rank, 0
        self._lead, self._tail = self._drawn(section.lead_time, Purpose.LEAD), self._drawn(section.tail_time, Purpose.TAIL)

    def _drawn(self, duration: Duration, purpose: Purpose) -> Callable[[int, int, int], float]:
        """Return the function from (rank or index of a file, epoch, step) to the seconds drawn from `duration`."""
        return DrawnTime(duration, self._seed, purpose).seconds if duration else lambda number, epoch, step: 0.0

    def draw(self, planned: Sequence[PlannedFile], epoch: int, step: int) -> Spent:
        """Return the seconds spent on the next checkpoint, which consists of the files `planned`."""
        times = [self._drawn(file.serialization_time, Purpose.SERIALIZATION) for file in planned]
        files_s = [draw(index, epoch, step) for index, draw in enumerate(times)]
        self._done += 1
        return Spent(self._lead(self._rank, 0, self._done - 1), files_s, self._tail(self._rank, epoch, step))


class CheckpointWriter:
    """Writes the files of the workload's checkpoints as `rank` (None: the only rank).

    The constructor raises UsageError if a file that the writer would replace exists and no emulator wrote it: a twin that was
    derived on the job's machine names the job's own checkpoints.
    """

    def __init__(self, config: Config, rank: Rank | None = None) -> None:
        self._member = member = rank or Rank()
        self._rank, self._plan, seed = member.index, CheckpointPlan(config, member.count), config.train.seed
        self._section = section = config.twin.checkpoint
        self._in_folders = section.commit == "folder"
        self._folder = folder = Path(config.checkpoint.checkpoint_folder)
        self._disk = recovery.CheckpointsOnDisk(folder, self._plan)
        ever = [self._plan.written(each) for each in range(member.count)]
        names = [file.name for files in ever for file in files if section.files or file.slots]
        names += [checkpoint_folders.unfinished(name) for name in names if self._in_folders]
        in_the_way = [] if section.files else [checkpoint_name(*number) for number in self._disk.folders()]
        self._own = claim(folder, self._rank, names, in_the_way)
        self._job_times = JobTimes(section, seed, self._rank)
        self._snapshot = EmulatedSnapshot(section.snapshot_time, seed, self._rank) if section.asynchronous else None
        self._sleeper = waits.new_sleeper()
        largest = max((size for file in ever[self._rank] for size, _ in file.write_sizes), default=1)
        self._content = CheckpointContent(largest, seed if config.checkpoint.randomize_tensor else None, self._rank)
        slots = None
        if section.format == "slots":
            slots = make_slots(folder, section.in_flight, ever[self._rank], self._own, self._content)
        self._files = FileWriter(folder, config.checkpoint.fsync, section, self._content, slots.write if slots else None)
        self._retention = recovery.CheckpointRetention(section, self._earlier(config))
        self._under_way: list[Background] = []
        self._gathered: list[Written] = []  # files that were written whole, and that no method has returned to the job yet
        self._took: list[Took] = []  # costs of checkpoints that ended since the last call of `progress`
        if section.asynchronous:
            atexit.register(self._abandon)

    def _earlier(self, config: Config) -> list[Number]:
        """Return the (epoch, step) of the checkpoints from before this run, which count as the run's own.

        For checkpoints that the traced job found, this creates stand-in files.
        """
        section = self._section
        if not section.files or not section.before:
            return self._disk.numbers() if config.twin.resume is not None and section.files else []
        for number in section.before:  # every rank creates all, since each may read them before the ranks meet
            for file in self._plan.written_by_all(number):
                for name in {file.name, checkpoint_folders.leaving(file.name)} if self._in_folders else {file.name}:
                    self._own.add(name)
                try:
                    recovery.stand_in(self._folder, file.name, file.size_bytes)
                except OSError as error:
                    raise IotwinError(
                        f"{self._folder / file.name}: cannot be made: {error.strerror}; change checkpoint.checkpoint_folder"
                    ) from None
        return list(section.before)

    def save(self, epoch: int, step: int = 0) -> list[Written]:
        """Write the checkpoint after `epoch` and `step`. If asynchronous, take its snapshot and write it in the background.

        Returns the files that became whole since the last call. Raises IotwinError, which names the file, if a file of this
        checkpoint or of one in the background cannot be written, for example because the disk is full.
        """
        number, planned = (epoch, step), self._plan.written(self._rank, (epoch, step))
        spent = self._job_times.draw(planned, epoch, step)
        if self._snapshot is None:
            written = self._persist(number, planned, spent)
            self._took.append(Took(0.0, 0.0))
            return written
        self.settle()
        written = self._collect(self._section.in_flight - 1)
        if self._section.snapshot == "device":
            self._take_snapshot(number, planned)
        else:
            self._snapshot.begin()
        last = self._under_way[-1] if self._under_way and self._member.count > 1 else None
        emulated_s = spent.lead_s + sum(spent.files_s) + spent.tail_s
        self._under_way.append(Background(lambda: self._persist(number, planned, spent, last), emulated_s))
        return written

    def keep_epoch_end(self, epoch: int, step: int) -> None:
        """Never remove the checkpoint after `epoch` and `step`."""
        self._retention.epoch_ends.add((epoch, step))

    def settle(self) -> float:
        """Wait until the background thread has taken its snapshot, and return the seconds. The weights must not change before."""
        return 0.0 if self._snapshot is None else self._snapshot.settle()

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
            written += waits.result(checkpoint)
            self._took.append(checkpoint.took)
        return written

    def _abandon(self) -> None:
        """Stop the checkpoints under way if the process ends early, so that no unfinished file remains on disk."""
        self._files.abandoned = True
        waits.wait_until(lambda: all(each.done() for each in self._under_way), lambda: False)

    def _meet(self) -> None:
        """Wait until all ranks have called this, in the background if checkpoints are asynchronous."""
        if self._section.asynchronous:
            self._wait(self._member.arrive())
        else:
            self._member.meet()

    def _wait(self, until: Callable[[], bool]) -> None:
        if not waits.wait_until(until, lambda: self._files.abandoned):
            raise IotwinError(f"{self._folder}: the checkpoint was given up, as the run ended")

    def _take_snapshot(self, number: Number, planned: Sequence[PlannedFile]) -> None:
        if self._snapshot is not None:
            self._snapshot.take(*number, sum(file.size_bytes for file in planned), self._content.buffer)

    def _persist(
        self, number: Number, planned: Sequence[PlannedFile], spent: Spent, last: Background | None = None
    ) -> list[Written]:
        """Take a `host` snapshot if configured, then write the checkpoint. It is committed after the checkpoint `last`."""
        if self._section.snapshot == "host":
            self._take_snapshot(number, planned)
        self._sleeper.sleep(spent.lead_s)
        # Files outside of checkpoint folders hold a folder's name, so they are written after the folder has its final name.
        first = [self._in_folders and checkpoint_folders.folder_name(file.name) is not None for file in planned]
        commits = self._in_folders and any(
            checkpoint_folders.folder_name(file.name) for file in self._plan.written_by_all(number)
        )
        written = []
        for in_folder in (True, False):
            own = [
                (file, time_s)
                for file, time_s, is_first in zip(planned, spent.files_s, first, strict=True)
                if is_first == in_folder
            ]
            written += self._save_files([(file, time_s) for file, time_s in own if not file.commits], number[0])
            if self._section.format == "dcp":
                self._await_turn(last)
                self._meet()
            written += self._save_files([(file, time_s) for file, time_s in own if file.commits], number[0])
            if in_folder and commits:
                self._await_turn(last)
                self._commit(number)
        if self._section.directory_sync:
            loose = [file for file, is_first in zip(planned, first, strict=True) if not is_first]
            for folder in sorted({(self._folder / file.name).parent for file in loose}):
                _sync_folder(folder)
        self._sleeper.sleep(spent.tail_s)
        self._retention.saved.append(number)
        self._remove_old(number, planned)
        return written

    def _await_turn(self, last: Background | None) -> None:
        """Wait until the checkpoint `last` is done, so that all ranks meet for the same checkpoint."""
        if last is not None:
            self._wait(last.done)
            if last.exception() is not None:
                raise IotwinError(f"{self._folder}: the checkpoint was given up, as the one before failed")

    def _commit(self, number: Number) -> None:
        """Wait until every rank has written its files; then rank 0 renames the checkpoint's folders to their final names."""
        self._meet()
        if self._rank == 0:
            self._inspect_all()
            names = [file.name for file in self._plan.written_by_all(number)]
            for name in names:
                self._own.add(name)
            for folder in dict.fromkeys(filter(None, map(checkpoint_folders.folder_name, names))):
                try:
                    if (self._folder / folder).exists():  # an earlier run wrote it
                        checkpoint_folders.remove(self._folder, folder, self._own.below(folder))
                    checkpoint_folders.commit(self._folder, folder, self._section.directory_sync)
                except OSError as error:
                    raise IotwinError(
                        f"{self._folder / folder}: the checkpoint cannot be renamed: {error.strerror}; change its folder"
                    ) from None
        self._meet()

    def _save_files(self, files: Sequence[tuple[PlannedFile, float]], epoch: int) -> list[Written]:
        """Write `files`, pairs of (file, serialization seconds), by `persist_threads` threads, and return their records."""
        threads = min(self._section.persist_threads, len(files))
        if threads < 2:
            return [self._save_file(file, epoch, time_s, self._sleeper) for file, time_s in files]
        pool = TaskThreads(threads, "persist")
        return pool.map(lambda own: self._save_file(own[0], epoch, own[1], waits.new_sleeper()), files)

    def _save_file(self, file: PlannedFile, epoch: int, serialization_s: float, sleeper: Sleeper) -> Written:
        name = checkpoint_folders.unfinished(file.name) if self._in_folders else file.name
        final = self._folder / name
        for own in {name, file.name, checkpoint_folders.leaving(file.name)} if self._in_folders else {name}:
            self._own.add(own)
        self._retention.removed.discard(file.name)
        start_ns = waits.now_ns()
        try:
            self._files.write(name, file, serialization_s, sleeper)
            if file.read_back:
                recovery.read_back(final, file.read_back)
        except OSError as error:
            raise IotwinError(
                f"{final}: the checkpoint cannot be written: {error.strerror}; free space or change its folder"
            ) from None
        return Written(epoch, file.name, file.size_bytes, start_ns, waits.now_ns() - start_ns)

    def _remove_old(self, number: Number, planned: Sequence[PlannedFile]) -> None:
        """Remove old checkpoints by the retention rules, after the checkpoint `number` is whole on every rank."""
        keep = self._section.keep
        if (keep is None and not any(file.keep for file in planned)) or not self._disk.is_whole(number):
            return
        if self._section.files:
            for _, leaving in reversed(list(self._retention.files(partial(self._plan.written, self._rank)))):
                self._remove_own(leaving)
                self._retention.removed.update(leaving)
            return
        stay = self._retention.staying()
        before = [earlier for earlier in self._disk.folders() if earlier < number and earlier not in stay]
        older = [earlier for earlier in before if self._own.below(checkpoint_name(*earlier))]
        for earlier in older[: max(0, len(older) + 1 - (keep or 0))]:
            names = {file.name for file in self._plan.written_by_all(earlier)}
            self._remove_own(names.union(self._own.below(checkpoint_name(*earlier))))
            with suppress(OSError):  # the folder contains files of others
                (self._folder / checkpoint_name(*earlier)).rmdir()

    def _remove_own(self, names: Iterable[str]) -> None:
        """Remove the files among `names` that an emulator wrote. Another rank may remove them at the same time."""
        for name in names:
            folder = checkpoint_folders.folder_name(name) if self._in_folders else None
            if folder is None:
                with suppress(OSError):
                    unlink_beneath(self._folder, name)
            elif self._rank == 0 and (self._folder / folder).exists():
                checkpoint_folders.remove(self._folder, folder, self._own.below(folder))

    def _inspect_all(self) -> None:
        """Inspect the existing checkpoints, newest first, as a job does before it adds or loads a checkpoint."""
        for files, _ in self._retention.files(self._plan.written_by_all):
            recovery.inspect(self._folder, files)

    def newest(self) -> Number | None:
        """Return the (epoch, step) of the checkpoint to recover from; None if no checkpoint is whole.

        It is the last checkpoint that this writer saved, or otherwise the latest whole one on disk.
        """
        candidates = [*self._disk.numbers(), *self._retention.saved]
        return next(filter(self._disk.is_whole, reversed(candidates)), None)

    def load(self) -> list[Written]:
        """Read the files of the newest whole checkpoint that this rank needs, and return their records.

        If `checkpoint.recovery_rank_shift` is set, the rank reads the files of a rank on the next node. All checkpoint folders
        are inspected first. Raises IotwinError, which names the folder or the file, if no checkpoint is whole or a read fails.
        """
        number = self.newest()
        if number is None:
            raise IotwinError(
                f"{self._folder}: holds no whole checkpoint of {counted(self._member.count, 'rank')}; "
                "write one first, or correct its folder"
            )
        read, most_bytes = self._plan.read(rank_read(self._plan.config.checkpoint, self._member), number), LARGEST_BYTES
        if self._in_folders:
            self._inspect_all()
            read = recovery.of_state([*self._plan.written_by_all(number), *self._plan.read(0, number), *read])
            most_bytes = recovery.CHECKED_BYTES
        return [recovery.read_whole(self._folder, file, number[0], most_bytes) for file in read]


def _sync_folder(folder: Path) -> None:
    """Sync `folder`, so that new names in it survive a loss of power. fsync(2) of a file does not sync its name."""
    try:
        fsync_directory(folder)
    except OSError as error:
        raise IotwinError(f"{folder}: cannot be synced: {error.strerror}; set twin.checkpoint.directory_sync to false") from None
