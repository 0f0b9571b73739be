"""Ranks that read each batch by one call, as DLRM reads rows: a larger batch is a larger read."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from iotwin.benchmark.emulator.recorded.edits.edited_recording import edit
from iotwin.benchmark.emulator.recorded.edits.requested_edits import Edits
from iotwin.benchmark.fit.fit_trace import fit
from iotwin.workload_yaml.recording import Op, TwinRecording
from tests.benchmark.made_trace import Made

BLOCK = 300_000


def reading_blocks(folder: Path, order: list[int]) -> TwinRecording:
    """A rank that reads the blocks of one file in this `order`, and computes for 20 ms on each."""
    made = Made()
    rank, data = made.process(1000, 1, "rank"), made.file("/d/rows.bin", size=24 * BLOCK)
    now = made.call(5.0, rank, "openat", data)
    for block in order:
        now = made.call(now, rank, "pread64", data, block * BLOCK, BLOCK) + 20
    made.call(now, rank, "close", data)
    recorded = fit(made.trace(folder / "t")).recording
    assert recorded is not None
    return recorded


def sizes(made: TwinRecording) -> Counter[int]:
    return Counter(made.columns["size"][made.columns["op"] == Op.READ].tolist())


@pytest.mark.parametrize("computation", [0, 2])
@pytest.mark.parametrize(("factor", "reads"), [(1, {BLOCK: 24}), (2, {2 * BLOCK: 12}), (3, {3 * BLOCK: 8})])
def test_a_batch_of_more_rows_is_one_larger_read(tmp_path, factor, reads, computation):
    recorded = reading_blocks(tmp_path, list(range(24)))
    after = edit(recorded, Edits(batch=factor, computation=computation))
    assert sizes(after) == reads
    offsets = after.columns["offset"][after.columns["op"] == Op.READ]
    assert (np.diff(offsets) == factor * BLOCK).all()


def test_reads_that_lie_apart_are_not_joined(tmp_path):
    order = [(5 * index) % 24 for index in range(24)]
    assert sizes(edit(reading_blocks(tmp_path, order), Edits(batch=2))) == {BLOCK: 24}
