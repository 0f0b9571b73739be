import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.tracesim.phases import CHECKPOINT, EVALUATION, PHASES, STARTUP, TRAINING, occurrences, phases_of


def table(*rows):
    names = ["phase", "start_ns", "end_ns", "rank"]
    return pd.DataFrame(rows, columns=names)


def phase_at(found, *times):
    return [PHASES[p] for p in found.phase[found.at(np.array(times))]]


def test_evaluation_inside_an_epoch_takes_precedence_and_gaps_belong_to_what_came_before():
    found = occurrences(phases_of(table(("epoch", 100, 200, 0), ("evaluation", 140, 160, 0), ("checkpoint", 210, 220, 0))))
    assert phase_at(found, 0, 99, 100, 150, 160, 199, 205, 210, 500) == [
        "startup", "startup", "training", "evaluation", "training", "training", "training", "checkpoint", "checkpoint",
    ]  # fmt: skip
    durations = {int(p): int(d) for p, d in zip(found.phase, found.duration_ns, strict=True)}
    assert durations == {STARTUP: 0, TRAINING: 90, EVALUATION: 20, CHECKPOINT: 10}


def test_blocks_are_training_where_no_epochs_are_logged_and_steps_are_not():
    assert phases_of(table(("block", 0, 10, 0), ("step", 0, 5, 0)))["phase"].tolist() == [TRAINING]
    assert phases_of(table(("block", 0, 10, 0), ("epoch", 1, 5, 0)))["start_ns"].tolist() == [1]


def test_only_the_first_rank_tells_the_phases():
    assert len(phases_of(table(("epoch", 0, 10, 0), ("epoch", 2, 12, 1)))) == 1


@pytest.mark.parametrize("rows", [[], [("init", 0, 5, 0)], [("evaluation", 0, 5, 0)], [("epoch", 5, 5, 0)]])
def test_a_job_that_logged_no_training_has_no_phases(rows):
    assert phases_of(table(*rows)).empty


@given(
    st.lists(
        st.tuples(st.sampled_from(["epoch", "evaluation", "checkpoint"]), st.integers(0, 99), st.integers(1, 50)), max_size=8
    )
)
def test_durations_add_up_to_the_time_from_the_first_phase_to_the_end_of_the_last(drawn):
    rows = [("epoch", 10, 20, 0)] + [(name, start, start + length, 0) for name, start, length in drawn]
    found = occurrences(phases_of(table(*rows)))
    first, last = min(r[1] for r in rows), max(r[2] for r in rows)
    assert found.duration_ns.sum() == last - first
    owners = found.at(np.arange(first, last))
    assert (np.bincount(owners, minlength=found.number) == found.duration_ns).all()
    assert (found.position(np.arange(first, last), owners, 10) < 10).all()
