"""Balanced ranks: equally many samples and loaders, against a job whose ranks are alike, and waits against a naive program."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.benchmark.emulator.recorded.edits.balanced_ranks import waits_for_ranks
from iotwin.benchmark.emulator.recorded.edits.edited_recording import edit
from iotwin.benchmark.emulator.recorded.edits.requested_edits import Edits, edits_of
from iotwin.common.errors import UsageError
from iotwin.workload_yaml.recording import Op, RecordedBatches, TwinRecording
from tests.benchmark.emulator.recorded.edits.test_requested_edits import count, reads, recorded
from tests.benchmark.loader_job import LoaderJob, fit_once

ALIKE = {"ranks": 2, "files": 24, "loaders": 3}
BALANCED = Edits(ranks=2, regrouped=True, balanced=True)


def loaders_ms(made: TwinRecording) -> float:
    """Time between the calls of loaders on files."""
    on_file = np.isin(made.columns["op"], [Op.READ, Op.OPEN, Op.CLOSE]) & (made.columns["thread"] > 0)
    return float(made.columns["think_ns"][on_file].sum() / 1e6)


@pytest.mark.parametrize("slow", [{"loaders": 1}, {"decode_ms": 3}, {"loaders": 1, "decode_ms": 2}])
@pytest.mark.parametrize("batch", [1, 0.5])
def test_balanced_ranks_do_what_those_of_a_job_with_alike_ranks_do(slow, batch):
    alike = recorded(LoaderJob(**ALIKE))
    planted = recorded(LoaderJob(**ALIKE, last_rank=slow))
    for rank in range(2):
        wanted = edit(alike, BALANCED._replace(balanced=False, batch=batch), rank)
        found = edit(planted, BALANCED._replace(batch=batch), rank)
        assert reads(found) == reads(wanted)
        for op in (Op.START, Op.MEET, Op.PIPE_READ, Op.WRITE):
            assert count(found, op) == count(wanted, op)
        assert loaders_ms(found) == pytest.approx(loaders_ms(wanted), rel=0.1)


def test_a_rank_with_more_samples_shares_them():
    before = recorded(LoaderJob(**ALIKE, last_rank={"files": 16}))
    shares = [edit(before, BALANCED, rank) for rank in range(2)]
    assert abs(sum(reads(shares[0]).values()) - sum(reads(shares[1]).values())) <= 4 and count(shares[0], Op.MEET)


def batches_of(taken: list[list[int]], computed: list[list[int]]) -> RecordedBatches:
    flat = [[*each[0], *each[1]] for each in (taken, computed)]
    nothing = [0] * len(flat[0])
    return RecordedBatches([], nothing, nothing, nothing, nothing, nothing, *flat)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(1, 9)), min_size=1, max_size=30), st.booleans())
def test_a_step_of_ranks_that_meet_waits_for_the_last_one(steps, meets):
    """Each step of two ranks: their times of loading, and the computation after they have met."""
    taken, computed, now = [[], []], [[], []], [0, 0]
    for *loads, computing in steps:
        for rank, load in enumerate(loads):
            taken[rank].append(now[rank] + load)
        ends = [(max(each[-1] for each in taken) if meets else each[-1]) + computing for each in taken]
        now = ends
        for rank, end in enumerate(ends):
            computed[rank].append(end)
    n = len(steps)
    found = waits_for_ranks(batches_of(taken, computed), [np.arange(n), np.arange(n, 2 * n)])
    waits = [max(0, other - own) for own, other in zip(*taken, strict=True)]
    overtaken = sum(min(a, b) < max(c, d) for a, b, c, d in zip(*computed, *taken, strict=True))
    assert found.tolist() == (waits if overtaken <= 0.05 * n else [0] * n)
    assert not meets or not overtaken


def test_a_recording_of_one_rank_has_nothing_to_balance():
    fitted = fit_once(LoaderJob())
    fitted.config.twin.recorded.balanced_ranks = True
    with pytest.raises(UsageError, match="balanced_ranks: the recording has one rank"):
        edits_of(fitted.config, fitted.recording.header, 1)
    two = fit_once(LoaderJob(ranks=2))
    two.config.twin.recorded.balanced_ranks = True
    assert edits_of(two.config, two.recording.header, 2) == BALANCED
