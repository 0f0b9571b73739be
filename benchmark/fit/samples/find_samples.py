"""Finding the samples of a traced data set."""

import re
from pathlib import PurePosixPath
from typing import Literal

import numpy as np

from iotwin.benchmark.fit.look import Job
from iotwin.benchmark.fit.samples.partners import find_partners
from iotwin.benchmark.fit.samples.record_samples import data_reads, find_other_samples
from iotwin.benchmark.fit.samples.samples import Samples, accesses_of_files, common_folder
from iotwin.benchmark.fit.samples.step_samples import by_steps
from iotwin.common.errors import IotwinError

_PAIR = re.compile(r"(?P<case>.*)_(?P<part>[xy])\.npy")


def find_samples(job: Job) -> Samples:
    """Return the samples of the job; IotwinError when it reads no data set."""
    files = job.files
    dataset = files[files["kind"] == "dataset"]
    if dataset.empty:
        raise IotwinError(
            f"{job.path}: no data set is read in this trace, so there is nothing to emulate; is it a training job's?"
        )
    arrays = dataset["path"].str.endswith(".npy")
    if arrays.sum() * 2 <= len(dataset):
        return by_steps(job, find_other_samples(job))
    dataset = dataset[arrays]
    folder = common_folder(dataset["path"].tolist())
    keys = [_sample_key(path, folder) for path in dataset["path"]]
    layout: Literal["unet3d", "npy"] = "unet3d" if _are_pairs(dataset["path"].tolist()) else "npy"
    if layout == "npy" and find_partners(data_reads(job), len(files)) is not None:
        return by_steps(job, find_other_samples(job))
    if layout == "npy":
        keys = [str(PurePosixPath(path).relative_to(folder)) for path in dataset["path"]]
    names, sample = np.unique(keys, return_inverse=True)
    sizes = np.bincount(sample, weights=dataset["size_bytes"].fillna(0)).astype(np.int64)
    of_file = np.full(len(files), -1, np.int64)
    of_file[dataset["file_id"].to_numpy()] = sample
    accesses = accesses_of_files(job, of_file).assign(idle_ns=0)
    samples = Samples(folder, layout, [str(name) for name in names], sizes, accesses)
    return samples if layout == "unet3d" else by_steps(job, samples)


def _are_pairs(paths: list[str]) -> bool:
    """Whether the files are images and masks of the same cases; a job that reads images alone has no use for the masks."""
    found = [_PAIR.fullmatch(path) for path in paths]
    cases: dict[str, set[str]] = {"x": set(), "y": set()}
    for match in found:
        if match:
            cases[match["part"]].add(match["case"])
    return all(found) and cases["x"] == cases["y"]


def _sample_key(path: str, folder: str) -> str:
    pair = _PAIR.fullmatch(path)
    return str(PurePosixPath(pair["case"] if pair else path).relative_to(folder))
