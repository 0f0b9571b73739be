"""Describe a trace in sentences, each with the numbers that support it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from iotwin.common.units import counted, format_duration, format_size
from iotwin.trace_visuals.bins import Grid
from iotwin.trace_visuals.call_columns import GROUPS, OPEN, READ, SYNC, WRITE, span_ns
from iotwin.trace_visuals.gaps import sample_gaps
from iotwin.trace_visuals.histogram import LogHistogram
from iotwin.trace_visuals.report.analysis import Analysis
from iotwin.trace_visuals.report.call_tables import LARGE_BYTES
from iotwin.trace_visuals.report.checkpoint_writes import APART, DURING, checkpoint_parts_s, concurrent_writes_ns
from iotwin.trace_visuals.report.recompute import CURVES, recompute_shares
from iotwin.trace_visuals.report.resumption import resumption
from iotwin.trace_visuals.requests import CHECKPOINT_PARTS

_SECOND = 1e9
_LONG_TAIL = 10  # a 99th percentile is reported if it exceeds the median times this
_FEW_READS = 4  # with fewer reads per open, opening costs as much as reading
_IDLE = 0.05  # storage that is in use for a smaller share of the time does not limit a job


@dataclass(frozen=True)
class Finding:
    """Sentences about one topic."""

    topic: str
    text: str


def describe(analysis: Analysis) -> list[Finding]:
    """Return the findings about one trace, the most general first. If the trace has no data on a topic, the topic is left out."""
    candidates = (
        _overview,
        _dominant,
        _waits,
        _improvements,
        _phases,
        resumption,
        _recompute,
        _reads,
        _reuse,
        _page_cache,
        _concurrency,
        _latency,
        _checkpoints,
        _concurrent_checkpoints,
        _failures,
        _gaps,
    )
    return [Finding(topic, text) for topic, text in (candidate(analysis) for candidate in candidates) if text]


def headline(analysis: Analysis, verdict: Mapping[str, Any] | None = None) -> list[str]:
    """Return the report's first sentences: bytes that the job moved, whether it waits for storage, and the rates it requires.

    If there is a `verdict` on what limits the job, its `sentence` states whether the job waits.
    """
    sentences = [moved(analysis)]
    if analysis.trace.manifest.exit_status:
        sentences.insert(0, f"The command failed with exit status {analysis.trace.manifest.exit_status}.")
    waits = verdict["sentence"] if verdict else pace(analysis)
    return sentences + [text for text in (waits, required_rates(analysis)) if text]


def moved(analysis: Analysis) -> str:
    """Return a sentence on the bytes that the job read from its data set and wrote to checkpoints, and on its duration."""
    span = analysis.survey.end_ns - analysis.survey.begin_ns
    data, saved = analysis.read_data, analysis.checkpoints
    did = []
    if len(data):
        did.append(f"read {format_size(data['read_bytes'].sum())} from {counted(len(data), 'data-set file')}")
    if len(saved):
        did.append(f"wrote {format_size(saved['written_bytes'].sum())} to {counted(len(saved), 'checkpoint file')}")
    text = f"{' and '.join(did) or 'read no data set and wrote no checkpoint'}, in {format_duration(span)}."
    return text[0].upper() + text[1:]


def pace(analysis: Analysis) -> str:
    """Return a sentence that states whether the job waits for data; an empty string if it reads nothing."""
    waiting, reading = (_share_of_training(analysis, lane) for lane in ("wait", "read"))
    if not reading:
        return ""
    if waiting <= 0:
        return f"A read is under way for {reading:.1%} of the time: no more than that could be saved by faster storage."
    share = f"{waiting:.1%} of the time"
    if waiting < _IDLE:
        return f"It hardly waits for data ({share}): storage is not what limits it."
    if reading < 0.5 * waiting:
        return f"It waits for data for {share}, but storage is idle for much of that: reduce the loaders' CPU work first."
    return f"It waits for data for {share}, and storage is busy for much of that: faster storage or more loaders should help."


def _overview(analysis: Analysis) -> tuple[str, str]:
    span = analysis.survey.end_ns - analysis.survey.begin_ns
    read, written = map(analysis.on_storage, ("read_bytes", "written_bytes"))
    text = f"{counted(analysis.survey.storage_calls, 'call')} on storage in {format_duration(span)}"
    text += f" ({analysis.survey.calls:,} calls recorded in all): {format_size(read)} read, {format_size(written)} written"
    others = int(analysis.files["moved_bytes"].sum()) - read - written
    return "The run", text + (f"; {format_size(others)} more moved through other files." if others else ".")


def _dominant(analysis: Analysis) -> tuple[str, str]:
    table = analysis.operations
    spent = {group: table.latency_ns.total(table.rows_of(group)) for group in (READ, WRITE, OPEN, SYNC)}
    total = sum(spent.values())
    if not total:
        return "", ""
    top = max(spent, key=lambda group: spent[group])
    words = {READ: "Reads", WRITE: "Writes", OPEN: "Opens", SYNC: "Syncs"}
    rest = ", ".join(f"{words[g].lower()} {spent[g] / total:.1%}" for g in spent if g != top and spent[g])
    text = f"{words[top]} take {spent[top] / total:.1%} of the time spent in storage calls"
    hint = {
        READ: "read bandwidth and read latency are what to size for",
        WRITE: "write bandwidth is what to size for",
        OPEN: "metadata latency is what to size for: fewer, larger files would help more than a faster device",
        SYNC: "the time to make writes durable is what to size for",
    }[top]
    text += f" ({rest})" if rest else ""
    used = max(_share_of_training(analysis, GROUPS[group]) for group in spent)
    if used < _IDLE:
        share = f"about {used:.1%}" if used >= 0.001 else "less than 0.1%"
        return "What dominates", f"{text}, but storage is in use for {share} of the time: it is not what limits this job."
    return "What dominates", f"{text}: {hint}."


def _waits(analysis: Analysis) -> tuple[str, str]:
    waiting, reading = (_share_of_training(analysis, lane) for lane in ("wait", "read"))
    whole = analysis.zero_ns <= analysis.survey.begin_ns
    stretch = "the run" if whole else "the time from the start of training to the end"
    text = f"A read of storage is in flight during {reading:.1%} of {stretch}"
    text += "; where it is not, faster storage cannot help."
    if waiting > 0:
        text += f" A rank is in poll, select or epoll during {waiting:.1%} of it, waiting for its loaders among other things."
    return "Where the job waits", text


def _improvements(analysis: Analysis) -> tuple[str, str]:
    """Return (title, sentences) on the rates that storage must reach, and on what slows the job.

    Possible reasons are few reads per open, slow reads and unsynced checkpoints.
    """
    text = required_rates(analysis)
    if not text:
        return "", ""
    span_s, calls = _span_s(analysis), int(analysis.lanes.calls[_lane(analysis, "read")].sum())
    opens = int(analysis.lanes.calls[_lane(analysis, "open")].sum())
    if opens and calls / opens < _FEW_READS:
        text += f" Files are opened for {calls / opens:.1f} reads each: {_rate(opens / span_s)} opens/s load the metadata server."
    latency = analysis.operations.reads_ns
    rows = [row for row in (0, 1) if latency.count(row)]
    spent, slow = latency.total(rows), latency.percentile(rows, 0.99)
    if slow > _LONG_TAIL * latency.percentile(rows, 0.5) > 0 and spent:
        text += f" One read in a hundred takes {format_duration(slow)} or more: see the table of slowest calls."
    written = analysis.checkpoints
    if len(written) and not written["syncs"].sum():
        text += " Checkpoints are never synced: what they cost the device does not show in their times."
    return "What to improve", text


def required_rates(analysis: Analysis) -> str:
    """Return a sentence on the rates of reading during training; an empty string if the job read no data in that time."""
    demand = analysis.demand
    if demand is None:
        return ""
    return (
        f"To keep this pace storage must give {format_size(demand.mean_bytes_per_s)}/s and "
        f"{_rate(demand.mean_requests_per_s)} reads/s on average over {demand.phase} ({demand.begin_s:.3g} to "
        f"{demand.end_s:.3g} s), {format_size(demand.p99_bytes_per_s)}/s at the 99th percentile, and "
        f"{format_size(demand.peak_1s_bytes_per_s)}/s and {_rate(demand.peak_1s_requests_per_s)} reads/s in the busiest second."
    )


def _span_s(analysis: Analysis) -> float:
    return (analysis.survey.end_ns - analysis.survey.begin_ns) / _SECOND


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.2g}"


def _gaps(analysis: Analysis) -> tuple[str, str]:
    parts = []
    for kind in ("cpu", "memory", "disk", "gpu"):
        samples = analysis.trace.samples(kind)
        if samples is None:
            continue
        found = sample_gaps(samples["time_ns"].to_numpy(), *span_ns(analysis.trace))
        if len(found):
            length = found[:, 1] - found[:, 0]
            longest = (found[length.argmax(), 0] - analysis.zero_ns) / _SECOND
            times = f"{format_duration(int(length.sum()))} in {len(found)} {'stretch' if len(found) == 1 else 'stretches'}"
            parts.append(f"of {kind.upper() if kind.endswith('pu') else kind} for {times}, the longest from {longest:.3g} s on")
    if not parts:
        return "", ""
    return "Gaps", f"There are no samples {'; '.join(parts)}: what the machine did then is not known."


def _phases(analysis: Analysis) -> tuple[str, str]:
    phases = analysis.phases[analysis.phases["phase"] != "step"]
    if phases.empty:
        return "Phases", "The job logged no phases, so time zero is the start of the trace."
    begin, end = analysis.survey.begin_ns, analysis.survey.end_ns
    span = end - begin
    spent = (
        (phases["end_ns"].clip(begin, end) - phases["start_ns"].clip(begin, end))
        .groupby(phases["phase"].astype(str))
        .agg(["sum", "count"])
    )
    spent = spent.sort_values("sum", ascending=False)
    parts = [f"{name} {total / span:.1%} in {count}" for name, total, count in spent.itertuples()]
    source = "by the job's own log" if analysis.trace.inferred is None else "inferred from its reads, as the job logged none"
    return "Phases", f"Share of the run's time, {source}: {', '.join(parts)}."


def _recompute(analysis: Analysis) -> tuple[str, str]:
    shares = recompute_shares(analysis.trace, Grid.covering(analysis.survey.begin_ns, analysis.survey.end_ns, 1))
    if shares is None:
        return "", ""
    spent = {name: float(shares[name].sum()) for name in CURVES}
    total = max(sum(spent.values()), 1e-12)
    base, again, search = (spent[name] / total for name in CURVES)
    text = f"Of the time spent computing under a memory budget {base:.1%} is first computing, {again:.1%} recomputing"
    return "Recomputing", f"{text} and {search:.1%} the search for what to evict."


def _reads(analysis: Analysis) -> tuple[str, str]:
    operations = analysis.operations
    rows = operations.rows_of(READ)
    counts = [operations.reads_ns.count(row) for row in (0, 1)]
    if not sum(counts):
        return "", ""
    sequential = analysis.on_storage("sequential_reads") / sum(counts)
    middle, most = operations.size_bytes.percentile(rows, 0.5), operations.size_bytes.most(rows)
    half = f"{format_size(middle)} or less" if middle else "nothing (they are at a file's end)"
    text = f"Half of the reads return {half}, the largest {format_size(most)}; "
    text += f"{sequential:.0%} of them continue where the last read of the same file ended or start a file. "
    text += f"Reads of {format_size(LARGE_BYTES)} or more are "
    moved, spent = ([histogram.total([row]) for row in (0, 1)] for histogram in (operations.reads_bytes, operations.reads_ns))
    shares = [large / max(small + large, 1) for small, large in (counts, moved, spent)]
    text += f"{shares[0]:.0%} of the calls, {shares[1]:.0%} of the bytes and {shares[2]:.0%} of the time in reads: "
    return "Request sizes", text + ("bandwidth" if shares[2] > 0.5 else "request rate (IOPS) and latency") + " matters most."


def _reuse(analysis: Analysis) -> tuple[str, str]:
    data = analysis.read_data
    footprint, read = int(data["extent_bytes"].sum()), int(data["read_bytes"].sum())
    memory = analysis.trace.manifest.host.memory_bytes
    if not footprint or not read:
        return "", ""
    text = f"{counted(len(data), 'data-set file')}, {format_size(footprint)} in all; "
    text += f"bytes read are {read / footprint:.2f} times that"
    if memory <= 0:
        return "Working set", text + "."
    if footprint < 0.8 * memory:
        fit = "It fits in memory, so later passes may have come from the page cache: these latencies need not be the device's"
    else:
        fit = "It does not fit in memory, so every pass must go to storage at least in part"
    return "Working set", f"{text}, and the machine has {format_size(memory)} of memory. {fit}."


def _page_cache(analysis: Analysis) -> tuple[str, str]:
    if analysis.block is None:
        return "", ""
    read, device = (float(analysis.block.curves[name][-1]) for name in ("read calls", "read block"))
    if not read:
        return "", ""
    text = f"Calls read {format_size(read)} of storage while block devices read {format_size(device)} for the job"
    if device > read:
        return "Page cache", f"{text}: more than was asked for, by readahead or by reads through memory maps."
    return (
        "Page cache",
        f"{text}: {1 - device / read:.0%} came from the page cache, and a faster device would not have sped that up.",
    )


def _concurrency(analysis: Analysis) -> tuple[str, str]:
    place = _lane(analysis, "read")
    busy, flight = analysis.lanes.busy[place], analysis.lanes.in_flight[place]
    if not busy.sum():
        return "", ""
    rate = analysis.lanes.size_bytes[place].sum() / (busy.sum() * analysis.lanes.grid.width / _SECOND)
    text = f"While reading, {flight.sum() / busy.sum():.1f} reads are in flight on average and get {format_size(rate)}/s together"
    window, bytes_per_s, _ = _busiest(analysis, place)
    return "Bandwidth", f"{text}; the busiest {format_duration(window)} of the run read at {format_size(bytes_per_s)}/s."


def _busiest(analysis: Analysis, lane: int) -> tuple[int, float, float]:
    """Return the length of a window in ns (about 0.1 s), and the most bytes and most calls per second in any window.

    Only calls of `lane` count. The two maxima may be in different windows.
    """
    grid = analysis.lanes.grid
    bins = max(1, round(0.1 * _SECOND / grid.width))
    starts = np.arange(0, grid.count, bins)
    sums = (np.add.reduceat(of[lane], starts) for of in (analysis.lanes.size_bytes, analysis.lanes.calls))
    moved, calls = (float(each.max()) / (bins * grid.width / _SECOND) for each in sums)
    return bins * grid.width, moved, calls


def _latency(analysis: Analysis) -> tuple[str, str]:
    latency, limit = analysis.operations.reads_ns, format_size(LARGE_BYTES)
    parts = []
    for row, which in ((0, f"Reads below {limit}"), (1, f"Reads of {limit} or more")):
        if latency.count(row):
            p50, p99 = latency.percentile([row], 0.5), latency.percentile([row], 0.99)
            tail = f", {p99 / p50:.0f} times the median" if p99 > _LONG_TAIL * p50 > 0 else ""
            times = f"median {format_duration(p50)}, 99th percentile {format_duration(p99)}{tail}"
            parts.append(f"{which}: {times}, at most {format_duration(latency.most([row]))}.")
    return "Read latency", " ".join(parts)


def _checkpoints(analysis: Analysis) -> tuple[str, str]:
    written = analysis.checkpoints
    if written.empty:
        return "", ""
    names = ("written_bytes", "writes", "write_ns", "syncs", "sync_ns")
    size, writes, write_ns, syncs, sync_ns = (int(written[name].sum()) for name in names)
    rate = format_size(size / max(write_ns + sync_ns, 1) * _SECOND)
    text = f"{counted(len(written), 'checkpoint file')}, {format_size(size)} in {counted(writes, 'write')}"
    text += f" that took {format_duration(write_ns)}"
    if syncs:
        text += f" and {counted(syncs, 'sync')} that took {format_duration(sync_ns)}"
        return "Checkpoints", f"{text}: {rate}/s while in these calls."
    return (
        "Checkpoints",
        f"{text}: {rate}/s into the page cache; none was synced, so a crash may lose a checkpoint believed written.",
    )


def _concurrent_checkpoints(analysis: Analysis) -> tuple[str, str]:
    """Return (title, sentences) on checkpoints concurrent with training: how often, and what they cost for steps and reads."""
    spans, spent = concurrent_writes_ns(analysis.trace), checkpoint_parts_s(analysis.trace)
    if not len(spans):
        return "", ""
    run_s = (analysis.survey.end_ns - analysis.survey.begin_ns) / _SECOND
    share = {name: spent.get(name, 0.0) / run_s for name in CHECKPOINT_PARTS}
    text = f"{counted(len(spans), 'checkpoint')} written concurrently with training"
    between = np.diff(spans[:, 0])
    if len(between):
        low, middle, high = (format_duration(value) for value in np.quantile(between, (0, 0.5, 1)))
        text += f", every {middle} in the median ({low} to {high})"
    text += f". Writing them took {share['persist']:.1%} of the run; training waited for them {share['stall']:.1%} of it"
    text += f" and {share['snapshot']:.1%} went into copying the state. "
    return "Concurrent checkpoints", text + _reads_during_checkpoints(analysis.reads_during_checkpoints.latency_ns)


def _reads_during_checkpoints(latency_ns: LogHistogram) -> str:
    if not latency_ns.count(DURING) or not latency_ns.count(APART):
        return "Reads fell only outside of that." if latency_ns.count(APART) else "All reads fell into that."
    during, apart = ([format_duration(latency_ns.percentile([row], share)) for share in (0.5, 0.99)] for row in (DURING, APART))
    text = f"A read took {during[0]} in the median and {during[1]} at the 99th percentile while one was written"
    return f"{text}, and {apart[0]} and {apart[1]} otherwise."


def _failures(analysis: Analysis) -> tuple[str, str]:
    table = analysis.operations.frame(analysis.ops)
    failing = table[table["storage"].astype(bool) & (table["failures"] > 0)]
    if failing.empty:
        return "", ""
    parts = [
        f"{op} {failures:,} of {calls:,}" for op, failures, calls in failing[["op", "failures", "calls"]].itertuples(index=False)
    ]
    return "Failures", f"Calls on storage that failed: {', '.join(parts)}."


def _lane(analysis: Analysis, group: str) -> int:
    return next(i for i, lane in enumerate(analysis.lane_names) if lane.group == group and lane.section in ("storage", "wait"))


def _share_of_training(analysis: Analysis, group: str) -> float:
    """Return the share (0 to 1) of the time from training's start on with a storage or waiting call of `group` in flight."""
    grid, end = analysis.lanes.grid, analysis.survey.end_ns
    first = min(max(0, (analysis.zero_ns - grid.origin) // grid.width), grid.count - 1)
    busy_ns = analysis.lanes.busy[_lane(analysis, group)][first:].sum() * grid.width
    return float(min(1.0, busy_ns / max(end - (grid.origin + first * grid.width), 1)))
