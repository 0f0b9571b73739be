"""The samples of data sets that are not of .npy files: whole files read by any library, or records of large files."""

import re
from pathlib import PurePosixPath
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmark.fit.look import Job
from benchmark.fit.samples import Samples, accesses_of_files, common_folder
from common.errors import IotwinError
from datagen.layouts import DlrmLayout
from tracing_tools.trace import schema

_WHOLE = 0.9  # share of its file that an access reads, from which files count as read whole
_PAUSED = 0.5  # share of an access spent between its reads, from which each read is a sample of its own
_SMALL = 0.1  # of the typical read: less belongs to a record that is read around it
_ALIKE = 0.5  # share of a file's reads that bring the same, from which that is the record
_MOST_READS = 16  # told apart within a file
_TEXT_AND_NUMBER = re.compile(r"(\D*)(\d*)")


def find_other_samples(job: Job) -> Samples:
    """Return the samples of the data-set files of the kind (by suffix) that most bytes are read from.

    Raises IotwinError when nothing is read from any.
    """
    files, reads = job.files, _reads(job)
    suffix = files["path"].map(_suffix)
    read_bytes = reads.groupby(suffix.reindex(reads["file_id"]).to_numpy())["result"].sum()
    if read_bytes.empty or not read_bytes.max():
        raise IotwinError(f"{job.path}: no data file is read by calls; if it is mapped, trace with --detail data,mmap")
    chosen = files[(files["kind"] == "dataset") & (suffix == read_bytes.idxmax())]
    chosen = chosen[chosen["file_id"].isin(reads["file_id"])].sort_values("path", key=lambda paths: paths.map(_by_number))
    reads = reads[reads["file_id"].isin(chosen["file_id"])].copy()
    folder = common_folder(chosen["path"].tolist())
    names = [str(PurePosixPath(path).relative_to(folder)) for path in chosen["path"]]
    number = np.full(len(files), -1, np.int64)
    number[chosen["file_id"].to_numpy()] = np.arange(len(chosen))
    reads["number"] = number[reads["file_id"].to_numpy(np.int64)]
    reads["access"] = ((reads["number"].diff() != 0) | (reads["pid"].diff() != 0) | (reads["offset"] == 0)).cumsum()
    file_bytes = _sizes(chosen, reads)
    if _read_whole(reads, file_bytes):
        sizes, past_end = _read_sizes(reads)
        return Samples(
            folder, "files", names, file_bytes, accesses_of_files(job, number), read_sizes=sizes, read_past_end=past_end
        )
    return _records(job, reads, folder, names, file_bytes, number)


def _suffix(path: str) -> str:
    """The suffix of a file's name; a number there counts files, not kinds of them."""
    suffix = PurePosixPath(path).suffix
    return "" if suffix[1:].isdigit() else suffix


def _by_number(path: str) -> list[tuple[str, int]]:
    """A key by which part 10 comes after part 9."""
    return [(text, int(number or 0)) for text, number in _TEXT_AND_NUMBER.findall(path)]


def _reads(job: Job) -> pd.DataFrame:
    """Return the reads of data-set files that did not fail, process by process in order of start."""
    reads = job.calls_on(job.file_ids("dataset"), schema.READ_OPS)
    return reads[reads["result"] >= 0].sort_values(["pid", "start_ns"], kind="stable").reset_index(drop=True)


def _sizes(chosen: pd.DataFrame, reads: pd.DataFrame) -> NDArray[np.int64]:
    """Bytes of each file; where the trace has not seen them, as far as the file was read."""
    ends = (reads["offset"].fillna(0) + reads["result"]).groupby(reads["number"]).max()
    seen = ends.reindex(range(len(chosen)), fill_value=0).to_numpy(np.float64)
    sizes: NDArray[np.int64] = np.maximum(chosen["size_bytes"].fillna(0).to_numpy(np.float64), seen).astype(np.int64)
    return sizes


def _read_whole(reads: pd.DataFrame, file_bytes: NDArray[np.int64]) -> bool:
    """Whether most accesses go through their file from end to end without pausing."""
    accesses = reads.groupby("access").agg(
        number=("number", "first"), bytes=("result", "sum"), start=("start_ns", "first"), end=("end_ns", "last"),
        busy=("duration_ns", "sum"),
    )  # fmt: skip
    share = accesses["bytes"] / np.maximum(file_bytes[accesses["number"].to_numpy()], 1)
    paused = 1 - accesses["busy"] / np.maximum(accesses["end"] - accesses["start"], 1)
    # A long way through a large file with pauses in it is a stream of samples, not one sample.
    streamed = (paused > _PAUSED) & (accesses["end"] - accesses["start"] > 10 * (accesses["end"] - accesses["start"]).median())
    return bool(((share >= _WHOLE) & ~streamed).mean() > 0.5) and reads["number"].nunique() > 2


def _read_sizes(reads: pd.DataFrame) -> tuple[tuple[int, ...], bool]:
    """Return the bytes that the typical access asks for, read by read, and whether it goes on until nothing comes."""
    place = reads.groupby("access").cumcount()
    full = reads[(reads["result"] > 0) & (place < _MOST_READS)]
    by_place = full.groupby(place[full.index])["requested"]
    accesses = reads["access"].nunique()
    sizes = [int(asked.mode().iloc[0]) for _, asked in by_place if len(asked) * 10 >= accesses]
    past_end = (reads.groupby("access")["result"].last() == 0).mean() > 0.5
    return tuple(sizes), bool(past_end)


def _typical_bytes(reads: pd.DataFrame) -> pd.Series:
    """Bytes of the reads of each file that bring most together; where sizes vary, so that few are alike, their mean."""
    by_size = reads.groupby(["number", "result"])["result"].agg(["sum", "size"])
    typical = by_size["sum"].groupby(level=0).idxmax()
    alike = by_size.loc[typical.tolist(), "size"].to_numpy() / reads.groupby("number").size().to_numpy()
    mean = reads.groupby("number")["result"].mean().round().astype(np.int64)
    return typical.map(lambda key: key[1]).where(alike >= _ALIKE, mean)


def _with_small_ones(reads: pd.DataFrame, small: pd.Series) -> pd.DataFrame:
    """The reads that are not small, each with the small ones around it: samples lie apart by the longest gap between two."""
    gap = reads["start_ns"].shift(-1) - reads["end_ns"]
    gap = gap.where(reads["pid"].shift(-1) == reads["pid"], np.inf)
    since = (~small).cumsum()
    ends = gap[since > 0].groupby(since[since > 0]).idxmax()
    is_end = pd.Series(reads.index.isin(ends), reads.index) | (gap == np.inf)
    sample = is_end.shift(fill_value=False).cumsum()
    spans = reads.groupby(sample).agg(start_ns=("start_ns", "min"), end_ns=("end_ns", "max"), busy=("duration_ns", "sum"))
    found = reads[~small].drop(columns=["start_ns", "end_ns"]).set_index(sample[~small]).join(spans)
    found["idle_ns"] = found["end_ns"] - found["start_ns"] - found.pop("busy")
    return found


def _records(
    job: Job, reads: pd.DataFrame, folder: str, names: list[str], file_bytes: NDArray[np.int64], number: NDArray[np.int64]
) -> Samples:
    """Return the records: in each file what its typical read brings, with the small reads (an index, a label) around it."""
    reads = reads[reads["result"] > 0]
    typical = _typical_bytes(reads)
    small = reads["result"] < _SMALL * reads["number"].map(typical)
    record_bytes = _typical_bytes(reads[~small]).reindex(range(len(names))).to_numpy(np.int64)
    if small.any():
        reads = _with_small_ones(reads, small)
    if "idle_ns" not in reads:
        reads = reads.assign(idle_ns=0)
    each = np.maximum(file_bytes // record_bytes, 1)
    first = np.concatenate(([0], np.cumsum(each)))
    of_read = reads["number"].to_numpy()
    within = np.minimum(reads["offset"].fillna(0).to_numpy(np.int64) // record_bytes[of_read], each[of_read] - 1)
    accesses = pd.DataFrame({
        "sample": first[of_read] + within, "pid": reads["pid"].to_numpy(), "start_ns": reads["start_ns"].to_numpy(),
        "end_ns": reads["end_ns"].to_numpy(), "idle_ns": reads["idle_ns"].to_numpy(),
    })  # fmt: skip
    is_criteo = {PurePosixPath(name).name for name in names} <= {DlrmLayout.TRAIN_NAME, DlrmLayout.TEST_NAME}
    layout: Literal["dlrm", "records"] = "dlrm" if is_criteo and not (record_bytes % DlrmLayout.SAMPLE_BYTES).any() else "records"
    ids = np.flatnonzero(number >= 0).tolist()
    opens = job.calls_on(ids, schema.OPEN_OPS)
    accesses = accesses.sort_values("start_ns", kind="stable", ignore_index=True)
    return Samples(
        folder, layout, names, file_bytes, accesses, record_bytes, first,
        keep_open=len(opens) * 2 < len(reads),
    )  # fmt: skip
