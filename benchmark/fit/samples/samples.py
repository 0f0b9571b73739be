"""The samples of a traced data set: which files they are, and when and by whom each was read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.look import Job
from iotwin.trace_store import schema

MOST_READS_LISTED = 40_000  # the YAML of more would take long to read, and be too large for an archive


@dataclass
class Samples:
    """The samples by index, and every access to one.

    A sample is a file (or a pair), sorted by name; or, of files that are read in part, what one read brings: a record. The
    records of file i are the samples `first_record[i]` to `first_record[i + 1]`.
    """

    folder: str
    layout: Literal["unet3d", "npy", "dlrm", "files", "records"]
    names: list[str]  # of files within folder; of a unet3d pair the part before _x.npy
    file_bytes: NDArray[np.int64]  # by name; both files of a pair
    # One row per time a process went through a sample, in order of start: sample, pid, start_ns, end_ns, idle_ns. The last is the
    # time within that was spent in no call; zero where the emulator's reader spends that time by itself.
    accesses: pd.DataFrame
    record_bytes: NDArray[np.int64] | None = None  # by name; None where a sample is a file
    first_record: NDArray[np.int64] | None = None  # (names + 1,)
    read_sizes: tuple[int, ...] = ()  # of files that no reader here knows: bytes asked for by each read
    read_past_end: bool = False
    keep_open: bool = False
    most_open: int | None = None  # of files that are kept open, by each process; None: all that it meets
    buffer_bytes: int | None = (
        None  # of one read, where a sample is what a step used up: see iotwin.benchmark.fit.samples.step_samples
    )
    # What each access read (of files of .npy not told), in order: read (as in accesses), file (index), offset, size, thread (0 is
    # the process's main one; others are numbered by process from 1, as they came).
    reads: pd.DataFrame | None = None
    sample_of: NDArray[np.int64] | None = None  # by name: the sample that a file is of, where samples are several files

    def file_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of each sample's file in `names`, of several files the first one's."""
        if self.sample_of is not None:
            return np.unique(self.sample_of, return_index=True)[1][samples]
        if self.first_record is None:
            return samples
        found: NDArray[np.int64] = np.searchsorted(self.first_record, samples, side="right") - 1
        return found

    def records(self) -> NDArray[np.int64]:
        """Return the samples in each file, by name; one of several files is in the first."""
        if self.sample_of is not None:
            return np.bincount(np.unique(self.sample_of, return_index=True)[1], minlength=len(self.names))
        return np.ones(len(self.names), np.int64) if self.first_record is None else np.diff(self.first_record)

    def size_bytes(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of each sample."""
        if self.sample_of is not None:
            return np.bincount(self.sample_of, self.file_bytes).astype(np.int64)[samples]
        sizes = self.file_bytes if self.record_bytes is None else self.record_bytes
        return sizes[self.file_of(samples)]


def common_folder(paths: list[str]) -> str:
    """Return the deepest directory that holds all the files at `paths`."""
    folders, counts = np.unique([str(PurePosixPath(path).parent) for path in paths], return_counts=True)
    if len(folders) == 1:
        return str(folders[0])
    common = PurePosixPath(str(folders[counts.argmax()]))
    while not all(PurePosixPath(path).is_relative_to(common) for path in paths):
        common = common.parent
    return str(common)


def accesses_of_files(job: Job, sample_of_file: NDArray[np.int64], anew: Sequence[int] = ()) -> pd.DataFrame:
    """Return the accesses to samples of whole files: consecutive reads of one sample by one process are one.

    But for the calls `anew` (by their index in `job.calls`), with which a process reads the file again that it has just read.
    Opens and closes belong to the next and the last read of their process where that is of their sample; others (a shard that is
    opened before the last one is closed) do not split what is read.
    """
    ops = [*schema.OPEN_OPS, *schema.READ_OPS, *schema.CLOSE_OPS, *schema.MAP_OPS]
    events = job.calls_on(np.flatnonzero(sample_of_file >= 0).tolist(), ops)
    events = events.assign(sample=sample_of_file[events["file_id"].to_numpy()])
    events = events.sort_values(["pid", "start_ns"], kind="stable")
    events = events.assign(access=_access_numbers(events, anew)).dropna(subset=["access"])
    joined = events.groupby("access", sort=False).agg(
        sample=("sample", "first"),
        pid=("pid", "first"),
        start_ns=("start_ns", "min"),
        end_ns=("end_ns", "max"),
        busy_ns=("duration_ns", "sum"),
    )
    joined["idle_ns"] = joined["end_ns"] - joined["start_ns"] - joined.pop("busy_ns")
    return joined.sort_values("start_ns", kind="stable").reset_index(drop=True)


def _access_numbers(events: pd.DataFrame, anew: Sequence[int]) -> pd.Series:
    """Return the number of the access that each event (by process, in order of start) belongs to; NaN: to none."""
    opens, closes = (events["op"].isin(ops) for ops in (schema.OPEN_OPS, schema.CLOSE_OPS))
    reads = events[~opens & ~closes]
    changes = (reads["sample"].diff() != 0) | (reads["pid"].diff() != 0) | reads.index.isin(anew)
    near = pd.DataFrame({"access": changes.cumsum(), "of": reads["sample"]}).reindex(events.index)
    following, last = near.groupby(events["pid"]).bfill(), near.groupby(events["pid"]).ffill()
    near = near.where(~opens, following).where(~closes, last)
    return near["access"].where(near["of"] == events["sample"])


def reads_of(reads: pd.DataFrame, access: NDArray[np.int64]) -> pd.DataFrame:
    """Return `Samples.reads` of these reads (pid, tid, file, offset, result) in order, each one's access given."""
    # What was read without an offset (of a stream) went on where the last read ended.
    done = reads.groupby("file")["result"].cumsum() - reads["result"]
    return pd.DataFrame(
        {
            "read": access,
            "file": reads["file"].to_numpy(np.int64),
            "offset": reads["offset"].fillna(done).to_numpy(np.int64),
            "size": reads["result"].to_numpy(np.int64),
            "thread": _threads(reads),
        }
    )


def _threads(reads: pd.DataFrame) -> NDArray[np.int64]:
    """Return the number of each read's thread within its process: 0 for the main one, others from 1 as they came."""
    beside = reads[reads["tid"] != reads["pid"]]
    number = beside.groupby("pid")["tid"].transform(lambda tids: pd.factorize(tids)[0]) + 1
    found: NDArray[np.int64] = number.reindex(reads.index, fill_value=0).to_numpy(np.int64)
    return found


def reads_within(reads: pd.DataFrame, accesses: pd.DataFrame) -> pd.DataFrame:
    """Return `Samples.reads` of these reads (pid, tid, start_ns, file, offset, result), each in an access of its process."""
    begins = accesses[["pid", "start_ns"]].reset_index(names="read").sort_values("start_ns", kind="stable")
    made = pd.merge_asof(reads.sort_values("start_ns", kind="stable"), begins, on="start_ns", by="pid").dropna(subset=["read"])
    return reads_of(made, made["read"].to_numpy(np.int64))
