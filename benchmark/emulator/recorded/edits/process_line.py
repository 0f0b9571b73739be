"""One process of an edited recording: stretches (rows of a recorded process between two moments), appended one by one."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.recorded.edits.row_builder import RowBuilder, Subjects, ThreadRows
from iotwin.benchmark.emulator.recorded.edits.think_clock import Stretch
from iotwin.workload_yaml.recording import Op

_BACKGROUND = -1  # position of a thread that the recorded process does not have


class ProcessLine:
    """The main thread of a process of the edited recording, and helper threads for the rows of the recorded process's other
    threads.

    A helper begins its rows when the main thread begins the stretch. The main thread may wait for the helper at the end.
    """

    def __init__(self, builder: RowBuilder, process: int) -> None:
        self.process = process
        self._builder = builder
        self.main: ThreadRows = builder.thread(process)[1]
        self._others: dict[int, tuple[int, ThreadRows]] = {}
        self._written: list[int] = []  # channels to wait for the background thread's latest work

    def play(self, stretch: Stretch, factor: float = 1.0, subjects: Subjects | None = None, waits: bool = True) -> None:
        """Append a stretch, with its times between calls multiplied by `factor`.

        `subjects`: function from rows to their new subjects (file, pipe, process); None: subjects are unchanged. `waits`: wait
        for the other threads at the end.
        """
        channels = [
            self._begin(position, rows, (thinks * factor).astype(np.int64), subjects, waits)
            for position, rows, thinks in stretch.others
        ]
        stretch.put(self.main, factor, subjects and subjects(stretch.rows))
        for channel in channels if waits else ():
            self.main.add(Op.WAIT, channel + 1)

    def play_in_background(self, stretch: Stretch, subjects: Subjects | None = None) -> None:
        """Let a background thread execute the main thread's rows of a stretch, after it has executed those of earlier calls."""
        self.wait(self._written)
        thinks = np.diff(stretch.at, prepend=stretch.begin)
        background = self._begin(_BACKGROUND, stretch.rows, thinks, subjects, waits=True) + 1
        self._written = [background, *self.begin_others(stretch, subjects)]

    def begin_others(self, stretch: Stretch, subjects: Subjects | None = None) -> list[int]:
        """Let other threads begin their rows of a stretch.

        Return channels: pass these to `wait` to wait for the threads' ends.
        """
        return [self._begin(position, rows, thinks, subjects, waits=True) + 1 for position, rows, thinks in stretch.others]

    def wait(self, channels: Sequence[int]) -> None:
        """Wait for a token in each of the channels."""
        for channel in channels:
            self.main.add(Op.WAIT, channel)

    def _begin(
        self, position: int, rows: NDArray[np.int64], thinks: NDArray[np.int64], subjects: Subjects | None, waits: bool
    ) -> int:
        """Let the thread at `position` execute `rows` from now on. Return the first of its two channels."""
        if position not in self._others:
            number, thread = self._builder.thread(self.process)
            self._others[position] = 2 * len(self._others), thread
            self._builder.need_channels(2 * len(self._others))
            self.main.add(Op.THREAD, number)
        channel, thread = self._others[position]
        self.main.add(Op.POST, channel)
        thread.add(Op.WAIT, channel)
        thread.take(rows, thinks, subjects and subjects(rows))
        if waits:
            thread.add(Op.POST, channel + 1)
        return channel
