"""What a job reads before it trains: a model to start from, a state to go on from, a tokenizer, an index."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np

from benchmark.fit.look import Job
from benchmark.fit.passes import Pass
from tracing_tools.trace import schema

_LEAST_BYTES = 1 << 16  # read of a file; less are settings, scripts and headers
_MOST_READS = 20_000
_KINDS = ("dataset", "checkpoint", "other")


@dataclass
class StartUp:
    """Files read before the training, and what of each."""

    files: list[tuple[str, int]] = field(default_factory=list)  # name within the data folder, or else absolute path; bytes
    reads: list[str] = field(default_factory=list)  # of each file, as benchmark.config.listed_reads
    read_bytes: dict[str, int] = field(default_factory=dict)  # by kind of file
    opens: dict[str, int] = field(default_factory=dict)


def find_start_up(job: Job, folder: str, training: Sequence[Pass]) -> StartUp:
    """Return what processes other than loaders read before the first step, file by file in order; nothing of too many reads."""
    roles = job.roles()
    reads = job.calls_on(job.file_ids(*_KINDS), schema.READ_OPS)
    reads = reads[(reads["start_ns"] < training[0].start_ns) & (reads["result"] > 0) & (reads["pid"].map(roles) != "loader")]
    reads = reads[reads.groupby("file_id")["result"].transform("sum") >= _LEAST_BYTES]
    if len(reads) > _MOST_READS:
        return StartUp()
    found, files = StartUp(), job.files.set_index("file_id")
    seen_bytes = files["size_bytes"].fillna(0).astype(np.int64)
    for file_id, own in reads.groupby("file_id", sort=False):
        path, kind = PurePosixPath(str(files.at[file_id, "path"])), str(files.at[file_id, "kind"])
        offsets = own["offset"].fillna(own["result"].cumsum() - own["result"]).to_numpy(np.int64)
        sizes = own["result"].to_numpy(np.int64)
        number = len(found.files)
        name = str(path.relative_to(folder) if path.is_relative_to(folder) else path)
        found.files.append((name, max(int((offsets + sizes).max()), int(seen_bytes[file_id]))))
        found.reads.append(" ".join(f"{number}:{offset}+{size}" for offset, size in zip(offsets, sizes, strict=True)))
        found.read_bytes[kind] = found.read_bytes.get(kind, 0) + int(sizes.sum())
        found.opens[kind] = found.opens.get(kind, 0) + 1
    return found
