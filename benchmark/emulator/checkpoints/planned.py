"""The planned files of a checkpoint, and the seconds that the job spends on it besides their system calls."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from iotwin.common.numbers.draws import DrawnTime
from iotwin.common.numbers.keyed import Purpose
from iotwin.workload_yaml import CheckpointFile, TwinCheckpoint


class PlannedFile(CheckpointFile):
    """One file of one checkpoint: the recorded properties of the YAML, and properties of the emulator's own formats."""

    commits: bool = False  # written after the checkpoint's other files
    synced_early: bool = False  # fsync comes before the writes
    slots: bool = False  # mapped, and overwritten slot by slot
    pattern: str = ""  # its name with '{epoch}' and '{step}' in place of the numbers

    @property
    def size_bytes(self) -> int:
        """Return the size of the file in bytes."""
        return sum(size * count for size, count in self.write_sizes)

    def sizes(self) -> Iterator[int]:
        """Yield the size of each write in bytes."""
        for size, count in self.write_sizes:
            for _ in range(count):
                yield size


class Spent(NamedTuple):
    """Seconds that the job spends before the first file, on each file, and after the last one."""

    lead_s: float
    files_s: list[float]
    tail_s: float

    @property
    def seconds(self) -> float:
        """Return their sum."""
        return self.lead_s + sum(self.files_s) + self.tail_s


class JobTimes:
    """Draws the seconds that the job spends on each checkpoint of a rank besides system calls."""

    def __init__(self, section: TwinCheckpoint, seed: int, rank: int) -> None:
        self._seed, self._rank = seed, rank
        self._serialization = DrawnTime(section.serialization_time, self._seed, Purpose.SERIALIZATION)
        self._lead = DrawnTime(section.lead_time, self._seed, Purpose.LEAD)
        self._tail = DrawnTime(section.tail_time, self._seed, Purpose.TAIL)
        first = section.first_lead_time
        self._next_lead = self._lead if first is None else DrawnTime(first, self._seed, Purpose.LEAD)

    def draw(self, planned: Sequence[PlannedFile], epoch: int, step: int) -> Spent:
        """Return the seconds spent on the next checkpoint, which consists of the files `planned`."""
        lead, self._next_lead = self._next_lead, self._lead
        files_s = self._files_s(planned, epoch, step)
        return Spent(lead.seconds(self._rank, epoch, step), files_s, self._tail.seconds(self._rank, epoch, step))

    def _files_s(self, planned: Sequence[PlannedFile], epoch: int, step: int) -> list[float]:
        shared_s = sum(self._serialization.seconds(index, epoch, step) for index in range(len(planned)))
        total_bytes = sum(file.size_bytes for file in planned) or 1
        return [
            shared_s * file.size_bytes / total_bytes
            if file.serialization_time is None
            else DrawnTime(file.serialization_time, self._seed, Purpose.SERIALIZATION).seconds(index, epoch, step)
            for index, file in enumerate(planned)
        ]
