"""The samples of data sets that are not of .npy files: whole files read by any library, or records of large files."""

import re
from pathlib import PurePosixPath
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.look import Job
from iotwin.benchmark.fit.samples.partners import by_first_file, find_partners
from iotwin.benchmark.fit.samples.samples import (
    MOST_READS_LISTED,
    Samples,
    accesses_of_files,
    common_folder,
    reads_of,
    reads_within,
)
from iotwin.common.errors import IotwinError
from iotwin.datagen.layouts import DlrmLayout
from iotwin.trace_store import schema

_WHOLE = 0.9  # an access that reads this share of its file reads it whole
_TWICE = 1.9  # a file of which this many times its size is read was read twice; an index at its end may be read again
_PAUSED = 0.5  # where this share of an access passes between its reads, each read is a sample
_SMALL = 0.1  # a read smaller than this share of the typical one belongs to the record read around it
_ALIKE = 0.5  # reads of one size are the records if they bring this share of the file's bytes, or are this share of reads
_BETWEEN_BATCHES_NS = 1e18  # longer than any gap, shorter than that between two processes
_FEW_FILES = 20
_SOON_AGAIN = 0.1  # share of the accesses; of a shuffle 3 % come again within a quarter of the files, of samples drawn anew 22 %
_MOST_READS = 16  # told apart within a file
_CONTINUING = 0.1  # of the reads at least, for samples to be of several reads that follow on one another
_ASTRAY = 0.1  # of the reads at most: at places that are read now first, now behind another; or behind those of another batch
_LEAST_JUMPS = 8  # between samples; fewer may be those of a few files read in order
_TEXT_AND_NUMBER = re.compile(r"(\D*)(\d*)")


def find_other_samples(job: Job) -> Samples:
    """Return the samples of the data-set files of the kind (by suffix) that most bytes are read from.

    Raises IotwinError when nothing is read from any.
    """
    reads, files = data_reads(job), job.files
    suffix = files["path"].map(_suffix)
    read_bytes = reads.groupby(suffix.reindex(reads["file_id"]).to_numpy())["result"].sum()
    if read_bytes.empty or not read_bytes.max():
        raise IotwinError(f"{job.path}: no data file is read by calls; if it is mapped, trace with --detail data,mmap")
    alike = ((files["kind"] == "dataset") & (suffix == read_bytes.idxmax())).to_numpy()
    if (sample := find_partners(reads, len(files))) is not None:
        together = np.isin(sample, np.unique(sample[alike & files["file_id"].isin(reads["file_id"]).to_numpy()]))
        found = _samples(job, reads, together, sample)
        if found.sample_of is not None:
            return found
    return _samples(job, reads, alike)


def _samples(job: Job, reads: pd.DataFrame, chosen_files: NDArray[np.bool_], sample: NDArray[np.int64] | None = None) -> Samples:
    """Return the samples of the chosen files that are read; with `sample` (of each file), those that are several whole files."""
    files = job.files
    chosen = files[chosen_files & files["file_id"].isin(reads["file_id"]).to_numpy()]
    chosen = chosen.sort_values("path", key=lambda paths: paths.map(_by_number))
    reads = reads[reads["file_id"].isin(chosen["file_id"])].copy()
    folder = common_folder(chosen["path"].tolist())
    names = [str(PurePosixPath(path).relative_to(folder)) for path in chosen["path"]]
    number = np.full(len(files), -1, np.int64)
    number[chosen["file_id"].to_numpy()] = np.arange(len(chosen))
    reads["number"] = number[reads["file_id"].to_numpy(np.int64)]
    file_bytes = _sizes(chosen, reads)
    reads["access"] = _visits(reads, file_bytes)
    if not _read_whole(reads, file_bytes) and not _opened_for_each(job, reads, number):
        return _records(job, reads, folder, names, file_bytes, number)
    sample_of = None if sample is None else by_first_file(sample[chosen["file_id"].to_numpy()])
    if sample_of is not None and len(reads) / reads["access"].nunique() * len(names) > MOST_READS_LISTED:
        sample_of = None
    of_file = number if sample_of is None else np.append(sample_of, -1)[number]
    sizes, past_end = _read_sizes(reads)
    anew = (reads["access"].diff() == 1) & (reads["number"].diff() == 0) & (reads["pid"].diff() == 0)
    accesses = accesses_of_files(job, of_file, reads.loc[anew, "call"].tolist()).rename_axis("read").reset_index()
    told = reads[(reads["result"] > 0) | (reads["offset"] > 0)]  # also those that find nothing more
    seen = pd.concat([told, _opened_anew(job, reads, number)]).assign(file=lambda rows: rows["number"])
    made = reads_within(seen, accesses)
    return Samples(
        folder, "files", names, file_bytes, accesses, read_sizes=sizes, read_past_end=past_end, reads=made, sample_of=sample_of
    )


def _suffix(path: str) -> str:
    """The suffix of a file's name; a number there counts files, not kinds of them."""
    suffix = PurePosixPath(path).suffix
    return "" if suffix[1:].isdigit() else suffix


def _by_number(path: str) -> list[tuple[str, int]]:
    """A key by which part 10 comes after part 9."""
    return [(text, int(number or 0)) for text, number in _TEXT_AND_NUMBER.findall(path)]


def data_reads(job: Job) -> pd.DataFrame:
    """Return the reads of data-set files that did not fail, process by process in order of start, with their index as `call`."""
    reads = job.calls_on(job.file_ids("dataset"), schema.READ_OPS)
    return reads[reads["result"] >= 0].sort_values(["pid", "start_ns"], kind="stable").reset_index(names="call")


def _sizes(chosen: pd.DataFrame, reads: pd.DataFrame) -> NDArray[np.int64]:
    """Bytes of each file; where the trace has not seen them, as far as the file was read."""
    ends = (reads["offset"].fillna(0) + reads["result"]).groupby(reads["number"]).max()
    seen = ends.reindex(range(len(chosen)), fill_value=0).to_numpy(np.float64)
    sizes: NDArray[np.int64] = np.maximum(chosen["size_bytes"].fillna(0).to_numpy(np.float64), seen).astype(np.int64)
    return sizes


def _visits(reads: pd.DataFrame, file_bytes: NDArray[np.int64]) -> pd.Series:
    """Number the time that a process goes through a file: again from its beginning, where it reads more than it holds.

    What it reads of the beginning alone, and then the whole file, is one time: libraries look at a file before they load it.
    """
    sizes = file_bytes[reads["number"].to_numpy()]
    run = ((reads["number"].diff() != 0) | (reads["pid"].diff() != 0)).cumsum()
    again = reads["result"].groupby(run).transform("sum").to_numpy() > _TWICE * sizes
    part = ((run.diff() != 0) | again & (reads["offset"] == 0)).cumsum()
    whole = reads["result"].groupby(part).sum() >= _WHOLE * pd.Series(sizes, part).groupby(level=0).first()
    run_of_part = run.groupby(part).first()
    begins = (run_of_part.diff() != 0) | whole.shift(fill_value=True)
    visits: pd.Series = part.map(begins.cumsum())
    return visits


def _opened_anew(job: Job, reads: pd.DataFrame, number: NDArray[np.int64]) -> pd.DataFrame:
    """Return, as reads of nothing, the opens of files by a process whose last and whose next read are of the same file."""
    opens = job.calls_on(np.flatnonzero(number >= 0).tolist(), schema.OPEN_OPS)
    opens = opens[opens["result"] >= 0].assign(number=lambda rows: number[rows["file_id"].to_numpy()], offset=0, result=0)
    rows = pd.concat([reads, opens]).sort_values(["pid", "start_ns"], kind="stable", ignore_index=True)
    read = rows["number"].where(rows["access"].notna())
    last, following = read.groupby(rows["pid"]).ffill(), read.groupby(rows["pid"]).bfill()
    return rows[rows["access"].isna() & (last == following) & (last == rows["number"])]


def _read_whole(reads: pd.DataFrame, file_bytes: NDArray[np.int64]) -> bool:
    """Whether most accesses go through their file from end to end without pausing."""
    accesses = reads.groupby("access").agg(
        number=("number", "first"),
        bytes=("result", "sum"),
        start=("start_ns", "first"),
        end=("end_ns", "last"),
        busy=("duration_ns", "sum"),
    )
    share = accesses["bytes"] / np.maximum(file_bytes[accesses["number"].to_numpy()], 1)
    paused = 1 - accesses["busy"] / np.maximum(accesses["end"] - accesses["start"], 1)
    # A long way through a large file with pauses in it is a stream of samples, not one sample.
    streamed = (paused > _PAUSED) & (accesses["end"] - accesses["start"] > 10 * (accesses["end"] - accesses["start"]).median())
    return bool(((share >= _WHOLE) & ~streamed).mean() > 0.5) and reads["number"].nunique() > 2


def _opened_for_each(job: Job, reads: pd.DataFrame, number: NDArray[np.int64]) -> bool:
    """Whether a file is a sample though it is read in part (a crop of a recording): each time opened, and once in a pass.

    A file of many samples that is opened for each of them comes again before most others have come; one that is read as a stream
    is open while loaders are handed the next batches.
    """
    accesses = reads.groupby("access").agg(number=("number", "first"), reads=("result", "size"), start_ns=("start_ns", "first"))
    opens = job.calls_on(np.flatnonzero(number >= 0).tolist(), schema.OPEN_OPS)
    tasks = _tasks(job, reads).groupby(reads["access"]).agg(["min", "max"])
    files = int(accesses["number"].nunique())
    since = accesses["start_ns"].rank().sort_values().groupby(accesses["number"]).diff().dropna()
    return bool(
        files > _FEW_FILES
        and (opens["result"] >= 0).sum() >= len(accesses)
        and accesses["reads"].median() > 1
        and tasks["max"].max() > 0
        and (tasks["min"] < tasks["max"]).mean() < _SOON_AGAIN
        and (since < files / 4).sum() <= _SOON_AGAIN * len(since)
    )


def _read_sizes(reads: pd.DataFrame) -> tuple[tuple[int, ...], bool]:
    """Return the bytes that the typical access asks for, read by read, and whether it goes on until nothing comes."""
    position = reads.groupby("access").cumcount()
    full = reads[(reads["result"] > 0) & (position < _MOST_READS)]
    by_position = full.groupby(position[full.index])["requested"]
    accesses = reads["access"].nunique()
    sizes = [_asked(asked) for _, asked in by_position if len(asked) * 10 >= accesses]
    past_end = (reads.groupby("access")["result"].last() == 0).mean() > 0.5
    return tuple(sizes), bool(past_end)


def _asked(sizes: pd.Series) -> int:
    """What most reads ask for; where few are alike, as of the rest of each file, the most that any asks for."""
    common = sizes.mode().iloc[0]
    return int(common if (sizes == common).mean() >= _ALIKE else sizes.max())


def _typical_bytes(reads: pd.DataFrame) -> pd.Series:
    """Bytes of the reads of each file that bring most together; where sizes vary, so that few are alike, their mean."""
    by_size = reads.groupby(["number", "result"])["result"].sum()
    typical = by_size.groupby(level=0).idxmax()
    alike = by_size.loc[typical.tolist()].to_numpy() / reads.groupby("number")["result"].sum().to_numpy()
    mean = reads.groupby("number")["result"].mean().round().astype(np.int64)
    return typical.map(lambda key: key[1]).where(alike >= _ALIKE, mean)


def _with_small_ones(job: Job, reads: pd.DataFrame, small: pd.Series) -> pd.Series:
    """Number the sample of each read: one that is not small and the small ones around it, up to the longest gap to the next.

    Between two batches, where its process was handed the next one's indices, one sample has ended, however short the gap.
    """
    gap = reads["start_ns"].shift(-1) - reads["end_ns"]
    gap = gap.where(reads["pid"].shift(-1) == reads["pid"], np.inf)
    gap = gap.where(_tasks(job, reads).diff().shift(-1).fillna(0) == 0, _BETWEEN_BATCHES_NS)
    since = (~small).cumsum()
    ends = gap[since > 0].groupby(since[since > 0]).idxmax()
    is_end = pd.Series(reads.index.isin(ends), reads.index) | (gap == np.inf)
    numbers: pd.Series = is_end.shift(fill_value=False).cumsum()
    return numbers


def _go_on(job: Job, reads: pd.DataFrame) -> pd.Series:
    """Which reads are of the sample that the one before is of: they begin where it ended, as a buffered reader's do.

    None where that proves nothing: in files that are read from front to back each sample begins where the last one ended. Samples
    that are drawn begin at the same places in every pass, and end before the next batch.
    """
    last = reads.shift(1)
    behind = (reads[["pid", "tid", "number"]] == last[["pid", "tid", "number"]]).all(axis=1)
    goes_on = behind & (reads["offset"] == last["offset"] + last["result"])
    jumps = behind & ~goes_on
    between = goes_on & (_tasks(job, reads).diff() != 0)
    passes = goes_on.groupby([reads["number"], reads["offset"]])
    share, again = passes.transform("mean"), passes.transform("size") > 1
    found = (
        goes_on.mean() >= _CONTINUING
        and jumps.sum() >= _LEAST_JUMPS
        and again.mean() > 0.5
        and share[again].between(_ASTRAY, 1 - _ASTRAY, inclusive="neither").mean() <= _ASTRAY
        and between.sum() <= _ASTRAY * goes_on.sum()
    )
    # Neighbours that are drawn one after the other by chance are still two.
    return goes_on & ~between & (share > 0.5) if found else pd.Series(False, reads.index)


def _tasks(job: Job, reads: pd.DataFrame) -> pd.Series:
    """How often the process of each read had read from a pipe before it."""
    asked = job.calls_on(job.file_ids("pipe"), schema.READ_OPS)
    asked = asked[asked["result"] > 0]
    asked_at = {pid: own.to_numpy() for pid, own in asked.groupby("pid")["start_ns"]}
    tasks = pd.Series(0, reads.index)
    for pid, own in reads[reads["pid"].isin(list(asked_at))].groupby("pid")["start_ns"]:
        tasks[own.index] = np.searchsorted(asked_at[pid], own.to_numpy())
    return tasks


def _records(
    job: Job, reads: pd.DataFrame, folder: str, names: list[str], file_bytes: NDArray[np.int64], number: NDArray[np.int64]
) -> Samples:
    """Return the records: in each file what its typical read brings, with the small reads (an index, a label) around it."""
    reads = reads[reads["result"] > 0]
    typical = _typical_bytes(reads)
    goes_on = _go_on(job, reads)
    small = reads["result"] < _SMALL * reads["number"].map(typical)
    begun = _with_small_ones(job, reads[~goes_on], small[~goes_on]) if small.any() else (~goes_on).cumsum()
    sample: pd.Series = begun.reindex(reads.index).ffill().astype(np.int64)
    small |= goes_on
    record_bytes = _typical_bytes(reads[~small]).reindex(range(len(names))).to_numpy(np.int64)
    spans = reads.groupby(sample).agg(start_ns=("start_ns", "min"), end_ns=("end_ns", "max"), busy=("duration_ns", "sum"))
    each = np.maximum(file_bytes // record_bytes, 1)
    first = np.concatenate(([0], np.cumsum(each)))
    records = reads[~small].set_index(sample[~small].rename("read"))
    of_read = records["number"].to_numpy()
    within = np.minimum(records["offset"].fillna(0).to_numpy(np.int64) // record_bytes[of_read], each[of_read] - 1)
    accesses = records[["pid"]].assign(sample=first[of_read] + within).join(spans).reset_index()
    accesses["idle_ns"] = accesses["end_ns"] - accesses["start_ns"] - accesses.pop("busy")
    is_criteo = {PurePosixPath(name).name for name in names} <= {DlrmLayout.TRAIN_NAME, DlrmLayout.TEST_NAME}
    layout: Literal["dlrm", "records"] = "dlrm" if is_criteo and not (record_bytes % DlrmLayout.SAMPLE_BYTES).any() else "records"
    ids = np.flatnonzero(number >= 0).tolist()
    opens = job.calls_on(ids, schema.OPEN_OPS)
    accesses = accesses.sort_values("start_ns", kind="stable", ignore_index=True)
    return Samples(
        folder, layout, names, file_bytes, accesses, record_bytes, first,
        keep_open=len(opens) * 2 < len(reads), reads=reads_of(reads.assign(file=reads["number"]), sample.to_numpy()),
    )  # fmt: skip
