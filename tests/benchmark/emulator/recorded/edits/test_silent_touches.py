"""Touches that a recording lacks, as the pages were mapped for a sample that lies next to the one that was read."""

from dataclasses import replace

import numpy as np
import pytest

from iotwin.benchmark.emulator.recorded.edits.silent_touches import with_silent_touches
from iotwin.workload_yaml.recording import LABELS, Label, Op, RecordedFile, TwinRecording
from tests.benchmark.recordings import recording, row

WINDOW, PAGE, LOADERS = 1 << 16, 1 << 12, 4


def windows(begin: int, end: int) -> range:
    return range(begin // WINDOW, -(-end // WINDOW))


def mapping_loaders(sizes: np.ndarray) -> TwinRecording:
    """Each loader maps one file of adjacent samples and reads its share of them in random order, a sample a batch."""
    ends = np.cumsum(sizes)
    order = np.random.default_rng(7).permutation(len(sizes))
    rows, batches = [], []
    for loader in range(LOADERS):
        mapped: set[int] = set()
        for at_ns, sample in enumerate(order[loader::LOADERS].tolist()):
            for window in windows(int(ends[sample] - sizes[sample]), int(ends[sample])):
                if window not in mapped:
                    given = {"offset": window * WINDOW, "size": WINDOW, "at_ns": at_ns, "think_ns": 1 + len(rows)}
                    rows.append(row(loader, Op.TOUCH, **given))
                    batches.append(sample)
                    mapped.add(window)
    made = recording(rows, [RecordedFile("data", size_bytes=int(ends[-1]))], [-1] + [0] * (LOADERS - 1), list(range(LOADERS)))
    labels = {"label": int(Label.DEALT), "batch": batches, "sample": 0}
    return replace(made, columns=made.columns | {name: np.full(len(rows), labels[name], kind) for name, kind in LABELS.items()})


@pytest.mark.parametrize("pages", [(7, 12), (5, 25), (14, 40)])
def test_as_many_touches_as_samples_have_windows(pages):
    sizes = np.random.default_rng(1).integers(*pages, 1000) * PAGE
    ends = np.cumsum(sizes)
    before = mapping_loaders(sizes)
    after = with_silent_touches(before)
    read = np.unique(before.columns["batch"])  # of the others, all windows were mapped
    every = sum(len(windows(int(ends[sample] - sizes[sample]), int(ends[sample]))) for sample in read)
    assert before.rows < 0.95 * every and abs(after.rows - every) < 0.07 * every
    of = after.columns
    assert of["think_ns"].sum() == before.columns["think_ns"].sum() and np.diff(after.starts()).sum() == after.rows
    for thread in range(LOADERS):
        own = of["thread"] == thread
        assert (np.diff(of["at_ns"][own]) >= 0).all() and set(of["offset"][own]) == set(
            before.columns["offset"][before.columns["thread"] == thread]
        )


@pytest.mark.parametrize("each", [1, 2])
def test_samples_that_share_no_window_have_all_their_touches(each):
    before = mapping_loaders(np.full(1000, each * WINDOW))
    assert with_silent_touches(before).rows == before.rows
