"""Page cache hits: compare the bytes that calls and page faults read with the bytes that devices read."""

from typing import Any

import numpy as np
import pandas as pd

from iotwin.trace_store import schema
from iotwin.trace_store.fold import READ, Events, TraceStretch, fold
from iotwin.trace_store.reader import Trace

_BUSIEST = 10


class FileReads:
    """Sums the bytes that are read from each file, with and without direct I/O, which bypasses the page cache."""

    columns = ("op", "file_id", "flags", "result")

    def __init__(self, stretch: TraceStretch) -> None:
        self.read_bytes = np.zeros((2, stretch.decoder.files), np.int64)  # row 1: by direct I/O

    def add(self, events: Events) -> None:
        """Add a batch."""
        reads = np.flatnonzero((events.group == READ) & (events.result > 0) & (events.file_id >= 0))
        direct = ((events.column("flags")[reads] & schema.FLAG_DIRECT) != 0).astype(np.int64)
        np.add.at(self.read_bytes, (direct, events.file_id[reads]), events.result[reads])

    def later(self, other: "FileReads") -> None:
        """Add the sums of `other`."""
        self.read_bytes += other.read_bytes


def page_cache_hits(trace: Trace, reads: FileReads | None = None) -> pd.DataFrame | None:
    """Return path, kind, read_bytes, device_bytes and hit_ratio of each file that was read, in descending order of device_bytes.

    Returns None if block requests were not traced. `reads`: the reads of the trace, if already summed. `hit_ratio` is 1 -
    device_bytes / read_bytes, or 0 if readahead fetched more bytes than the job read.
    """
    requests = trace.block()
    if requests is None:
        return None
    files, (read_bytes, direct_bytes) = trace.files(), (reads or fold(trace, FileReads)).read_bytes
    fetched = requests[(requests["op"] == "read") & requests["file_id"].notna()]
    device_bytes = np.bincount(fetched["file_id"].astype(np.int64), fetched["size_bytes"], len(files))
    table = files[["path", "kind"]].assign(
        read_bytes=read_bytes, device_bytes=np.maximum(device_bytes - direct_bytes, 0).astype(np.int64)
    )
    table = table[~files["kind"].isin(("pipe", "socket", "device", "directory", "system")) & (table["read_bytes"] > 0)]
    table["hit_ratio"] = 1 - np.minimum(table["device_bytes"] / table["read_bytes"], 1)
    return table.sort_values(["device_bytes", "read_bytes"], ascending=False, kind="stable")


def summarise_page_cache(trace: Trace, reads: FileReads | None) -> dict[str, Any] | None:
    """Return the totals of `page_cache_hits` and, as `files`, its first 10 rows; None if block requests were not traced."""
    table = page_cache_hits(trace, reads)
    if table is None:
        return None
    read_bytes, device_bytes = int(table["read_bytes"].sum()), int(table["device_bytes"].sum())
    rows = table.head(_BUSIEST).astype({"kind": str})
    return {
        "read_bytes": read_bytes,
        "device_bytes": device_bytes,
        "hit_ratio": 1 - min(device_bytes / read_bytes, 1) if read_bytes else None,
        "files": rows.to_dict("records"),
    }
