"""Convert the records of block requests to the table schema.BLOCK."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from iotwin.common.files import open_whole
from iotwin.trace_store import schema
from iotwin.trace_store.columns import column, labels, texts
from iotwin.trace_store.raw.file_table import FileTable
from iotwin.trace_store.raw.records import BLOCK, LAST_NS
from iotwin.trace_store.raw.sorted_records import sorted_chunks

# Bits of request.cmd_flags, the same in all kernels: enum req_op and enum req_flag_bits of include/linux/blk_types.h.
_OP_MASK = 0xFF
_OPS = {0: "read", 1: "write", 2: "flush", 3: "discard", 5: "discard", 9: "write"}  # 5 is secure erase, 9 writes zeroes
FLAG_OF_BIT = {
    1 << 11: schema.BLOCK_SYNC,
    1 << 12: schema.BLOCK_META,
    1 << 17: schema.BLOCK_FUA,
    1 << 19: schema.BLOCK_READAHEAD,
}
_CODE_OF_OP = np.array([schema.BLOCK_OPS.index(_OPS.get(op, "other")) for op in range(_OP_MASK + 1)], np.int16)


def write_blocks(raw: Sequence[Path], path: Path, files: FileTable, since_ns: int) -> None:
    """Convert the records in the files `raw` to the Parquet file `path` (schema.BLOCK), in order of issue.

    Requests that were issued before `since_ns` are left out.
    """
    with (
        open_whole(path, below=path.parent) as file,
        pq.ParquetWriter(file, schema.BLOCK, compression="zstd", write_page_checksum=True) as writer,
    ):
        for records in sorted_chunks(raw, BLOCK, "issue_ns"):
            requests = records[_is_valid(records) & (records["issue_ns"] >= since_ns)]
            writer.write_table(_table(requests, files.assign_blocks(requests)))


def _is_valid(requests: NDArray[np.void]) -> NDArray[np.bool_]:
    times = (np.abs(requests[name].astype(np.float64)) <= LAST_NS for name in ("queued_ns", "issue_ns", "duration_ns"))
    return np.asarray(
        np.logical_and.reduce([*times])
        & (requests["issue_ns"] > 0)
        & (requests["from_kernel"] <= 1)
        & (requests["pid"] < 1 << 31)
        & (requests["sector"] <= LAST_NS)
        & (requests["cgroup"] < 1 << 63)
        & (requests["inode"] < 1 << 63)
    )


def _table(requests: NDArray[np.void], file_id: NDArray[np.int32]) -> pa.Table:
    request_flags = requests["request_flags"]
    flags = np.zeros(len(requests), np.int32)
    for bit, meaning in FLAG_OF_BIT.items():
        flags |= np.where(request_flags & np.uint32(bit), meaning, 0).astype(np.int32)
    device = requests["device"].astype(np.int64)
    major, minor = device >> 20, device & 0xFFFFF
    # The encoding of os.makedev (glibc's), which takes no arrays.
    device = (minor & 0xFF) | (major & 0xFFF) << 8 | (minor & ~np.int64(0xFF)) << 12 | (major & ~np.int64(0xFFF)) << 32
    comm, codes = np.unique(requests["comm"], return_inverse=True)
    names = texts([name.decode("utf-8", "backslashreplace") for name in comm.tolist()])
    unknown = requests["comm"] == b""
    columns = {
        "queued_ns": column(requests["queued_ns"], pa.int64(), requests["queued_ns"] == 0),
        "issue_ns": column(requests["issue_ns"], pa.int64()),
        "duration_ns": column(requests["duration_ns"], pa.int64(), requests["duration_ns"] < 0),
        "op": labels(_CODE_OF_OP[request_flags & _OP_MASK], schema.BLOCK_OPS),
        "device": column(device, pa.int64()),
        "sector": column(requests["sector"], pa.int64()),
        "size_bytes": column(requests["size_bytes"].astype(np.int64), pa.int64()),
        "flags": column(flags, pa.int32()),
        "cgroup": column(requests["cgroup"], pa.int64()),
        "origin": labels(requests["from_kernel"].astype(np.int16), schema.BLOCK_ORIGINS),
        "pid": column(requests["pid"], pa.int32(), unknown),
        "comm": names.take(column(codes.astype(np.int32), pa.int32(), unknown)),
        "file_id": column(file_id, pa.int32(), file_id < 0),
    }
    return pa.Table.from_arrays([columns[field.name] for field in schema.BLOCK], schema=schema.BLOCK)
