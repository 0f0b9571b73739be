"""The batches of a recording: which process read each one, when it was requested, delivered and taken, and in which pass."""

from collections.abc import Iterator
from itertools import chain, pairwise
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.batches.deliveries import Deliveries
from iotwin.benchmark.fit.batches.labels import Labelled
from iotwin.benchmark.fit.batches.repeated_regions import regions_of
from iotwin.benchmark.fit.logged_phases import NEVER_NS, logged_end, logged_evaluations
from iotwin.benchmark.fit.recorded.pass_boundaries import are_interruptions, are_training, begin_of_pass, pass_numbers
from iotwin.benchmark.fit.recorded.process_tree import Tree
from iotwin.benchmark.fit.recorded.step_evaluations import with_step_evaluations
from iotwin.benchmark.fit.recorded.taken_times import depth_of, with_computation
from iotwin.benchmark.fit.traced_job import Job
from iotwin.trace_store import schema
from iotwin.workload_yaml.recorded_structure import PARTS
from iotwin.workload_yaml.recording import LABELS, Label, Op, RecordedBatches, RecordedPass

_Ints = NDArray[np.int64]
_MOST_UNMATCHED = 0.1  # the batches are unknown if a larger share of deliveries has no request
_NEARLY_ALL = 0.9  # this share of the batches counts as all of them
_TIMES = ("requested_ns", "received_ns", "delivered_ns", "taken_ns", "computed_ns")


def find_batches(job: Job, labelled: Labelled, tree: Tree, rows: pd.DataFrame) -> tuple[RecordedBatches | None, _Ints]:
    """Return the batches, and for each labelled call the index of its batch (-1: none). Without batches, returns None for them.

    `rows`: the calls of the recording with their thread. Times are counted from the start of the job's first process.
    """
    calls = labelled.calls
    if labelled.steps is not None and (calls["batch"] >= 0).any():
        passes = _passes_of_steps(labelled.steps.each, tree)
        training = [True] * len(passes)
    else:
        evaluations, has_loaders = logged_evaluations(job), len(labelled.delivered.batches) > 0
        found = _with_reads(_delivered(labelled.delivered, tree), calls) if has_loaders else _read_by_ranks(calls, tree)
        passes = _passes(job, found, evaluations, tree, rows)
        training = are_training(evaluations, calls, passes) if passes else []
    index = np.full(2 + max((int(each["batch"].max()) for each in (calls, *passes) if len(each)), default=-1), -1, np.int64)
    if not passes:
        return None, index
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
        usual_samples=PARTS,
        **{name: (whole[name] - tree.begin_ns[0]).clip(lower=0).tolist() for name in _TIMES},
    )
    return document, index


def _passes(job: Job, found: pd.DataFrame, evaluations: pd.DataFrame, tree: Tree, rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the batches of each pass of each rank, with their times, `depth` and the `number` of the pass."""
    separate, joined = list[list[pd.DataFrame]](), list[list[pd.DataFrame]]()
    for process in sorted(found["process"].unique().tolist()):
        own = found[found["process"] == process].sort_values("requested_ns", kind="stable")
        interrupts = are_interruptions(own, evaluations)
        own, interrupting = own[~interrupts], own[interrupts]
        of_process = rows[np.array(tree.process, np.int64)[rows["thread"]] == process]
        parts = [_in_turn(part) for _, part in own.groupby(pass_numbers(own, evaluations), sort=True)]
        begins = [*(begin_of_pass(tree, before, part) for before, part in pairwise(parts)), NEVER_NS]
        is_torch = "pid" in own and _are_of_torch(job, own)
        timed = []
        for number, (part, begin_ns) in enumerate(zip(parts, begins, strict=True)):
            next_ns = min(begin_ns, logged_end(job, int(part["delivered_ns"].max())))
            timed.append(with_computation(part.assign(number=number), of_process, tree.main(process), next_ns, is_torch))
        separate.append(timed)
        joined.append(timed if "key" in own else with_step_evaluations(timed, interrupting, tree))
    are_alike = len(set(map(len, joined))) == 1  # the passes of ranks are dealt together
    return list(chain.from_iterable(joined if are_alike else separate))


def _passes_of_steps(steps: pd.DataFrame, tree: Tree) -> list[pd.DataFrame]:
    """Return a batch for each step of the only rank, by pass, with the columns of `_passes`.

    The number of a batch is the one that label_calls gives the batch's calls.
    """
    steps = steps[steps["pid"].isin(tree.pids)]
    process = steps["pid"].map({pid: number for number, pid in enumerate(tree.pids)})
    batches = pd.DataFrame({
        "batch": steps.index, "process": process, "loader": process, "requested_ns": steps["wanted_ns"],
        "received_ns": steps["wanted_ns"], "delivered_ns": steps["start_ns"], "taken_ns": steps["start_ns"],
        "computed_ns": steps["end_ns"], "depth": 0, "number": steps["pass"],
    })  # fmt: skip
    return [part for _, part in batches.groupby("number")]


def _in_turn(part: pd.DataFrame) -> pd.DataFrame:
    """Return the batches of a pass, with loaders taking turns as they were started, if this lowers the number of batches in
    flight.

    A rank takes batches in turn. A thread for each loader makes the first requests, so the times of these requests are not always
    in order.
    """
    if "key" in part:
        return part
    requested = part["requested_ns"].to_numpy(np.int64)
    done = part[["delivered_ns", "read_ns"]].max(axis=1).to_numpy(np.int64)
    order = np.lexsort((part["loader"], part.groupby("loader").cumcount()))
    if depth_of(requested[order], done[order]) < depth_of(requested, done):
        return part.iloc[order].assign(requested_ns=requested)
    return part


def _delivered(delivered: Deliveries, tree: Tree) -> pd.DataFrame:
    """Return the batches that loaders delivered.

    Columns: `batch` (row of `delivered.batches`), `process` (the rank), `loader`, `turn` as there, `size_bytes` of the request,
    `requested_ns`, `received_ns`, `delivered_ns`. `begun_ns` is when the loader began, `queue` is the pipe of the result, and
    `read_ns` is when the rank read the result (NaN: unknown). The k-th message that a process writes into a pipe of requests is
    the k-th that a loader reads from the pipe.
    """
    moved = delivered.messages[delivered.messages["file_id"].isin(delivered.requests["file_id"])]
    is_read = moved["op"].isin(schema.READ_OPS)
    reads, writes = moved[is_read].sort_values("end_ns", kind="stable"), moved[~is_read].sort_values("start_ns", kind="stable")
    reads = reads.assign(order=reads.groupby("file_id").cumcount()).rename(columns={"end_ns": "received_ns"})
    writes = writes.assign(order=writes.groupby("file_id").cumcount())
    writes = writes.rename(columns={"start_ns": "requested_ns", "pid": "rank"})
    handed = delivered.batches.reset_index(names="batch").rename(columns={"start_ns": "delivered_ns"})
    handed = handed.merge(delivered.requests.rename(columns={"asked_ns": "received_ns"}), on=["pid", "turn"])
    handed = handed.merge(reads[["pid", "received_ns", "file_id", "order"]], on=["pid", "received_ns", "file_id"])
    handed = handed.merge(writes[["file_id", "order", "requested_ns", "rank"]], on=["file_id", "order"])
    handed = handed.merge(_results_read(delivered), on=["pid", "delivered_ns"], how="left")
    index = {pid: number for number, pid in enumerate(tree.pids)}
    handed = handed.assign(loader=handed["pid"].map(index), process=handed["rank"].map(index)).dropna(
        subset=["loader", "process"]
    )
    if len(handed) < (1 - _MOST_UNMATCHED) * len(delivered.batches):
        return handed[:0]
    handed = handed.astype({"loader": np.int64, "process": np.int64})
    return handed.assign(begun_ns=np.array(tree.begin_ns, np.int64)[handed["loader"]])


def _are_of_torch(job: Job, batches: pd.DataFrame) -> bool:
    """Return True if all batches were read by processes with the name that PyTorch gives its loaders."""
    names = job.processes.set_index("pid")["comm"].astype(str)
    return bool((names.reindex(batches["pid"]) == "pt_data_worker").all())


def _samples_requested(size_bytes: _Ints) -> pd.Series:
    """Return, for each request of a pass, the number of samples of a stream that it requests, from its size; 0: unknown.

    PyTorch requests a batch of an IterableDataset by a pickled pair: its index and a list with a None for each sample.
    """
    empty = np.array([len(ForkingPickler.dumps((index, [None, None]))) - 2 for index in range(len(size_bytes))])
    found, counts = np.unique(size_bytes - empty, return_counts=True)
    known = counts.max() >= _NEARLY_ALL * len(size_bytes) and found[counts.argmax()] > 0
    return pd.Series(np.full(len(size_bytes), int(found[counts.argmax()]) if known else 0))


def _with_reads(found: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """Return the batches without messages that answer something else, such as the begin of an epoch.

    Nothing is read for such a message, and its size is outside the range of sizes of the requests for which something is read.
    """
    read = found["batch"].isin(calls["batch"])
    sizes = found.loc[read, "size_bytes"]
    return found[read | found["size_bytes"].between(sizes.min(), sizes.max())] if read.any() else found


def _results_read(delivered: Deliveries) -> pd.DataFrame:
    """Return the pipes through which batches were delivered, and when the main thread of a rank read them (NaN: unknown).

    Columns: `pid` of the loader, `delivered_ns`, `queue` (the pipe), `read_ns`.
    """
    moved = delivered.messages
    sent = moved.merge(delivered.batches[["pid", "start_ns"]], on=["pid", "start_ns"])["file_id"].unique()
    moved = moved[moved["file_id"].isin(sent)]
    is_read = moved["op"].isin(schema.READ_OPS)
    writes = moved[~is_read].sort_values("start_ns", kind="stable").rename(columns={"start_ns": "delivered_ns"})
    reads = moved[is_read].sort_values("end_ns", kind="stable").rename(columns={"end_ns": "read_ns", "tid": "reader"})
    whole = writes.groupby("file_id").size().eq(reads.groupby("file_id").size())  # each message by one read
    writes = writes.assign(order=writes.groupby("file_id").cumcount())[writes["file_id"].map(whole).fillna(False)]
    reads = reads.assign(order=reads.groupby("file_id").cumcount())
    reads = reads[reads["reader"] == reads["pid"]][["file_id", "order", "read_ns"]]
    found = writes[["pid", "delivered_ns", "file_id", "order"]].merge(reads, how="left", on=["file_id", "order"])
    return found.drop(columns="order").rename(columns={"file_id": "queue"})


def _read_by_ranks(calls: pd.DataFrame, tree: Tree) -> pd.DataFrame:
    """Return the batches that ranks read themselves, with the columns of `_delivered`; their first call requests them."""
    own = calls[(calls["batch"] >= 0) & (calls["label"] == Label.DEALT)]
    found = own.groupby("batch", as_index=False).agg(pid=("pid", "first"), begin=("start_ns", "min"), end=("end_ns", "max"))
    process = found["pid"].map({pid: number for number, pid in enumerate(tree.pids)})
    seen = own.assign(key=regions_of(own)).groupby("batch")["key"].agg(set).tolist()
    return pd.DataFrame({
        "batch": found["batch"], "process": process, "loader": process, "turn": -1, "key": seen, "requested_ns": found["begin"],
        "received_ns": found["begin"], "delivered_ns": found["end"],
    })  # fmt: skip


def label_rows(
    columns: dict[str, NDArray[Any]], calls: pd.DataFrame, index: _Ints, threads: dict[int, int], origin_ns: int
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the columns of LABELS for the rows of a recording.

    `calls`: the labelled calls. `threads`: index of the thread by tid. `origin_ns`: when the recording begins.
    """
    made = calls[["label", "batch", "sample"]].assign(thread=calls["tid"].map(threads), at_ns=calls["start_ns"] - origin_ns)
    made = made.dropna(subset=["thread"]).drop_duplicates(["thread", "at_ns"])
    rows = pd.DataFrame({"thread": columns["thread"], "at_ns": columns["at_ns"]})
    found = rows.merge(made, how="left", on=["thread", "at_ns"])
    on_file = columns["op"] < Op.PIPE_WRITE
    for name, missing in (("label", int(Label.TIMED)), ("batch", -1), ("sample", -1)):
        values = found[name].fillna(missing).to_numpy(np.int64)
        values = np.append(index, -1)[values] if name == "batch" else values
        yield name, np.where(on_file, values, missing).astype(LABELS[name])
