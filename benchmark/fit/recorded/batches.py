"""The batches of a recording: which process read each one, when it was requested, delivered and taken, and in which pass."""

from collections.abc import Iterator
from itertools import pairwise
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.batches.deliveries import LENGTH_BYTES, deliveries, requests_of
from iotwin.benchmark.fit.look import Job
from iotwin.benchmark.fit.recorded.tree import Tree
from iotwin.trace_store import schema
from iotwin.workload_yaml.recording import LABELS, Label, Op, RecordedBatches, RecordedPass

_Ints = NDArray[np.int64]
_MOST_UNMATCHED = 0.1  # share of deliveries without a request, up to which the batches are known
_MOST_PREFETCHED = 8  # batches a loader; PyTorch's default is 2
_NEVER_NS = 1 << 62
_NEARLY_ALL = 0.9  # share of the batches
_AT_ONCE_NS = 2_000_000  # a rank that takes a batch so soon after its delivery has waited for it
_FEWEST = 3  # steps that a typical computation is judged by
_PLAUSIBLE = 1.5  # a step's computation is at most so many times the typical one, and at least its inverse
_REGION_BYTES = 1 << 16  # passes over the same regions of files are passes over one set of samples
_SAME_SET = 0.5  # share of the smaller pass's bytes
_TIMES = ("requested_ns", "received_ns", "delivered_ns", "taken_ns", "computed_ns")


def find_batches(job: Job, calls: pd.DataFrame, tree: Tree, rows: pd.DataFrame) -> tuple[RecordedBatches | None, _Ints]:
    """Return the batches, and by batch of `calls` (see `label_calls`) its index among them, -1 for none; None without batches.

    `rows`: the calls of the recording with their thread. Times are counted from the start of the job's first process.
    """
    delivered = deliveries(job)
    found = _with_reads(_delivered(job, delivered, tree), calls) if len(delivered) else _read_by_ranks(calls, tree)
    index = np.full(2 + max((int(each["batch"].max()) for each in (calls, found) if len(each)), default=-1), -1, np.int64)
    passes: list[pd.DataFrame] = []
    for process in sorted(found["process"].unique().tolist()):
        own = found[found["process"] == process].sort_values("requested_ns", kind="stable")
        of_process = rows[np.array(tree.process, np.int64)[rows["thread"]] == process]
        parts = [part for _, part in own.groupby(_pass_numbers(own), sort=True)]
        begins = [*(_begin_ns(tree, before, part) for before, part in pairwise(parts)), _NEVER_NS]
        for number, (part, next_ns) in enumerate(zip(parts, begins, strict=True)):
            passes.append(_with_computation(part.assign(number=number), of_process, tree.main(process), next_ns))
    if not passes or any(_taking_is_hidden(part) for part in passes):
        return None, index
    training = _are_training(job, calls, passes)
    whole = pd.concat(passes)
    index[whole["batch"]] = np.arange(len(whole))
    samples = calls[calls["sample"] >= 0].groupby("batch")["sample"].max().reindex(whole["batch"]).fillna(-1).astype(np.int64) + 1
    if not samples.any() and "size_bytes" in whole and _are_of_torch(job, whole):
        samples = pd.concat([_samples_requested(part["size_bytes"].to_numpy(np.int64)) for part in passes])
    document = RecordedBatches(
        passes=[
            RecordedPass(int(part["process"].iloc[0]), bool(trains), len(part), int(part["depth"].iloc[0]))
            for part, trains in zip(passes, training, strict=True)
        ],
        loader=whole["loader"].tolist(),
        samples=samples.tolist(),
        **{name: (whole[name] - tree.begin_ns[0]).clip(lower=0).tolist() for name in _TIMES},
    )
    return document, index


def _delivered(job: Job, delivered: pd.DataFrame, tree: Tree) -> pd.DataFrame:
    """Return the batches that loaders delivered: batch (row of `delivered`), process, loader, depth 1, turn, and their times.

    The k-th message that a process writes into a pipe of requests is the k-th that a loader reads from it.
    """
    requests = requests_of(job, delivered)
    moved = job.calls_on(requests["file_id"].unique().tolist(), [*schema.READ_OPS, *schema.WRITE_OPS])
    moved = moved[(moved["result"] > 0) & (moved["result"] != LENGTH_BYTES)]
    is_read = moved["op"].isin(schema.READ_OPS)
    reads, writes = moved[is_read].sort_values("end_ns", kind="stable"), moved[~is_read].sort_values("start_ns", kind="stable")
    reads = reads.assign(order=reads.groupby("file_id").cumcount()).rename(columns={"end_ns": "received_ns"})
    writes = writes.assign(order=writes.groupby("file_id").cumcount())
    writes = writes.rename(columns={"start_ns": "requested_ns", "pid": "rank"})
    handed = delivered.reset_index(names="batch").rename(columns={"start_ns": "delivered_ns"})
    handed = handed.merge(requests.rename(columns={"asked_ns": "received_ns"}), on=["pid", "turn"])
    handed = handed.merge(reads[["pid", "received_ns", "file_id", "order"]], on=["pid", "received_ns", "file_id"])
    handed = handed.merge(writes[["file_id", "order", "requested_ns", "rank"]], on=["file_id", "order"])
    handed = handed.merge(_results_read(job, delivered), on=["pid", "delivered_ns"], how="left")
    index = {pid: number for number, pid in enumerate(tree.pids)}
    handed = handed.assign(loader=handed["pid"].map(index), process=handed["rank"].map(index)).dropna(
        subset=["loader", "process"]
    )
    if len(handed) < (1 - _MOST_UNMATCHED) * len(delivered):
        return handed[:0]
    return handed.astype({"loader": np.int64, "process": np.int64})


def _are_of_torch(job: Job, batches: pd.DataFrame) -> bool:
    """Return whether all batches were read by processes with the name that PyTorch gives its loaders."""
    names = job.processes.set_index("pid")["comm"].astype(str)
    return bool((names.reindex(batches["pid"]) == "pt_data_worker").all())


def _samples_requested(size_bytes: _Ints) -> pd.Series:
    """Return how many samples of a stream each request of a pass asks for, by its size; 0 if that is unknown.

    A request of PyTorch for a batch of an IterableDataset is the pickled pair of the batch's index and a list of so many None.
    """
    empty = np.array([len(ForkingPickler.dumps((index, [None, None]))) - 2 for index in range(len(size_bytes))])
    found, counts = np.unique(size_bytes - empty, return_counts=True)
    known = counts.max() >= _NEARLY_ALL * len(size_bytes) and found[counts.argmax()] > 0
    return pd.Series(np.full(len(size_bytes), int(found[counts.argmax()]) if known else 0))


def _begin_ns(tree: Tree, before: pd.DataFrame, part: pd.DataFrame) -> int:
    """Return when a pass began: with its first request, or before, when the rank started a loader for it.

    `before`: the batches of the pass before.
    """
    started = [tree.begin_ns[loader] for loader in part["loader"].unique().tolist()]
    last, first = int(before["requested_ns"].iloc[-1]), int(part["requested_ns"].iloc[0])
    begun: int = min([first, *(at for at in started if last < at)])
    return begun


def _taking_is_hidden(part: pd.DataFrame) -> bool:
    """Return whether all batches of a pass were requested before the first was delivered, by far more than loaders prefetch."""
    depth = int(part["depth"].iloc[0])
    return depth == len(part) and depth > _MOST_PREFETCHED * part["loader"].nunique()


def _with_reads(found: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """Return the batches without answers to messages of another kind, as to the begin of an epoch.

    Nothing is read for them, and the message is shorter or longer than all requests for batches that something is read for.
    """
    read = found["batch"].isin(calls["batch"])
    sizes = found.loc[read, "size_bytes"]
    return found[read | found["size_bytes"].between(sizes.min(), sizes.max())] if read.any() else found


def _results_read(job: Job, delivered: pd.DataFrame) -> pd.DataFrame:
    """Return when the main thread of a rank read the messages that deliver batches, if that is known.

    Columns: `pid` of the loader, `delivered_ns`, `read_ns`.
    """
    moved = job.calls_on(job.file_ids("pipe"), [*schema.READ_OPS, *schema.WRITE_OPS])
    moved = moved[(moved["result"] > 0) & (moved["result"] != LENGTH_BYTES)]
    sent = moved.merge(delivered[["pid", "start_ns"]], on=["pid", "start_ns"])["file_id"].unique()
    moved = moved[moved["file_id"].isin(sent)]
    is_read = moved["op"].isin(schema.READ_OPS)
    writes = moved[~is_read].sort_values("start_ns", kind="stable").rename(columns={"start_ns": "delivered_ns"})
    reads = moved[is_read].sort_values("end_ns", kind="stable").rename(columns={"end_ns": "read_ns", "tid": "reader"})
    whole = writes.groupby("file_id").size().eq(reads.groupby("file_id").size())  # each message by one read
    writes = writes.assign(order=writes.groupby("file_id").cumcount())[writes["file_id"].map(whole).fillna(False)]
    reads = reads.assign(order=reads.groupby("file_id").cumcount())
    reads = reads[reads["reader"] == reads["pid"]][["file_id", "order", "read_ns"]]
    return writes[["pid", "delivered_ns", "file_id", "order"]].merge(reads, on=["file_id", "order"])[
        ["pid", "delivered_ns", "read_ns"]
    ]


def _read_by_ranks(calls: pd.DataFrame, tree: Tree) -> pd.DataFrame:
    """Return the batches that ranks read themselves, with the columns of `_delivered`; their first call requests them."""
    own = calls[(calls["batch"] >= 0) & (calls["label"] == Label.DEALT)]
    found = own.groupby("batch", as_index=False).agg(pid=("pid", "first"), begin=("start_ns", "min"), end=("end_ns", "max"))
    process = found["pid"].map({pid: number for number, pid in enumerate(tree.pids)})
    seen = own.assign(key=_regions(own)).groupby("batch")["key"].agg(set).tolist()
    return pd.DataFrame({
        "batch": found["batch"], "process": process, "loader": process, "turn": -1, "key": seen, "requested_ns": found["begin"],
        "received_ns": found["begin"], "delivered_ns": found["end"],
    })  # fmt: skip


def _pass_numbers(own: pd.DataFrame) -> _Ints:
    """Return the index of the pass of each batch of a rank (in the order of the requests).

    A pass begins when all batches requested before have been delivered, and one of three things happens: a new loader is asked,
    a loader has received a message in between that asked for no batch, or as many batches are requested at once as are ever
    under way. Where a rank reads itself, a pass begins when a batch reads again what the present pass has read.
    """
    if "key" in own:
        return _numbers_of_repeats(own["key"].tolist())
    requested, delivered, loader, turn = (
        own[name].to_numpy(np.int64) for name in ("requested_ns", "delivered_ns", "loader", "turn")
    )
    depth = _depth(requested, delivered)
    before = np.append(0, np.maximum.accumulate(delivered)[:-1])
    following = np.minimum.accumulate(delivered[::-1])[::-1]  # the first delivery of this batch or a later one
    at_once = np.searchsorted(np.maximum.accumulate(requested), following) - np.arange(len(own))
    last_turn: dict[int, int] = {}
    number, numbers = 0, np.zeros(len(own), np.int64)
    for row, (asked, turned) in enumerate(zip(loader.tolist(), turn.tolist(), strict=True)):
        skipped = last_turn.get(asked, -2) != turned - 1
        if row and requested[row] >= before[row] and (skipped or at_once[row] >= depth > 1):
            number += 1
        last_turn[asked] = turned
        numbers[row] = number
    return numbers


def _numbers_of_repeats(regions: list[set[int]]) -> _Ints:
    """Return the index of the pass of each batch by the `regions` that it reads: a pass reads no region twice.

    If all passes begin with batches over one set of regions, before they read others, those batches are passes by themselves: an
    epoch before its evaluation.
    """
    seen: set[int] = set()
    begins = [0]
    for row, own in enumerate(regions):
        if own & seen:
            begins.append(row)
            seen = set()
        seen |= own
    if len(regions) < _FEWEST * len(begins):
        return np.zeros(len(regions), np.int64)
    passes = [regions[begin:end] for begin, end in pairwise([*begins, len(regions)])]
    first = {_same_beginning(a, b) for a, b in pairwise(passes)}
    if len(first) == 1 and (length := first.pop()) > 1:
        begins = sorted({*begins, *(begin + length for begin, own in zip(begins, passes, strict=True) if length < len(own))})
    return np.searchsorted(begins, np.arange(len(regions)), side="right") - 1


def _same_beginning(a: list[set[int]], b: list[set[int]]) -> int:
    """Return after how many batches two passes have first read the same regions, if not from their first batch on; else 0."""
    read_a: set[int] = set()
    read_b: set[int] = set()
    for number, (own_a, own_b) in enumerate(zip(a, b, strict=False), 1):
        read_a, read_b = read_a | own_a, read_b | own_b
        if len(read_a) == len(read_b) and read_a == read_b:
            return number if number > 1 else 0
    return 0


def _depth(requested: _Ints, delivered: _Ints) -> int:
    """Return the most batches that were requested and not yet taken.

    A rank takes batches in order, and requests another one for each. So the depth is the least number for which no batch is
    requested before the batch so many before it has been delivered.
    """
    latest = np.maximum.accumulate(delivered)
    return int((np.arange(len(requested)) - np.searchsorted(latest, requested, side="right")).max()) + 1


def _with_computation(part: pd.DataFrame, rows: pd.DataFrame, main: int, next_ns: int) -> pd.DataFrame:
    """Return the batches of a pass with `depth`, `taken_ns` and `computed_ns`.

    `rows`: those of the rank's process; `next_ns`: when its next pass begins.
    """
    if "key" in part:
        begins, delivered = part["requested_ns"].to_numpy(np.int64), part["delivered_ns"].to_numpy(np.int64)
        ends = np.append(begins[1:], _next_call(rows, int(delivered[-1])))
        return part.assign(depth=0, taken_ns=delivered, computed_ns=np.maximum(ends, delivered))
    requested, delivered = (part[name].to_numpy(np.int64) for name in ("requested_ns", "delivered_ns"))
    depth = min(_depth(requested, delivered), len(part))
    ready = np.maximum.accumulate(delivered)
    clock = _BusyClock(rows[(rows["thread"] == main) & rows["op"].isin([Op.POLL, Op.PIPE_READ])])
    taken = np.maximum.accumulate(np.maximum(np.append(requested[depth:], ready[len(part) - depth :]), ready))
    known = len(part) - depth  # batches whose taking is seen, since it made the rank request another one
    usual = np.diff(clock.busy(taken[:known]))
    waited = taken[1:known] - ready[1:known] < _AT_ONCE_NS
    typical = float(np.median(usual[~waited])) if (~waited).sum() >= _FEWEST else float(np.median(usual)) if len(usual) else 0.0
    # The last batches cause no request. One that the rank read later than all before was wanted then; others are in between.
    read = part["read_ns"].fillna(0).to_numpy(np.int64)
    last = max(known - 1, 0)
    seen = np.flatnonzero((read == np.maximum.accumulate(read)) & (read > ready) & (np.arange(len(part)) > last))
    anchors, times = np.append(last, seen), np.append(taken[last], np.maximum.accumulate(np.maximum(read[seen], taken[last])))
    ended_ns = _end_of_loop(rows, requested, next_ns)
    end_ns = ended_ns or max(min(_next_call(rows, int(max(requested[-1], times[-1]))), next_ns), int(ready[-1]))
    left = len(part) - int(anchors[-1])
    each = np.diff(clock.busy(np.array([times[-1], end_ns])))[0] / left
    if typical and not typical / _PLAUSIBLE <= each <= typical * _PLAUSIBLE:
        each = typical
    ends = clock.busy(times[-1:])[0] + each * left
    at = np.interp(np.arange(last, len(part) + 1), [*anchors, len(part)], [*clock.busy(times), ends])
    tail = clock.time(at)
    tail[anchors - last] = times
    taken[last:] = np.maximum(tail[:-1], np.append(taken[last], ready[last + 1 :]))
    computed = np.append(taken[1:], max(ended_ns or int(tail[-1]), int(taken[-1])))
    if not clock.waits and len(usual):  # a thread of the rank takes batches for it, so that its waits are not seen
        hidden = np.flatnonzero(waited)
        computed[hidden] = np.minimum(computed[hidden], taken[hidden] + int(typical))
    return part.assign(depth=depth, taken_ns=taken, computed_ns=computed)


def _end_of_loop(rows: pd.DataFrame, requested: _Ints, next_ns: int) -> int:
    """Return when the rank stopped its loaders, after its last step; 0 if they went on, or stopped in a later pass."""
    sent = rows[rows["op"] == Op.PIPE_WRITE]
    pipes = sent.loc[sent["at"].isin(requested), "subject"].unique()
    later = sent[(sent["at"] > requested[-1]) & sent["subject"].isin(pipes)]
    stopped = len(later) and later["subject"].is_unique and later["at"].min() < next_ns
    return int(later["at"].min()) if stopped else 0


def _next_call(rows: pd.DataFrame, after_ns: int) -> int:
    """Return when the process made its first call after `after_ns` that is no wait for a batch; `after_ns` if it made none."""
    later = rows.loc[(rows["at"] > after_ns) & ~rows["op"].isin([Op.POLL, Op.PIPE_READ, Op.WAIT, Op.POST]), "at"]
    return int(later.min()) if len(later) else after_ns


class _BusyClock:
    """A clock that stands still while a thread waits, in the calls `waits` (at, end; in order)."""

    def __init__(self, waits: pd.DataFrame) -> None:
        self._begins = waits["at"].to_numpy(np.int64)
        self._ends = np.maximum.accumulate(waits["end"].to_numpy(np.int64)) if len(waits) else self._begins
        self._waited = np.append(0, np.cumsum(self._ends - self._begins))
        self.waits = len(waits)

    def busy(self, times: _Ints) -> _Ints:
        """Return the clock's reading at `times`, ns."""
        index = np.searchsorted(self._begins, times, side="right")
        still = np.where(index > 0, np.maximum(np.append(0, self._ends)[index] - times, 0), 0)
        found: _Ints = times - self._waited[index] + still
        return found

    def time(self, readings: NDArray[np.float64]) -> _Ints:
        """Return the latest times at which the clock shows `readings`, ns."""
        index = np.searchsorted(self._begins - self._waited[:-1], readings, side="right")
        found: _Ints = (readings + self._waited[index]).astype(np.int64)
        return found


def _are_training(job: Job, calls: pd.DataFrame, passes: list[pd.DataFrame]) -> list[bool]:
    """Return by pass whether it trains: outside of logged evaluations, else on the set of samples that most bytes are read of."""
    evaluations = job.phases[(job.phases["phase"].astype(str) == "evaluation") & job.phases["end_ns"].notna()]
    if len(evaluations):
        middles = [int(part["taken_ns"].iloc[len(part) // 2]) for part in passes]
        return [not ((evaluations["start_ns"] <= at) & (at <= evaluations["end_ns"])).any() for at in middles]
    reads = calls[(calls["batch"] >= 0) & calls["op"].isin(schema.READ_OPS)]
    numbers = [int(part["number"].iloc[0]) for part in passes]  # ranks share the samples of a pass
    number_of = np.full(1 + max(int(part["batch"].max()) for part in [*passes, calls]), -1, np.int64)
    for part, number in zip(passes, numbers, strict=True):
        number_of[part["batch"]] = number
    by_pass = reads["result"].groupby([number_of[reads["batch"]], _regions(reads)]).sum()
    sets: list[tuple[pd.Series, set[int]]] = []  # bytes by region, and passes, of each set of samples
    for number in sorted(set(numbers) & set(by_pass.index.get_level_values(0))):
        here = by_pass[number]
        at = next((i for i, (there, _) in enumerate(sets) if _overlap(here, there) > _SAME_SET), len(sets))
        there, members = sets[at] if at < len(sets) else (here[:0], set())
        sets[at : at + 1] = [(here.add(there, fill_value=0), members | {number})]
    trained = max(sets, key=lambda each: float(each[0].sum()))[1] if sets else set(numbers)
    return [number in trained for number in numbers]


def _regions(calls: pd.DataFrame) -> pd.Series:
    return calls["file_id"] * (1 << 40) + calls["offset"].fillna(0).astype(np.int64) // _REGION_BYTES


def _overlap(a: pd.Series, b: pd.Series) -> float:
    """Return the share of the bytes of the smaller one, by region, that the other one has read too."""
    small, large = (a, b) if a.sum() < b.sum() else (b, a)
    return float(small[small.index.isin(large.index)].sum() / small.sum())


def label_rows(
    columns: dict[str, NDArray[Any]], calls: pd.DataFrame, index: _Ints, threads: dict[int, int], origin_ns: int
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the columns of LABELS for the rows of a recording.

    `calls`: those of `label_calls`; `threads`: index of the thread by tid; `origin_ns`: when the recording begins.
    """
    made = calls.assign(thread=calls["tid"].map(threads), at_ns=calls["start_ns"] - origin_ns).dropna(subset=["thread"])
    made = made.drop_duplicates(["thread", "at_ns"])[["thread", "at_ns", "label", "batch", "sample"]]
    rows = pd.DataFrame({"thread": columns["thread"], "at_ns": columns["at_ns"]})
    found = rows.merge(made, how="left", on=["thread", "at_ns"])
    on_file = columns["op"] < Op.PIPE_WRITE
    for name, missing in (("label", int(Label.TIMED)), ("batch", -1), ("sample", -1)):
        values = found[name].fillna(missing).to_numpy(np.int64)
        values = np.append(index, -1)[values] if name == "batch" else values
        yield name, np.where(on_file, values, missing).astype(LABELS[name])
