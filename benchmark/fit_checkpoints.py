"""The checkpoints of a traced job: when, which files, in what writes, how they were made safe."""

from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import pandas as pd
from pyarrow import compute as pc

from tracing_tools.trace import schema
from tracing_tools.trace.reader import Trace


@dataclass
class SeenFile:
    """One checkpoint file as it was written."""

    path: str  # its final path
    name: str
    write_sizes: list[tuple[int, int]]  # (bytes, how often in a row), in order
    fsync: bool
    renamed: bool
    serialization_s: float  # from open to close, less the time in system calls


@dataclass
class SeenCheckpoint:
    """The files written at one time."""

    epoch: int  # training epochs that had ended by then
    start_ns: int
    files: list[SeenFile]


def find_checkpoints(trace: Trace) -> list[SeenCheckpoint]:
    """Return the checkpoints in order of time."""
    files = trace.files()
    kept = files[files["kind"] == "checkpoint"]
    events = trace.events_frame(
        columns=["start_ns", "duration_ns", "op", "file_id", "result"], where=pc.field("file_id").isin(kept["file_id"].tolist())
    )
    events["end_ns"] = events["start_ns"] + events["duration_ns"]
    wrote = events[events["op"].isin(schema.WRITE_OPS) & (events["result"] > 0)]
    spans = events[events["file_id"].isin(wrote["file_id"])].groupby("file_id").agg(start_ns=("start_ns", "min"))
    grouped: dict[int, SeenCheckpoint] = {}
    phases = trace.phases()
    for file_id, span in spans.sort_values("start_ns").iterrows():
        start_ns = int(span["start_ns"])
        epoch = _epoch_at(phases, start_ns, len(grouped))
        checkpoint = grouped.setdefault(epoch, SeenCheckpoint(epoch, start_ns, []))
        row = kept.loc[kept["file_id"] == file_id].iloc[0]
        checkpoint.files.append(_seen_file(row, events[events["file_id"] == file_id]))
    return list(grouped.values())


def _epoch_at(phases: pd.DataFrame, time_ns: int, before: int) -> int:
    """Training epochs (or blocks of steps) ended by `time_ns`; without phases checkpoints are taken to follow one epoch each."""
    epochs = phases[phases["phase"] == ("epoch" if (phases["phase"] == "epoch").any() else "block")]
    return max(int((epochs["end_ns"] <= time_ns).sum()), 1) if len(epochs) else before + 1


def _seen_file(row: pd.Series, events: pd.DataFrame) -> SeenFile:
    writes = events[events["op"].isin(schema.WRITE_OPS) & (events["result"] > 0)]
    renamed = isinstance(row["renamed_to"], str)
    path = row["renamed_to"] if renamed else row["path"]
    span_ns = int(writes["end_ns"].max() - events["start_ns"].min())
    return SeenFile(
        path=path,
        name=PurePosixPath(path).name,
        write_sizes=_run_lengths(writes["result"].to_numpy()),
        fsync=bool(events["op"].isin(schema.SYNC_OPS).any()),
        renamed=renamed,
        serialization_s=max(span_ns - int(writes["duration_ns"].sum()), 0) / 1e9,
    )


def _run_lengths(sizes: np.ndarray) -> list[tuple[int, int]]:
    begins = np.flatnonzero(np.append(True, np.diff(sizes) != 0))
    counts = np.diff(np.append(begins, len(sizes)))
    return [(int(sizes[i]), int(count)) for i, count in zip(begins, counts, strict=True)]
