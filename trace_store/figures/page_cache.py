"""Page cache hits: compare the bytes that calls and page faults read with the bytes that devices read."""

from typing import Any

import numpy as np
import pandas as pd
from pyarrow import compute as pc

from iotwin.trace_store import schema
from iotwin.trace_store.reader import Trace

_BUSIEST = 10


def page_cache_hits(trace: Trace) -> pd.DataFrame | None:
    """Return path, kind, read_bytes, device_bytes and hit_ratio of each file that was read, in descending order of device_bytes.

    Returns None if block requests were not traced. Direct I/O, which bypasses the page cache, is not counted. `hit_ratio` is 1 -
    device_bytes / read_bytes, or 0 if readahead fetched more bytes than the job read.
    """
    requests = trace.block()
    if requests is None:
        return None
    files = trace.files()
    read_bytes, direct_bytes = np.zeros(len(files)), np.zeros(len(files))
    moves = pc.field("op").isin(schema.READ_OPS) & (pc.field("result") > 0) & pc.field("file_id").is_valid()
    for batch in trace.events(columns=["file_id", "flags", "result"], where=moves):
        file_id, flags, result = (np.asarray(column) for column in batch.columns)
        direct = (flags & schema.FLAG_DIRECT) != 0
        read_bytes += np.bincount(file_id[~direct], result[~direct], len(files))
        direct_bytes += np.bincount(file_id[direct], result[direct], len(files))
    fetched = requests[(requests["op"] == "read") & requests["file_id"].notna()]
    device_bytes = np.bincount(fetched["file_id"].astype(np.int64), fetched["size_bytes"], len(files))
    table = files[["path", "kind"]].assign(
        read_bytes=read_bytes.astype(np.int64), device_bytes=np.maximum(device_bytes - direct_bytes, 0).astype(np.int64)
    )
    table = table[~files["kind"].isin(("pipe", "socket", "device", "directory", "system")) & (table["read_bytes"] > 0)]
    table["hit_ratio"] = 1 - np.minimum(table["device_bytes"] / table["read_bytes"], 1)
    return table.sort_values(["device_bytes", "read_bytes"], ascending=False, kind="stable")


def summarise_page_cache(trace: Trace) -> dict[str, Any] | None:
    """Return the totals of `page_cache_hits` and, as `files`, its first 10 rows; None if block requests were not traced."""
    table = page_cache_hits(trace)
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
