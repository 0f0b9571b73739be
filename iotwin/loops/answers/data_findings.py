"""Findings about how a job reads its data set: small requests, reopened files, metadata, cold and repeated reads."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from iotwin.common.units import format_size
from iotwin.loops.answers.finding import Change, Finding
from iotwin.loops.answers.training_view import TrainingView
from iotwin.loops.answers.verdict import HARDLY
from iotwin.trace_store.schema import FLAG_DIRECT, READ_OPS

_SMALL_BYTES = 64 << 10  # below, the cost of the call exceeds that of its bytes on most file systems
_LARGE_BYTES = 1 << 20
_MANY = 4  # calls where one would do
_PAGE = 4096
_COLD = 0.5  # share of the different bytes read that devices delivered
_NOTICEABLE = 0.1  # share of the loaders' service time, from which on a kind of call is worth a change
_METADATA = ("stat", "fstat", "newfstatat", "statx", "lstat", "getdents64", "getdents", "access", "faccessat", "faccessat2")
_SEQUENTIAL = 0.5  # share of the reads that continue where the one before ended

_FILES_SQL = (
    "select f.path, e.op, count(*) as calls, avg(e.result) as mean_bytes, sum(e.duration_ns) / 1e9 as seconds "
    "from events e join files f using (file_id) where f.kind = 'dataset' group by f.path, e.op order by calls desc limit 20"
)
_BLOCK_SQL = (
    "select b.op, count(*) as requests, sum(b.size_bytes) as bytes, avg(b.duration_ns) / 1e6 as mean_ms "
    "from block b join files f using (file_id) where f.kind = 'dataset' group by b.op"
)


class DataReads:
    """The reads of the data set during training, in figures that several findings use."""

    def __init__(self, view: TrainingView) -> None:
        calls = view.data_calls
        self.view, self.calls = view, calls
        op = calls["op"].astype(str)
        reads = calls[op.isin(READ_OPS) & (calls["result"] > 0)]
        self.reads, self.opens = reads, calls[op.str.startswith("open")]
        self.metadata = calls[op.isin(_METADATA)]
        self.service_ns = view.service_s * 1e9 * sum(len(each.taken) for each in view.training)
        ordered = reads.sort_values(["pid", "tid", "file_id", "start_ns"], kind="stable")
        key = ordered[["pid", "tid", "file_id"]].to_numpy()
        same = np.append(False, (key[1:] == key[:-1]).all(axis=1))
        ends = (ordered["offset"] + ordered["result"]).to_numpy()
        follows = same & (ordered["offset"].to_numpy() == np.append(np.nan, ends[:-1]))
        self.sequential_share = float(follows.mean()) if len(reads) else 0.0
        self.distinct_bytes = (
            int(_different(ordered["file_id"].to_numpy(), ordered["offset"].to_numpy(), ends)) if len(reads) else 0
        )
        self.cold_share = min(view.device_bytes / self.distinct_bytes, 1.0) if self.distinct_bytes else 0.0

    @property
    def is_cold(self) -> bool:
        """Return whether devices delivered most of the different bytes that training read."""
        return self.cold_share > _COLD

    def share(self, nanoseconds: float) -> float:
        """Return `nanoseconds` as a share of the loaders' service time."""
        return nanoseconds / self.service_ns if self.service_ns else 0.0


def data_findings(view: TrainingView) -> Iterator[Finding]:
    """Yield the findings about the reads of the data set, the most specific first."""
    found = DataReads(view)
    if not len(found.reads):
        return
    yield from _direct(found)
    if view.waiting_share > HARDLY:
        for kind in (_small, _reopened, _metadata, _cold, _twice):
            yield from kind(found)


def _small(found: DataReads) -> Iterator[Finding]:
    reads = found.reads
    middle, count = float(reads["result"].median()), len(reads)
    batches = sum(len(each.taken) for each in found.view.training)
    if middle < _SMALL_BYTES and found.sequential_share > _SEQUENTIAL and count > _MANY * batches:
        evidence = {
            "median_bytes": middle, "reads": count, "reads_per_batch": count / batches, "sequential_share": found.sequential_share,
            "seconds_in_reads": float(reads["duration_ns"].sum() / 1e9),
        }  # fmt: skip
        yield Finding(
            "small_reads", f"half of the {count:,} reads return {format_size(middle)} or less, {count / batches:,.0f} a batch", evidence,
            _FILES_SQL, Change(
                "request size", format_size(middle), format_size(_LARGE_BYTES), "read whole files or large buffers at once",
                (f"++workload.twin.recorded.request_bytes={_LARGE_BYTES}",),
            ),
        )  # fmt: skip


def _reopened(found: DataReads) -> Iterator[Finding]:
    opens, view = found.opens, found.view
    passes = max(len({index for index, _ in enumerate(view.training)}) // view.structure.ranks, 1)
    distinct = int(opens["file_id"].nunique())
    each = len(opens) / max(distinct * passes, 1)
    if distinct and each > _MANY:
        yield Finding(
            "reopened_files", f"each of {distinct:,} files is opened {each:,.0f} times an epoch",
            {"opens": len(opens), "files": distinct, "opens_per_file_and_epoch": each, "seconds_in_opens": float(opens["duration_ns"].sum() / 1e9)},
            _FILES_SQL,
            Change("opens of a file", f"{each:,.0f} an epoch", "once", "keep files open between samples", ("++workload.twin.recorded.keep_open=true",)),
        )  # fmt: skip


def _metadata(found: DataReads) -> Iterator[Finding]:
    calls, share = len(found.metadata), found.share(float(found.metadata["duration_ns"].sum()))
    if calls > _MANY * len(found.reads) and share > _NOTICEABLE:
        yield Finding(
            "metadata_storm", f"{calls:,} calls ask for metadata of the data set, {share:.0%} of the time of reading batches",
            {"metadata_calls": calls, "reads": len(found.reads), "share_of_service": share}, _FILES_SQL,
            Change("metadata calls", f"{calls:,}", "a list made once", "keep a list of the files and their sizes"),
        )  # fmt: skip


def _cold(found: DataReads) -> Iterator[Finding]:
    view = found.view
    share = found.share(float(found.reads["duration_ns"].sum()))
    if not found.is_cold or share < _NOTICEABLE:
        return
    evidence = {
        "device_bytes": view.device_bytes, "distinct_bytes": found.distinct_bytes, "cold_share": found.cold_share,
        "sequential_share": found.sequential_share, "share_of_service": share,
    }  # fmt: skip
    warmed = partial(Change, before="cold", overrides=(), warms=True)
    if view.device_bytes > 1.5 * found.distinct_bytes:
        yield Finding(
            "cache_too_small", f"devices read {view.device_bytes / found.distinct_bytes:.1f} times the bytes of the data set", evidence,
            _BLOCK_SQL, warmed("page cache", after=f"at least {format_size(found.distinct_bytes)}", where="memory of the machine"),
        )  # fmt: skip
    if found.sequential_share < _SEQUENTIAL and float(found.reads["result"].median()) < _LARGE_BYTES:
        yield Finding(
            "cold_random_reads", f"{found.cold_share:.0%} of the data come from the device, in reads at scattered offsets", evidence,
            _BLOCK_SQL, warmed("order of reads", after="sequential, or cached before training", where="shard or shuffle in memory; read ahead"),
        )  # fmt: skip
    yield Finding(
        "slow_storage", f"{share:.0%} of the time of reading a batch is spent in reads from the device", evidence, _BLOCK_SQL,
        warmed("storage", after="faster, or cached before training", where="iotwin size finds how fast it must be"),
    )  # fmt: skip


def _twice(found: DataReads) -> Iterator[Finding]:
    view = found.view
    epochs = max(len(view.training) // view.structure.ranks, 1)
    times = int(found.reads["result"].sum()) / max(found.distinct_bytes * epochs, 1)
    if times > 1.5:
        yield Finding(
            "read_twice", f"each byte of the data set is read {times:.1f} times an epoch", {"times_an_epoch": times}, _FILES_SQL,
            Change("reads of a byte", f"{times:.1f} an epoch", "one", "keep what several samples share"),
        )  # fmt: skip


def _direct(found: DataReads) -> Iterator[Finding]:
    direct = found.reads[(found.reads["flags"] & FLAG_DIRECT) > 0]
    unaligned = ((direct["offset"] % _PAGE != 0) | (direct["requested"] % _PAGE != 0)).sum()
    if unaligned:
        yield Finding(
            "unaligned_direct_io", f"{unaligned:,} direct reads are not aligned to {_PAGE} bytes",
            {"unaligned_reads": int(unaligned), "direct_reads": len(direct)}, _FILES_SQL,
            Change("alignment", "none", f"{_PAGE} bytes", "offsets and sizes of direct reads"),
        )  # fmt: skip


def _different(file_id: np.ndarray, begin: np.ndarray, end: np.ndarray) -> int:
    """Return how many different bytes the reads [begin, end) of files cover; reads with an unknown offset do not count."""
    known = ~np.isnan(begin)
    order = np.lexsort((begin[known], file_id[known]))
    file_id, begin, end = file_id[known][order], begin[known][order], end[known][order]
    if not len(file_id):
        return 0
    # Files follow one another on one axis, so that the running maximum of ends never reaches into the next file.
    shift = (file_id - file_id.min()) * (float(end.max()) + 1)
    reached = np.append(-1.0, np.maximum.accumulate(end + shift)[:-1])
    return int(np.maximum(end + shift - np.maximum(begin + shift, reached), 0).sum())
