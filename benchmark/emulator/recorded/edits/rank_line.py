"""The edited rank: what it does before, between and after its passes, and in their steps on batches that are dealt anew."""

import math
from dataclasses import replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.recorded.edits.dealing import DealtBatch, RecordedPassSamples, are_shuffled, deal
from iotwin.benchmark.emulator.recorded.edits.edits import Edits
from iotwin.benchmark.emulator.recorded.edits.loaders import PARTS, Deal, NewLoader, RecordedLoader
from iotwin.benchmark.emulator.recorded.edits.process_line import ProcessLine
from iotwin.benchmark.emulator.recorded.edits.rare_steps import find_rare_steps, runs_of
from iotwin.benchmark.emulator.recorded.edits.read_ahead import ReadAhead, TakenBatches, read_ahead_rows
from iotwin.benchmark.emulator.recorded.edits.row_builder import RowBuilder, Subjects
from iotwin.benchmark.emulator.recorded.edits.think_clock import ProcessRows, Stretch
from iotwin.common.errors import UsageError
from iotwin.workload_yaml.recorded_structure import is_requested_at_once, pass_bounds
from iotwin.workload_yaml.recording import Label, Op, TwinRecording

_Ints = NDArray[np.int64]


class _Pass:
    """A recorded pass of the rank: its stretches, its batches, and its loaders in the order of their first batch."""

    def __init__(self, recording: TwinRecording, index: int, bounds: _Ints) -> None:
        batches = recording.batches
        own = slice(int(bounds[index]), int(bounds[index + 1]))
        self.training, self.depth = batches.passes[index].training, batches.passes[index].depth
        self.batches = np.arange(own.start, own.stop)
        self.loader_of = np.array(batches.loader, np.int64)[own]
        self.loaders: list[int] = list(dict.fromkeys(self.loader_of.tolist()))
        sizes = np.array(batches.samples, np.int64)[own]
        self.known = bool((sizes > 0).any())  # how many samples a batch has
        self.size = int(np.bincount(sizes[sizes > 0]).argmax()) if self.known else PARTS
        requested, taken, computed = (
            np.array(each, np.int64)[own] for each in (batches.requested_ns, batches.taken_ns, batches.computed_ns)
        )
        if self.depth:  # what other threads do while the rank waits for its next batch belongs to the step
            computed = np.append(taken[1:], computed[-1:])
        self.moments = np.stack([taken if self.depth else np.maximum(taken, requested), computed], axis=1).ravel()
        self.begin_ns = int(requested[0])
        self.opening: Stretch
        self.steps: list[Stretch] = []
        self.computation_ns = np.zeros(0, np.int64)

    def leave_out(self, rare: NDArray[np.bool_]) -> None:
        """Let the steps of the mask `rare` be as the others: with their typical computation, and without calls."""
        if rare.any() and not rare.all():
            self.computation_ns[rare] = int(np.median(self.computation_ns[~rare]))
            for index in np.flatnonzero(rare).tolist():
                step = self.steps[index]
                self.steps[index] = replace(step, rows=step.rows[:0], at=step.at[:0], others=[])


class RankLine:
    """A rank of the edited recording, which takes its batches from new loaders or reads them itself."""

    def __init__(
        self, recording: TwinRecording, builder: RowBuilder, process: int, kept: NDArray[np.bool_], edits: Edits, rank: int
    ) -> None:
        batches = recording.batches
        self._recording, self._builder, self._edits, self._rank = recording, builder, edits, rank
        self._line = ProcessLine(builder, process)
        bounds = pass_bounds(batches)
        self._passes = [_Pass(recording, i, bounds) for i, each in enumerate(batches.passes) if each.process == process]
        ahead = kept & read_ahead_rows(recording, process)
        self._cut(ProcessRows(recording, process, kept & ~ahead))
        self._training = [number for number, each in enumerate(self._passes) if each.training]
        self._loaders = self._recorded_loaders(kept & ~ahead)
        self._deal = Deal(recording, builder, self._loaders)
        if ahead.any():
            taken = [TakenBatches(each.batches, each.moments[::2], each.begin_ns) for each in self._passes if not each.depth]
            self._deal.ahead = ReadAhead(recording, process, ahead, taken, self._deal.parts)
        self._live: dict[int, NewLoader] = {}  # by the recorded loader in whose place it is
        self._more: dict[int, list[NewLoader]] = {}  # further ones, by the last recorded loader of the pass
        self._pipes: list[tuple[int, int]] = []  # those of loaders that have ended
        self._children: dict[int, int] = {}
        self._slots: dict[int, tuple[int, list[int]]] = {}  # by recorded loader: its slot, and its pass's loaders
        for each in self._passes:
            if each.depth:  # loaders that live through several passes keep their slots
                each.loaders.sort(key=lambda loader: self._slots[loader][0] if loader in self._slots else len(self._slots))
                self._slots = {loader: (slot, each.loaders) for slot, loader in enumerate(each.loaders)} | self._slots
        self._period = self._epochs_alike()
        self._rare_plays = [0] * len(self._rare_stretches)
        self._step = 0
        self._shuffled = [self._is_shuffled(training) for training in (False, True)]
        self._streamed = self._is_streamed()
        columns = recording.columns
        self._mapped = np.unique(columns["subject"][(columns["op"] == Op.TOUCH) & (columns["batch"] >= 0)])

    def _cut(self, rows: ProcessRows) -> None:
        """Cut the rank's rows into what comes before, in, between and after its passes."""
        moments, at = [np.zeros(1, np.int64)], 1
        for each in self._passes:
            moments.append(np.append(each.begin_ns, each.moments))
        end = np.array([max(rows.end_ns, int(moments[-1][-1]) + 1)])
        stretches = rows.cut(np.maximum.accumulate(np.concatenate([*moments, end])))
        self._between = [stretches[0]]
        for each in self._passes:
            each.opening = stretches[at]
            each.steps = stretches[at + 1 : at + len(each.moments) : 2]  # between them, the rank waits for its next batch
            at += 1 + len(each.moments)
            self._between.append(stretches[at - 1])
        training = [each for each in self._passes if each.training]
        self._rare, rare = find_rare_steps([each.steps for each in training])
        self._rare_stretches = [
            reduce(Stretch.followed_by, [self._without_step(each.steps, is_rare, index) for index in run])
            for each, is_rare in zip(training, rare, strict=True)
            for run in runs_of(is_rare)
        ]
        if self._edits.saves_every and not any(map(self._writes, self._rare_stretches)):
            raise UsageError("checkpoint.steps_between_checkpoints: the job wrote nothing after steps within its epochs")
        for each in self._passes:
            each.computation_ns = np.array([stretch.think_ns for stretch in each.steps], np.int64)
        for each, is_rare in zip(training, rare, strict=True):
            each.leave_out(is_rare)

    @staticmethod
    def _without_step(steps: list[Stretch], rare: NDArray[np.bool_], index: int) -> Stretch:
        """Return what the rank did after a rare step: the rest of its stretch after a usual computation."""
        usual = [stretch.think_ns for stretch, is_rare in zip(steps, rare.tolist(), strict=True) if not is_rare]
        stretch = steps[index]
        first = int(stretch.at[0]) if len(stretch.at) else stretch.end
        return replace(stretch, begin=min(stretch.begin + int(np.median(usual or [0])), first))

    def _recorded_loaders(self, kept: NDArray[np.bool_]) -> dict[int, RecordedLoader]:
        found = {}
        for loader in dict.fromkeys(loader for each in self._passes for loader in each.loaders):
            own = np.concatenate([each.batches[each.loader_of == loader] for each in self._passes])
            received = np.array(self._recording.batches.received_ns, np.int64)[own]
            found[loader] = RecordedLoader(self._recording, loader, own[np.argsort(received, kind="stable")], kept)
            if loader == self._line.process:
                found[loader].keep_samples_alone()
        return found

    def _is_shuffled(self, training: bool) -> bool:
        columns = self._recording.columns
        own = [each for each in self._passes if each.training == training]
        orders = []
        for each in own:
            rows = np.flatnonzero(np.isin(columns["batch"], each.batches) & np.isin(columns["op"], [Op.READ, Op.TOUCH]))
            key = columns["subject"][rows].astype(np.int64) * (1 << 40) + columns["offset"][rows]
            _, first = np.unique(columns["batch"][rows], return_index=True)
            orders.append(key[first])
        return are_shuffled(orders)

    def _is_streamed(self) -> bool:
        """Return whether loaders, or other threads of the rank, read on in files for most of the bytes that batches read."""
        if self._deal.ahead is not None:
            return self._deal.ahead.is_streamed()
        columns = self._recording.columns
        reads = np.isin(columns["op"], [Op.READ, Op.TOUCH]) & (columns["batch"] >= 0)
        labels, sizes = columns["label"][reads], columns["size"][reads].astype(np.float64)
        return bool(sizes[labels == Label.STREAMED].sum() > sizes[labels == Label.DEALT].sum())

    def play(self) -> None:
        """Append the whole rank, and its loaders."""
        sequence = self._sequence()
        self._put(self._between[0])
        for index, (number, copy) in enumerate(sequence):
            self._play_pass(number, copy)
            if index + 1 == len(sequence):
                break
            following, again = sequence[index + 1]  # what came before it, when it was recorded
            if following > 0:
                self._put(self._between[following], again)
        self._put(self._between[-1], sequence[-1][1] if sequence else 0)
        for loader in [*self._live.values(), *(each for more in self._more.values() for each in more)]:
            loader.end(self._deal)

    def _sequence(self) -> list[tuple[int, int]]:
        """Return the passes of the edited run: index of the recorded pass, and 0 or how often it was repeated before."""
        count, epochs = len(self._passes), self._edits.epochs or len(self._training)
        if epochs <= len(self._training):
            last = count if epochs == len(self._training) else self._training[epochs]
            return [(number, 0) for number in range(last)]
        found = [(number, 0) for number in range(count)]
        period = self._period
        for further in range(epochs - len(self._training)):
            epoch = len(self._training) - period + further % period
            end = [*self._training, count][epoch + 1]
            found += [(number, further // period + 1) for number in range(self._training[epoch], end)]
        return found

    def _epochs_alike(self) -> int:
        """Return after how many epochs the rank does the same again: evaluates, and writes after its passes."""
        ends = [*self._training[1:], len(self._passes)]
        done = [
            (end - first, *(self._writes(self._between[number]) for number in range(first + 1, end + 1)))
            for first, end in zip(self._training, ends, strict=True)
        ]
        done[-1] = done[-1][:-1]  # the last one's end is that of the job
        count = len(done)
        for period in range(1, count // 2 + 1):
            if all(a[: len(b)] == b for a, b in zip(done, done[period:], strict=False)):
                return period
        return 1

    def _put(self, stretch: Stretch, copy: int = 0, factor: float = 1.0) -> None:
        """Append what the rank did in a stretch, with its times of thinking multiplied by `factor`.

        `copy`: 0, or how often the stretch was repeated before. A repeated stretch writes files with other names.
        """
        op, subject = self._recording.columns["op"], self._recording.columns["subject"]
        waits = not self._writes(stretch, main=False)
        special = np.flatnonzero(np.isin(op[stretch.rows], [Op.START, Op.JOIN, Op.MARK])).tolist()
        begin, first, others = stretch.begin, 0, stretch.others
        for end in [*special, len(stretch.rows)]:
            is_last = end == len(stretch.rows)
            reading = stretch.end if is_last else int(stretch.at[end])
            rows, at = stretch.rows[first:end], stretch.at[first:end]
            part = replace(stretch, rows=rows, at=at, begin=begin, end=reading, others=others)
            self._line.play(part, factor, self._subjects(part, copy), waits)
            self._repeat_on_copies(part)
            if not is_last:
                row = int(stretch.rows[end])
                self._special(Op(op[row]), int(subject[row]), row, copy)
            begin, first, others = reading, end + 1, []

    def _repeat_on_copies(self, stretch: Stretch) -> None:
        """Append once more, on the copies of files that loaders map, what the rank did with these files: to open and map them.

        Loaders that are forked later then have the maps of the copies, too.
        """
        op, subject = (self._recording.columns[name][stretch.rows] for name in ("op", "subject"))
        rows = stretch.rows[(op < Op.PIPE_WRITE) & np.isin(subject, self._mapped)]
        for copy in range(1, math.ceil(self._edits.samples)):
            subjects = self._builder.on_copies(f"-copy{copy}", stretch.begin_ns, stretch.end_ns, data=True)
            self._line.main.take(rows, np.zeros(len(rows), np.int64), subjects(rows))

    def _special(self, op: Op, subject: int, row: int, copy: int) -> None:
        """Append the start or end of a process, or a mark of the log."""
        if op == Op.MARK:
            self._line.main.take(
                np.array([row]), np.zeros(1, np.int64), np.array([self._builder.mark(subject, copy * self._period)])
            )
        elif subject in self._slots:
            if op == Op.START:
                self._start_loader(subject, self._fork_ns(row))
            else:
                self._join_loader(subject)
        elif op == Op.START:
            self._children[subject] = self._builder.start_of(subject, subject in self._children)
            self._line.main.add(op, self._children[subject])
        elif subject in self._children:
            self._line.main.add(op, self._children[subject])

    def _count(self, loaders: list[int]) -> int:
        """Return the number of loaders that an edited pass has."""
        asked = self._edits.loaders
        if asked is None:
            return len(loaders)
        usual = max((len(self._passes[number].loaders) for number in self._training), default=1)
        return asked if len(loaders) == usual else max(1, round(asked * len(loaders) / usual)) if asked else 0

    def _fork_ns(self, row: int) -> int:
        """Return how long after another loader the rank started the one of `row`; 0 if it did something else in between."""
        op, at_ns = self._recording.columns["op"], self._recording.columns["at_ns"]
        return int(at_ns[row] - at_ns[row - 1]) if row and op[row - 1] == op[row] == Op.START else 0

    def _start_loader(self, loader: int, fork_ns: int) -> None:
        """Start a loader in place of a recorded one, and after the last one of a pass further ones, for `fork_ns` each.

        If loaders are left out, so is the time for which the rank forked each of them.
        """
        slot, loaders = self._slots[loader]
        count = self._count(loaders)
        if slot < count:
            self._live[loader] = self._new_loader(loader)
        elif slot:
            self._line.main.delay(-fork_ns)
        if slot == len(loaders) - 1:
            self._more[loader] = [self._new_loader(loaders[each % len(loaders)], fork_ns) for each in range(len(loaders), count)]

    def _new_loader(self, like: int, fork_ns: int = 0) -> NewLoader:
        self._line.main.delay(fork_ns)
        pipes = self._pipes.pop() if self._pipes else (self._builder.new_pipe(), self._builder.new_pipe())
        new = NewLoader(self._builder, self._line.process, self._loaders[like], pipes)
        self._line.main.add(Op.START, new.line.process)
        return new

    def _join_loader(self, loader: int) -> None:
        for new in [*filter(None, [self._live.pop(loader, None)]), *self._more.pop(loader, [])]:
            new.end(self._deal)
            self._pipes.append((new.requests, new.results))
            self._line.main.add(Op.JOIN, new.line.process)

    def _play_pass(self, number: int, copy: int) -> None:
        each = self._passes[number]
        count = self._count(each.loaders) if each.depth else self._edits.loaders or 0
        dealt = deal(self._samples_of(each), self._edits, each.training, each.size, count, self._rank, copy)
        loaders = self._loaders_of(each, count)
        ahead = min(self._ahead(each, count, len(dealt)), len(dealt)) if loaders else 0
        for batch in dealt if loaders else ():
            loaders[batch.slot].serve(batch.reads, self._deal)
        for batch in dealt[:ahead]:
            self._line.main.add(Op.PIPE_WRITE, loaders[batch.slot].requests, 1)
        if each.depth:  # otherwise the rank reads its first batch then
            self._put(each.opening, copy)
        epoch = self._training.index(number) if each.training else -1
        begun = self._deal.begin_ahead(self._line, dealt[0].reads) if dealt and not loaders else []
        for index, batch in enumerate(dealt):
            if loaders:
                self._line.main.add(Op.PIPE_READ, loaders[batch.slot].results, 1)
                if index + ahead < len(dealt):
                    self._line.main.add(Op.PIPE_WRITE, loaders[dealt[index + ahead].slot].requests, 1)
            else:
                self._line.wait(begun)
                self._deal.read(self._line, batch.reads)
                begun = self._deal.begin_ahead(self._line, dealt[index + 1].reads) if index + 1 < len(dealt) else []
            self._play_step(each, index, len(dealt), batch, copy)
            if each.training:
                if self._edits.ranks > 1:
                    self._line.main.add(Op.MEET, 0)
                self._play_rare_step(epoch, index, len(dealt))
                self._step += 1
        if not each.depth:  # these loaders have read for this pass alone
            self._pipes += [(loader.requests, loader.results) for loader in loaders]

    def _play_rare_step(self, epoch: int, index: int, count: int) -> None:
        """Append what few steps are followed by, such as a checkpoint, if that is due after step `index` of `count`."""
        if self._rare.steps:
            rare = self._rare.due(epoch, index, self._step, count, self._edits.saves_every)
            if rare is not None:
                self._put(self._rare_stretches[rare], self._rare_plays[rare])
                self._rare_plays[rare] += 1

    def _play_step(self, each: _Pass, index: int, count: int, batch: DealtBatch, copy: int) -> None:
        """Append the computation of a step, and the calls that a step of that share of the pass made."""
        weights = np.zeros(len(each.batches))
        for sample in batch.samples:
            weights[sample.batch - each.batches[0]] += 1 / self._deal.parts(sample.batch)
        wanted = float(weights @ each.computation_ns) * self._edits.computation
        recorded = min(index * len(each.steps) // count, len(each.steps) - 1)
        step = each.steps[recorded]
        if len(step.rows) or step.others:
            self._put(step, copy, wanted / step.think_ns if step.think_ns else 0.0)
        else:
            self._line.main.delay(int(wanted))

    def _samples_of(self, each: _Pass) -> RecordedPassSamples:
        batches = each.batches.tolist()
        streams = [self._deal.stream(each.batches[each.loader_of == loader]) for loader in each.loaders if self._streamed]
        return RecordedPassSamples(
            each.batches,
            np.array([self._deal.parts(batch) for batch in batches]),
            streams,
            self._shuffled[each.training],
            each.known,
        )

    def _loaders_of(self, each: _Pass, count: int) -> list[NewLoader]:
        """Return the new loaders of the pass by slot, started if no recorded start stands for them."""
        if not count:
            return []
        if not each.depth:  # the rank has read by itself
            return [self._new_loader(self._line.process) for _ in range(count)]
        for loader in each.loaders[:count]:
            if loader not in self._live:
                self._live[loader] = self._new_loader(loader)
        further = self._more.setdefault(each.loaders[-1], [])
        for slot in range(len(each.loaders) + len(further), count):
            further.append(self._new_loader(each.loaders[slot % len(each.loaders)]))
        return [*(self._live[loader] for loader in each.loaders[:count]), *further]

    def _ahead(self, each: _Pass, count: int, batches: int) -> int:
        """Return how many of the `batches` of a pass with `count` loaders are requested before the first one is taken."""
        if self._edits.prefetch is not None:
            return -(-self._edits.prefetch // count) * count
        if not each.depth:
            return 2 * count
        if is_requested_at_once(each.depth, len(each.batches), len(each.loaders)):
            return batches
        return max(1, round(each.depth / max(len(each.loaders), 1))) * count

    def _writes(self, stretch: Stretch, main: bool = True) -> bool:
        """Return whether the rank writes files in a stretch. `main`: its main thread counts, besides the others."""
        rows = np.concatenate([stretch.rows if main else stretch.rows[:0], *(rows for _, rows, _ in stretch.others)])
        return bool(np.isin(self._recording.columns["op"][rows], [Op.WRITE, Op.COPY_TO]).any())

    def _subjects(self, stretch: Stretch, copy: int) -> Subjects | None:
        """Return what gives the rows of a repeated stretch their subjects; None the first time."""
        return self._builder.on_copies(f"-more{copy}", stretch.begin_ns, stretch.end_ns, data=False) if copy else None
