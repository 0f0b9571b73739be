"""What a checkpoint consists of: its files, and the seconds that the job spends on it besides their system calls."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from iotwin.common.numbers.draws import DrawnTime
from iotwin.common.numbers.keyed import Purpose
from iotwin.workload_yaml import Duration, TwinCheckpoint


class PlannedFile(NamedTuple):
    """One file of a checkpoint."""

    name: str  # within the checkpoint folder
    write_sizes: Sequence[tuple[int, int]]  # [bytes, how often], in order
    fsync: bool
    rename: bool  # written under a temporary name, then renamed
    read_back: Sequence[tuple[int, int]] = ()  # [offset, bytes] of each read once it is written
    serialization_time: Duration | None = None  # None: a share of all files'
    direct: bool = False  # past the page cache
    looked_at: Literal["opened", "read"] | None = None  # at each later checkpoint while this one is there
    format: str | None = None  # that it was recorded in
    commits: bool = False  # written when the others are
    synced_early: bool = False  # before its bytes are written
    slots: bool = False  # mapped, and overwritten in turns
    pattern: str = ""  # its name with '{epoch}' and '{step}' in it
    keep: int | None = None  # newest of that pattern that stay, 0: all; None: twin.checkpoint.keep
    made_first: bool = False  # opened and closed once before it is opened to be written

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the file."""
        return sum(size * count for size, count in self.write_sizes)

    def sizes(self) -> Iterator[int]:
        """Yield the bytes of each write."""
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
    """Draws what the job spends on each checkpoint of a rank, one after another."""

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
