"""The samples of a traced data set: which files they are, and when and by whom each was read."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pyarrow import compute as pc

from tracing_tools.trace import schema
from tracing_tools.trace.errors import IotwinError
from tracing_tools.trace.reader import Trace

_PAIR = re.compile(r"(?P<case>.*)_(?P<part>[xy])\.npy")


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

    def file_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of each sample's file in `names`."""
        if self.first_record is None:
            return samples
        found: NDArray[np.int64] = np.searchsorted(self.first_record, samples, side="right") - 1
        return found

    def records(self) -> NDArray[np.int64]:
        """Return the samples in each file, by name."""
        return np.ones(len(self.names), np.int64) if self.first_record is None else np.diff(self.first_record)

    def size_bytes(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of each sample."""
        sizes = self.file_bytes if self.record_bytes is None else self.record_bytes
        return sizes[self.file_of(samples)]


def find_samples(trace: Trace) -> Samples:
    """Return the samples of the trace; IotwinError when it reads no data set."""
    files = trace.files()
    dataset = files[files["kind"] == "dataset"]
    if dataset.empty:
        raise IotwinError(
            f"{trace.path}: no data set is read in this trace, so there is nothing to emulate; is it a training job's?"
        )
    arrays = dataset["path"].str.endswith(".npy")
    if arrays.sum() * 2 <= len(dataset):
        from benchmark.fit_records import find_other_samples

        return find_other_samples(trace, files)
    dataset = dataset[arrays]
    folder = common_folder(dataset["path"].tolist())
    keys = [_sample_key(path, folder) for path in dataset["path"]]
    layout: Literal["unet3d", "npy"] = "unet3d" if _are_pairs(dataset["path"].tolist()) else "npy"
    if layout == "npy":
        keys = [str(PurePosixPath(path).relative_to(folder)) for path in dataset["path"]]
    names, sample = np.unique(keys, return_inverse=True)
    sizes = np.bincount(sample, weights=dataset["size_bytes"].fillna(0)).astype(np.int64)
    of_file = np.full(len(files), -1, np.int64)
    of_file[dataset["file_id"].to_numpy()] = sample
    accesses = accesses_of_files(trace, of_file).assign(idle_ns=0)
    return Samples(folder, layout, [str(name) for name in names], sizes, accesses)


def _are_pairs(paths: list[str]) -> bool:
    """Whether the files are images and masks of the same cases; a job that reads images alone has no use for the masks."""
    found = [_PAIR.fullmatch(path) for path in paths]
    cases: dict[str, set[str]] = {"x": set(), "y": set()}
    for match in found:
        if match:
            cases[match["part"]].add(match["case"])
    return all(found) and cases["x"] == cases["y"]


def common_folder(paths: list[str]) -> str:
    """Return the deepest directory that holds all the files at `paths`."""
    folders, counts = np.unique([str(PurePosixPath(path).parent) for path in paths], return_counts=True)
    if len(folders) == 1:
        return str(folders[0])
    common = PurePosixPath(str(folders[counts.argmax()]))
    while not all(PurePosixPath(path).is_relative_to(common) for path in paths):
        common = common.parent
    return str(common)


def _sample_key(path: str, folder: str) -> str:
    pair = _PAIR.fullmatch(path)
    return str(PurePosixPath(pair["case"] if pair else path).relative_to(folder))


def accesses_of_files(trace: Trace, sample_of_file: NDArray[np.int64]) -> pd.DataFrame:
    """Return the accesses to samples of whole files: consecutive calls of one process on one sample are one."""
    ops = [*schema.OPEN_OPS, *schema.READ_OPS, *schema.CLOSE_OPS, *schema.MAP_OPS]
    chosen = pc.field("file_id").isin(np.flatnonzero(sample_of_file >= 0).tolist()) & pc.field("op").isin(ops)
    events = trace.events_frame(columns=["start_ns", "duration_ns", "pid", "file_id", "op"], where=chosen)
    events["sample"] = sample_of_file[events["file_id"].to_numpy(np.int64)]
    events["end_ns"] = events["start_ns"] + events["duration_ns"]
    events = events.sort_values(["pid", "start_ns"], kind="stable")
    changes = (events["sample"].diff() != 0) | (events["pid"].diff() != 0)
    joined = events.groupby(changes.cumsum(), sort=False).agg(
        sample=("sample", "first"), pid=("pid", "first"), start_ns=("start_ns", "min"), end_ns=("end_ns", "max"),
        busy_ns=("duration_ns", "sum"),
    )  # fmt: skip
    joined["idle_ns"] = joined["end_ns"] - joined["start_ns"] - joined.pop("busy_ns")
    return joined.sort_values("start_ns", kind="stable").reset_index(drop=True)
