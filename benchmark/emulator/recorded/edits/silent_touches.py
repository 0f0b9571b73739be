"""Pages of samples that caused no page fault, since the loader had mapped them for a neighbouring sample.

A page fault maps a window of pages. Two neighbouring samples in a file may share a window. Then only the sample that a loader
reads first causes a fault. If samples are dealt anew, another loader may read the other one, and must then fault there, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from iotwin.workload_yaml.recording import Label, Op, TwinRecording

if TYPE_CHECKING:
    import pandas as pd

_FEWEST = 12  # least number of runs with known windows that show how many windows a run has
_SIGNIFICANT = 2  # a difference counts if it is at least this many standard errors
_WINDOW = ["process", "file", "offset"]


def with_silent_touches(recording: TwinRecording) -> TwinRecording:
    """Return the labelled recording with touches of windows that its samples probably read without a fault.

    Such a window was touched by the same process before, and borders on a run of windows that a sample touched. If these runs
    are shorter than other runs of the file, samples share windows. A touch of a mapped window causes no fault.
    """
    columns = recording.columns
    rows = np.flatnonzero((columns["op"] == Op.TOUCH) & (columns["label"] == Label.DEALT) & (columns["size"] > 0))
    if not len(rows):
        return recording
    import pandas as pd  # takes most of a second in each rank

    touches = pd.DataFrame({
        "row": rows, "process": np.array(recording.header.threads)[columns["thread"][rows]], "file": columns["subject"][rows],
        "offset": columns["offset"][rows], "size": columns["size"][rows], "batch": columns["batch"][rows],
    })  # fmt: skip
    runs = _runs(touches)
    edges = _mapped_edges(runs, touches)
    chosen = [_chosen(own, edges[edges["file"] == file]) for file, own in runs.groupby("file")]
    return _with_rows(recording, pd.concat(chosen).sort_values(["row", "like"]))


def _runs(touches: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of windows that follow one another in a file, each touched for one batch.

    Columns: `process`, `file`, `count` of its windows, `size` of the first one, `first` and `last` (rows), `begin` and `end`.
    """
    touches = touches.assign(end=touches["offset"] + touches["size"])
    goes_on = touches["offset"] == touches["end"].shift()
    for column in ("process", "file", "batch"):
        goes_on &= touches[column] == touches[column].shift()
    runs: pd.DataFrame = touches.groupby((~goes_on).cumsum()).agg(
        process=("process", "first"), file=("file", "first"), count=("row", "size"), size=("size", "first"),
        first=("row", "first"), last=("row", "last"), begin=("offset", "first"), end=("end", "last"),
    )  # fmt: skip
    return runs


def _mapped_edges(runs: pd.DataFrame, touches: pd.DataFrame) -> pd.DataFrame:
    """Return the windows next to runs that their process had touched before.

    Columns: `run`: the label of the run's row in `runs`; `file`; `offset`; `row`: the row of the recording before which the touch
    belongs; `like`: the row of the neighbouring touch.
    """
    import pandas as pd

    first = touches.drop_duplicates(_WINDOW)[[*_WINDOW, "row"]].rename(columns={"row": "touched"})
    places = [
        runs.assign(run=runs.index, offset=runs["begin"] - runs["size"], row=runs["first"], like=runs["first"]),
        runs.assign(run=runs.index, offset=runs["end"], row=runs["last"] + 1, like=runs["last"]),
    ]
    edges = pd.concat(places).merge(first, on=_WINDOW)
    edges = edges[edges["touched"] < edges["first"]].sort_values(["row", "like"])
    return edges[["run", "file", "offset", "row", "like"]]


def _chosen(runs: pd.DataFrame, edges: pd.DataFrame) -> pd.DataFrame:
    """Return evenly chosen `edges` of a file: as many as there are samples that probably extend into them.

    Returns None if the runs there are not shorter than others.

    A sample as long as a window begins in the window before its first fault as often as in the window of that fault. A shorter
    sample begins there less often, in proportion to its length.
    """
    has_edge = runs.index.isin(edges["run"])
    counts = runs["count"].to_numpy(np.float64)
    whole, cut = counts[~has_edge], counts[has_edge]
    if min(len(whole), len(cut)) < _FEWEST:
        return edges[:0]
    error = np.sqrt(whole.var(ddof=1) / len(whole) + cut.var(ddof=1) / len(cut))
    if whole.mean() - cut.mean() <= _SIGNIFICANT * error:
        return edges[:0]
    length = min(float(whole.mean()) - 1, 1.0)  # a sample touches one window more than its length in windows, on average
    steps = np.floor(length / (1 + length) * np.arange(len(edges) + 1))
    chosen: pd.DataFrame = edges[np.diff(steps) > 0]
    return chosen


def _with_rows(recording: TwinRecording, edges: pd.DataFrame) -> TwinRecording:
    """Return the recording with a touch of each window of `edges`, at the time of the touch that it is next to."""
    at, like = (edges[name].to_numpy(np.int64) for name in ("row", "like"))
    made = {name: values[like] for name, values in recording.columns.items()}
    made["offset"] = edges["offset"].to_numpy(np.int64)
    thinks = recording.columns["think_ns"].copy()
    thinks[at[at == like]] = 0  # the touch that now comes before has the time of thinking
    made["think_ns"] = np.where(at == like, made["think_ns"], 0)
    columns = recording.columns | {"think_ns": thinks}
    return replace(recording, columns={name: np.insert(values, at, made[name]) for name, values in columns.items()})
