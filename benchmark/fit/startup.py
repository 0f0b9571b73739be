"""What a job reads before it trains: a model to start from, a state to go on from, a tokenizer, an index."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np
import pandas as pd

from iotwin.benchmark.fit.look import Job
from iotwin.benchmark.fit.passes import Pass
from iotwin.trace_store import schema

_LEAST_BYTES = 1 << 16  # files of which less is read are settings, scripts and headers
_MOST_READS = 20_000
_KINDS = ("dataset", "checkpoint", "other")


@dataclass
class StartUp:
    """Files read before the training, and what of each, in order; each of `reads` from opening a file to closing it."""

    files: list[tuple[str, int]] = field(default_factory=list)  # name within the data folder, or else absolute path; bytes
    reads: list[str] = field(default_factory=list)  # as iotwin.workload_yaml.listed_reads; of a state only opened, no bytes of it
    ranks: list[int] = field(default_factory=list)  # that make each of them
    read_bytes: dict[str, int] = field(default_factory=dict)  # by kind of file
    opens: dict[str, int] = field(default_factory=dict)
    begin_ns: int | None = None  # of the first read


def find_start_up(job: Job, folder: str, passes: Sequence[Pass]) -> StartUp:
    """Return what processes other than loaders read before the first step; nothing of too many reads."""
    roles, kinds = job.roles(), job.files.set_index("file_id")["kind"].astype(str)
    calls = job.calls_on(job.file_ids(*_KINDS), [*schema.READ_OPS, *schema.OPEN_OPS])
    calls = calls[(calls["start_ns"] < passes[0].start_ns) & (calls["result"] >= 0) & (calls["pid"].map(roles) != "loader")]
    calls = calls.assign(opened=calls["op"].isin(schema.OPEN_OPS))
    calls["visit"] = calls.groupby(["pid", "file_id"])["opened"].cumsum()
    of_state = calls["file_id"].map(kinds) == "checkpoint"
    reads = calls[~calls["opened"] & (of_state | (calls["result"] > 0))]
    reads = reads[of_state[reads.index] | (reads.groupby("file_id")["result"].transform("sum") >= _LEAST_BYTES)]
    alone = calls.groupby(["pid", "file_id", "visit"])["opened"].transform("size") == 1
    looks = calls[of_state & calls["opened"] & alone & ((calls["flags"] & schema.FLAG_WRITABLE) == 0)]
    reads = pd.concat([reads, looks.assign(offset=0, result=0)]).sort_index()
    if not 0 < len(reads) <= _MOST_READS:
        return StartUp()
    found, files, numbers = StartUp(begin_ns=int(reads["start_ns"].min())), job.files.set_index("file_id"), dict[int, int]()
    seen_bytes = files["size_bytes"].fillna(0).astype(np.int64)
    ends = (reads["offset"].fillna(0) + reads["result"]).groupby(reads["file_id"]).max().astype(np.int64)
    whole = reads.groupby("file_id")["result"].sum()
    for _, own in reads.groupby(["pid", "file_id", "visit"], sort=False):
        pid, file_id = int(own["pid"].iloc[0]), int(own["file_id"].iloc[0])
        kind = str(kinds[file_id])
        if file_id not in numbers:
            numbers[file_id] = len(numbers)
            path, least = PurePosixPath(str(files.at[file_id, "path"])), int(ends[file_id])
            least = int(whole[file_id]) if own["offset"].isna().any() else least
            name = str(path.relative_to(folder) if path.is_relative_to(folder) else path)
            found.files.append((name, max(least, int(seen_bytes[file_id]))))
        offsets = own["offset"].fillna(own["result"].cumsum() - own["result"]).to_numpy(np.int64)
        sizes = own["result"].to_numpy(np.int64)
        number = numbers[file_id]
        found.reads.append(" ".join(f"{number}:{offset}+{size}" for offset, size in zip(offsets, sizes, strict=True)))
        found.ranks.append(passes[0].rank_pids.index(pid) if pid in passes[0].rank_pids else 0)
        found.read_bytes[kind] = found.read_bytes.get(kind, 0) + int(sizes.sum())
        found.opens[kind] = found.opens.get(kind, 0) + 1
    return found
