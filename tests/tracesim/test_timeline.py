"""The timeline: its rows count by the square root of their share of the busy time of both traces."""

from types import SimpleNamespace

import numpy as np
import pytest

from iotwin.tracesim.busy_time import BUSY_BINS, ROWS
from iotwin.tracesim.calls import FILE_KINDS, GROUPS
from iotwin.tracesim.dimensions import DEFINITIONS
from iotwin.tracesim.phases import EVALUATION, PHASES, TRAINING

TIMELINE = next(each for each in DEFINITIONS if each.name == "timeline")


def summary(busy, duration_ns, block=True):
    """A summary with rows busy as (row, phase, first bin, last bin, share) and as many bytes read in each phase with a time."""
    rows = np.zeros((len(PHASES), len(ROWS), BUSY_BINS))
    for row, phase, first, last, share in busy:
        rows[phase, ROWS.index(row), first:last] = share
    durations, moved = np.zeros(len(PHASES)), np.zeros((len(PHASES), len(FILE_KINDS), len(GROUPS)))
    for phase, length in duration_ns.items():
        durations[phase], moved[phase, 0, 0] = length, 100.0
    return SimpleNamespace(row_shares=rows, duration_ns=durations, bytes=moved, block_bytes=np.full(1, float(block)))


def test_rows_count_by_the_square_root_of_their_share_of_busy_time():
    a = summary(
        [("READ", TRAINING, 0, 32, 1.0), ("WRITE", TRAINING, 40, 48, 0.5), ("READ", EVALUATION, 0, 64, 0.25)],
        {TRAINING: 4000.0, EVALUATION: 1000.0},
    )
    b = summary(
        [("READ", TRAINING, 16, 64, 1.0), ("WRITE", TRAINING, 0, 8, 0.5), ("READ", EVALUATION, 0, 64, 0.25)],
        {TRAINING: 2000.0, EVALUATION: 3000.0},
    )
    score = TIMELINE.score(a, b)
    busy = [
        {"READ": 32 * 4000 + 64 * 0.25 * 1000, "WRITE": 8 * 0.5 * 4000},
        {"READ": 48 * 2000 + 64 * 0.25 * 3000, "WRITE": 8 * 0.5 * 2000},
    ]
    weights = {row: np.sqrt(np.mean([each[row] / sum(each.values()) for each in busy])) for row in ("READ", "WRITE")}
    assert score.parts.keys() == weights.keys()
    assert 0 < score.parts["WRITE"] + 0.1 < score.parts["READ"] < 1
    expected = sum(weights[row] * score.parts[row] for row in weights) / sum(weights.values())
    assert score.total == pytest.approx(expected)


def test_rows_of_block_requests_count_only_where_both_traces_have_them():
    duration = {TRAINING: 1000.0}
    busy = [("READ", TRAINING, 0, 32, 1.0), ("BIOR", TRAINING, 0, 16, 1.0)]
    with_block, without = summary(busy, duration), summary(busy[:1], duration, block=False)
    assert TIMELINE.score(with_block, with_block).parts.keys() == {"READ", "BIOR"}
    assert TIMELINE.score(with_block, without).parts == {"READ": pytest.approx(1.0)}
    assert TIMELINE.score(summary([], duration), summary([], duration)) is None


def test_the_weights_of_the_dimensions_make_a_whole():
    assert sum(each.weight for each in DEFINITIONS) == pytest.approx(1.0)
