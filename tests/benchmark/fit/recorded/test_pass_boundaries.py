"""Which batches of a rank form a pass."""

import math

import numpy as np
import pandas as pd
import pytest

from iotwin.benchmark.fit.logged_phases import logged_end
from iotwin.benchmark.fit.recorded.pass_boundaries import are_interruptions, pass_numbers

NO_LOG = pd.DataFrame({"start_ns": [], "end_ns": []})


def asked(
    loaders: list[int], requested: list[int], delivered: list[int], begun: list[int], read: list[float] | None = None
) -> pd.DataFrame:
    turns = pd.Series(loaders).groupby(loaders).cumcount()
    times = {"requested_ns": requested, "delivered_ns": delivered, "begun_ns": [begun[loader] for loader in loaders]}
    return pd.DataFrame({"loader": loaders, "turn": turns, **times, "read_ns": read or [math.nan] * len(loaders)})


def test_a_loader_that_is_asked_late_begins_no_pass():
    """The thread that asks loader 1 runs when loader 0 has delivered its first batch already."""
    found = asked([0, 0, 1, 1, 0, 1], [10, 11, 25, 26, 40, 50], [20, 30, 35, 45, 60, 61], begun=[0, 1])
    assert pass_numbers(found, NO_LOG).tolist() == [0] * 6


def test_a_loader_that_started_after_the_pass_began_begins_another():
    found = asked([0, 0, 1, 1], [10, 11, 35, 36], [20, 30, 45, 55], begun=[0, 33])
    assert pass_numbers(found, NO_LOG).tolist() == [0, 0, 1, 1]


def test_a_logged_evaluation_parts_the_passes_of_a_rank_that_reads_itself():
    """Training goes on after the evaluation where it stopped, and reads everything again once it has read the rest."""
    regions = [{1}, {2}, {3}, {4}, {5}, {6}, {10}, {11}, {12}, {7}, {8}, {9}, {1}, {2}, {3}]
    found = pd.DataFrame({"key": regions, "delivered_ns": range(len(regions))})
    evaluations = pd.DataFrame({"start_ns": [6], "end_ns": [8]})
    assert pass_numbers(found, evaluations).tolist() == [0] * 6 + [1] * 3 + [2] * 3 + [3] * 3


@pytest.mark.parametrize("zipped", [False, True])
def test_a_loader_of_evaluations_that_lives_on_interrupts_the_epochs_of_new_loaders(zipped):
    """Two epochs of eight batches by one loader each. Within each epoch a third loader gets a message, then delivers two batches.

    If the third loader delivers a batch for each batch of the others, it interrupts nothing.
    """
    rows = []
    for epoch in range(2):
        for batch in range(8):
            at = 1000 * epoch + 100 * batch
            rows.append((epoch, batch, at, at + 110, f"train{epoch}"))  # the rank requests a batch before it takes the one before
            if zipped:
                rows.append((2, 8 * epoch + batch, at + 20, at + 115, "held"))
            elif batch == 4:
                rows += [(2, 3 * epoch + each, at + 20 + 10 * each, at + 25 + 10 * each, "held") for each in range(2)]
    rows.sort(key=lambda row: row[2])
    loader, turn, requested, read, queue = zip(*rows, strict=True)
    found = pd.DataFrame({"loader": loader, "turn": turn, "requested_ns": requested, "queue": queue, "begun_ns": 0})
    found = found.assign(read_ns=np.array(read, float), delivered_ns=found["requested_ns"] + 2)
    expected = [not zipped and each == "held" for each in queue]
    assert are_interruptions(found, NO_LOG).tolist() == expected


@pytest.mark.parametrize("left", [0, 5])
def test_evaluations_of_a_rank_that_reads_itself_interrupt_epochs(left):
    """Evaluations of two batches after every four of ten, in three epochs, of which the last one may end early."""
    steps = [{1 + step * 3 % 10} for step in range(30 - left)]
    runs = [[*steps[at : at + 4], *([{20, 21}, {22}] if at + 4 < len(steps) else [])] for at in range(0, len(steps), 4)]
    regions = [batch for run in runs for batch in run]
    evaluates = [max(batch) >= 20 for batch in regions]
    found = pd.DataFrame({"key": regions, "delivered_ns": range(len(regions))})
    interrupting = are_interruptions(found, NO_LOG)
    assert interrupting.tolist() == evaluates
    assert pass_numbers(found[~interrupting], NO_LOG).tolist() == [step // 10 for step in range(len(steps))]
    drawn = pd.DataFrame({"key": [{number * number % 13} for number in range(40)], "delivered_ns": range(40)})
    assert not are_interruptions(drawn, NO_LOG).any()


def test_the_end_of_a_pass_is_the_next_one_that_the_job_logged():
    phases = pd.DataFrame({"phase": ["init", "epoch", "evaluation", "step"], "end_ns": [5, 20, 30, 7]})
    job = type("Logged", (), {"phases": phases})
    assert (logged_end(job, 6), logged_end(job, 20), logged_end(job, 30) > 1 << 60) == (20, 30, True)


def test_a_row_of_requests_to_idle_loaders_begins_a_pass_though_the_first_is_answered_before_the_second():
    epoch = [0, 20, *range(21, 60)]  # when the requests are made
    requested = [*epoch, *(1000 + at for at in epoch)]
    delivered = [at + 10 + 5 * row for row, at in enumerate(epoch)]
    found = asked([0] * len(requested), requested, [*delivered, *(1000 + at for at in delivered)], begun=[0])
    assert pass_numbers(found, NO_LOG).tolist() == [0] * len(epoch) + [1] * len(epoch)


@pytest.mark.parametrize(("reads_are_known", "passes"), [(True, 1), (False, 2)])
def test_requests_made_while_storage_stalls_begin_no_pass(reads_are_known, passes):
    """Two loaders and four batches under way; a batch takes a step of 50. The loaders deliver nothing from 250 to 460."""
    steps = [50 * (step + 1) for step in range(12)]  # when the rank takes each batch and requests another
    requested = [0, 1, 2, 3, *steps[:8]]
    delivered = [10, 11, 12, 13, 60, 110, 160, 210, 460, 461, 462, 463]
    stalled = [*steps[:8], 470, 520, 570, 620]
    found = asked([0, 1] * 6, requested, delivered, begun=[0, 0], read=stalled if reads_are_known else None)
    assert len(set(pass_numbers(found, NO_LOG).tolist())) == passes
