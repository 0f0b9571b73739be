"""What a job spends on a checkpoint beside the calls that write it: the emulator sleeps as long."""

from collections.abc import Sequence
from typing import NamedTuple

from benchmark.config import Config
from benchmark.emulator.checkpoints.planned import PlannedFile
from common.numbers.draws import DrawnTime
from common.numbers.keyed import Purpose


class Spent(NamedTuple):
    """Seconds before the first file, on each, and after the last one."""

    lead_s: float
    files_s: list[float]
    tail_s: float

    @property
    def seconds(self) -> float:
        """All of them."""
        return self.lead_s + sum(self.files_s) + self.tail_s


class JobTimes:
    """Draws them for the checkpoints of a rank, one after another."""

    def __init__(self, config: Config, rank: int) -> None:
        section, self._seed, self._rank = config.twin.checkpoint, config.train.seed, rank
        self._serialization = DrawnTime(section.serialization_time, self._seed, Purpose.SERIALIZATION)
        self._lead = DrawnTime(section.lead_time, self._seed, Purpose.LEAD)
        self._tail = DrawnTime(section.tail_time, self._seed, Purpose.TAIL)
        first = section.first_lead_time
        self._next_lead = self._lead if first is None else DrawnTime(first, self._seed, Purpose.LEAD)

    def draw(self, planned: Sequence[PlannedFile], epoch: int, step: int) -> Spent:
        """Return what the next checkpoint takes, whose files are `planned`."""
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
