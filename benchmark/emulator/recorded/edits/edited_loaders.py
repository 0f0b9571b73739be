"""Recorded loader processes, cut into the samples that they read, and new loaders that read other samples."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.recorded.edits.process_line import ProcessLine
from iotwin.benchmark.emulator.recorded.edits.read_ahead import ReadAhead
from iotwin.benchmark.emulator.recorded.edits.row_builder import RowBuilder
from iotwin.benchmark.emulator.recorded.edits.streams import DealtSample, RecordedStream, StreamPart
from iotwin.benchmark.emulator.recorded.edits.think_clock import ProcessRows, Stretch
from iotwin.workload_yaml.recorded_structure import PARTS
from iotwin.workload_yaml.recording import Label, Op, TwinRecording

_Ints = NDArray[np.int64]


class RecordedLoader:
    """A loader of the recording, or a rank that reads its batches itself. `batches`: the batches that it read, in order."""

    def __init__(self, recording: TwinRecording, process: int, batches: _Ints, kept: NDArray[np.bool_]) -> None:
        own = recording.batches
        received, delivered = (np.array(each, np.int64)[batches] for each in (own.received_ns, own.delivered_ns))
        writes = self._writes_beside(recording, process, int(received[0]))
        rows = ProcessRows(recording, process, kept & ~writes)
        samples = np.array(own.samples, np.int64)[batches]
        starts = [self._starts(recording, process, *each) for each in zip(batches, received, delivered, samples, strict=True)]
        moments = [0]
        for begin, end, cuts in zip(received.tolist(), delivered.tolist(), starts, strict=True):
            moments += [begin, *cuts, end]
        stretches = rows.cut(np.maximum.accumulate(np.array([*moments, max(rows.end_ns, moments[-1] + 1)], np.int64)))
        self.prologue, self.set_up, self.epilogue = stretches[0], stretches[1], stretches[-1]
        # A thread that sends batches may write, for example to try a temporary folder. It does so once, and not for a certain
        # batch.
        [written] = ProcessRows(recording, process, kept & writes).cut(np.array([received[0], moments[-1] + 1]))
        self.once = replace(_nothing(), begin_ns=written.begin_ns, end_ns=written.end_ns, others=written.others)
        self.parts: dict[int, list[Stretch]] = {}
        self.after: dict[int, Stretch] = {}  # by batch: the calls from its delivery to the next request
        at = 1
        for index, (batch, cuts) in enumerate(zip(batches.tolist(), starts, strict=True)):
            parts = stretches[at : at + len(cuts) + 1]
            # Calls before a batch's first sample belong to that sample. In the first batch, they belong to the loader's start.
            self.parts[batch] = parts[1:] if index == 0 else [parts[0].followed_by(parts[1]), *parts[2:]]
            at += len(cuts) + 1
            if index < len(batches) - 1:
                self.after[batch] = stretches[at]
                at += 1

    def keep_samples_alone(self) -> None:
        """Remove all rows except those for samples: the other rows of a rank that reads its batches itself are not a loader's
        work.
        """
        self.after.clear()
        self.prologue = self.epilogue = self.once = _nothing()

    @staticmethod
    def _writes_beside(recording: TwinRecording, process: int, since_ns: int) -> NDArray[np.bool_]:
        """Return the mask of rows on written files, since `since_ns`, of a loader's threads other than its main thread.

        The mask is all False for a rank, since a rank's threads write for its steps.
        """
        header, columns = recording.header, recording.columns
        if any(each.process == process for each in recording.batches.passes):
            return np.zeros(recording.rows, np.bool_)
        others = np.flatnonzero(np.array(header.threads) == process)[1:]
        on_file = columns["op"] < Op.PIPE_WRITE
        written = np.array([file.written for file in header.files] or [False])[np.where(on_file, columns["subject"], 0)]
        found: NDArray[np.bool_] = np.isin(columns["thread"], others) & on_file & written & (columns["at_ns"] >= since_ns)
        return found

    @staticmethod
    def _starts(recording: TwinRecording, process: int, batch: int, begin_ns: int, end_ns: int, samples: int) -> list[int]:
        """Return when each sample of a batch begins (ns). If the trace does not show this, the batch's calls are divided equally.

        `samples`: number of samples in the batch; 0: unknown, so that the batch has PARTS parts.
        """
        columns, bounds = recording.columns, recording.starts()
        main = int(np.searchsorted(recording.header.threads, process))
        first, end = int(bounds[main]), int(bounds[main + 1])
        at_ns = columns["at_ns"][first:end]
        inside = slice(first + int(np.searchsorted(at_ns, begin_ns)), first + int(np.searchsorted(at_ns, end_ns)))
        own = (columns["batch"][inside] == batch) & (columns["label"][inside] == Label.DEALT) & (columns["sample"][inside] >= 0)
        numbers, rows = np.unique(columns["sample"][inside][own], return_index=True)
        if samples and len(numbers) == samples:
            begins: list[int] = np.sort(columns["at_ns"][inside][own][rows]).tolist()
            return begins
        calls = columns["at_ns"][inside][columns["op"][inside] < Op.PIPE_WRITE]
        count = samples or PARTS
        if len(calls) < count:
            return [int(begin_ns + (end_ns - begin_ns) * part / count) for part in range(count)]
        cuts: list[int] = calls[np.arange(count) * len(calls) // count].tolist()
        return cuts


def are_streamed(recording: TwinRecording) -> bool:
    """Return True if loaders read most bytes from files that they use for several successive batches."""
    columns = recording.columns
    reads = np.isin(columns["op"], [Op.READ, Op.TOUCH]) & (columns["batch"] >= 0)
    labels, sizes = columns["label"][reads], columns["size"][reads].astype(np.float64)
    return bool(sizes[labels == Label.STREAMED].sum() > sizes[labels == Label.DEALT].sum())


def fork_ns(recording: TwinRecording, row: int) -> int:
    """Return the time (ns) from the previous row to the start of a loader at `row`; 0 if the previous row is not a start."""
    op, at_ns = recording.columns["op"], recording.columns["at_ns"]
    return int(at_ns[row] - at_ns[row - 1]) if row and op[row - 1] == op[row] == Op.START else 0


def _nothing() -> Stretch:
    return Stretch(np.zeros(0, np.int64), np.zeros(0, np.int64), 0, 0, 0, 0)


class NewLoader:
    """A loader of the edited recording that reads dealt samples. It starts and ends like the recorded loader `like`."""

    def __init__(self, builder: RowBuilder, parent: int, like: RecordedLoader, pipes: tuple[int, int]) -> None:
        self.line = ProcessLine(builder, builder.new_process(parent))
        self._builder, self._like, self._fresh = builder, like, True
        self.requests, self.results = pipes
        self._files = set[int]()  # files of the streams that it has read
        self.line.play(like.prologue)

    def serve(self, samples: Sequence[DealtSample], deal: "Deal") -> None:
        """Append rows by which the loader waits for a request, reads the samples as `deal` does, and delivers them."""
        self.line.main.add(Op.PIPE_READ, self.requests, 1)
        first, self._fresh = self._fresh, False
        if first:
            self.line.play(self._like.set_up)
        self._files |= deal.stream_files(samples)
        after = deal.read(self.line, samples)
        self.line.wait(deal.begin_ahead(self.line, samples))
        if first:
            once, tag = self._like.once, f"-loader{self.line.process}"
            self.line.play(once, subjects=self._builder.on_copies(tag, once.begin_ns, once.end_ns, data=False), waits=False)
        self.line.main.add(Op.PIPE_WRITE, self.results, 1)
        for stretch in after:
            self.line.play(stretch, waits=False)

    def end(self, deal: "Deal") -> None:
        """Append what the recorded loader did after its last batch, except calls on files of streams that other loaders read."""
        self.line.play(deal.without_other_files(self._like.epilogue, self._files), waits=False)


class Deal:
    """Finds the recorded rows that read a dealt sample, and appends them to processes of the edited recording.

    `decode`: by loader, the factor for the time between these rows.
    """

    def __init__(
        self, recording: TwinRecording, builder: RowBuilder, loaders: dict[int, RecordedLoader], decode: dict[int, float]
    ) -> None:
        self._recording, self._builder, self._loaders = recording, builder, loaders
        self._loader_of = recording.batches.loader
        self._decode = decode
        self.ahead: ReadAhead | None = None  # what other threads of a rank read for its batches
        self._by_file: dict[tuple[int, int], list[tuple[int, Stretch]]] = {}
        op, subject = recording.columns["op"], recording.columns["subject"]
        read = np.array([not file.written for file in recording.header.files] or [False])
        on_data = (op < Op.PIPE_WRITE) & read[np.where(op < Op.PIPE_WRITE, subject, 0)]
        self._file_of = np.where(on_data, subject, -1).__getitem__  # by row

    def parts(self, batch: int) -> int:
        """Return the number of samples of a recorded batch; if samples are unknown, the number of its parts."""
        return len(self._loaders[self._loader_of[batch]].parts[batch])

    def read(self, line: ProcessLine, samples: Sequence[DealtSample]) -> list[Stretch]:
        """Append the reads of the samples to `line`. Return what the recorded loaders did after deliveries.

        The result has a stretch for each recorded batch whose last sample is in `samples`.
        """
        after = []
        for batch, part, copy, piece in samples:
            loader = self._loaders[self._loader_of[batch]]
            stretch = loader.parts[batch][part]
            if piece is not None and self.ahead is None:
                stretch = self._pieces(batch, part)[piece][1]
            elif piece:  # other threads read pieces ahead; the main thread's calls are played with the first piece
                stretch = _nothing()
            tag = f"-copy{copy}"
            copied = self._builder.on_copies(tag, stretch.begin_ns, stretch.end_ns, data=True) if copy else None
            line.play(stretch, self._decode[self._loader_of[batch]], copied)
            is_last = part == len(loader.parts[batch]) - 1 and piece in (None, len(self._by_file.get((batch, part), ())) - 1)
            if is_last and batch in loader.after and len(loader.after[batch].rows):
                after.append(loader.after[batch])
        return after

    def place(self, sample: DealtSample) -> tuple[str, int]:
        """Return the name of the first data-set file that is read for the sample, and the lowest offset read there, in bytes."""
        columns = self._recording.columns
        for file, stretch in self._pieces(sample.batch, sample.part):
            rows = stretch.all_rows()
            reads = rows[np.isin(columns["op"][rows], [Op.READ, Op.TOUCH])]
            if file >= 0 and len(reads):
                return self._recording.header.files[file].name, int(columns["offset"][reads].min())
        return "", 0

    def begin_ahead(self, line: ProcessLine, samples: Sequence[DealtSample]) -> list[int]:
        """Let other threads of the process start to read the samples.

        Return the channels to wait for before the samples are used.
        """
        channels: list[int] = []
        begun: dict[tuple[int, int], set[int]] = {}  # by file and copy: the threads that use it
        for batch, part, copy, piece in samples if self.ahead is not None else ():
            stretch = self.ahead.of(batch, part) if self.ahead is not None else None
            if stretch is not None and piece is not None:
                file, stretch = self._pieces(batch, part)[piece]
                threads = {position for position, _, _ in stretch.others}
                if begun.setdefault((file, copy), threads) != threads:  # one thread may close what another one still reads
                    line.wait(channels)
                    channels, begun = [], {(file, copy): threads}
            if stretch is not None:
                copied = self._builder.on_copies(f"-copy{copy}", stretch.begin_ns, stretch.end_ns, data=True) if copy else None
                channels += line.begin_others(stretch, copied)
        return channels

    def stream_files(self, reads: Sequence[DealtSample]) -> set[int]:
        """Return the files of streams that `reads` read."""
        return {self._pieces(batch, part)[piece][0] for batch, part, _, piece in reads if piece is not None}

    def without_other_files(self, stretch: Stretch, files: set[int]) -> Stretch:
        """Return the stretch without the main thread's calls on data-set files that are not in `files`. Other calls remain."""
        if not files:
            return stretch
        kept = np.isin(self._file_of(stretch.rows), [-1, *files])
        return replace(stretch, rows=stretch.rows[kept], at=stretch.at[kept])

    def stream(self, batches: _Ints) -> RecordedStream:
        """Return what one loader read ahead for its `batches`: their samples in the given order, and the calls that read each."""
        columns = self._recording.columns
        samples: list[DealtSample] = []
        parts: list[StreamPart] = []
        numbers: dict[int, int] = {}  # by file
        for batch in batches.tolist():
            for part in range(self.parts(batch)):
                for index, (file, stretch) in enumerate(self._pieces(batch, part)):
                    number = numbers.setdefault(file, len(numbers)) if file >= 0 else max(len(numbers) - 1, 0)
                    rows = stretch.all_rows()
                    size = int(columns["size"][rows[np.isin(columns["op"][rows], [Op.READ, Op.TOUCH])]].sum())
                    parts.append(StreamPart(len(samples), number, size, DealtSample(batch, part, piece=index)))
                samples.append(DealtSample(batch, part))
        return RecordedStream(samples, parts)

    def _pieces(self, batch: int, part: int) -> list[tuple[int, Stretch]]:
        """Return the calls for one part of a batch, by file (-1: calls on no data-set file).

        If other threads of the rank read ahead, only their calls are returned.
        """
        if (batch, part) not in self._by_file:
            own = self._loaders[self._loader_of[batch]].parts[batch][part]
            done = own if self.ahead is None else self.ahead.of(batch, part)
            self._by_file[batch, part] = [(-1, _nothing())] if done is None else done.by_file(self._file_of)
        return self._by_file[batch, part]
