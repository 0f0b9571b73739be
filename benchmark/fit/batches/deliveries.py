"""Batches that a job's loader processes deliver: when each was requested, and when it was delivered.

The evidence is the same for every framework that has loader processes: the training process writes a request into a pipe. The
loader reads the request, then its data, and writes the batch into another pipe, from which the training process reads it.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.traced_job import Job
from iotwin.trace_store import schema

_LENGTH_BYTES = 4  # size of the length that multiprocessing.connection sends before each message
_SHORT = 0.5  # a message shorter than this share of its loader's shortest batch delivers no batch
_NUMBER_BYTES = 8  # two messages that carry the same kind of batch may differ by this many bytes


class Deliveries(NamedTuple):
    """The batches that loaders deliver to ranks or to other processes that requested them.

    * `batches`, sorted by loader and time: `pid` of the loader, `start_ns` of the write that delivers the batch, and `turn`, the
      index of the request that it answers among the messages that the loader read
    * `requests` for these batches as the loaders received them, sorted by time: `pid` of the loader, `asked_ns`, `size_bytes`,
      `turn` as in `batches`, `file_id` of the pipe
    * `messages`: all reads and writes of messages in pipes, with the columns of `Job.calls`
    """

    batches: pd.DataFrame
    requests: pd.DataFrame
    messages: pd.DataFrame


def deliveries(job: Job) -> Deliveries:
    """Return the batches that loaders delivered.

    A process that only reads what loaders write, such as Python's resource tracker, receives no batches.
    """
    roles = job.roles()
    moved = job.calls_on(job.file_ids("pipe"), [*schema.READ_OPS, *schema.WRITE_OPS])
    moved = moved[moved["result"] > 0]
    role, reads = moved["pid"].map(roles), moved["op"].isin(schema.READ_OPS)
    requested = moved.loc[(role == "loader") & reads, "file_id"].unique()
    requesters = moved.loc[(role != "loader") & ~reads & moved["file_id"].isin(requested), "pid"].unique()
    taken = moved.loc[((role == "rank") | moved["pid"].isin(requesters)) & reads, "file_id"].unique()
    is_message = moved["result"] != _LENGTH_BYTES
    sent = moved[(role == "loader") & ~reads & moved["file_id"].isin(taken) & is_message]
    sent = sent[["pid", "start_ns", "result"]].sort_values(["pid", "start_ns"], kind="stable")
    messages, is_end = moved[is_message], _are_ends(sent)
    asked = _asked(messages, sent["pid"].unique())
    sent["turn"] = sent.groupby("pid").cumcount() + _ignored(sent["pid"], sent["start_ns"].to_numpy(np.int64), is_end, asked)
    batches = sent[~is_end].drop(columns="result").reset_index(drop=True)
    return Deliveries(batches, asked.merge(batches[["pid", "turn"]]).sort_values("asked_ns", ignore_index=True), messages)


def _are_ends(messages: pd.DataFrame) -> NDArray[np.bool_]:
    """Return a mask of the messages (pid, result: bytes; sorted by time) which report that a loader has no more batches.

    They are the loader's last message and all messages as short as that, if its other messages are much longer.
    """
    of_loader = messages.groupby("pid")["result"]
    short = messages["result"] <= of_loader.transform("last") + _NUMBER_BYTES
    shortest = messages["result"].where(~short).groupby(messages["pid"]).transform("min")
    ends: NDArray[np.bool_] = (short & (messages["result"] < _SHORT * shortest)).to_numpy(np.bool_)
    return ends


def _ignored(pids: pd.Series, sent_ns: NDArray[np.int64], is_end: NDArray[np.bool_], asked: pd.DataFrame) -> NDArray[np.int64]:
    """Return how many requests the loader had ignored before each of its messages, which are sorted by loader and time.

    A loader that has no more batches ignores further requests, until the rank asks it to begin another pass. It answers this by
    a second short message. The rank waits for this answer, so the loader has read all requests before it by then.
    """
    ignored = np.zeros(len(pids), np.int64)
    of_process, loader = asked.groupby("pid")["asked_ns"].agg(list).to_dict(), pids.to_numpy(np.int64)
    for pid in np.unique(loader).tolist():
        rows = np.flatnonzero(loader == pid)
        ends = rows[is_end[rows]]
        read = np.searchsorted(np.array(of_process.get(pid, []), np.int64), sent_ns[ends], side="right")
        ignored[ends] = np.maximum(read - 1 - (ends - rows[0]), 0)
        ignored[rows] = np.maximum.accumulate(ignored[rows])
    return ignored


def _asked(messages: pd.DataFrame, loaders: NDArray[np.int64]) -> pd.DataFrame:
    """Return all messages that the `loaders` (pids) read as requests, with the columns of `Deliveries.requests`.

    Requests come through the pipe that the loader reads last. A spawned loader reads its program's state from another pipe first.
    """
    asked = messages[messages["pid"].isin(loaders) & messages["op"].isin(schema.READ_OPS)]
    asked = asked.sort_values("end_ns", kind="stable")
    asked = asked[asked["file_id"] == asked.groupby("pid")["file_id"].transform("last")]
    asked = asked[["pid", "end_ns", "result", "file_id"]].rename(columns={"end_ns": "asked_ns", "result": "size_bytes"})
    asked["turn"] = asked.groupby("pid").cumcount()
    return asked


def delivery_of(calls: pd.DataFrame, delivered: Deliveries) -> NDArray[np.int64]:
    """Return the row of `delivered.batches` that each of a loader's calls (pid, start_ns) served, -1 if none.

    If its process received a request for every batch, a call serves the latest request that had been received. The thread that
    sends a batch may be late, while the loader already reads for the next batch. Otherwise, a call serves the next delivery.
    """
    batch = np.full(len(calls), -1, np.int64)
    pids, starts = calls["pid"].to_numpy(), calls["start_ns"].to_numpy()
    of_process = dict(list(delivered.requests.groupby("pid")["asked_ns"]))
    for pid, own in delivered.batches.groupby("pid"):
        rows, times = np.flatnonzero(pids == pid), own["start_ns"].to_numpy()
        asked_ns = of_process[pid].to_numpy()[: len(own)] if pid in of_process else times[:0]
        if len(asked_ns) == len(own) and (asked_ns < times).all():
            position = np.maximum(np.searchsorted(asked_ns, starts[rows], side="right") - 1, 0)
        else:
            position = np.searchsorted(times, starts[rows])
        batch[rows] = np.append(own.index.to_numpy(), -1)[position]
    return batch
