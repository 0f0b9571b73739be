"""Jobs whose one process streams many files at a time, a buffer after the other: tf.data over TFRecords, and its like.

Such a job hands out records from a shuffle buffer that was filled before the first step, so its reads show neither samples nor
batches: only how fast bytes are used up. Records are what the log says a step takes, or a step's bytes themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.checkpoint_files import find_files, folder_of
from iotwin.benchmark.fit.checkpoints import SeenCheckpoint, SeenCheckpoints, leads_and_tails_s
from iotwin.benchmark.fit.look import Job
from iotwin.benchmark.fit.samples.samples import common_folder
from iotwin.benchmark.fit.streams.file_ends import records_of_file_and_buffer
from iotwin.benchmark.fit.streams.turns import in_turn, reading_threads, step_period_ns, without_saving
from iotwin.benchmark.fit.windows import Window, logged_windows
from iotwin.trace_store import schema
from iotwin.workloads.policies.read_ahead import BATCHES_AHEAD, OPENED_AHEAD

_FEWEST_FILES = 3
_IN_SEQUENCE = 0.9  # files are streamed if this share of their reads begins where the file's last read ended
# Files are taken in turn if this share of them is opened by a thread that has another one open, or closed by another thread:
# a loader thread closes what it has opened before it opens the next.
_SHARED = 0.1
_FILES_OF_A_TURN = 1 + OPENED_AHEAD  # open files for each one that gives records in turn
_WHOLE = 0.99  # share of its files that an epoch reads, from which it reads them to the end
_WARM_UP = 3.0  # times the longest later pause, from which the pause after the first reads is a first step of its own
_APART = 0.5  # steps after a checkpoint was whole, from which what is written belongs to another one


@dataclass
class Stream:
    """What one process streamed. Files are numbered by name."""

    pid: int
    folder: str
    names: list[str]  # within folder
    file_bytes: NDArray[np.int64]
    opens: pd.DataFrame  # start_ns, tid, file, close_ns, close_tid (-1: never closed); in order of start
    reads: pd.DataFrame  # start_ns, end_ns, tid, file, offset, requested, result; in order of start
    training: list[Window]
    evaluations: list[Window]

    def files_in(self, windows: list[Window]) -> list[int]:
        """Return the files opened in the windows, in the order of their first opens."""
        return [int(file) for file in pd.unique(within(self.opens, windows)["file"])]


@dataclass
class StreamSteps:
    """How the stream is used up, in terms of the emulator."""

    steps: int  # of each training window
    batch_size: int
    record_bytes: float
    shuffle_records: int  # in the buffer that the first reads fill
    cycle: int  # files that give records in turn
    in_turn: bool  # strictly, though threads read them
    threads: int  # that open files
    reading_threads: int  # of these, that go on to read them
    buffer_bytes: int  # of one read
    whole_files: bool  # each window reads its files to the end
    first_step_s: float | None  # None: as the others
    compute_s: float


def within(events: pd.DataFrame, windows: list[Window]) -> pd.DataFrame:
    """Return the events that start in one of the windows."""
    starts = events["start_ns"].to_numpy()
    inside = np.zeros(len(events), np.bool_)
    for window in windows:
        inside |= (starts >= window.start_ns) & (starts <= window.end_ns)
    return events[inside]


def find_stream(job: Job) -> Stream | None:
    """Return what the first rank streamed; None when the data set is read otherwise."""
    files = job.files
    files = files[(files["kind"] == "dataset") & (files["size_bytes"] > 0)].sort_values("path", kind="stable")
    events = _events(job, files["file_id"].tolist())
    if events.empty:
        return None
    opens, reads = _opens(events, job.manifest.end_ns), _reads(events)
    if len(opens) < _FEWEST_FILES or not _is_streamed(opens, reads):
        return None
    used = files[files["file_id"].isin(opens["file"])]
    number = pd.Series(np.arange(len(used)), index=used["file_id"])
    opens["file"], reads["file"] = opens["file"].map(number), reads["file"].map(number)
    folder = common_folder(used["path"].tolist())
    names = [str(PurePosixPath(path).relative_to(folder)) for path in used["path"]]
    own = job.calls[job.calls["pid"] == events["pid"].iloc[0]]
    span = Window("block", 1, int(opens["start_ns"].min()), int(own["end_ns"].max()), False)
    saved_ns = [file.start_ns for file in find_files(job)]
    windows = logged_windows(job) or _epochs_of_opens(opens, reads, saved_ns, job.manifest.end_ns) or [span]
    return Stream(
        int(events["pid"].iloc[0]),
        folder,
        names,
        used["size_bytes"].to_numpy(np.int64),
        opens,
        reads.dropna(subset=["file"]),
        [window for window in windows if window.phase != "evaluation"],
        [window for window in windows if window.phase == "evaluation"],
    )


def _epochs_of_opens(opens: pd.DataFrame, reads: pd.DataFrame, saved_ns: list[int], end_ns: int) -> list[Window]:
    """Epochs of a job that logs none: each opens nearly all files anew, after the one before has opened its last; else none.

    An epoch ends before what is saved (at `saved_ns`) between its last read and the next one's first open.
    """
    turns = opens["start_ns"].groupby(opens.groupby("file").cumcount()).agg(["min", "max", "size"])
    begins, last = turns["min"].to_numpy(np.int64), turns["max"].to_numpy(np.int64)
    if len(turns) < 2 or turns["size"].min() < _WHOLE * turns["size"].max() or (begins[1:] <= last[:-1]).any():
        return []
    read_ns, windows = reads["start_ns"].to_numpy(np.int64), []
    for epoch, (begin, following) in enumerate(pairwise([*begins.tolist(), end_ns + 1]), 1):
        done = int(read_ns[read_ns < following].max())
        windows.append(Window("epoch", epoch, begin, min([following, *(at for at in saved_ns if at > done)]) - 1, False))
    return windows


def _events(job: Job, file_ids: list[int]) -> pd.DataFrame:
    """Opens, reads and closes of the files by the first rank, in order of start; none where loader processes read."""
    events = job.calls_on(file_ids, [*schema.OPEN_OPS, *schema.READ_OPS, *schema.CLOSE_OPS])
    events = events[events["result"] >= 0]
    readers = events[events["op"].isin(schema.READ_OPS)]["pid"]
    if readers.empty or readers.map(job.roles()).eq("loader").mean() > 0.5:
        return events.iloc[:0]
    own: pd.DataFrame = events[events["pid"] == readers.iloc[0]]
    return own.rename(columns={"file_id": "file"})


def _opens(events: pd.DataFrame, end_ns: int) -> pd.DataFrame:
    """Opens, each with when and by whom its file was closed: by the close of that file with its number; else `end_ns`, -1."""
    opens, closes = (
        events.loc[events["op"].isin(ops), ["start_ns", "tid", "file"]].copy() for ops in (schema.OPEN_OPS, schema.CLOSE_OPS)
    )
    for each in (opens, closes):
        each["turn"] = each.groupby("file").cumcount()
    joined = opens.merge(closes.rename(columns={"start_ns": "close_ns", "tid": "close_tid"}), "left", ["file", "turn"])
    filled: pd.DataFrame = joined.fillna({"close_ns": end_ns, "close_tid": -1})
    return filled.assign(close_ns=filled["close_ns"].astype(np.int64))


def _reads(events: pd.DataFrame) -> pd.DataFrame:
    columns = ["start_ns", "end_ns", "tid", "file", "offset", "requested", "result"]
    return events.loc[events["op"].isin(schema.READ_OPS), columns].reset_index(drop=True)


def _is_streamed(opens: pd.DataFrame, reads: pd.DataFrame) -> bool:
    """Whether files are read from front to back, several at a time by the same thread or by threads that share them."""
    last_end = (reads["offset"] + reads["result"]).groupby(reads["file"]).shift()
    in_sequence = (reads["offset"] == 0) | (reads["offset"] == last_end)
    by_thread = opens.sort_values(["tid", "start_ns"], kind="stable")
    another_open = by_thread["start_ns"] < by_thread.groupby("tid")["close_ns"].cummax().groupby(by_thread["tid"]).shift()
    by_another = (by_thread["close_tid"] != by_thread["tid"]) & (by_thread["close_tid"] >= 0)
    return bool(in_sequence.mean() >= _IN_SEQUENCE and (another_open | by_another).mean() >= _SHARED)


def stream_steps(job: Job, stream: Stream, assumptions: list[str]) -> StreamSteps:
    """Return the steps that use up the stream as the job did; what had to be assumed is added to `assumptions`."""
    reads, opens = within(stream.reads, stream.training), within(stream.opens, stream.training)
    group = _bursts(reads["start_ns"].to_numpy(), stream.training[-1].end_ns)
    threads, most_open = opens["tid"].nunique(), _most_open(opens)
    cycle = max(round(most_open / _FILES_OF_A_TURN), 1) if threads > 1 else most_open
    if threads > 1:
        assumptions.append(
            f"{most_open} files were open at a time: taken as {cycle} read in turn and twice as many opened ahead by threads"
        )
    logged = logged_steps(job)
    # The thread that trains does no step while it saves.
    saved = [(file.start_ns, file.whole_ns) for file in find_files(job) if file.tid == stream.pid]
    unlogged = stream, reads, group, saved, cycle, assumptions
    steps, batch_size, step_s = (*logged, None) if logged else _unlogged_steps(*unlogged)
    steps = max(round(steps / len(stream.training)), 1)
    first_s, compute_s = _step_times(stream, reads, group, steps)
    compute_s = step_s or compute_s
    used = _Used.of(reads, group, cycle, threads)
    whole = bool(used.total_bytes >= _WHOLE * stream.file_bytes[stream.files_in(stream.training)].sum() * len(stream.training))
    once = not stream.training[0].logged and bool(opens["file"].is_unique)
    whole = whole and (stream.training[0].phase == "epoch" or once)
    taken = steps * len(stream.training) * batch_size
    split = None
    if logged and not whole and len(stream.training) == 1:
        before, later_s = _file_ends(reads, opens, group, cycle * (_FILES_OF_A_TURN if threads > 1 else 1))
        steps_done = bool(first_s) + np.maximum(later_s - (first_s or 0.0), 0.0) / max(compute_s, 1e-9)
        split = records_of_file_and_buffer(before, steps_done * batch_size, taken, cycle)
    if split is None:
        record_bytes = _record_bytes(used, whole, taken, assumptions)
        buffered = used.first_bytes / record_bytes
    else:
        record_bytes, buffered = float(stream.file_bytes[stream.files_in(stream.training)].mean()) / split[0], split[1]
        assumptions.append(
            f"records of {record_bytes:.0f} bytes each, and {buffered:.0f} ahead of the steps, by when files ended"
        )
    turns = in_turn(reads, group, cycle), threads, reading_threads(reads) or threads
    return StreamSteps(
        steps, batch_size, record_bytes, max(round(buffered) - BATCHES_AHEAD * batch_size, 0), cycle,
        *turns, int(reads["requested"].mode().iloc[0]), whole, first_s, compute_s,
    )  # fmt: skip


def _unlogged_steps(
    stream: Stream,
    reads: pd.DataFrame,
    group: NDArray[np.int64],
    saved: Sequence[tuple[int, int]],
    cycle: int,
    assumptions: list[str],
) -> tuple[int, int, float | None]:
    """(steps in all, records of a step, seconds of a step if reads tell them): a step takes a record of each file in turn.

    `saved`: when the thread that trains saved, (start, end) of each.
    """
    period_ns = step_period_ns(without_saving(reads["start_ns"].to_numpy()[group > 0], saved))
    if period_ns is None:
        assumptions.append(
            f"the job logged neither steps nor batch size: each group of reads counts as one step of {cycle} records"
        )
        return max(int(group[-1]), 1), cycle, None
    filled_ns = int(reads["end_ns"].to_numpy()[group == 0].max())
    edges = np.array([(max(window.start_ns, filled_ns), window.end_ns) for window in stream.training], np.int64)
    spent_ns = np.diff(without_saving(edges.ravel(), saved))[::2].sum()
    assumptions.append(
        f"the job logged neither steps nor batch size: steps of {period_ns / 1e6:.1f} ms, of which the times between reads are "
        f"multiples, each of {cycle} records"
    )
    return max(round(spent_ns / period_ns), 1), cycle, period_ns / 1e9


def _file_ends(
    reads: pd.DataFrame, opens: pd.DataFrame, group: NDArray[np.int64], open_from_the_start: int
) -> tuple[int, NDArray[np.float64]]:
    """(files that ended amid the first reads, seconds from there to each later end); a file that ends has another opened."""
    filled_ns = int(reads["end_ns"].to_numpy()[group == 0].max())
    ends_ns = opens["start_ns"].to_numpy()[open_from_the_start:]
    return int((ends_ns <= filled_ns).sum()), (ends_ns[ends_ns > filled_ns] - filled_ns) / 1e9


def _record_bytes(used: "_Used", whole: bool, taken: int, assumptions: list[str]) -> float:
    """Bytes of each of the records that the steps took, by how much was read meanwhile."""
    of_steps = float(used.total_bytes if whole else used.later_bytes)
    if not of_steps:
        of_steps = used.first_bytes / 2
        assumptions.append("no file was read after the first reads: half of what those brought counts as used up by the steps")
    record_bytes = of_steps / taken
    assumptions.append(f"records of {record_bytes:.0f} bytes each: what the steps used up, by how fast further bytes were read")
    return record_bytes


def _bursts(starts: NDArray[np.int64], end_ns: int) -> NDArray[np.int64]:
    """Number of the burst of each read: 0 for those that fill the shuffle buffer, which are far denser than what follows.

    The first burst ends where two constant rates of reads, one before and one after, are likeliest (the change point of a Poisson
    process: Raftery and Akman, Biometrika 73, 1986). Later ones lie between pauses that are longer than the mean.
    """
    count = len(starts)
    before = np.arange(2, count)
    spans = [np.maximum(span, 1).astype(np.float64) for span in (starts[1:-1] - starts[0], end_ns - starts[1:-1])]
    rates = before / spans[0], (count - before) / spans[1]
    likelihood = before * np.log(rates[0]) + (count - before) * np.log(rates[1])
    first = int(before[likelihood.argmax()]) if count > 2 else count
    later = starts[first:]
    pauses = np.diff(later, prepend=later[:1])
    number: NDArray[np.int64] = np.concatenate(
        (np.zeros(first, np.int64), 1 + np.cumsum(pauses > pauses.sum() / max(len(later), 1)))
    )
    return number


@dataclass
class _Used:
    """Bytes read in training: those that the first reads used up, those of later ones, all."""

    first_bytes: float
    later_bytes: int
    total_bytes: int

    @classmethod
    def of(cls, reads: pd.DataFrame, group: NDArray[np.int64], cycle: int, threads: int) -> "_Used":
        """Of the first reads, files that were opened ahead have used up nothing, and those read in turn half of a buffer."""
        size = reads["result"].to_numpy()
        first = int(size[group == 0].sum())
        buffer = float(size[(reads["offset"] == 0).to_numpy()].mean())
        waiting = ((_FILES_OF_A_TURN - 1) * cycle if threads > 1 else 0) + cycle / 2
        return cls(max(first - waiting * buffer, 0.0), int(size[group > 0].sum()), int(size.sum()))


def _most_open(opens: pd.DataFrame) -> int:
    times = np.concatenate([opens["start_ns"], opens["close_ns"]])
    change = np.repeat([1, -1], len(opens))
    # A close and an open at one time are a file that takes the place of another.
    return int(np.cumsum(change[np.lexsort((change, times))]).max())


def logged_steps(job: Job) -> tuple[int, int] | None:
    """(steps in all, records of one rank's step) as the job logged them."""
    steps, batch = job.logged.get("step_count"), job.logged.get("global_batch_size")
    if not isinstance(steps, int) or not isinstance(batch, int) or min(steps, batch) < 1:
        return None
    ranks = int((job.processes["role"] == "rank").sum())
    return steps, max(batch // max(ranks, 1), 1)


def _step_times(stream: Stream, reads: pd.DataFrame, group: NDArray[np.int64], steps: int) -> tuple[float | None, float]:
    """Seconds of the first step, if it was unlike the others (a framework compiles in it), and the mean of the others."""
    starts, ends = (reads[name].groupby(group).agg(how).to_numpy() for name, how in (("start_ns", "min"), ("end_ns", "max")))
    pauses_s = (np.append(starts[1:], stream.training[0].end_ns) - ends) / 1e9
    first_s = float(pauses_s[0])
    if len(pauses_s) > 1 and first_s < _WARM_UP * pauses_s[1:].max():
        first_s = 0.0
    total_s = sum(window.end_ns - window.start_ns for window in stream.training) / 1e9
    before_s = max(float(ends[0] - stream.training[0].start_ns) / 1e9, 0.0)
    others = steps * len(stream.training) - bool(first_s)
    compute_s = max(total_s - before_s - first_s, 0.0) / max(others, 1)
    return first_s or None, compute_s


def stream_checkpoints(job: Job, stream: Stream, steps: int) -> SeenCheckpoints:
    """Return the checkpoints, held against the training windows of so many `steps` each.

    Within a window that the job did not log, steps are taken to pass evenly.
    """
    files, training = find_files(job), stream.training
    step_ns = sum(window.end_ns - window.start_ns for window in training) / (len(training) * steps)
    each: list[SeenCheckpoint] = []
    for file in files:
        epoch, done = _done_by(file.start_ns, training, steps)
        went_on = each and file.start_ns - each[-1].files[-1].whole_ns > _APART * step_ns
        if not each or each[-1].epoch != epoch or (went_on and each[-1].steps != done):
            each.append(SeenCheckpoint(epoch, done, False, []))
        each[-1].files.append(file)
    between = all(point.steps % steps == 0 for point in each)
    return SeenCheckpoints(folder_of(files) if files else "", each, between, *leads_and_tails_s(job.phases, files))


def _done_by(time_ns: int, training: list[Window], steps: int) -> tuple[int, int]:
    """(epochs, steps) done by then: whole ones, but for steps of a window that was not logged."""
    ended = sum(window.end_ns <= time_ns for window in training)
    epoch = max(ended, int(time_ns >= training[0].start_ns))
    if ended == len(training) or training[ended].logged:
        return epoch, epoch * steps
    window = training[ended]
    amid = max(time_ns - window.start_ns, 0) / max(window.end_ns - window.start_ns, 1)
    return epoch, round((ended + amid) * steps)
