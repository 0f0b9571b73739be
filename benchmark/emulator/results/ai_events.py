"""The events that DLIO logs by DFTracer: run, epochs, training, evaluations, batches, samples, computation, checkpoints."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from iotwin.benchmark.emulator.checkpoints.background import Written
from iotwin.benchmark.emulator.journal import Ints, Measured
from iotwin.benchmark.emulator.readers.open_reader import file_format
from iotwin.benchmark.emulator.results.step_table import StepColumns
from iotwin.common.files import open_whole
from iotwin.workload_yaml import Config

_LOADERS = 1  # the thread of the loaders' events
_SIDE_FILES = (".index", "/checkpoint")  # ends of the names of files that have no events, as they accompany another file


class DlioEvents(NamedTuple):
    """Events of one kind, each column of shape (events,); times are UNIX nanoseconds. `step` is None outside of steps."""

    category: str
    name: str
    start_ns: Ints
    duration_ns: Ints
    epoch: Ints
    step: Ints | None = None
    thread: int = 0


def rank_events(config: Config, measured: Measured, columns: StepColumns) -> Iterator[DlioEvents]:
    """Yield the events of one rank, kind by kind. `columns`: the rank's steps.

    All samples of a batch have their mean duration, one after the other from the start of the batch. As DLIO does, tfrecord files
    have no events of samples, and synthetic samples have none of preprocessing.
    """
    run_ns = np.array([[measured.start_s * 1e9, (measured.end_s - measured.start_s) * 1e9]]).astype(np.int64)
    yield DlioEvents("ai_root", "ai_root", run_ns[:, 0], run_ns[:, 1], np.zeros(1, np.int64))
    for kind, name in (("epoch", "train"), ("eval", "evaluate")):
        rows = [(span.start_s, span.end_s, span.epoch) for span in measured.spans if span.kind == kind]
        yield _from_seconds("pipeline", name, rows)
    yield _from_seconds("pipeline", "epoch.block", list(_whole_epochs(measured)))
    begin_ns = columns["start_ns"] + measured.wall_ahead_ns
    arrived_ns = begin_ns + columns["data_wait_ns"]
    steps = columns["epoch"], columns["step"]
    yield DlioEvents("dataloader", "fetch.iter", begin_ns, columns["data_wait_ns"], *steps)
    yield DlioEvents("compute", "compute", arrived_ns, columns["compute_ns"], *steps)
    if measured.pauses:
        pauses = np.array(measured.pauses, np.int64).reshape(-1, 2)
        yield DlioEvents(
            "compute", "compute", pauses[:, 0] + measured.wall_ahead_ns, pauses[:, 1], np.ones(len(pauses), np.int64)
        )
    if file_format(config) != "tfrecord":
        yield from _samples(columns, arrived_ns, measured.wall_ahead_ns, file_format(config) != "synthetic")
    yield _files("capture", measured.saved, measured.wall_ahead_ns)
    yield _files("restart", measured.loaded, measured.wall_ahead_ns)


def _whole_epochs(measured: Measured) -> Iterator[tuple[float, float, int]]:
    """Yield (start, end, epoch) of every epoch, including its evaluations and checkpoints."""
    for span in measured.spans:
        if span.kind == "epoch":
            yield span.start_s, max(other.end_s for other in measured.spans if other.epoch == span.epoch), span.epoch


def _from_seconds(category: str, name: str, rows: Sequence[tuple[float, float, int]]) -> DlioEvents:
    table = np.array(rows, np.float64).reshape(-1, 3)
    start_ns = (table[:, 0] * 1e9).astype(np.int64)
    return DlioEvents(category, name, start_ns, (table[:, 1] * 1e9).astype(np.int64) - start_ns, table[:, 2].astype(np.int64))


def _samples(columns: dict[str, Ints], arrived_ns: Ints, wall_ahead_ns: int, preprocessed: bool) -> Iterator[DlioEvents]:
    counts = columns["samples"]
    each_read = columns["read_ns"] // np.maximum(counts, 1)
    each_preprocess = columns["preprocess_ns"] // np.maximum(counts, 1)
    whole = each_read + each_preprocess
    known = columns["fetch_start_ns"] > 0
    begin = np.where(known, columns["fetch_start_ns"] + wall_ahead_ns, arrived_ns - whole * counts)
    of_batch = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(of_batch)) - np.repeat(np.cumsum(counts) - counts, counts)
    start_ns = begin[of_batch] + number * whole[of_batch]
    steps = columns["epoch"][of_batch], columns["step"][of_batch]
    yield DlioEvents("data", "item", start_ns, whole[of_batch], *steps, _LOADERS)
    if preprocessed:
        yield DlioEvents("data", "preprocess", start_ns + each_read[of_batch], each_preprocess[of_batch], *steps, _LOADERS)


def _files(name: str, files: Sequence[Written], wall_ahead_ns: int) -> DlioEvents:
    rows = [(file.start_ns, file.duration_ns, file.epoch) for file in files if not file.name.endswith(_SIDE_FILES)]
    table = np.array(rows, np.int64).reshape(-1, 3)
    return DlioEvents("checkpoint", name, table[:, 0] + wall_ahead_ns, table[:, 1], table[:, 2])


def write_pfw(path: Path, events: Iterable[DlioEvents], rank: int, hostname: str) -> int:
    """Write the events of one rank as DFTracer's .pfw, and return their number.

    The format (https://dftracer.readthedocs.io, LLNL) is Chrome's complete events, one a line after a bracket, with times in
    microseconds. The categories have the names that DLIO 3 logs.
    """
    written = 0
    with open_whole(path) as out:
        out.write(b"[\n")
        for group in events:
            lines = _pfw_lines(group, rank, hostname, written)
            out.write("".join(lines.to_pylist()).encode())
            written += len(lines)
        out.write(b"]\n")
    return written


def _pfw_lines(group: DlioEvents, rank: int, hostname: str, first: int) -> pa.Array:
    def text(column: Ints) -> pa.Array:
        return pa.array(column).cast(pa.string())

    steps = [] if group.step is None else [',"step":', text(group.step)]
    return pc.binary_join_element_wise(
        '{"id":', text(np.arange(first, first + len(group.start_ns))), f',"name":{json.dumps(group.name)}',
        f',"cat":{json.dumps(group.category)},"pid":{rank},"tid":{group.thread},"ts":', text(group.start_ns // 1000),
        ',"dur":', text(group.duration_ns // 1000), f',"ph":"X","args":{{"hostname":{json.dumps(hostname)},"epoch":',
        text(group.epoch), *steps, "}}\n", "",
    )  # fmt: skip
