"""The data that a timeline draws, as a table for a paper's readers, and the traces it draws, for the picture's metadata."""

import io
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from iotwin.common.files import write_whole
from iotwin.common.untrusted_files import sha256_of
from iotwin.trace_visuals.bins import CallLanes
from iotwin.trace_visuals.call_columns import GROUPS
from iotwin.trace_visuals.requests import BLOCK_LANES
from iotwin.trace_visuals.style import PASS_COLOURS
from iotwin.trace_visuals.timeline.read_timeline import ROW_GROUPS, TraceTimeline
from iotwin.trace_visuals.timeline.rows import disk_rates, in_flight, throughput

_SECOND = 1e9
_GPU_COLUMNS = ("sm_percent", "memory_percent", "memory_used_bytes")


def write_plotted_data(blocks: Sequence[TraceTimeline], path: Path) -> None:
    """Write the data of the picture's rows to `path` (.csv): trace, row, series, begin_s, end_s, value.

    Seconds count from the zero of the time axis. Bins whose value is 0 are left out. Samples of GPUs begin and end at once.
    """
    tables = [pd.DataFrame(found).assign(trace=block.label) for block in blocks for found in _rows(block)]
    text = io.StringIO()
    columns = ["trace", "row", "series", "begin_s", "end_s", "value"]
    (pd.concat(tables)[columns] if tables else pd.DataFrame(columns=columns)).to_csv(text, index=False, lineterminator="\n")
    write_whole(path, text.getvalue().encode())


def identities(paths: Sequence[Path]) -> str:
    """Return the traces that a picture shows, as text: each path, and the SHA-256 of its manifest.json."""
    return "; ".join(f"{path.name} (manifest.json sha256 {sha256_of(path / 'manifest.json')})" for path in paths)


def _table(zero_ns: int, name: str, series: str, begin_ns: object, end_ns: object, values: object) -> dict[str, object]:
    found = np.nan_to_num(np.asarray(values, np.float64))
    begin, end = ((np.asarray(times, np.int64) - zero_ns) / _SECOND for times in (begin_ns, end_ns))
    return {
        "row": name, "series": series, "begin_s": begin[found != 0], "end_s": end[found != 0], "value": found[found != 0]
    }  # fmt: skip


def _passes(block: TraceTimeline) -> Iterator[tuple[int, str, pd.DataFrame]]:
    """Yield (rank, kind, passes) of each rank of a pipeline. The value of a row is the minibatch plus 1."""
    for rank, own in zip(block.passes.ranks, block.passes.passes, strict=True) if block.passes else ():
        for kind in PASS_COLOURS:
            yield rank, kind, own[own["kind"] == kind]


def _curves(block: TraceTimeline) -> Iterator[tuple[str, str, object]]:
    """Yield (row, series, values) of the rows with a value in each bin, except those of `CallLanes`."""
    for name, rates in (("in flight", in_flight(block)), ("bytes per second", throughput(block))):
        yield from ((name, each, values) for each, values in rates.items())
    for name, shares in (("recompute", block.recompute), ("tensors, share of budget", block.tensors and block.tensors[1])):
        if shares is not None:
            yield from ((name, str(each), shares[each]) for each in shares.columns.drop("time_ns"))


def _rows(block: TraceTimeline) -> Iterator[dict[str, object]]:
    zero_ns = block.window.zero_ns

    row = partial(_table, zero_ns)
    for rank, kind, own in _passes(block):
        yield row(f"rank {rank}", kind, own["start_ns"], own["start_ns"] + own["duration_ns"], own["step"] + 1)
    for name, own in block.phases.groupby("phase", observed=True):
        yield row("phases", str(name), own["start_ns"], own["end_ns"], np.ones(len(own)))
    yield from (row("phases", moment.what, [moment.time_ns], [moment.time_ns], [1.0]) for moment in block.moments)
    edges = block.lanes.grid.edges()
    titles = [f"{title} {GROUPS[group]}".strip() for title in block.groups.titles for group in ROW_GROUPS]
    lanes: list[tuple[str, Sequence[str], CallLanes | None]] = [
        ("calls", titles, block.lanes), ("block requests", list(map(str, BLOCK_LANES)), block.block),
        ("device", block.device_names, block.device), ("parts", block.part_names, block.parts),
    ]  # fmt: skip
    for name, series, found in lanes:
        for index, each in enumerate(series if found is not None else ()):
            assert found is not None  # noqa: S101
            own_edges = found.grid.edges()
            yield row(f"{name}: calls that start", each, own_edges[:-1], own_edges[1:], found.calls[index])
            yield row(f"{name}: share of time", each, own_edges[:-1], own_edges[1:], found.busy[index])
    for name, each, values in _curves(block):
        yield row(name, each, edges[:-1], edges[1:], values)
    if (disk := disk_rates(block)) is not None:
        for each, values in disk[1].items():
            yield row("disk bytes per second", each, disk[0][:-1], disk[0][1:], values)
    if block.gpu is not None:
        for device, own in block.gpu.groupby("device", observed=True):
            for column in _GPU_COLUMNS:
                yield row(f"GPU {column}", str(device), own["time_ns"], own["time_ns"], own[column])
