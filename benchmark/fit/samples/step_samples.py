"""Samples of jobs whose steps are apart from their reads: shards, tables and buffers that last for several batches.

What is seen of a step there is the hand-over of its batch; a read is what a loader does now and then. So a sample is what a
hand-over uses up, in the mean, of files that are read on from where the last one stopped.
"""

from dataclasses import replace
from pathlib import PurePosixPath

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.batches.deliveries import deliveries, delivery_of, requests_of
from iotwin.benchmark.fit.look import Job
from iotwin.benchmark.fit.samples.samples import Samples, reads_of
from iotwin.trace_store import schema

_ALIKE = 0.5  # batches are of one size if this share of them is
_BEGUN = 0.9  # a batch is the samples read before it if a sample begins before this share of the hand-overs


def by_steps(job: Job, samples: Samples) -> Samples:
    """Return `samples`, or where many batches were handed over without one begun, one sample for each batch.

    So it is also where data are mapped and the batches' page faults are of any number.
    """
    given = deliveries(job)
    reads = _reads(job, samples)
    reads = reads[reads["pid"].isin(given["pid"])]
    if reads.empty:
        return samples
    asked = requests_of(job, given)
    begun = np.bincount(delivery_of(samples.accesses, given, asked), minlength=len(given) + 1)[:-1]
    if (begun > 0).sum() >= _BEGUN * len(given) and not (job.is_mapped() and _vary(begun)):
        return samples
    batch = delivery_of(reads, given, asked)
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
