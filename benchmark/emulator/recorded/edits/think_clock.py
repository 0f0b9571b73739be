"""Cut threads of a recording at given moments. The think clock stands still during the threads' calls and waits."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.recorded.edits.row_builder import ThreadRows
from iotwin.workload_yaml.recording import Op, TwinRecording

_Ints = NDArray[np.int64]
_TIMED_BY_END = (Op.POLL, Op.PIPE_READ, Op.WAIT, Op.JOIN)  # operations whose `at_ns` is when they ended


@dataclass(frozen=True)
class Stretch:
    """What a process did between two moments: rows of its main thread on the think clock, and rows of its other threads.

    `rows` has only the rows to keep. `begin` and `end` are readings of the think clock; `begin_ns` and `end_ns` are the moments.
    """

    rows: _Ints
    at: _Ints  # readings of the clock at the rows
    begin: int
    end: int
    begin_ns: int
    end_ns: int
    # Other threads that made calls: position in the process, rows, and times of thinking. The first time counts from `begin_ns`.
    others: list[tuple[int, _Ints, _Ints]] = field(default_factory=list)

    @property
    def think_ns(self) -> int:
        """Time of the main thread outside of its calls."""
        return self.end - self.begin

    def followed_by(self, other: "Stretch") -> "Stretch":
        """Return both stretches as one, without what the process did between them."""
        others = {position: (rows, thinks) for position, rows, thinks in self.others}
        for position, rows, thinks in other.others:
            if position in others:
                rows = np.concatenate([others[position][0], rows])
                thinks = np.concatenate([others[position][1], thinks])
            others[position] = rows, thinks
        return Stretch(
            np.concatenate([self.rows, other.rows]), np.concatenate([self.at, other.at - other.begin + self.end]), self.begin,
            self.end + other.think_ns, self.begin_ns, other.end_ns, [(position, *each) for position, each in others.items()],
        )  # fmt: skip

    def all_rows(self) -> _Ints:
        """Return the rows of all threads."""
        return np.concatenate([self.rows, *(rows for _, rows, _ in self.others)])

    def by_file(self, file_of: Callable[[_Ints], _Ints]) -> list[tuple[int, "Stretch"]]:
        """Return the parts of the stretch in which its threads use one file each, as (file, part); file -1: they use none.

        `file_of`: returns the file of each row, -1 for none. Rows without a file belong to the file of the row before.
        """
        files = [file_of(rows) for rows in (self.rows, *(rows for _, rows, _ in self.others))]
        used = np.concatenate(files)
        used = used[used >= 0]
        if len(np.unique(used)) < 2:
            return [(int(used[0]) if len(used) else -1, self)]
        main, *theirs = (_filled(own, int(used[0])) for own in files)
        cuts = (np.flatnonzero(np.diff(main)) + 1).tolist()
        found, begin = [], self.begin
        for first, end in pairwise([0, *cuts, len(main)]):
            last = self.end if end == len(main) else int(self.at[end - 1])
            part = replace(self, rows=self.rows[first:end], at=self.at[first:end], begin=begin, end=last, others=[])
            found.append((int(main[first]) if len(main) else int(used[0]), part))
            begin = last
        for file in np.unique(np.concatenate([np.zeros(0, np.int64), *theirs])).tolist():
            own = zip(self.others, theirs, strict=True)
            others = [(place, rows[of == file], thinks[of == file]) for (place, rows, thinks), of in own if (of == file).any()]
            at = next((index for index, (other, _) in enumerate(found) if other == file), -1)
            if at < 0:
                at = 0
                found.insert(0, (file, replace(self, rows=self.rows[:0], at=self.at[:0], end=self.begin)))
            found[at] = file, replace(found[at][1], others=others)
        return found

    def put(self, thread: ThreadRows, factor: float = 1.0, subjects: NDArray[np.int64] | None = None) -> None:
        """Append the rows of the main thread to `thread`, with their times of thinking multiplied by `factor`.

        `subjects`: the new subject for each subject of a file; AS_RECORDED: the subject is unchanged.
        """
        thinks = (np.diff(self.at, prepend=self.begin) * factor).astype(np.int64)
        thread.take(self.rows, thinks, subjects)
        last = int(self.at[-1]) if len(self.rows) else self.begin
        thread.delay(int((self.end - last) * factor))


class ProcessRows:
    """The rows of one process of a recording, ready to be cut. `kept`: mask of the rows that remain."""

    def __init__(self, recording: TwinRecording, process: int, kept: NDArray[np.bool_]) -> None:
        columns, starts = recording.columns, recording.starts()
        threads = [number for number, owner in enumerate(recording.header.threads) if owner == process]
        first, end = int(starts[threads[0]]), int(starts[threads[0] + 1])
        op, self._at_ns = columns["op"][first:end], columns["at_ns"][first:end]
        self._think = _with_hand_overs(recording, threads, columns["think_ns"][first:end])
        self._clock = np.cumsum(self._think)
        self._ends = _ends(self._at_ns, self._think, op)
        self._rows, self._kept = np.arange(first, end), kept[first:end]
        self.begin_ns = int(self._at_ns[0] - self._think[0]) if end > first and op[0] not in _TIMED_BY_END else 0
        self.end_ns = int(self._at_ns[-1]) + 1 if end > first else 0
        self._others = []
        for position, thread in enumerate(threads[1:], 1):
            rows = np.arange(starts[thread], starts[thread + 1])
            remain = kept[rows]
            if remain.any():
                ends = _ends(*(columns[name][rows] for name in ("at_ns", "think_ns", "op")))
                self._others.append((position, rows[remain], columns["at_ns"][rows[remain]], ends[remain]))

    def readings(self, moments: _Ints) -> _Ints:
        """Return the think clock's readings at `moments` (ns)."""
        if not len(self._clock):
            return np.zeros(len(moments), np.int64)
        last = np.searchsorted(self._at_ns, moments, side="right") - 1
        row = np.maximum(last, 0)
        left = np.append(self._think[1:], 0)[row]
        within = self._clock[row] + np.clip(moments - self._ends[row], 0, left)
        before = self._clock[0] - np.clip(self._at_ns[0] - moments, 0, self._think[0])
        found: _Ints = np.where(last >= 0, within, before)
        return found

    def cut(self, moments: _Ints) -> list[Stretch]:
        """Return the stretches between `moments` (ascending), one fewer than these."""
        readings = np.maximum.accumulate(self.readings(moments))
        bounds = np.searchsorted(self._at_ns, moments)
        others = [(*other, np.searchsorted(other[2], moments)) for other in self._others]
        found = []
        for i in range(len(moments) - 1):
            kept = np.flatnonzero(self._kept[bounds[i] : bounds[i + 1]]) + bounds[i]
            at = np.clip(self._clock[kept], readings[i], readings[i + 1])
            theirs = [
                (
                    position,
                    rows[cuts[i] : cuts[i + 1]],
                    _gaps(at_ns[cuts[i] : cuts[i + 1]], ends[cuts[i] : cuts[i + 1]], moments[i]),
                )
                for position, rows, at_ns, ends, cuts in others
                if cuts[i] < cuts[i + 1]
            ]
            found.append(
                Stretch(
                    self._rows[kept], at, int(readings[i]), int(readings[i + 1]), int(moments[i]), int(moments[i + 1]), theirs
                )
            )
        return found


def _filled(files: _Ints, first: int) -> _Ints:
    """Return `files` with each -1 replaced by the file before it; by `first` if there is none."""
    last = np.maximum.accumulate(np.where(files >= 0, np.arange(len(files)), -1)) if len(files) else files
    found: _Ints = np.where(last >= 0, files[last], first) if len(files) else files
    return found


def _with_hand_overs(recording: TwinRecording, threads: list[int], think_ns: _Ints) -> _Ints:
    """Return the main thread's times of thinking. They include its waits for threads without calls on files, and for loaders'
    ends.

    Such a thread sends requests or batches. Which calls follow the sending is chance. A loader ends as soon as the rank stops it,
    so the rank was busy until then.
    """
    columns, starts = recording.columns, recording.starts()
    reading = set()
    for thread in threads[1:]:
        op, subject = (columns[name][starts[thread] : starts[thread + 1]] for name in ("op", "subject"))
        if (op < Op.PIPE_WRITE).any():
            reading |= set(subject[op == Op.POST].tolist())
    own = slice(int(starts[threads[0]]), int(starts[threads[0] + 1]))
    op, subject, at_ns = (columns[name][own] for name in ("op", "subject", "at_ns"))
    batches = recording.header.batches
    loaders = [] if batches is None else batches.loader
    waits = np.flatnonzero((op == Op.WAIT) & ~np.isin(subject, list(reading)) | (op == Op.JOIN) & np.isin(subject, loaders))
    before = np.append(0, at_ns[:-1])
    found: _Ints = think_ns.astype(np.int64)
    found[waits] = np.maximum(at_ns - before, 0)[waits]
    return found


def _ends(at_ns: _Ints, think_ns: _Ints, op: _Ints) -> _Ints:
    """Return when each row of a thread ended: the begin of the next row minus that row's time of thinking.

    If only the end of the next row is recorded, the result is the row's own time.
    """
    by_end = np.append(np.isin(op[1:], _TIMED_BY_END), True)[: len(op)]
    following = np.append(at_ns[1:] - think_ns[1:], 0)[: len(op)]
    ends: _Ints = np.where(by_end, at_ns, np.maximum(following, at_ns))
    return ends


def _gaps(at_ns: _Ints, ends: _Ints, begin_ns: int) -> _Ints:
    gaps: _Ints = np.maximum(at_ns - np.append(begin_ns, ends[:-1]), 0)
    return gaps
