"""Times of a fit: what is taken for all values alike, a stall, a first value of its own; and the pauses of made-up passes."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from iotwin.benchmark.fit import sample_twin
from iotwin.benchmark.fit.checkpoint_files import SeenFile
from iotwin.benchmark.fit.passes import Pass
from iotwin.benchmark.fit.times import (
    Times,
    _calls,
    _in_turn,
    apart_from_first,
    by_step,
    epoch_warm_up,
    pass_times,
    quantiles,
    start_time,
    taken_ns,
    warm_up,
)
from iotwin.common.numbers.draws import inverse_cdf
from iotwin.workload_yaml import InOrder, Quantiles

SECOND = 10**9
RANK, FIRST, SECOND_LOADER = 1, 2, 3


def made_pass(
    end_s: float, accesses: list[tuple], batches: list[tuple], loaders: tuple[int, ...] = (), logged: bool = True
) -> Pass:
    """A pass from 0; accesses (pid, start_s, end_s, idle_s, batch), batches (pid, start_s, end_s, count)."""
    read = pd.DataFrame(accesses, columns=["pid", "start_ns", "end_ns", "idle_ns", "batch"])
    taken = pd.DataFrame(batches, columns=["pid", "start_ns", "end_ns", "count"])
    for frame in (read, taken):
        for name in frame.columns.intersection(["start_ns", "end_ns", "idle_ns"]):
            frame[name] = (frame[name] * SECOND).astype(np.int64)
    none = np.zeros(0, np.int64)
    span = 0, int(end_s * SECOND), RANK
    return Pass("epoch", 1, *span, none, taken, read, loaders, None, logged, (RANK,), list[SeenFile](), none, none)


def made_job(*calls: tuple[float, float, int, str, int, int]) -> Any:
    """Calls (start_s, end_s, pid, op, file, result) of a job whose files are two pipes and a file."""
    frame = pd.DataFrame(calls, columns=["start_ns", "end_ns", "pid", "op", "file_id", "result"])
    for name in ("start_ns", "end_ns"):
        frame[name] = (frame[name] * SECOND).astype(np.int64)
    frame = frame.astype({"pid": int, "file_id": int, "result": int})
    return SimpleNamespace(calls=frame.assign(tid=frame["pid"]), files=pd.DataFrame({"kind": ["pipe", "pipe", "dataset"]}))


@pytest.mark.parametrize(("logged", "computed"), [(True, [67, 62]), (False, [67])])
def test_a_rank_that_reads_by_itself_computes_between_its_batches(logged, computed):
    """Two batches of two samples: what goes on within a batch is preprocessing, and so is as much of each pause after one."""
    accesses = [(RANK, 0, 10, 2, 0), (RANK, 15, 25, 0, 0), (RANK, 100, 110, 1, 1), (RANK, 118, 130, 3, 1)]
    part = made_pass(200, accesses, [(RANK, 0, 25, 2), (RANK, 100, 130, 2)], logged=logged)
    times = pass_times(made_job(), [part])
    assert times.preprocess_s.tolist() == [15 - 10 + 2, 118 - 110 + 1] and not times.waits_unseen
    assert times.compute_s.tolist() == computed


def test_the_only_sample_of_a_batch_is_preprocessed_while_it_is_read():
    part = made_pass(30, [(RANK, 0, 4, 1, 0), (RANK, 10, 14, 2, 1)], [(RANK, 0, 4, 1), (RANK, 10, 14, 1)])
    times = pass_times(made_job(), [part])
    assert times.preprocess_s.tolist() == [1, 2] and times.compute_s.tolist() == [6, 16]


# The rank polls and reads a message of 96 bytes in two calls, its length first; then it polls and reads one of 50 bytes in one.
MESSAGES = (
    (5, 11, RANK, "poll", 2, 1),
    (10, 11, FIRST, "write", 0, 4),
    (11, 12, FIRST, "write", 0, 96),
    (12, 13, RANK, "read", 0, 4),
    (13, 14, RANK, "read", 0, 96),
    (20, 21, SECOND_LOADER, "write", 1, 50),
    (24, 25, RANK, "poll", 2, 1),
    (30, 31, RANK, "read", 1, 50),
)
BATCHES = [(FIRST, 2, 8, 1), (SECOND_LOADER, 3, 15, 1)]
ACCESSES = [(FIRST, 2, 8, 0, 0), (SECOND_LOADER, 3, 15, 1, 1)]


@pytest.mark.parametrize(("logged", "computed"), [(True, [24 - 14, 60 - 31]), (False, [24 - 14])])
def test_a_rank_with_loaders_computes_from_a_batch_until_it_asks_for_the_next(logged, computed):
    part = made_pass(60, ACCESSES, BATCHES, (FIRST, SECOND_LOADER), logged)
    job = made_job(*MESSAGES)
    assert (taken_ns(job, part) / SECOND).tolist() == [14, 31]
    times = pass_times(job, [part])
    assert times.compute_s.tolist() == computed and not times.waits_unseen
    assert times.preprocess_s.tolist() == [10 - 8, 20 - 15 + 1]  # until the hand-over, and idle within the sample


def test_a_rank_that_never_asks_hides_its_waits():
    """Of one that is told by its thread, only the times between batches are known."""
    job = made_job(*MESSAGES)
    job.calls.loc[job.calls["pid"] == RANK, "tid"] = 99
    times = pass_times(job, [made_pass(60, ACCESSES, BATCHES, (FIRST, SECOND_LOADER))])
    assert times.compute_s.tolist() == [31 - 14] and times.waits_unseen


def test_batches_that_came_by_no_pipe_are_taken_when_they_were_read():
    part = made_pass(60, ACCESSES, BATCHES, (FIRST, SECOND_LOADER))
    assert (taken_ns(made_job(), part) / SECOND).tolist() == [8, 15]


def test_the_start_of_loaders_is_told_by_passes_that_start_them():
    """Two passes start theirs, 2 and 4 s before they read; one has the first one's loaders, and one none."""
    began = {FIRST: 0.5, SECOND_LOADER: 1}
    job = SimpleNamespace(processes=pd.DataFrame({"pid": list(began), "start_ns": [int(at * SECOND) for at in began.values()]}))
    passes = [made_pass(60, [(pid, at, at + 1, 0, 0)], BATCHES, (pid,)) for pid, at in ((FIRST, 2), (SECOND_LOADER, 4))]
    assert start_time(job, passes) == Quantiles([2.0, 4.0])
    kept, without = made_pass(60, [(FIRST, 50, 51, 0, 0)], BATCHES, (FIRST,)), made_pass(60, [(RANK, 9, 10, 0, 0)], BATCHES)
    kept.start_ns = 40 * SECOND
    assert start_time(job, [*passes, kept, without]) == Quantiles([2.0, 4.0]) and start_time(job, [kept, without]) == 0.0


def test_no_passes_have_no_times():
    times = pass_times(made_job(), [])
    assert not len(times.compute_s) and not len(times.preprocess_s)


def test_calls_of_a_span_begin_from_its_first_to_its_last_nanosecond():
    job = made_job(*((second, second + 1, RANK, "read", 2, 1) for second in (0, 5, 10)))
    assert len(_calls(job, [RANK], 0, 10 * SECOND).start_ns) == 3
    assert len(_calls(job, [RANK], 1, 10 * SECOND - 1).start_ns) == 1 and not len(_calls(job, [FIRST], 0, 10 * SECOND).start_ns)


def test_the_rank_takes_from_its_loaders_in_turn():
    loaders, arrivals = np.array([FIRST, FIRST, SECOND_LOADER]), np.array([5, 9, 1])
    assert _in_turn(loaders, arrivals, (FIRST, SECOND_LOADER)).tolist() == [5, 1, 9]
    assert _in_turn(loaders, arrivals, (SECOND_LOADER, FIRST)).tolist() == [1, 5, 9]


def test_a_first_value_is_warm_up_when_half_as_long_again_as_nearly_all_others():
    others = np.full(20, 2.0)
    assert warm_up(np.append(3.01, others))[0] == 3.01 and warm_up(np.append(3.0, others))[0] is None
    assert warm_up(np.append(3.01, others))[1].tolist() == others.tolist() and warm_up(np.array([9.0]))[0] is None


def test_the_first_steps_of_epochs_are_longer_where_all_and_clearly_are():
    """Of three epochs of five steps, told whether the run's very first step is apart already or not."""
    passes = [SimpleNamespace(start_ns=begin * SECOND) for begin in (0, 100, 200)]
    begins = (np.array([0, 1, 2, 3, 4, 100, 101, 102, 103, 104, 200, 201, 202, 203, 204]) * SECOND).astype(np.int64)
    times = Times(np.tile([1.5, 1.0, 1.01, 0.99, 1.0], 3), np.zeros(0), begins)
    longer_s, rest = epoch_warm_up(times, passes)
    assert longer_s == 0.5 and rest.compute_s.tolist() == [1.0, 1.01, 0.99, 1.0] * 3 and len(rest.begins_ns) == 12
    times.compute_s[0] = 9.0
    first_s, others = apart_from_first(times)
    longer_s, rest = epoch_warm_up(others, passes[1:])
    assert (first_s, longer_s, len(rest.compute_s)) == (9.0, 0.5, 12)
    # One is as the others; all are, nearly; others vary as much.
    for changed, at in ((1.0, 5), (1.15, [0, 5, 10]), (3.0, [2, 7])):
        times.compute_s[[0, 5, 10]] = 1.5
        times.compute_s[at] = changed
        assert epoch_warm_up(times, passes) == (0.0, times)
    assert epoch_warm_up(times, passes[:1])[0] == 0.0


def test_values_become_as_many_quantiles_as_tell_something():
    assert quantiles(np.zeros(0)) == 0.0 and quantiles(np.full(5, 0.25)) == 0.25
    assert quantiles(np.array([3.0, 1.0, 2.0])).values == [1.0, 2.0, 3.0]
    many = quantiles(np.arange(1.0, 101.0)).values
    assert len(many) == 21 and many[0] == 1.0 and many[10] == pytest.approx(50.5)
    assert many[-1] == pytest.approx(2 * np.mean([96, 97, 98, 99, 100]) - many[-2])


def test_steps_that_take_as_long_in_each_pass_have_an_order():
    first, second = np.array([0.3, 0.1, 0.1, 0.2, 0.6]), np.array([0.32, 0.1, 0.12, 0.2, 0.6])
    assert by_step([first, second], 5) == InOrder([0.31, 0.1, 0.11, 0.2, 0.6])
    assert by_step([first, second[:-1]], 5) == InOrder([0.31, 0.1, 0.11, 0.2, 0.2])  # the last one's is not known
    for passes, steps in (
        ([first], 5),  # once is no order
        ([first, first[::-1]], 5),
        ([first, second[:3]], 5),
        ([first[:3], second[:3]], 3),
        ([1 + first / 10, 1 + second / 10], 5),  # much alike
    ):
        assert by_step(passes, steps) == quantiles(np.concatenate(passes))


def test_one_stall_among_thousands_does_not_become_many():
    values = np.append(np.random.default_rng(1).uniform(0.001, 0.0012, 3999), 0.053)
    found = quantiles(values)
    assert isinstance(found, Quantiles) and found.values[0] >= 0.001
    mean = np.mean([inverse_cdf(found, float(place)) for place in np.linspace(0, 1, 2001)])
    assert mean == pytest.approx(values.mean(), rel=0.01)


def test_blocks_of_steps_that_go_through_the_data_several_times_are_as_many_epochs(monkeypatch):
    """Twelve steps where five go once through the data: three epochs of four."""
    passes = [SimpleNamespace(phase="block", logged=True, batch_sizes=[2] * 6, samples=np.arange(12)) for _ in range(2)]
    monkeypatch.setattr(sample_twin, "_steps_in_data", lambda samples, training: 5)
    samples, times = SimpleNamespace(first_record=np.array([0, 10])), Times(np.full(12, 0.5), np.zeros(0), np.zeros(12, np.int64))
    train = sample_twin._train(times, samples, passes, False, (0, 0), [])
    assert (train.epochs, train.total_training_steps) == (3, 4)
    resumed = sample_twin._train(times, samples, passes, False, (1, 3), [])
    assert (resumed.epochs, resumed.total_training_steps) == (3, 5)  # fifteen steps, three done before
