"""Files that are one sample together: an image and its mask, a recording and its transcript."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_ALWAYS = 0.9  # two files are partners if the one follows the other this share of times, and what comes before it is the other
_OFTEN = 2  # times that a file must have been followed: one order proves nothing
_MOST = 8  # files of a sample; longer rows are an order that epochs repeat
_LEAST_SAMPLES = 8  # of so many files that were found: fewer may be a short order


def find_partners(reads: pd.DataFrame, files: int) -> NDArray[np.int64] | None:
    """Return the sample of each of the `files`, a number of its own, where samples are several files; else None.

    `reads` (pid, file_id) are in order, process by process. Files of a sample are read one after the other whenever it is drawn,
    while samples come in another order each time.
    """
    changes = (reads["file_id"].diff() != 0) | (reads["pid"].diff() != 0)
    visits = reads.loc[changes, ["pid", "file_id"]]
    rows = _rows(_links(visits, files), visits["file_id"].unique().tolist())
    lengths = np.array([len(row) for row in rows])
    sizes = np.bincount(lengths[lengths <= _MOST], minlength=2)
    size = int((sizes * np.arange(len(sizes))).argmax())
    if size < 2 or sizes[size] < _LEAST_SAMPLES:
        return None
    sample = np.arange(files)
    for row in rows:  # what is read in order (an evaluation) is one long row of samples
        for begin in range(0, len(row) - size + 1, size):
            sample[row[begin : begin + size]] = min(row[begin : begin + size])
    return sample


def by_first_file(sample: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the samples (one a file) from 0 as their first files come."""
    _, first, found = np.unique(sample, return_index=True, return_inverse=True)
    numbers: NDArray[np.int64] = np.argsort(np.argsort(first))[found]
    return numbers


def _links(visits: pd.DataFrame, files: int) -> dict[int, int]:
    """The file that comes after each one that nearly always has the same one behind it, which has it before."""
    pairs = pd.DataFrame({"file": visits["file_id"], "following": visits.groupby("pid")["file_id"].shift(-1)}).dropna()
    counts = pairs.astype(np.int64).value_counts()
    first, following = (counts.index.get_level_values(name).to_numpy(np.int64) for name in ("file", "following"))
    followed, preceded = (np.bincount(side, weights=counts, minlength=files) for side in (first, following))
    linked = (counts >= _OFTEN) & (counts >= _ALWAYS * followed[first]) & (counts >= _ALWAYS * preceded[following])
    return dict(zip(first[linked].tolist(), following[linked].tolist(), strict=True))


def _rows(links: dict[int, int], order: list[int]) -> list[list[int]]:
    """The files in rows of links, each file in one; a ring begins with the file that comes first in `order`."""
    following = set(links.values())
    begins = [file for file in order if file not in following]
    rows, taken = [], set[int]()
    for begin in (*begins, *order):
        row = []
        file: int | None = begin
        while file is not None and file not in taken:
            row.append(file)
            taken.add(file)
            file = links.get(file)
        if row:
            rows.append(row)
    return rows
