"""Convert the records of CUDA calls to the table of accelerator activity (schema.GPU)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from iotwin.trace_store import schema
from iotwin.trace_store.columns import column, labels
from iotwin.trace_store.raw.cuda_calls import CUDA_CALLS, NO_DIRECTION
from iotwin.trace_store.raw.records import GPU_CALL, LAST_NS

_NO_STREAM = np.uint64(2**64 - 1)
_NAMES = [call.name for call in CUDA_CALLS]
_KIND_CODES = np.array([schema.GPU_KINDS.index(call.kind) for call in CUDA_CALLS], np.int16)
_HAS_SIZE = np.array([call.size > 0 for call in CUDA_CALLS])


def gpu_table(paths: Sequence[Path], since_ns: int) -> pa.Table:
    """Return a table of the calls in the files `paths` (records.GPU_CALL) in order of start, without cut-off last records.

    Calls that began before `since_ns` are left out.
    """
    calls: NDArray[np.void] = np.concatenate(
        [np.fromfile(path, GPU_CALL, path.stat().st_size // GPU_CALL.itemsize) for path in paths]
    )
    calls = calls[_is_valid(calls) & (calls["start_ns"] >= since_ns)]
    calls = calls[np.argsort(calls["start_ns"], kind="stable")]
    function, rows = calls["function"], len(calls)
    no_direction = calls["direction"] == NO_DIRECTION
    direction = np.where(no_direction, 0, calls["direction"]).astype(np.int16)
    columns = {
        "start_ns": column(calls["start_ns"], pa.int64()),
        "duration_ns": column(calls["duration_ns"], pa.int64()),
        "kind": labels(_KIND_CODES[function], schema.GPU_KINDS),
        "device": pa.nulls(rows, pa.int32()),  # unknown, as no argument names the device
        "stream": column(calls["stream"].view(np.int64), pa.int64(), calls["stream"] == _NO_STREAM),
        "size_bytes": column(calls["size_bytes"], pa.int64(), ~_HAS_SIZE[function]),
        "direction": labels(direction, schema.COPY_DIRECTIONS, no_direction),
        "pid": column(calls["pid"], pa.int32()),
        "tid": column(calls["tid"], pa.int32()),
        "name": labels(function.astype(np.int32), _NAMES),
        "source": labels(np.zeros(rows, np.int16), ["uprobe"]),
    }
    return pa.Table.from_arrays([columns[field.name] for field in schema.GPU], schema=schema.GPU)


def _is_valid(calls: NDArray[np.void]) -> NDArray[np.bool_]:
    return np.asarray(
        (calls["function"] < len(_NAMES))
        & ((calls["direction"] < len(schema.COPY_DIRECTIONS)) | (calls["direction"] == NO_DIRECTION))
        & (calls["pid"] > 0)
        & (calls["pid"] < 1 << 31)
        & (calls["tid"] < 1 << 31)
        & (calls["start_ns"] > 0)
        & (calls["start_ns"] <= LAST_NS)
        & (calls["duration_ns"] >= 0)
        & (calls["duration_ns"] <= LAST_NS)
        & (np.abs(calls["size_bytes"].astype(np.float64)) <= LAST_NS)
    )
