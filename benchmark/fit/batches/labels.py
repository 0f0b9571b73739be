"""Labels a job's calls on files by how certainly each belongs to a batch of samples.

A call is *dealt* if a loader made it for a batch that had been requested. It is *streamed* if the loader continues in a file
where it stopped for the previous batch, or reads for several batches at once. Otherwise, it is *timed*: it belongs to no batch.
"""

import pickle
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.batches.bursts import batches_by_pauses
from iotwin.benchmark.fit.batches.deliveries import Deliveries, deliveries, delivery_of
from iotwin.benchmark.fit.batches.rank_steps import RankSteps, batches_of_steps, known_steps
from iotwin.benchmark.fit.traced_job import Job
from iotwin.common.units import format_size
from iotwin.trace_store import schema
from iotwin.workload_yaml.recording import Label

_KINDS = {"dataset": "data", "checkpoint": "checkpoints", "other": "other files"}
# A file is a stream if, of the batches that read it, more than this share continue where the previous batch stopped. Random
# samples do so by chance once in as many batches as the file has samples; readers of shards do so in all batches but the first.
_STREAMED = 0.5
# A loader reads ahead if it reads for fewer than this share of its batches. A loader that reads by sample reads for each batch.
_READ_EACH = 0.9
_AGREE = 0.5  # the samples are known if at least this share of the batches have equally many parts
_COMMON = 0.25  # several numbers of parts count if each has at least this share of batches, as evaluations may have another
# A request names each of its samples in at least this many bytes (a small number, pickled), in addition to its own number.
_INDEX_BYTES, _EMPTY_REQUEST_BYTES = 2, len(pickle.dumps((0, [])))
_REPEATS = 0.25  # sizes repeat if at most this share of their variance is between parts at the same position
_FEWEST_VISITS = 12  # least number of a rank's visits of files that can show a pattern
_FEWEST_BATCHES = 2  # least number of batches: within one batch, no part is read again
# Parts of a sample follow one another in at least _TOGETHER of cases, and by at least _APART more often than other parts.
_TOGETHER, _APART = 0.9, 0.5
_SHOWN = 0.005  # smaller shares would be shown as 0%


class Labelled(NamedTuple):
    """The calls on the job's files that succeeded, the batches that loaders delivered, and the steps.

    `calls` have the columns of `Job.calls` and three more:

    * `label` (Label)
    * `batch`: index of the batch that a dealt or streamed call served, else -1
    * `sample`: index within the batch of the sample that a dealt call read, -1 if that is unknown

    steps: the steps whose indices are the batches, if neither deliveries nor bursts of reads show batches; otherwise None
    """

    calls: pd.DataFrame
    delivered: Deliveries
    steps: RankSteps | None = None


def label_calls(job: Job) -> Labelled:
    """Return the job's calls with their labels."""
    kinds = job.files["kind"].astype(str)
    on_file = np.append(kinds.isin(_KINDS).to_numpy(np.bool_), False)[job.calls["file_id"]]  # the last element: calls on no file
    chosen = np.flatnonzero(on_file & (job.calls["result"] >= 0).to_numpy())
    pid, start_ns = (job.calls[name].to_numpy()[chosen] for name in ("pid", "start_ns"))
    calls = job.calls.iloc[chosen[np.lexsort((start_ns, pid))]]
    is_data = (kinds == "dataset").to_numpy()[calls["file_id"]]
    delivered = deliveries(job)
    has_loaders = len(delivered.batches) > 0
    calls = calls.assign(batch=-1, sample=-1, label=int(Label.TIMED))
    data = calls[is_data]
    calls.loc[is_data, "batch"] = delivery_of(data, delivered) if has_loaders else _own_batches(job, data)
    served = calls["batch"] >= 0
    streamed, steps = pd.Series(False, calls.index), None
    if has_loaders:  # a rank without loaders never reads ahead, even if it reads on in a file
        turns = _turns(calls, delivered)
        streamed = served & _is_streamed(calls[served], turns, job.is_mapped()).reindex(calls.index, fill_value=False)
    elif not served.any():
        steps = known_steps(job)
        calls.loc[is_data, "batch"] = batches_of_steps(steps.each, calls[is_data])
        streamed = calls["batch"] >= 0
    dealt = served & ~streamed
    streamed |= is_data & ~served & _is_in_readers_thread(job, calls)
    calls.loc[streamed, "label"] = int(Label.STREAMED)
    calls.loc[dealt, "label"] = int(Label.DEALT)
    calls.loc[dealt, "sample"] = _samples(calls[dealt], delivered.requests)
    return Labelled(calls, delivered, steps)


def _own_batches(job: Job, calls: pd.DataFrame) -> NDArray[np.int64]:
    """Return the batch that each call (sorted by process and time) of a rank's main thread served, -1 for calls of other threads.

    It is for jobs in which no loader delivers batches: ranks read in bursts, and compute between these. Page faults form no
    bursts, since a page that is in memory causes no fault.
    """
    batch, taken = np.full(len(calls), -1, np.int64), 0
    if job.is_mapped():
        return batch
    ranks = job.processes.loc[job.processes["role"] == "rank", "pid"]
    saving = job.calls[job.calls["file_id"].isin(job.file_ids("checkpoint")) & (job.calls["pid"] == job.calls["tid"])]
    for pid in ranks[ranks.isin(calls["pid"])]:
        rows = np.flatnonzero((calls["pid"] == pid) & (calls["tid"] == pid))
        if len(rows):
            visit = _visits(calls.iloc[rows])
            burst = _bursts(calls.iloc[rows], visit, saving[saving["pid"] == pid])[visit]
            reads = np.unique(burst[calls["op"].isin(schema.READ_OPS).to_numpy()[rows]])  # others only open or close files
            batch[rows] = np.where(np.isin(burst, reads), taken + burst, -1)
            taken += int(burst.max()) + 1
    return batch


def _visits(calls: pd.DataFrame) -> NDArray[np.int64]:
    """Return the index of the visit that each call (of one process, sorted by time) belongs to.

    A visit of a file is all calls from its opening to its closing, if the process does nothing else in between. Any other call is
    a visit by itself. If there are few visits, as when all batches continue in a big file, each call is a visit.
    """
    opens, closes = calls["op"].isin(schema.OPEN_OPS), calls["op"].isin(schema.CLOSE_OPS)
    begins = (calls["file_id"].diff() != 0) | opens
    row = begins.cumsum()
    whole = opens.groupby(row).transform("first") & closes.groupby(row).transform("any")
    visit = np.asarray((begins | ~whole).cumsum() - 1, np.int64)
    return visit if visit[-1] + 1 >= _FEWEST_VISITS else np.arange(len(calls))


def _bursts(calls: pd.DataFrame, visit: NDArray[np.int64], saving: pd.DataFrame) -> NDArray[np.int64]:
    """Return the index of the batch that each visit of a process belongs to.

    `saving`: the process's calls on checkpoints, whose time does not count as pauses between visits. If the same visits form a
    burst in each epoch, such as those of an image and its label, the burst is a sample, and a burst of samples is a batch.
    """
    by_visit = calls.assign(offset=calls["offset"].fillna(0)).groupby(visit)
    spans = by_visit.agg(begin=("start_ns", "min"), end=("end_ns", "max"), file_id=("file_id", "first"), offset=("offset", "min"))
    before = saving.groupby(np.searchsorted(spans["begin"], saving["start_ns"]))
    saved_ns = (before["end_ns"].max() - before["start_ns"].min()).reindex(range(len(spans))).fillna(0).cumsum()
    spans[["begin", "end"]] -= saved_ns.to_numpy(np.int64)[:, None]
    burst = batches_by_pauses(spans["begin"].to_numpy(np.int64), spans["end"].to_numpy(np.int64))
    sizes = np.bincount(burst)
    usual = int(np.bincount(sizes).argmax())
    places = pd.factorize(pd.MultiIndex.from_frame(spans[["file_id", "offset"]]))[0][(sizes == usual)[burst]]
    pairs = places[: len(places) // (2 * usual) * 2 * usual].reshape(-1, 2 * usual)
    if usual == 1 or _parts_that_stay_together(pairs) != usual:
        return burst
    samples = spans.groupby(burst).agg(begin=("begin", "min"), end=("end", "max"))
    return batches_by_pauses(samples["begin"].to_numpy(np.int64), samples["end"].to_numpy(np.int64))[burst]


def _is_in_readers_thread(job: Job, calls: pd.DataFrame) -> pd.Series:
    """Return a mask of the calls that threads of ranks other than their main threads made.

    Such threads read ahead, as those of tf.data do.
    """
    ranks = job.processes.loc[job.processes["role"] == "rank", "pid"]
    return calls["pid"].isin(ranks) & (calls["tid"] != calls["pid"])


def _turns(calls: pd.DataFrame, delivered: Deliveries) -> NDArray[np.int64]:
    """Return, for each batch, how many batches its loader had delivered by then, including this one.

    Some messages are not batches: they answer that an epoch begins. The requests for them differ in size from the requests for
    batches that calls served.
    """
    sizes = delivered.batches.merge(delivered.requests, on=["pid", "turn"], how="left")["size_bytes"]
    read = sizes[sizes.index.isin(calls["batch"])]
    is_batch = sizes.isna() | sizes.between(read.min(), read.max())
    return np.asarray(is_batch.astype(np.int64).groupby(delivered.batches["pid"]).cumsum(), np.int64)


def _is_streamed(calls: pd.DataFrame, turns: NDArray[np.int64], mapped: bool) -> pd.Series:
    """Return a mask of the calls that read ahead: in a file that several batches continue, or for several batches at once.

    `turns`: the result of `_turns`. `mapped`: True if page faults read most of the data.
    """
    reads = calls[calls["op"].isin(schema.READ_OPS) & (calls["result"] > 0)]
    by_file = reads.groupby(["pid", "file_id"])
    stopped_at = (reads["offset"] + reads["result"]).groupby([reads["pid"], reads["file_id"]]).shift()
    changes = by_file["batch"].diff().fillna(0).ne(0)
    goes_on = (reads["offset"] == stopped_at)[changes].groupby(reads.loc[changes, "file_id"]).mean()
    streamed = calls["file_id"].isin(goes_on.index[goes_on > _STREAMED])
    if mapped:  # a batch whose pages are in memory causes no fault
        return streamed
    batches = pd.Series(turns[reads["batch"]]).groupby(reads["pid"].to_numpy()).agg(["nunique", "min", "max"])
    ahead = batches.index[batches["nunique"] < _READ_EACH * (batches["max"] - batches["min"] + 1)]
    return streamed | calls["pid"].isin(ahead)


def _samples(calls: pd.DataFrame, requests: pd.DataFrame) -> NDArray[np.int64]:
    """Return the index within its batch of the sample that each dealt call (sorted by process and time) read, -1 if unknown.

    It is unknown if the number of parts varies too much between batches. Successive samples in a file that remains open count as
    one. If the loader opens a file for a batch and leaves it open, that batch has additional parts. They come first, as set-up.
    """
    part = _parts(calls)
    by_part = calls.assign(part=part, offset=calls["offset"].fillna(0)).groupby(["batch", "part"], as_index=False)
    parts = by_part.agg(result=("result", "max"), file_id=("file_id", "first"), offset=("offset", "min"))
    counts = parts.groupby("batch").size()
    sets_up = _opens_to_keep(calls).reindex(counts.index)
    shares = counts[~sets_up].value_counts(normalize=True)
    # The number that explains most parts.
    usual = max(shares.index.tolist(), key=lambda count: float(shares[count]) * count, default=0)
    common = shares.index[(shares >= _COMMON) | (shares.index == usual)]
    if shares[common].sum() < _AGREE:
        return np.full(len(calls), -1, np.int64)
    regular = parts[parts["batch"].isin(counts.index[~sets_up & (counts == usual)])].sort_values(["batch", "part"])
    most = usual
    if len(requests) and (size_bytes := int(requests["size_bytes"].median())) > _EMPTY_REQUEST_BYTES:
        most = max(size_bytes - _EMPTY_REQUEST_BYTES, _INDEX_BYTES) // _INDEX_BYTES
    places = pd.factorize(pd.MultiIndex.from_frame(regular[["file_id", "offset"]]))[0].reshape(-1, usual)
    each = _parts_that_stay_together(places)
    if each == 1:
        each = _parts_of_a_sample(np.log1p(regular["result"].to_numpy(np.float64)).reshape(-1, usual), most)
    set_up = (counts - usual).where(sets_up, 0).clip(lower=0)
    last = counts.where(counts.isin(common), usual) // each - 1
    sample: NDArray[np.int64] = (part - set_up.loc[calls["batch"]].to_numpy(np.int64)) // each
    # An additional part, such as an index read now and then, belongs to the last sample.
    return sample.clip(-1, last.clip(lower=0).loc[calls["batch"]].to_numpy(np.int64))


def _opens_to_keep(calls: pd.DataFrame) -> pd.Series:
    """Return a mask by batch: True if a file is opened for the batch and remains open after it."""
    change = np.select([calls["op"].isin(schema.OPEN_OPS), calls["op"].isin(schema.CLOSE_OPS)], [1, -1], 0)
    return pd.Series(change).groupby(calls["batch"].to_numpy()).sum() > 0


def _parts(calls: pd.DataFrame) -> NDArray[np.int64]:
    """Return the index within its batch of the part of a file that each call read: a visit of the file, or a range of it.

    A part ends when the process goes to another file or opens a file again. In a file that remains open for several batches, a
    part also ends when the process reads elsewhere.
    """
    opens, reads = calls["op"].isin(schema.OPEN_OPS), calls["op"].isin(schema.READ_OPS)
    key = [calls["pid"], calls["file_id"]]
    stopped_at = (calls["offset"] + calls["result"]).where(reads).groupby(key).ffill().groupby(key).shift()
    visits = calls["batch"].isin(calls.loc[calls["op"].isin(schema.CLOSE_OPS), "batch"])
    elsewhere = reads & ~visits & calls["offset"].notna() & stopped_at.notna() & (calls["offset"] != stopped_at)
    other = (calls["file_id"].diff() != 0) | (calls["pid"].diff() != 0) | (calls["batch"].diff() != 0)
    begins = (other | opens | elsewhere).cumsum()
    return (begins - begins.groupby(calls["batch"]).transform("min")).to_numpy(np.int64)


def _parts_that_stay_together(places: NDArray[np.int64]) -> int:
    """Return the number of parts of a sample: parts that follow one another each time that they are read; 1 if none do.

    `places`: the file range of each part, as a number, shape (batches, parts). Parts of one sample remain together even if
    samples come in another order.
    """
    count = int(places.shape[1])
    if len(places) < _FEWEST_BATCHES:
        return 1
    if (places == places[:, :1]).all(axis=1).mean() >= _TOGETHER and (places[1:, 0] == places[:-1, 0]).mean() < _APART:
        return count  # a file that is opened again and again for its one sample
    follows = pd.DataFrame({"place": places[:, :-1].ravel(), "next": places[:, 1:].ravel()})
    position = np.tile(np.arange(1, count), len(places))
    first = follows.groupby("place")["next"].transform("first")
    repeats = follows.groupby("place").cumcount() > 0
    same = (follows["next"] == first).to_numpy()[repeats]
    position = position[repeats]
    apart: dict[int, float] = {}  # by number of parts: how much more often parts stay together within samples
    for each in (each for each in range(2, count // 2 + 1) if count % each == 0):
        within, between = same[position % each != 0], same[position % each == 0]
        if len(within) and len(between) and within.mean() >= _TOGETHER:
            apart[each] = within.mean() - between.mean()
    best = max(apart, key=lambda each: apart[each], default=1)
    return best if apart.get(best, 0.0) > _APART else 1


def _parts_of_a_sample(sizes: NDArray[np.float64], most: int) -> int:
    """Return the number of parts of a sample, for example 2 for an image and its label.

    It is the period with which `sizes` (logarithms, shape (batches, parts)) repeat. If they do not repeat, it is the least number
    for which no batch has more than `most` samples.
    """
    count = sizes.shape[1]
    possible = [each for each in range(1, count + 1) if count % each == 0 and count <= each * most] or [count]
    spread = sizes.var()
    for each in possible:
        if 1 < each <= count // 2 and sizes.reshape(-1, each).var(axis=0).mean() < _REPEATS * spread:
            return each
    return possible[0]


def describe_labels(job: Job, labelled: Labelled) -> str:
    """Return in words how many of the bytes of each kind of file are dealt, streamed and timed."""
    calls = labelled.calls
    kinds = job.files["kind"].astype(str).to_numpy()[calls["file_id"]]
    moves = calls["op"].isin([*schema.READ_OPS, *schema.WRITE_OPS]).to_numpy()
    parts = []
    for kind, name in _KINDS.items():
        own = calls.loc[moves & (kinds == kind), ["label", "result"]]
        by_label = own.groupby("label")["result"].sum().sort_index(ascending=False)
        if whole := int(by_label.sum()):
            shown = by_label[by_label >= _SHOWN * whole].items()
            shares = ", ".join(f"{size / whole:.0%} {Label(label).name.lower()}" for label, size in shown)
            parts.append(f"{name} ({format_size(float(whole))}): {shares}")
    samples = calls[calls["sample"] >= 0].groupby("batch")["sample"].max()
    if len(samples):
        parts.append(f"samples in a batch: {int(samples.mode()[0]) + 1}")
    return "; ".join(parts)
