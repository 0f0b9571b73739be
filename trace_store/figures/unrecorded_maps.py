"""Detect from a job's mmap calls that it maps its data into memory instead of reading it."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.parquet as pq

from iotwin.common.units import format_size
from iotwin.trace_store.schema import MAP_OPS

if TYPE_CHECKING:
    from iotwin.trace_store.reader import Trace


def has_data_set(path: Path) -> bool:
    """Return True if the finished trace at `path` has files of a data set. (The class Trace would import pandas.)"""
    with pq.ParquetFile(path / "files.parquet") as file:
        return any("dataset" in batch.column(0).to_pylist() for batch in file.iter_batches(columns=["kind"]))


def mapped_data_note(trace: "Trace") -> str | None:
    """Return a note that the trace lacks reads through memory maps; None if it has them or no data-set file was mapped."""
    counts = trace.manifest.counts
    if counts.get("page_fault") or not any(counts.get(op) for op in MAP_OPS):
        return None
    files = trace.files()
    data = files.loc[files["kind"] == "dataset", "file_id"].tolist()
    chosen = pc.field("op").isin(list(MAP_OPS)) & pc.field("file_id").isin(data) & (pc.field("result") > 0)
    largest: dict[int, int] = {}
    for batch in trace.events(["file_id", "requested"], where=chosen):
        for file, size in zip(batch.column("file_id").to_pylist(), batch.column("requested").to_pylist(), strict=True):
            largest[file] = max(size or 0, largest.get(file, 0))
    if not largest:
        return None
    number = f"{len(largest)} file{'s' if len(largest) > 1 else ''}"
    return (
        f"{format_size(sum(largest.values()))} of the data set ({number}) are mapped into memory, and reads through maps "
        "are not recorded; to see them, trace again with --detail data,mmap"
    )
