"""Samples of jobs whose steps are apart from their reads: shards, tables and buffers that last for several batches.

What is seen of a step there is the hand-over of its batch; a read is what a loader does now and then. So a sample is what a
hand-over uses up, in the mean, of files that are read on from where the last one stopped.
"""

from dataclasses import replace
from pathlib import PurePosixPath

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.look import Job
from iotwin.benchmark.fit.samples.samples import Samples, is_mapped, reads_of
from iotwin.trace_store import schema

LENGTH_BYTES = 4  # of the length that multiprocessing.connection sends before a message
_ALIKE = 0.5  # batches are of one size if this share of them is
_SHORT = 0.5  # a message this much shorter than any batch of its loader is none
_NUMBER_BYTES = 8  # by which messages differ that say the same of another batch
_BEGUN = 0.9  # a batch is the samples read before it if a sample begins before this share of the hand-overs


def given_batches(job: Job) -> pd.DataFrame:
    """Return the hand-overs of batches, by process in order of time: what loaders write for ranks to read.

    Columns pid, start_ns and turn: which of its process's messages it was.
    """
    roles = job.roles()
    moved = job.calls_on(job.file_ids("pipe"), [*schema.READ_OPS, *schema.WRITE_OPS])
    moved = moved[moved["result"] > 0]
    role, reads = moved["pid"].map(roles), moved["op"].isin(schema.READ_OPS)
    taken = moved.loc[(role == "rank") & reads, "file_id"].unique()
    given = moved[(role == "loader") & ~reads & moved["file_id"].isin(taken) & (moved["result"] != LENGTH_BYTES)]
    given = given[["pid", "start_ns", "result"]].sort_values(["pid", "start_ns"], kind="stable")
    given["turn"] = given.groupby("pid").cumcount()
    return given[~are_ends(given)].drop(columns="result").reset_index(drop=True)


def are_ends(given: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which messages (pid, result; in order of time) say that a loader has no more to give.

    They are its last one and those as short, if any batch is much longer.
    """
    of_loader = given.groupby("pid")["result"]
    short = given["result"] <= of_loader.transform("last") + _NUMBER_BYTES
    shortest = given["result"].where(~short).groupby(given["pid"]).transform("min")
    ends: NDArray[np.bool_] = (short & (given["result"] < _SHORT * shortest)).to_numpy(np.bool_)
    return ends


def by_steps(job: Job, samples: Samples) -> Samples:
    """Return `samples`, or where many batches were handed over without one begun, one sample for each batch.

    So it is also where data are mapped and the batches' page faults are of any number.
    """
    given = given_batches(job)
    reads = _reads(job, samples)
    reads = reads[reads["pid"].isin(given["pid"])]
    if reads.empty:
        return samples
    asked = _asked(job, given)
    begun = np.bincount(_batch_of(samples.accesses, given, asked), minlength=len(given) + 1)[:-1]
    if (begun > 0).sum() >= _BEGUN * len(given) and not (is_mapped(job) and _vary(begun)):
        return samples
    batch = _batch_of(reads, given, asked)
    known = batch < len(given)
    record_bytes = reads["result"].sum() / len(given)
    each = np.maximum(np.round(samples.file_bytes / record_bytes).astype(np.int64), 1)
    first = np.concatenate(([0], np.cumsum(each)))
    accesses = _accesses(asked, reads[known], batch[known], given).reset_index(names="read")
    accesses["sample"] = first[accesses.pop("file").to_numpy()]
    return replace(
        samples,
        layout="records",
        accesses=accesses.sort_values("start_ns", kind="stable", ignore_index=True),
        record_bytes=samples.file_bytes // each,
        first_record=first,
        read_sizes=(),
        read_past_end=False,
        keep_open=True,
        most_open=_most_open(job, samples, given),
        buffer_bytes=_most_used(reads["requested"].to_numpy(np.int64), reads["result"].to_numpy(np.int64)),
        reads=reads_of(reads[known], batch[known]),
        sample_of=None,
    )


def _vary(counts: NDArray[np.int64]) -> bool:
    """Whether few batches have as many samples as most: faults on pages, each of which comes once, tell no samples."""
    return int(np.bincount(counts).max()) < _ALIKE * len(counts)


def _most_open(job: Job, samples: Samples, given: pd.DataFrame) -> int | None:
    """The most files that a process that gives batches had open at a time; None where it closes few of them, or maps them."""
    calls = job.calls_on(_ids(job, samples), [*schema.OPEN_OPS, *schema.CLOSE_OPS])
    calls = calls[calls["pid"].isin(given["pid"]) & (calls["result"] >= 0)].sort_values("start_ns", kind="stable")
    opens = calls["op"].isin(schema.OPEN_OPS)
    mapped = len(job.calls_on(_ids(job, samples), schema.MAP_OPS))
    if mapped or (~opens).sum() * 2 < opens.sum() or not opens.any():
        return None
    return int(opens.map({True: 1, False: -1}).groupby(calls["pid"]).cumsum().max())


def _most_used(requested: NDArray[np.int64], result: NDArray[np.int64]) -> int:
    """The size of read that brought most."""
    sizes, position = np.unique(requested, return_inverse=True)
    return int(sizes[np.bincount(position, weights=result).argmax()])


def _reads(job: Job, samples: Samples) -> pd.DataFrame:
    """Reads of the samples' files that brought something, with the file's index in `samples.names`."""
    index = _index(job, samples)
    reads = job.calls_on(_ids(job, samples), schema.READ_OPS)
    reads = reads[reads["result"] > 0].sort_values(["pid", "start_ns"], kind="stable")
    return reads.assign(file=index.to_numpy()[reads["file_id"].to_numpy()].astype(np.int64))


def _index(job: Job, samples: Samples) -> pd.Series:
    """Return where in `samples.names` each of the job's files is; NaN: it is none of them."""
    paths = {str(PurePosixPath(samples.folder) / name): index for index, name in enumerate(samples.names)}
    found: pd.Series = job.files["path"].map(paths)
    return found


def _ids(job: Job, samples: Samples) -> list[int]:
    ids: list[int] = job.files.loc[_index(job, samples).notna(), "file_id"].tolist()
    return ids


def _asked(job: Job, given: pd.DataFrame) -> pd.DataFrame:
    """Return when each process was asked for the batches that it gave, pid and asked_ns, in order of time."""
    asked = job.calls_on(job.file_ids("pipe"), schema.READ_OPS)
    whole = (asked["result"] > 0) & (asked["result"] != LENGTH_BYTES)
    asked = asked.loc[asked["pid"].isin(given["pid"]) & whole, ["pid", "end_ns"]].sort_values("end_ns", kind="stable")
    asked["turn"] = asked.groupby("pid").cumcount()
    asked = asked.merge(given[["pid", "turn"]])
    return asked.sort_values("end_ns", ignore_index=True).drop(columns="turn").rename(columns={"end_ns": "asked_ns"})


def _batch_of(reads: pd.DataFrame, given: pd.DataFrame, asked: pd.DataFrame) -> NDArray[np.int64]:
    """The row of `given` that each read was made for; len(given) where there was none.

    A process that was asked for each batch made it since it was asked: the thread that hands it over may be late, when the next
    one is read already. Of another process it is the next hand-over.
    """
    batch = np.full(len(reads), len(given), np.int64)
    pids, starts = reads["pid"].to_numpy(), reads["start_ns"].to_numpy()
    of_process = dict(list(asked.groupby("pid")["asked_ns"]))
    for pid, own in given.groupby("pid"):
        rows, times = np.flatnonzero(pids == pid), own["start_ns"].to_numpy()
        asked_ns = of_process[pid].to_numpy()[: len(own)] if pid in of_process else times[:0]
        if len(asked_ns) == len(own) and (asked_ns < times).all():
            position = np.maximum(np.searchsorted(asked_ns, starts[rows]) - 1, 0)
        else:
            position = np.searchsorted(times, starts[rows])
        batch[rows] = np.append(own.index.to_numpy(), len(given))[position]
    return batch


def _accesses(asked: pd.DataFrame, reads: pd.DataFrame, batch: NDArray[np.int64], given: pd.DataFrame) -> pd.DataFrame:
    """One access for each batch: its reads, or of one without any the moment after its indices came; its file the last read."""
    rows = given.reset_index(names="batch").sort_values("start_ns")
    rows = pd.merge_asof(rows, asked, left_on="start_ns", right_on="asked_ns", by="pid").set_index("batch").sort_index()
    of_batch = reads.groupby(batch).agg(
        start=("start_ns", "min"), end=("end_ns", "max"), busy=("duration_ns", "sum"), file=("file", "last")
    )
    rows = rows.join(of_batch)
    rows["file"] = rows.groupby("pid")["file"].transform(lambda files: files.ffill().bfill())
    rows = rows.dropna(subset=["file"])
    moment = rows["asked_ns"].fillna(rows["start_ns"]) + 1
    start, end = rows["start"].fillna(moment), rows["end"].fillna(moment)
    return pd.DataFrame(
        {
            "pid": rows["pid"],
            "start_ns": start.astype(np.int64),
            "end_ns": end.astype(np.int64),
            "idle_ns": (end - start - rows["busy"].fillna(0)).astype(np.int64),
            "file": rows["file"].astype(np.int64),
        }
    )
