"""The table of accelerator activity (schema.GPU) from the records of calls."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tracing_tools.trace import schema
from tracing_tools.trace.cuda_calls import CUDA_CALLS, NO_DIRECTION
from tracing_tools.trace.records import GPU_CALL

_NO_STREAM = np.uint64(2**64 - 1)
_NAMES = [call.name for call in CUDA_CALLS]
_KIND_CODES = np.array([schema.GPU_KINDS.index(call.kind) for call in CUDA_CALLS], np.int16)
_HAS_SIZE = np.array([call.size > 0 for call in CUDA_CALLS])


def gpu_table(path: Path) -> pa.Table:
    """Return the calls recorded at `path` (dtype records.GPU_CALL) in order of start; a torn record at the end is left out."""
    count = path.stat().st_size // GPU_CALL.itemsize
    calls: NDArray[np.void] = np.fromfile(path, GPU_CALL, count)
    calls = calls[np.argsort(calls["start_ns"], kind="stable")]
    function, rows = calls["function"], len(calls)
    no_direction = calls["direction"] == NO_DIRECTION
    direction = np.where(no_direction, 0, calls["direction"]).astype(np.int16)
    columns = {
        "start_ns": calls["start_ns"],
        "duration_ns": calls["duration_ns"],
        "kind": pa.DictionaryArray.from_arrays(_KIND_CODES[function], list(schema.GPU_KINDS)),
        "device": pa.nulls(rows, pa.int32()),  # a call does not say on which device it works
        "stream": pa.array(calls["stream"].view(np.int64), mask=calls["stream"] == _NO_STREAM),
        "size_bytes": pa.array(calls["size_bytes"], mask=~_HAS_SIZE[function]),
        "direction": pa.DictionaryArray.from_arrays(pa.array(direction, mask=no_direction), list(schema.COPY_DIRECTIONS)),
        "pid": calls["pid"].astype(np.int32),
        "tid": calls["tid"].astype(np.int32),
        "name": pa.DictionaryArray.from_arrays(function.astype(np.int32), _NAMES),
        "source": pa.DictionaryArray.from_arrays(np.zeros(rows, np.int16), ["uprobe"]),
    }
    return pa.table({field.name: columns[field.name] for field in schema.GPU}, schema=schema.GPU)
