"""Builds the edited rank: its calls before, between and after its passes, and in steps on dealt batches."""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.recorded.edits.balanced_ranks import decode_factors
from iotwin.benchmark.emulator.recorded.edits.dealing import DealtBatch, RecordedPassSamples, deal
from iotwin.benchmark.emulator.recorded.edits.edited_loaders import Deal, NewLoader, RecordedLoader, are_streamed, fork_ns
from iotwin.benchmark.emulator.recorded.edits.pass_turns import PassTurn, period_of, resumed_run, whole_run
from iotwin.benchmark.emulator.recorded.edits.process_line import ProcessLine
from iotwin.benchmark.emulator.recorded.edits.rank_pass import RankPass, are_dealt_shuffled
from iotwin.benchmark.emulator.recorded.edits.rare_steps import LastingHelpers, find_rare_steps, rare_stretches
from iotwin.benchmark.emulator.recorded.edits.read_ahead import ReadAhead, TakenBatches, read_ahead_rows
from iotwin.benchmark.emulator.recorded.edits.recorded_checkpoints import Saves
from iotwin.benchmark.emulator.recorded.edits.requested_edits import Edits
from iotwin.benchmark.emulator.recorded.edits.resumed_checkpoint import SavedFiles
from iotwin.benchmark.emulator.recorded.edits.row_builder import RowBuilder, Subjects
from iotwin.benchmark.emulator.recorded.edits.step_computation import StepComputation
from iotwin.benchmark.emulator.recorded.edits.think_clock import ProcessRows, Stretch
from iotwin.benchmark.emulator.recorded.step_points import StepPoint
from iotwin.common.errors import UsageError
from iotwin.workload_yaml import TwinResume
from iotwin.workload_yaml.recorded_structure import pass_bounds
from iotwin.workload_yaml.recording import Op, TwinRecording


class RankLine:
    """Builds the edited rank. New loaders deliver the rank's batches, or the rank reads them itself."""

    def __init__(
        self, recording: TwinRecording, builder: RowBuilder, process: int, kept: NDArray[np.bool_], edits: Edits, rank: int
    ) -> None:
        batches = recording.batches
        self._recording, self._builder, self._edits, self._rank = recording, builder, edits, rank
        self._line = ProcessLine(builder, process)
        bounds = pass_bounds(batches)
        of_process = [[i for i, each in enumerate(batches.passes) if each.process == rank] for rank in self._ranks(process)]
        self._passes = [RankPass(recording, own, bounds, others, edits.decode) for own, *others in zip(*of_process, strict=True)]
        ahead = kept & read_ahead_rows(recording, process)
        self._helpers = LastingHelpers(recording, process, kept, {*batches.loader, *(each.process for each in batches.passes)})
        self._cut(ProcessRows(recording, process, kept & ~ahead))
        self._training = [number for number, each in enumerate(self._passes) if each.training]
        self._loaders = self._recorded_loaders(kept & ~ahead)
        self._deal = Deal(recording, builder, self._loaders, decode_factors(recording, edits))
        if ahead.any():
            if edits.regrouped:
                raise UsageError("twin.ranks: which rank the read-ahead threads serve is unknown; leave it as it is")
            taken = [TakenBatches(each.batches, each.moments[::2], each.begin_ns) for each in self._passes if not each.depth]
            self._deal.ahead = ReadAhead(recording, process, ahead, taken, self._deal.parts)
        self._saves = Saves(recording)
        self._live: dict[int, NewLoader] = {}  # running loaders, by the recorded loader that each replaces
        self._present: list[int] = []  # recorded loaders of the present pass, which begin before it and end after it
        self._more: dict[int, list[NewLoader]] = {}  # additional loaders, by the last recorded loader of the pass
        self._pipes: list[tuple[int, int]] = []  # (requests, results) of loaders that have ended
        self._children: dict[int, int] = {}
        self._slots: dict[int, tuple[int, list[int]]] = {}  # by recorded loader: its slot, and its pass's loaders
        for each in self._passes:
            if each.depth:  # loaders that live through several passes keep their slots
                each.loaders.sort(key=lambda loader: self._slots[loader][0] if loader in self._slots else len(self._slots))
                self._slots = {loader: (slot, each.loaders) for slot, loader in enumerate(each.loaders)} | self._slots
        self._period = self._epochs_alike()
        self._rare_plays = [0] * len(self._rare_stretches)
        self._step = 0
        self._timed = 0  # training passes so far
        self._saved_at = -1  # step of the checkpoint from which the run resumes
        self._to_restore: SavedFiles | None = None
        self._stands_for: dict[int, int | None] = {}  # by recorded loader: the loader of the resumed pass that starts instead
        self._shuffled = [are_dealt_shuffled(recording, self._passes, training) for training in (False, True)]
        self._streamed = are_streamed(recording) if self._deal.ahead is None else self._deal.ahead.is_streamed()
        columns = recording.columns
        self._mapped = np.unique(columns["subject"][(columns["op"] == Op.TOUCH) & (columns["batch"] >= 0)])

    def _ranks(self, process: int) -> list[int]:
        """Return the recorded ranks whose samples the rank `process` reads in the edited run, itself first."""
        if not self._edits.regrouped:
            return [process]
        return list(dict.fromkeys(each.process for each in self._recording.batches.passes))

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
            each.steps = stretches[at + 1 : at + len(each.moments) : 2]  # between the steps, the rank waits for its next batch
            at += 1 + len(each.moments)
            self._between.append(stretches[at - 1])
        training = [each for each in self._passes if each.training]
        self._rare, rare = find_rare_steps(self._passes, self._helpers, self._between)
        found = rare_stretches(self._passes, rare)
        self._rare_stretches = [stretch for stretch, _ in found]
        self._rare_first = [is_first for _, is_first in found]  # by rare step: whether its calls precede its computation
        if self._edits.saves_every and not any(map(self._writes, self._rare_stretches)):
            raise UsageError("checkpoint.steps_between_checkpoints: the job wrote nothing after steps within its epochs")
        for each in self._passes:
            each.time_steps()
        for each, is_rare in zip(training, rare, strict=True):
            each.leave_out(is_rare)
        self._computation = StepComputation(training, rare, self._edits.computation)

    def _recorded_loaders(self, kept: NDArray[np.bool_]) -> dict[int, RecordedLoader]:
        found = {}
        for loader in dict.fromkeys(loader for each in self._passes for loader in each.dealt_loader.tolist()):
            own = np.concatenate([each.dealt[each.dealt_loader == loader] for each in self._passes])
            received = np.array(self._recording.batches.received_ns, np.int64)[own]
            found[loader] = RecordedLoader(self._recording, loader, own[np.argsort(received, kind="stable")], kept)
            if loader in self._ranks(self._line.process):
                found[loader].keep_samples_alone()
        return found

    def play(self) -> None:
        """Append the whole rank, and its loaders."""
        turns = whole_run(len(self._passes), self._training, self._period, self._edits.epochs or len(self._training))
        if self._edits.resume is not None:
            turns = self._resumed(turns, self._edits.resume)
        for before, turn in zip([None, *turns], turns, strict=False):
            self._put_before(before, turn)
            self._play_pass(turn)
        self._put(self._between[-1], turns[-1].copy)
        for loader in [*self._live.values(), *(each for more in self._more.values() for each in more)]:
            loader.end(self._deal)

    def _put_before(self, previous: PassTurn | None, turn: PassTurn) -> None:
        """Append what the rank does before a pass. If it only replays the `previous` pass: at most the end of loaders."""
        if previous is not None and previous.replays and not previous.resumes:
            for loader in set(self._passes[previous.number].loaders) - set(self._passes[turn.number].loaders):
                self._join_loader(loader)
        elif turn.before is not None:
            resume = self._edits.resume if turn.begins else None
            if resume is not None:
                first, own = self._passes[turn.before].loaders, self._passes[turn.number].loaders
                self._stands_for = dict(zip(first, [*own, *[None] * len(first)], strict=False))
            self._put(
                self._between[turn.before], turn.copy if resume is None else 0, epochs_later=resume.epoch - 1 if resume else 0
            )
            self._restore()
            self._stands_for = {}

    def _restore(self) -> None:
        """Append the reads of the checkpoint from which the run resumes, unless they are appended already."""
        saved, self._to_restore = self._to_restore, None
        if saved is not None:
            saved.read_by(self._builder, self._line.main, self._line.process)

    def _resumed(self, turns: list[PassTurn], resume: TwinResume) -> list[PassTurn]:
        """Return the passes of the run that resumes, and find the checkpoint from which it does."""
        turns = resumed_run(turns, self._training, resume, lambda turn: len(self._dealt(turn)))
        at = next(index for index, turn in enumerate(turns) if turn.resumes)
        each, count = self._passes[turns[at].number], len(self._dealt(turns[at]))
        self._saved_at = sum(turn.left_out + turn.done for turn in turns[:at]) + turns[at].left_out + resume.step
        step = each.steps[min(resume.step * len(each.steps) // max(count, 1), len(each.steps) - 1)]
        rare = self._due(resume.epoch - 1, resume.step, self._saved_at, count)
        ended = resume.step == count or (rare is not None and self._rare_first[rare])
        saved = SavedFiles(self._recording, step.end_ns if ended else step.begin_ns)
        self._to_restore = saved if saved.are_read(resume) else None
        return turns

    def _epochs_alike(self) -> int:
        """Return the period, in epochs, with which the rank repeats its evaluations and the writes after its passes."""
        ends = [*self._training[1:], len(self._passes)]
        done = [
            (end - first, *(self._writes(self._between[number]) for number in range(first + 1, end + 1)))
            for first, end in zip(self._training, ends, strict=True)
        ]
        done[-1] = done[-1][:-1]  # after the last epoch, the job itself ends
        return period_of(done)

    def _put(self, stretch: Stretch, copy: int = 0, factor: float = 1.0, epochs_later: int = 0) -> None:
        """Append the rank's calls in a stretch, with the times between calls multiplied by `factor`.

        `copy`: how often the stretch was played before; if above 0, the stretch writes files with other names. `epochs_later`:
        added to the epoch numbers that the stretch logs.
        """
        op, subject = self._recording.columns["op"], self._recording.columns["subject"]
        waits = not self._writes(stretch, main=False)
        special = np.flatnonzero(np.isin(op[stretch.rows], [Op.START, Op.JOIN, Op.MARK])).tolist()
        begin, first, others = stretch.begin, 0, stretch.others
        helpers = self._helpers.start(self._builder, self._line, stretch)
        for end in [*special, len(stretch.rows)]:
            is_last = end == len(stretch.rows)
            reading = stretch.end if is_last else int(stretch.at[end])
            rows, at = stretch.rows[first:end], stretch.at[first:end]
            part = replace(stretch, rows=rows, at=at, begin=begin, end=reading, others=others)
            self._play(part, factor, self._subjects(part, copy), waits)
            self._repeat_on_copies(part)
            if not is_last:
                row = int(stretch.rows[end])
                self._special(Op(op[row]), int(subject[row]), row, copy * self._period + epochs_later)
            begin, first, others = reading, end + 1, []
        for helper in helpers:
            self._line.main.add(Op.JOIN, helper)

    def _play(self, stretch: Stretch, factor: float, subjects: Subjects | None, waits: bool) -> None:
        """Append a stretch in which the rank starts no process. A thread plays its save if checkpoints are asynchronous."""
        split = self._saves.split(stretch) if self._edits.asynchronous else None
        if split is None:
            return self._line.play(stretch, factor, subjects, waits)
        before, save, after = split
        self._line.play(before, factor, subjects)
        self._line.main.delay(self._saves.snapshot_ns(save))
        self._line.play_in_background(save, subjects)
        self._line.play(after, factor, subjects)

    def _repeat_on_copies(self, stretch: Stretch) -> None:
        """Append the rank's calls that open and map files for its loaders once more, on the copies of these files.

        Loaders that are forked later then have the maps of the copies, too.
        """
        op, subject = (self._recording.columns[name][stretch.rows] for name in ("op", "subject"))
        rows = stretch.rows[(op < Op.PIPE_WRITE) & np.isin(subject, self._mapped)]
        for copy in range(1, math.ceil(self._edits.samples)):
            subjects = self._builder.on_copies(f"-copy{copy}", stretch.begin_ns, stretch.end_ns, data=True)
            self._line.main.take(rows, np.zeros(len(rows), np.int64), subjects(rows))

    def _special(self, op: Op, subject: int, row: int, epochs_later: int) -> None:
        """Append the start or end of a process, or a mark of the log."""
        if op == Op.MARK:
            self._line.main.take(np.array([row]), np.zeros(1, np.int64), np.array([self._builder.mark(subject, epochs_later)]))
        elif subject in self._present or subject in self._helpers:
            return
        elif subject in self._slots:
            if op == Op.START:
                self._restore()
                loader = self._stands_for.get(subject, subject)
                if loader is not None:
                    self._start_loader(loader, fork_ns(self._recording, row))
            else:
                self._join_loader(subject)
        elif op == Op.START:
            self._children[subject] = self._builder.start_of(subject, subject in self._children)
            self._line.main.add(op, self._children[subject])
        elif subject in self._children:
            self._line.main.add(op, self._children[subject])

    def _count(self, loaders: list[int]) -> int:
        """Return the number of loaders that an edited pass has."""
        trained = {loader for number in self._training for loader in self._passes[number].loaders}
        if (asked := self._edits.evaluation_loaders) is not None and trained.isdisjoint(loaders):
            return asked
        if (asked := self._edits.loaders) is None:
            return len(loaders)
        usual = max((len(self._passes[number].loaders) for number in self._training), default=1)
        return asked if len(loaders) == usual else max(1, round(asked * len(loaders) / usual)) if asked else 0

    def _start_loader(self, loader: int, fork_ns: int) -> None:
        """Start a loader in place of a recorded one. After a pass's last recorded loader, also start the additional loaders.

        Each start takes `fork_ns`. If a loader is left out, the time of forking it is left out, too.
        """
        self._join_loader(loader)  # if a repeated step or epoch has started it
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
        """End the loader that replaces the recorded `loader`, and its additional loaders. Wait until they have ended."""
        for new in [*filter(None, [self._live.pop(loader, None)]), *self._more.pop(loader, [])]:
            new.end(self._deal)
            self._pipes.append((new.requests, new.results))
            self._line.main.add(Op.JOIN, new.line.process)

    def _crew(self, each: RankPass) -> int:
        asked = self._edits.loaders if each.training or self._edits.evaluation_loaders is None else self._edits.evaluation_loaders
        return self._count(each.loaders) if each.depth else asked or 0

    def _dealt(self, turn: PassTurn) -> list[DealtBatch]:
        each = self._passes[turn.number]
        return deal(self._samples_of(each), self._edits, each.training, each.size, self._crew(each), self._rank, turn.copy)

    def _play_pass(self, turn: PassTurn) -> None:
        each, copy, count = self._passes[turn.number], turn.copy, self._crew(self._passes[turn.number])
        whole, first = self._dealt(turn), 0 if turn.replays else turn.done
        dealt = whole[first:]
        # PyTorch's loader that skips batches assigns the following ones from its first worker on.
        if first and count and not self._streamed:
            dealt = [batch._replace(slot=index % count) for index, batch in enumerate(dealt)]
        loaders = self._loaders_of(each, count)
        self._step += turn.left_out + first
        ahead = min(each.ahead(count, len(dealt), self._edits.prefetch), len(dealt)) if loaders else 0
        timed = each.training and not turn.replays and len(dealt) > 0
        self._present = each.loaders
        self._add_point(timed, StepPoint.BEGIN, dealt, loaders)
        for batch in dealt if loaders else ():
            loaders[batch.slot].serve(batch.reads, self._deal)
        for batch in dealt[:ahead]:
            self._line.main.add(Op.PIPE_WRITE, loaders[batch.slot].requests, 1)
        if each.depth:  # a rank without loaders reads its first batch in this stretch
            self._put(each.opening, copy)
        begun = self._deal.begin_ahead(self._line, dealt[0].reads) if dealt and not loaders else []
        for index in range(len(dealt)):
            begun = self._take_batch(dealt, index, ahead, loaders, begun)
            if first + index >= turn.done:
                self._make_step(turn, first + index, whole)
            self._step += each.training
            self._add_point(timed and index == 0, StepPoint.STARTED, dealt, loaders)
        self._present = []
        for loader in each.ends:
            self._join_loader(loader)
        self._add_point(timed, StepPoint.END, dealt, loaders)
        self._timed += timed
        if not each.depth:  # loaders of a rank that had none serve one pass only
            self._pipes += [(loader.requests, loader.results) for loader in loaders]

    def _take_batch(
        self, dealt: list[DealtBatch], index: int, ahead: int, loaders: list[NewLoader], begun: list[int]
    ) -> list[int]:
        """Append how the rank receives or reads batch `index`, and requests another one.

        `begun`: channels of the reads ahead for this batch. Returns the channels of the reads ahead for the next batch.
        """
        main = self._line.main
        if loaders:
            main.add(Op.PIPE_READ, loaders[dealt[index].slot].results, 1)
            if index + ahead < len(dealt):
                main.add(Op.PIPE_WRITE, loaders[dealt[index + ahead].slot].requests, 1)
            return []
        self._line.wait(begun)
        self._deal.read(self._line, dealt[index].reads)
        return self._deal.begin_ahead(self._line, dealt[index + 1].reads) if index + 1 < len(dealt) else []

    def _add_point(self, timed: bool, point: StepPoint, dealt: list[DealtBatch], loaders: list[NewLoader]) -> None:
        if timed:
            self._line.main.add(Op.STEP, self._timed, point, len(dealt), self._computation.offset_at(point) if loaders else 0)

    def _make_step(self, turn: PassTurn, index: int, whole: list[DealtBatch]) -> None:
        """Append the step on batch `index` of the `whole` pass, then any rare work that is due after it, such as a checkpoint."""
        each = self._passes[turn.number]
        self._play_step(each, index, whole, turn.copy)
        if each.training:
            if self._edits.ranks > 1:
                self._line.main.add(Op.MEET, 0)
            rare = self._due(self._training.index(turn.number), index, self._step, len(whole))
            if rare is not None and not (self._rare_first[rare] and self._step == self._saved_at):
                self._put(self._rare_stretches[rare], self._rare_plays[rare])
                self._rare_plays[rare] += 1

    def _due(self, epoch: int, index: int, step: int, count: int) -> int | None:
        return self._rare.due(epoch, index, step, count, self._edits.saves_every) if self._rare.steps else None

    def _play_step(self, each: RankPass, index: int, whole: list[DealtBatch], copy: int) -> None:
        """Append the computation of a step. Also append the calls of the recorded step at the same share of its pass."""
        samples, count = whole[index].samples, len(whole[0].samples)
        wanted = self._computation.time_ns(each, samples, self._deal.parts, count, self._crew(each) > 0)
        recorded = min(index * len(each.steps) // len(whole), len(each.steps) - 1)
        step = each.steps[recorded]
        if len(step.rows) or step.others:
            self._put(step, copy, wanted / step.think_ns if step.think_ns else 0.0)
        else:
            self._line.main.delay(int(wanted))

    def _samples_of(self, each: RankPass) -> RecordedPassSamples:
        every = dict.fromkeys(each.dealt_loader.tolist()) if self._edits.regrouped else each.loaders
        loaders = every if self._streamed else ()
        streams = [self._deal.stream(each.dealt[each.dealt_loader == loader]) for loader in loaders]
        parts = np.array([self._deal.parts(batch) for batch in each.dealt.tolist()])
        return RecordedPassSamples(each.dealt, parts, streams, self._shuffled[each.training], each.known, self._deal.place)

    def _loaders_of(self, each: RankPass, count: int) -> list[NewLoader]:
        """Return the new loaders of the pass, one for each slot. Start those that do not run yet."""
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

    def _writes(self, stretch: Stretch, main: bool = True) -> bool:
        """Return True if the rank writes files in a stretch. `main`: True to include its main thread."""
        rows = np.concatenate([stretch.rows if main else stretch.rows[:0], *(rows for _, rows, _ in stretch.others)])
        return bool(np.isin(self._recording.columns["op"][rows], [Op.WRITE, Op.COPY_TO]).any())

    def _subjects(self, stretch: Stretch, copy: int) -> Subjects | None:
        """Return the function that maps rows to subjects in a repeated stretch; None if it is played for the first time."""
        return self._builder.on_copies(f"-more{copy}", stretch.begin_ns, stretch.end_ns, data=False) if copy else None
