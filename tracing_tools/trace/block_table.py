"""The block requests of a trace, from the records of their issue and completion."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tracing_tools.trace import schema
from tracing_tools.trace.file_table import FileTable
from tracing_tools.trace.records import BLOCK
from tracing_tools.trace.sorted_records import sorted_chunks

# Bits of request.cmd_flags: enum req_op and enum req_flag_bits of include/linux/blk_types.h, which new kernels have kept.
_OP_MASK = 0xFF
_OPS = {0: "read", 1: "write", 2: "flush", 3: "discard", 5: "discard", 9: "write"}  # 5: secure erase, 9: zeroes
_FLAGS = {1 << 11: schema.BLOCK_SYNC, 1 << 12: schema.BLOCK_META, 1 << 17: schema.BLOCK_FUA, 1 << 19: schema.BLOCK_READAHEAD}
_CODE_OF_OP = np.array([schema.BLOCK_OPS.index(_OPS.get(op, "other")) for op in range(_OP_MASK + 1)], np.int16)
_ORIGINS = list(schema.BLOCK_ORIGINS)


def write_blocks(raw: Path, path: Path, files: FileTable) -> None:
    """Write the requests of the raw file `raw` as the Parquet file `path` (schema.BLOCK), in order of issue."""
    partial = path.with_name(path.name + ".partial")
    with pq.ParquetWriter(partial, schema.BLOCK, compression="zstd", write_page_checksum=True) as writer:
        for requests in sorted_chunks(raw, BLOCK, "issue_ns"):
            writer.write_table(_table(requests, files.assign_blocks(requests)))
    partial.replace(path)


def _table(requests: NDArray[np.void], file_id: NDArray[np.int32]) -> pa.Table:
    request_flags = requests["request_flags"]
    flags = np.zeros(len(requests), np.int32)
    for bit, meaning in _FLAGS.items():
        flags |= np.where(request_flags & np.uint32(bit), meaning, 0).astype(np.int32)
    device = requests["device"].astype(np.int64)
    comm, codes = np.unique(requests["comm"], return_inverse=True)
    names = pa.array([name.decode("utf-8", "backslashreplace") for name in comm.tolist()], pa.string())
    unknown = requests["comm"] == b""
    columns = {
        "queued_ns": pa.array(requests["queued_ns"], mask=requests["queued_ns"] == 0),
        "issue_ns": requests["issue_ns"],
        "duration_ns": pa.array(requests["duration_ns"], mask=requests["duration_ns"] < 0),
        "op": pa.DictionaryArray.from_arrays(_CODE_OF_OP[request_flags & _OP_MASK], list(schema.BLOCK_OPS)),
        "device": _makedev(device >> 20, device & 0xFFFFF),
        "sector": requests["sector"].astype(np.int64),
        "size_bytes": requests["size_bytes"].astype(np.int64),
        "flags": flags,
        "cgroup": requests["cgroup"].astype(np.int64),
        "origin": pa.DictionaryArray.from_arrays(requests["from_kernel"].astype(np.int16), _ORIGINS),
        "pid": pa.array(requests["pid"].astype(np.int32), mask=unknown),
        "comm": names.take(pa.array(codes, mask=unknown)),
        "file_id": pa.array(file_id, mask=file_id < 0),
    }
    return pa.table({field.name: columns[field.name] for field in schema.BLOCK}, schema=schema.BLOCK)


def _makedev(major: NDArray[np.int64], minor: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return device numbers as os.makedev gives them (glibc's encoding), for arrays."""
    return (minor & 0xFF) | (major & 0xFFF) << 8 | (minor & ~np.int64(0xFF)) << 12 | (major & ~np.int64(0xFFF)) << 32
