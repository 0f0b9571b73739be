"""Build the rows of an edited recording, thread by thread, from rows of the original and new ones."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.recorded.edits.call_shapes import join_reads
from iotwin.trace_store.schema import FLAG_CREATE
from iotwin.workload_yaml.recording import COLUMNS, Op, Pipe, RecordedFile, TwinRecording

_Ints = NDArray[np.int64]
Subjects = Callable[[_Ints], _Ints]  # the new subject of each row, or AS_RECORDED if the row's subject is unchanged
AS_RECORDED = -1  # stands for the recorded subject
_NEVER_NS = 1 << 62
# A copy of a process leaves these out: calls on pipes, which it would share with the original, and child processes.
_NOT_COPIED = (Op.PIPE_WRITE, Op.PIPE_READ, Op.POLL, Op.START, Op.JOIN)


class ThreadRows:
    """Rows of one thread. `delay` adds to the time between the previous row's end and the next row."""

    def __init__(self, builder: "RowBuilder") -> None:
        self._builder = builder
        self._parts: list[tuple[_Ints, _Ints, _Ints]] = []
        self._delay_ns = 0

    def delay(self, think_ns: int) -> None:
        """Add `think_ns`, which may be negative, to the time before the thread's next row."""
        self._delay_ns = max(self._delay_ns + think_ns, 0)

    def take(self, rows: _Ints, think_ns: _Ints, subjects: _Ints | None = None) -> None:
        """Append recorded rows.

        `rows`: their indices; `think_ns`: the time before each; `subjects`: the subject of each, AS_RECORDED if unchanged.
        """
        if len(rows):
            think_ns = think_ns.astype(np.int64)
            think_ns[0] += self._delay_ns
            self._delay_ns = 0
            self._parts.append((rows, think_ns, np.full(len(rows), AS_RECORDED) if subjects is None else subjects))

    def add(self, op: Op, subject: int, size: int = 0, fd: int = -1, offset: int = -1) -> None:
        """Append a new row."""
        row = self._builder.new_row(op, subject, size, fd, offset)
        self.take(np.array([row]), np.zeros(1, np.int64))

    def whole(self) -> tuple[_Ints, _Ints, _Ints]:
        """Return the thread's rows, their times of thinking and their subjects."""
        if not self._parts:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
        rows, thinks, subjects = (np.concatenate(each) for each in zip(*self._parts, strict=True))
        return rows, thinks, subjects


class RowBuilder:
    """The edited recording while it is built. It has the original's processes, then new ones."""

    def __init__(self, recording: TwinRecording) -> None:
        self._recording, self._new = recording, list[tuple[int, int, int, int, int]]()
        header = recording.header
        self.files: list[RecordedFile] = list(header.files)
        self._pipes, self._parents = list(header.pipes), list(header.parents)
        self._channels = header.channels
        self._threads: list[tuple[int, ThreadRows]] = []  # process and rows by provisional number of the thread
        self._copied: dict[tuple[int, str], int] = {}
        self._marks = list(header.marks)
        on_file = recording.columns["op"] < Op.PIPE_WRITE
        subject, at_ns = recording.columns["subject"][on_file], recording.columns["at_ns"][on_file]
        self._first_ns, self._last_ns = np.full(len(self.files), _NEVER_NS), np.zeros(len(self.files), np.int64)
        np.minimum.at(self._first_ns, subject, at_ns)
        np.maximum.at(self._last_ns, subject, at_ns)

    def new_row(self, op: Op, subject: int, size: int, fd: int, offset: int) -> int:
        """Add a row that the recording does not have, and return its index. Indices of new rows follow those of recorded rows."""
        self._new.append((int(op), subject, size, fd, offset))
        return self._recording.rows + len(self._new) - 1

    def new_process(self, parent: int) -> int:
        """Return the index of a new process."""
        self._parents.append(parent)
        return len(self._parents) - 1

    def new_pipe(self) -> int:
        """Return the index of a new pipe."""
        self._pipes.append(Pipe())
        return len(self._pipes) - 1

    def thread(self, process: int) -> tuple[int, ThreadRows]:
        """Return a new thread of a process and its provisional number. The first one is the process's main thread."""
        self._threads.append((process, ThreadRows(self)))
        return len(self._threads) - 1, self._threads[-1][1]

    def copy_process(self, process: int, new: int, kept: NDArray[np.bool_]) -> None:
        """Append the kept rows of a recorded process as those of the process `new`."""
        columns, starts = self._recording.columns, self._recording.starts()
        own = [number for number, owner in enumerate(self._recording.header.threads) if owner == process]
        made = [self.thread(new) for _ in own]
        numbers = {thread: number for thread, (number, _) in zip(own, made, strict=True)}
        for thread, (_, rows) in zip(own, made, strict=True):
            part = np.arange(starts[thread], starts[thread + 1])
            clock, remain = np.cumsum(columns["think_ns"][part]), kept[part]
            begins = columns["op"][part] == Op.THREAD
            subjects = np.full(len(part), AS_RECORDED)
            subjects[begins] = [numbers[each] for each in columns["subject"][part][begins].tolist()]
            rows.take(part[remain], np.diff(clock[remain], prepend=0), subjects[remain])

    def start_of(self, process: int, again: bool) -> int:
        """Return the index of the process that starts in place of a recorded one: a copy if it starts `again`, else the same
        process.
        """
        if not again:
            return process
        new = self.new_process(self._recording.header.parents[process])
        alone = ~np.isin(self._recording.columns["op"], _NOT_COPIED)
        self.copy_process(process, new, alone)
        return new

    def mark(self, index: int, copy: int) -> int:
        """Return the index of a log mark; with `copy` > 0, of the same mark with an epoch number that is `copy` higher."""
        mark = self._marks[index]
        if not copy or mark.epoch is None:
            return index
        self._marks.append(msgspec.structs.replace(mark, epoch=mark.epoch + copy))
        return len(self._marks) - 1

    def on_copies(self, tag: str, begin_ns: int, end_ns: int, data: bool) -> Subjects:
        """Return the function that maps the rows of a repeated stretch to copies of the files that only this stretch has written.

        The stretch went from `begin_ns` to `end_ns`. `data`: also copies of the data set's files.
        """

        def subjects(rows: _Ints) -> _Ints:
            own, on_file = self._recording.columns["subject"][rows], self._recording.columns["op"][rows] < Op.PIPE_WRITE
            found = np.full(len(rows), AS_RECORDED)
            for index in np.unique(own[on_file]).tolist():
                alone = begin_ns <= self._first_ns[index] and self._last_ns[index] < end_ns
                if (self.files[index].written and alone) or (data and not self.files[index].written):
                    found[on_file & (own == index)] = self.copy_of_file(index, tag)
            return found

        return subjects

    def need_channels(self, count: int) -> None:
        """Make room for `count` channels in each process."""
        self._channels = max(self._channels, count)

    def copy_of_file(self, index: int, tag: str) -> int:
        """Return the index of a copy of a file, with `tag` in its name before the suffix. The same tag yields the same copy."""
        if (index, tag) not in self._copied:
            file = self.files[index]
            renamed = None if file.renamed_to is None else _tagged(file.renamed_to, tag)
            self.files.append(msgspec.structs.replace(file, name=_tagged(file.name, tag), renamed_to=renamed))
            self._copied[index, tag] = len(self.files) - 1
        return self._copied[index, tag]

    def found_file(self, index: int) -> tuple[int, int]:
        """Return (index, bytes) of a new file that exists at the start and equals the file at `index` as the job left it."""
        key, file, size_bytes = (index, ""), self.files[index], self._written_bytes(index)
        if key not in self._copied:
            name = file.renamed_to or file.name
            self.files.append(msgspec.structs.replace(file, name=name, renamed_to=None, size_bytes=size_bytes, made=False))
            self._copied[key] = len(self.files) - 1
        return self._copied[key], size_bytes

    def _written_bytes(self, index: int) -> int:
        """Return the size in bytes to which the job wrote a recorded file."""
        columns = self._recording.columns
        own = np.isin(columns["op"], [Op.WRITE, Op.COPY_TO]) & (columns["subject"] == index)
        size, offset = columns["size"][own].astype(np.int64), columns["offset"][own]
        return max(
            self._recording.header.files[index].size_bytes,
            int(np.where(offset < 0, np.cumsum(size), offset + size).max(initial=0)),
        )

    def finish(self, batches_in_one: int = 1) -> TwinRecording:
        """Return the edited recording, without labels. `batches_in_one`: recorded batches in an edited one."""
        order = sorted(range(len(self._threads)), key=lambda number: self._threads[number][0])
        index = np.zeros(len(order), np.int64)
        index[order] = np.arange(len(order))
        threads = [self._threads[number][0] for number in order]
        present = set(threads)
        for process in sorted(set(range(len(self._parents))) - present):  # every process has a main thread, if without rows
            at = int(np.searchsorted(threads, process))
            threads.insert(at, process)
            index[index >= at] += 1
        parts = [(int(index[number]), *self._threads[number][1].whole()) for number in order]
        rows, thinks, subjects = (np.concatenate([part[i] for part in parts]) for i in (1, 2, 3))
        thread = np.repeat([part[0] for part in parts], [len(part[1]) for part in parts])
        columns = {name: self._column(name)[rows] for name in COLUMNS}
        columns |= {"thread": thread, "think_ns": thinks}
        columns["subject"] = np.where(subjects == AS_RECORDED, columns["subject"], subjects)
        begins = columns["op"] == Op.THREAD
        columns["subject"][begins] = index[columns["subject"][begins]]
        if batches_in_one > 1:
            batch = np.append(self._recording.columns["batch"], np.full(len(self._new), -1))[rows]
            columns = join_reads(columns, batch, self._recording, batches_in_one)
        once = _last_removals(columns) & self._started(columns, np.array(threads)[columns["thread"]])
        columns = {name: columns[name][once].astype(kind) for name, kind in COLUMNS.items()}
        header = msgspec.structs.replace(
            self._recording.header, files=self._without_missing(columns), pipes=self._pipes, channels=self._channels,
            parents=self._parents, threads=threads, marks=self._marks, batches=None,
        )  # fmt: skip
        return replace(self._recording, header=header, columns=columns)

    def _started(self, columns: dict[str, NDArray[Any]], process: _Ints) -> NDArray[np.bool_]:
        """Return a mask of the rows to keep: all rows, except those of recorded processes that no edited process starts."""
        recorded = self._recording.columns
        once = np.unique(recorded["subject"][recorded["op"] == Op.START])
        alive, before = np.ones(len(process), np.bool_), -1
        while alive.sum() != before:  # what an absent process starts is absent, too
            before = alive.sum()
            absent = np.setdiff1d(once, columns["subject"][alive & (columns["op"] == Op.START)])
            alive &= ~np.isin(process, absent)
        return alive

    def _column(self, name: str) -> NDArray[Any]:
        """Return a column of the original rows and the new ones."""
        names = ("op", "subject", "size", "fd", "offset")
        new = dict(zip(names, np.array(self._new, np.int64).reshape(-1, len(names)).T, strict=True))
        made = new.get(name, np.zeros(len(self._new), np.int64))
        return np.concatenate([self._recording.columns[name].astype(np.int64), made])

    def _without_missing(self, columns: dict[str, NDArray[Any]]) -> list[RecordedFile]:
        """Return the files. A file that rows use, but no remaining row creates, exists from the start."""
        used = np.unique(columns["subject"][columns["op"] < Op.PIPE_WRITE])
        creates = (columns["op"] == Op.OPEN) & (columns["flags"] & FLAG_CREATE > 0)
        missing = set(np.setdiff1d(used, columns["subject"][creates]).tolist())
        renamed = set(columns["subject"][columns["op"] == Op.RENAME].tolist())
        found = list(self.files)
        for index, file in enumerate(self.files):
            if file.made and index in missing:
                name = file.name if index in renamed else file.renamed_to or file.name
                size_bytes = self._written_bytes(index) if index < len(self._recording.header.files) else 0
                found[index] = msgspec.structs.replace(file, made=False, name=name, size_bytes=size_bytes)
        return found


def _last_removals(columns: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Return a mask of the rows to keep: all rows, except each file's removals (unlink) before its last one.

    The edit may repeat a part of the recording. A later repetition may still read a file that an earlier one would remove.
    """
    kept = np.ones(len(columns["op"]), np.bool_)
    removals = np.flatnonzero(columns["op"] == Op.UNLINK)[::-1]
    _, last = np.unique(columns["subject"][removals], return_index=True)
    kept[removals] = False
    kept[removals[last]] = True
    return kept


def _tagged(name: str, tag: str) -> str:
    folder, slash, last = name.rpartition("/")
    stem, dot, suffix = last.rpartition(".")
    return f"{folder}{slash}{stem}{tag}{dot}{suffix}" if stem else f"{folder}{slash}{last}{tag}"
