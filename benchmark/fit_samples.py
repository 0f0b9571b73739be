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
    """The samples by index, sorted by name, and every access to one."""

    folder: str
    layout: Literal["unet3d", "npy"]
    names: list[str]  # within folder; of a unet3d pair the part before _x.npy
    size_bytes: NDArray[np.int64]  # all files of the sample
    accesses: pd.DataFrame  # sample, pid, start_ns, end_ns: one row per time a process went through a sample, in order of start


def find_samples(trace: Trace) -> Samples:
    """Return the samples of the trace; IotwinError when it reads no data set, or one of a layout that no reader here has."""
    files = trace.files()
    dataset = files[files["kind"] == "dataset"]
    if dataset.empty:
        raise IotwinError(
            f"{trace.path}: no data set is read in this trace, so there is nothing to emulate; is it a training job's?"
        )
    unknown = [path for path in dataset["path"] if not path.endswith(".npy")]
    if len(unknown) * 2 > len(dataset):
        raise IotwinError(
            f"{trace.path}: the data set is not of .npy files (for example {unknown[0]}), which is all that fit knows so far"
        )
    dataset = dataset[dataset["path"].str.endswith(".npy")]
    folder = _common_folder(dataset["path"].tolist())
    keys = [_sample_key(path, folder) for path in dataset["path"]]
    layout: Literal["unet3d", "npy"] = "unet3d" if _are_pairs(dataset["path"].tolist()) else "npy"
    if layout == "npy":
        keys = [str(PurePosixPath(path).relative_to(folder)) for path in dataset["path"]]
    names, sample = np.unique(keys, return_inverse=True)
    sizes = np.bincount(sample, weights=dataset["size_bytes"].fillna(0)).astype(np.int64)
    of_file = np.full(len(files), -1, np.int64)
    of_file[dataset["file_id"].to_numpy()] = sample
    return Samples(folder, layout, [str(name) for name in names], sizes, _accesses(trace, of_file))


def _are_pairs(paths: list[str]) -> bool:
    """Whether the files are images and masks of the same cases; a job that reads images alone has no use for the masks."""
    found = [_PAIR.fullmatch(path) for path in paths]
    cases: dict[str, set[str]] = {"x": set(), "y": set()}
    for match in found:
        if match:
            cases[match["part"]].add(match["case"])
    return all(found) and cases["x"] == cases["y"]


def _common_folder(paths: list[str]) -> str:
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


def _accesses(trace: Trace, sample_of_file: NDArray[np.int64]) -> pd.DataFrame:
    """Join consecutive calls of one process on one sample into one access."""
    ops = [*schema.OPEN_OPS, *schema.READ_OPS, *schema.CLOSE_OPS, *schema.MAP_OPS]
    chosen = pc.field("file_id").isin(np.flatnonzero(sample_of_file >= 0).tolist()) & pc.field("op").isin(ops)
    events = trace.events_frame(columns=["start_ns", "duration_ns", "pid", "file_id", "op"], where=chosen)
    events["sample"] = sample_of_file[events["file_id"].to_numpy(np.int64)]
    events["end_ns"] = events["start_ns"] + events["duration_ns"]
    events = events.sort_values(["pid", "start_ns"], kind="stable")
    changes = (events["sample"].diff() != 0) | (events["pid"].diff() != 0)
    joined = events.groupby(changes.cumsum(), sort=False).agg(
        sample=("sample", "first"), pid=("pid", "first"), start_ns=("start_ns", "min"), end_ns=("end_ns", "max")
    )
    return joined.sort_values("start_ns", kind="stable").reset_index(drop=True)
