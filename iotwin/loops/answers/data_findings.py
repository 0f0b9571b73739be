"""Findings about how a job reads its data set: small requests, reopened files, metadata, cold and repeated reads."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from iotwin.common.units import format_size
from iotwin.loops.answers.finding import JobChange, JobFinding
from iotwin.loops.answers.training_view import HARDLY, OF_CALL_NS, TrainingView
from iotwin.trace_store.figures.distinct_bytes import distinct_bytes
from iotwin.trace_store.schema import FLAG_DIRECT, READ_OPS

_SMALL_BYTES = 64 << 10  # a smaller read takes more time for the call than for its bytes, on most file systems
_LARGE_BYTES = 1 << 20
_MANY = 4  # so many calls that a single call could replace
_PAGE = 4096
_COLD = 0.5  # least share of the different bytes read that devices delivered
_NOTICEABLE = 0.1  # a kind of call is worth a change if it takes at least this share of the loaders' service time
_METADATA = ("stat", "fstat", "newfstatat", "statx", "lstat", "getdents64", "getdents", "access", "faccessat", "faccessat2")
_AGAIN = 1.5  # data count as read again if each byte is read at least this many times
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
        self.view = view
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
        self.distinct_bytes = distinct_bytes(reads)
        self.cold_share = min(view.device_bytes / self.distinct_bytes, 1.0) if self.distinct_bytes else 0.0

    @property
    def is_cold(self) -> bool:
        """Return whether devices, not the page cache, delivered most of the bytes that training read, each counted once."""
        return self.cold_share > _COLD

    @property
    def thinking_ns(self) -> float:
        """Return the loaders' service time in ns, without the calls that a twin makes: those on the data set except metadata."""
        return self.service_ns - float(self.view.data_calls["duration_ns"].sum() - self.metadata["duration_ns"].sum())

    @property
    def metadata_ns(self) -> float:
        """Return the ns of calls for metadata. To each call, the time until its thread's next call is added, up to OF_CALL_NS."""
        calls = self.view.data_calls
        spent = calls["duration_ns"].to_numpy() + self.view.gaps_ns.clip(max=OF_CALL_NS)
        return float(spent[calls["op"].astype(str).isin(_METADATA)].sum())

    def share(self, nanoseconds: float) -> float:
        """Return `nanoseconds` as a share of the loaders' service time."""
        return nanoseconds / self.service_ns if self.service_ns else 0.0


def data_findings(view: TrainingView) -> Iterator[JobFinding]:
    """Yield the findings about the reads of the data set, the most specific first."""
    found = DataReads(view)
    if not len(found.reads):
        return
    yield from _direct(found)
    if view.waiting_share > HARDLY:
        for kind in (_small, _reopened, _metadata, _cold, _twice):
            yield from kind(found)


def _small(found: DataReads) -> Iterator[JobFinding]:
    reads = found.reads
    middle, count = float(reads["result"].median()), len(reads)
    each = count / sum(len(one.taken) for one in found.view.training)
    if middle >= _SMALL_BYTES or found.sequential_share <= _SEQUENTIAL or each <= _MANY:
        return
    evidence = {
        "median_bytes": middle, "reads": count, "reads_per_batch": each, "sequential_share": found.sequential_share,
        "seconds_in_reads": float(reads["duration_ns"].sum() / 1e9),
    }  # fmt: skip
    overrides = (f"++workload.reader.transfer_size={_LARGE_BYTES}",)
    where = "read whole files, or through a large buffer"
    sentence = f"half of the {count:,} reads return {format_size(middle)} or less, {each:,.0f} reads a batch"
    change = JobChange("request size", format_size(middle), format_size(_LARGE_BYTES), where, overrides)
    yield JobFinding("small_reads", sentence, evidence, _FILES_SQL, change)


def _reopened(found: DataReads) -> Iterator[JobFinding]:
    opens, view = found.opens, found.view
    distinct = int(opens["file_id"].nunique())
    each = len(opens) / max(distinct * epochs_of(view), 1)
    if distinct and each > _MANY:
        seconds = float(opens["duration_ns"].sum() / 1e9)
        evidence = {"opens": len(opens), "files": distinct, "opens_per_file_and_epoch": each, "seconds_in_opens": seconds}
        overrides = ("++workload.reader.read_type=kept_open",)
        change = JobChange("opens of a file", f"{each:,.0f} an epoch", "once", "keep files open between samples", overrides)
        sentence = f"each of {distinct:,} files is opened {each:,.0f} times an epoch"
        yield JobFinding("reopened_files", sentence, evidence, _FILES_SQL, change)


def _metadata(found: DataReads) -> Iterator[JobFinding]:
    calls, share = len(found.metadata), found.share(float(found.metadata["duration_ns"].sum()))
    if calls > _MANY * len(found.reads) and share > _NOTICEABLE:
        evidence = {"metadata_calls": calls, "reads": len(found.reads), "share_of_service": share}
        scale = max(1 - found.metadata_ns / max(found.thinking_ns, 1), 0)
        overrides = (f"++workload.twin.recorded.decode_scale={scale:.4f}",)
        change = JobChange("metadata calls", f"{calls:,}", "a list made once", "a list of the files and their sizes", overrides)
        sentence = f"{calls:,} calls ask for metadata of the data set, {share:.0%} of the time of reading batches"
        yield JobFinding("metadata_storm", sentence, evidence, _FILES_SQL, change)


def _cold(found: DataReads) -> Iterator[JobFinding]:
    view, share = found.view, found.share(float(found.reads["duration_ns"].sum()))
    if not found.is_cold or share < _NOTICEABLE:
        return
    evidence = {
        "device_bytes": view.device_bytes, "distinct_bytes": found.distinct_bytes, "cold_share": found.cold_share,
        "sequential_share": found.sequential_share, "share_of_service": share,
    }  # fmt: skip
    finding = partial(JobFinding, evidence=evidence, sql=_BLOCK_SQL)
    warmed = partial(JobChange, before="cold", warms=True)
    times = view.device_bytes / found.distinct_bytes
    if times > _AGAIN:
        change = warmed("page cache", after=f"at least {format_size(found.distinct_bytes)}", where="memory of the machine")
        yield finding("cache_too_small", f"devices read {times:.1f} times the bytes of the data set", change=change)
    if found.sequential_share < _SEQUENTIAL and float(found.reads["result"].median()) < _LARGE_BYTES:
        after = "sequential, or cached before training"
        change = warmed("order of reads", after=after, where="shuffle in memory, larger records, or read ahead")
        sentence = f"{found.cold_share:.0%} of the data come from the device, in reads at scattered offsets"
        yield finding("cold_random_reads", sentence, change=change)
    change = warmed(
        "storage", after="faster, or cached before training", where="iotwin twin respond runs the twin on slower storage"
    )
    yield finding("slow_storage", f"{share:.0%} of the time of reading a batch is spent in reads from the device", change=change)


def _twice(found: DataReads) -> Iterator[JobFinding]:
    times = int(found.reads["result"].sum()) / max(found.distinct_bytes * epochs_of(found.view), 1)
    if times > _AGAIN:
        once = ("++workload.reader.read_type=memory",)
        change = JobChange("reads of a byte", f"{times:.1f} an epoch", "one", "keep what several samples share", once)
        sentence = f"each byte of the data set is read {times:.1f} times an epoch"
        yield JobFinding("read_twice", sentence, {"times_an_epoch": times}, _FILES_SQL, change)


def _direct(found: DataReads) -> Iterator[JobFinding]:
    direct = found.reads[(found.reads["flags"] & FLAG_DIRECT) > 0]
    unaligned = int(((direct["offset"] % _PAGE != 0) | (direct["requested"] % _PAGE != 0)).sum())
    if unaligned:
        evidence = {"unaligned_reads": unaligned, "direct_reads": len(direct)}
        change = JobChange("alignment", "none", f"{_PAGE} bytes", "offsets and sizes of direct reads")
        sentence = f"{unaligned:,} direct reads are not aligned to {_PAGE} bytes"
        yield JobFinding("unaligned_direct_io", sentence, evidence, _FILES_SQL, change)


def epochs_of(view: TrainingView) -> int:
    """Return the number of training passes of a rank."""
    return max(len(view.training) // max(view.structure.ranks, 1), 1)
