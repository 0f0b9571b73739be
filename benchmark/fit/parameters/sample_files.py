"""Find the samples of a job in which each sample is one file, or a pair of .npy files, that is read whole."""

from collections import Counter
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.passes import Pass, Passes
from iotwin.benchmark.fit.recorded.files import common_folder
from iotwin.benchmark.fit.traced_job import Job
from iotwin.common.errors import IotwinError
from iotwin.trace_store import schema

# A file is read whole if at least this share of its bytes is read; at least this share of accesses must read whole files.
_WHOLE = 0.9
_PAIR = ("_x.npy", "_y.npy")  # suffixes of an image and its label in unet3d's data set


@dataclass(frozen=True)
class SampleFiles:
    """The samples, by the sorted names of their files in `folder`. Names of pairs lack the suffixes `_x.npy` and `_y.npy`."""

    folder: str
    layout: Literal["unet3d", "npy"] | None
    train: list[str]
    evaluated: list[str]
    orders: list[NDArray[np.int64]]  # for each epoch, the indices into `train` in the order of reading
    size_bytes: NDArray[np.int64]  # size of each sample in `train`
    files: list[tuple[str, int]]  # (name, bytes) of each file of the data set
    # Most common sequence of request sizes of a file, in bytes, and a 0 if a further read finds the end; empty for .npy.
    read_sizes: list[int]


def find_sample_files(job: Job, calls: pd.DataFrame, passes: Passes) -> SampleFiles:
    """Return the samples. `calls`: the labelled calls. Raises IotwinError, with the reason, if samples are not files."""
    reads = calls[(calls["batch"] >= 0) & calls["op"].isin(schema.READ_OPS)]
    accesses = reads.groupby(["batch", "file_id"], as_index=False, sort=False).agg(read=("result", "sum"))
    size = job.files.set_index("file_id")["size_bytes"].fillna(0).astype(np.int64)
    whole = accesses["read"] >= _WHOLE * accesses["file_id"].map(size)
    if not len(accesses) or whole.mean() < _WHOLE:
        raise IotwinError(
            f"{job.trace.path}: the samples are no files that are read whole, so no parameters describe them; the twin without "
            "--parameters can be edited"
        )
    paths = job.files.set_index("file_id")["path"].astype(str)
    ids = accesses["file_id"].unique().tolist()
    folder = common_folder([paths[file] for file in ids])
    names = {file: str(PurePosixPath(paths[file]).relative_to(folder)) for file in ids}
    layout = _layout(list(names.values()))
    sample = {file: _stem(name) if layout == "unet3d" else name for file, name in names.items()}
    files_of_batch = accesses["file_id"].map(sample).groupby(accesses["batch"]).nunique()
    _check_counts(job, files_of_batch, passes)
    of_all_ranks = [*passes.each, *passes.others]
    train = _members(accesses, [part for part in of_all_ranks if part.training], sample)
    index = {name: number for number, name in enumerate(train)}
    bytes_of = Counter[str]()
    for file in ids:
        bytes_of[sample[file]] += int(size[file])
    return SampleFiles(
        folder=folder,
        layout=layout,
        train=train,
        evaluated=_members(accesses, [part for part in of_all_ranks if not part.training], sample),
        orders=[np.array([index[name] for name in _in_order(accesses, part, sample)], np.int64) for part in passes.training],
        size_bytes=np.array([bytes_of[name] for name in train], np.int64),
        files=sorted((names[file], int(size[file])) for file in ids),
        read_sizes=[] if layout is not None else _typical_reads(reads),
    )


def _layout(names: list[str]) -> Literal["unet3d", "npy"] | None:
    halves = [{name.removesuffix(end) for name in names if name.endswith(end)} for end in _PAIR]
    if halves[0] == halves[1] and len(names) == 2 * len(halves[0]):
        return "unet3d"
    return "npy" if all(name.endswith(".npy") for name in names) else None


def _stem(name: str) -> str:
    return name.removesuffix(_PAIR[0]).removesuffix(_PAIR[1])


def _check_counts(job: Job, files_of_batch: pd.Series, passes: Passes) -> None:
    """Raise IotwinError if a sample consists of several files that are not a pair of an image and a label."""
    batches = np.concatenate([part.batches for part in passes.training])
    samples = np.concatenate([part.samples for part in passes.training])
    found = files_of_batch.reindex(batches).fillna(0).to_numpy()
    if ((found == samples) & (samples > 0)).mean() < _WHOLE:
        raise IotwinError(
            f"{job.trace.path}: the samples are no single files, so no parameters describe them; the twin without --parameters "
            "can be edited"
        )


def _in_order(accesses: pd.DataFrame, part: Pass, sample: dict[int, str]) -> list[str]:
    """Return the names of the samples of the pass `part`, in the order of its batches."""
    position = pd.Series(np.arange(len(part.batches)), part.batches)
    own = accesses[accesses["batch"].isin(part.batches)]
    own = own.assign(position=own["batch"].map(position)).sort_values("position", kind="stable")
    return list(dict.fromkeys(own["file_id"].map(sample)))


def _members(accesses: pd.DataFrame, passes: list[Pass], sample: dict[int, str]) -> list[str]:
    return sorted({name for part in passes for name in _in_order(accesses, part, sample)})


def _typical_reads(reads: pd.DataFrame) -> list[int]:
    """Return `read_sizes` of `SampleFiles`."""
    by_access = reads.groupby(["batch", "file_id"], sort=False)
    requests = by_access["requested"].agg(tuple)
    at_end = by_access["result"].last() == 0
    (usual, common), *_ = Counter(requests).most_common(1)
    at_once = by_access["result"].first() == by_access["result"].sum()
    if common < len(requests) / 2 and at_once.mean() > 1 / 2:  # a call for each file's own size reads the file
        return [int(by_access["requested"].first()[at_once].max()), *[0] * bool(at_end[at_once].mean() > 1 / 2)]
    past_end = bool(at_end[requests == usual].mean() > 1 / 2)
    sizes = [int(size) for size in (usual[:-1] if past_end and len(usual) > 1 else usual) if size > 0]
    while len(sizes) > 1 and sizes[-1] == sizes[-2]:  # the emulator repeats the last size
        sizes.pop()
    return [*sizes, *[0] * past_end]
