"""The figures of training of a replay, recorded at points of the ranks' main threads."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.benchmark.emulator.recorded.edits.rank_pass import unpacking_left
from iotwin.benchmark.emulator.recorded.step_points import (
    StepPoint,
    StepPoints,
    numbered,
    unpacking_ns,
    with_points,
    working_waits_ns,
)
from iotwin.loops.emulation import EmulationOptions, run_workload
from iotwin.workload_yaml.recording import Mark, Op, RecordedBatches, RecordedPass
from tests.benchmark.emulator.recorded import test_data_wait
from tests.benchmark.recordings import recording, row

STEP_S, STEPS = 4.0, 4
JOB = replace(test_data_wait.JOB, compute_ms=1000 * STEP_S)  # 16 files in batches of 4


def fitted(folder, job=JOB):
    """The twin on the virtual clock: beside the times of the job, delays by a loaded machine do not count."""
    config = test_data_wait.fitted(folder, job)
    config.twin.clock = "virtual"
    return config


def training(config):
    summary = run_workload(config, EmulationOptions())
    assert summary is not None
    return summary["iotwin"]["training"]


def test_computation_is_the_time_between_calls_after_the_first_step(tmp_path):
    found = training(fitted(tmp_path))
    assert found["steps"] == STEPS and len(found["epoch_s"]) == 1
    assert found["compute_s"] == pytest.approx((STEPS - 1) * STEP_S, rel=0.1)
    assert found["step_s"] == pytest.approx(found["epoch_s"][0] / STEPS)
    assert found["au"] == pytest.approx(found["compute_s"] / (found["compute_s"] + found["data_wait_s"] + found["rank_wait_s"]))


@pytest.mark.parametrize("edit", [None, "computation_scale", "batch_size", "read_threads"])
def test_unpacking_counts_as_waiting_and_follows_the_batch_but_not_the_accelerator(tmp_path, edit):
    config = fitted(tmp_path, replace(JOB, files=32, unpack_ms=500 * STEP_S))
    compute_s, unpack_s, steps = STEP_S, STEP_S / 2, 2 * STEPS
    if edit == "computation_scale":
        config.train.computation_scale, compute_s = 0.5, STEP_S / 2
    elif edit == "batch_size":
        config.reader.batch_size *= 2
        compute_s, unpack_s, steps = 2 * compute_s, 2 * unpack_s, STEPS
    elif edit == "read_threads":
        config.reader.read_threads, unpack_s = 0, 0.0  # the rank reads its batches itself
    found = training(config)
    assert found["steps"] == steps
    assert found["compute_s"] == pytest.approx((steps - 1) * compute_s, rel=0.1)
    # An edited step ends when the next batch is unpacked, so the first step has unpacked the second batch.
    assert found["data_wait_s"] > 0.95 * (steps - 2) * unpack_s


@pytest.mark.parametrize(("decode", "left"), [(0.0, 0.2), (0.5, 0.6), (1.0, 1.0), (3.0, 1.0)])
def test_unpacking_that_waits_for_a_loaders_decoding_is_shorter_with_less_decoding(decode, left):
    """A pass's quickest batch is unpacked in 1 ms, as all would be without decoding; the mean is 5 ms. Two came unpacked."""
    unpacking_ns = np.array([0, 7, 2, 1, 7, 0, 5, 8]) * 1_000_000
    assert unpacking_left(unpacking_ns, decode) == pytest.approx(left)
    assert unpacking_left(unpacking_ns[:0], decode) == unpacking_left(unpacking_ns * 0, decode) == 1


def test_an_edited_replay_measures_its_own_steps_and_epochs(tmp_path):
    config = fitted(tmp_path)
    config.train.epochs, config.train.computation_scale = 2, 0.5
    config.reader.batch_size *= 2
    found = training(config)
    assert found["steps"] == 2 * 2 and [each["epoch"] for each in found["passes"]] == [1, 2]
    assert found["compute_s"] == pytest.approx(2 * STEP_S, rel=0.1)  # twice as many samples, half the time for each


def test_two_ranks_count_their_waits_for_one_another(tmp_path):
    config = fitted(tmp_path)
    summary = run_workload(config, EmulationOptions(ranks=2))
    assert summary is not None
    found = summary["iotwin"]["training"]
    assert sorted(each["rank"] for each in found["passes"]) == [0, 1] and found["steps"] == 4
    assert found["rank_wait_s"] > 0


def test_reads_of_a_rank_without_loaders_are_waits_for_data(tmp_path):
    config = fitted(tmp_path)
    config.reader.read_threads = 0
    found = training(config)
    assert found["data_wait_s"] > 0 and found["storage_s"] == 0


def test_a_replay_that_is_stopped_early_counts_whole_passes_only(tmp_path):
    summary = run_workload(fitted(tmp_path), EmulationOptions(limit_s=STEP_S))
    assert summary is not None and summary["iotwin"]["stopped_early"] and summary["iotwin"]["training"] is None


def passes_of_one_rank(ends_ns: list[int]) -> RecordedBatches:
    """Passes with one batch each, which the rank reads when the pass before has ended."""
    begins = [0, *ends_ns[:-1]]
    passes = [RecordedPass(process=0, training=True, batches=1, depth=0) for _ in ends_ns]
    zeros = [0] * len(ends_ns)
    return RecordedBatches(passes, zeros, zeros, begins, begins, begins, begins, ends_ns)


WAITS = (Op.JOIN, Op.WAIT)


def played(columns, happened) -> np.ndarray:
    """The time of each row by a naive player: a wait ends when what it waits for has `happened`, or at once."""
    now, times = 0, []
    for think, op in zip(columns["think_ns"], columns["op"], strict=True):
        now += think
        if op in WAITS:
            now = max(now, next(happened))
        times.append(now)
    return np.array(times)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.sampled_from([Op.MARK, *WAITS])), min_size=1, max_size=12),
    st.lists(st.integers(0, 400), min_size=1, max_size=5),
)
def test_points_change_no_time_of_any_other_row(others, ends):
    """A thread has computed an unknown part of the time before a wait ends, and is recorded as waiting for all of it."""
    rows = [row(0, Op.OPEN, think_ns=0)] + [row(0, op, think_ns=0 if op in WAITS else time) for time, op in others]
    made = recording(rows, [], marks=[Mark("step", True)])
    at_ns = np.cumsum([0, *(time for time, _ in others)])
    happened = at_ns[np.isin(made.columns["op"], WAITS)]
    batches = passes_of_one_rank(sorted(ends))
    labels = {name: np.full(made.rows, -1) for name in ("label", "batch", "sample")}
    made = replace(made, columns={**made.columns, **labels, "at_ns": at_ns})
    made.header.batches = batches
    pointed = numbered(with_points(made))
    points = pointed.columns["op"] == Op.STEP
    times = played(pointed.columns, iter(happened))
    assert (times[~points] == at_ns).all()
    assert (pointed.columns["think_ns"] >= 0).all()
    whole = [end for end in sorted(ends) if end <= at_ns[-1]]
    assert points.sum() == 3 * len(whole)
    assert (times[points].reshape(-1, 3)[:, StepPoint.END] == whole).all()


def test_a_rank_that_waits_for_the_thread_that_sends_its_requests_has_worked_meanwhile():
    """The rank takes three batches of a loader at 10, 30 and 60 ms, after 2 ms of unpacking, and computes for 15 ms on each.

    The sending thread posts when the rank has taken the second batch, and after its last step. Before the third batch, the rank
    reads another one, and unpacks it for 4 ms. From the end of the first step on, the rank waits for data for 2 and 3 ms before
    the second batch, and for 5, 4, 4 and 2 ms before the third.
    """
    reads = [(Op.PIPE_READ, 8), (Op.PIPE_READ, 27), (Op.WAIT, 31), (Op.PIPE_READ, 50), (Op.PIPE_READ, 58), (Op.MARK, 66)]
    rows = [row(0, op, at_ns=at * 1_000_000) for op, at in [*reads, (Op.WAIT, 80), (Op.END, 90)]]
    for index, think in ((1, 17), (3, 14), (4, 4), (5, 8)):
        rows[index]["think_ns"] = think * 1_000_000
    made = recording(rows, [])
    times = ([0, 0, 0], [5, 5, 5], [8, 27, 58], [10, 30, 60], [25, 45, 75])  # requested, received, delivered, taken, computed
    one = RecordedPass(process=0, training=True, batches=3, depth=2)
    made.header.batches = RecordedBatches([one], [1] * 3, [4] * 3, *([at * 1_000_000 for at in each] for each in times))
    assert (unpacking_ns(made, 0, 3) == [3_000_000, 4_000_000 + 2_000_000]).all()
    assert working_waits_ns(made, 0, 3) == (31 - 27) * 1_000_000
    assert working_waits_ns(made, 0, 1) == 0  # only a first batch
    points, spent_ns = StepPoints(3), [0] * len(Op)
    for index, (at, read, waited) in enumerate([(1, 0, 0), (25, 8, 0), (75, 8 + 2 + 5 + 4, 31 - 27)]):
        spent_ns[Op.PIPE_READ], spent_ns[Op.WAIT] = read * 1_000_000, waited * 1_000_000
        points.record(index, at * 1_000_000, spent_ns)
    (found,) = points.passes(numbered(with_points(made)), 0)
    assert (found.compute_ns, found.data_wait_ns) == (2 * 15 * 1_000_000, (2 + 3 + 5 + 4 + 4 + 2) * 1_000_000)


def test_the_passes_are_the_differences_between_their_points():
    rows = [row(0, Op.STEP, size=point, fd=4, offset=1 + time) for point, time in zip(StepPoint, (0, 1, 4), strict=True)]
    made = numbered(recording(rows, []))
    points, spent_ns = StepPoints(3), [0] * len(Op)
    for index, (at_ns, read_ns, written_ns, waited_ns, met_ns) in enumerate(
        [(10, 0, 0, 0, 0), (30, 5, 0, 9, 0), (130, 6, 20, 19, 3)]
    ):
        spent_ns[Op.READ], spent_ns[Op.WRITE], spent_ns[Op.PIPE_READ], spent_ns[Op.MEET] = read_ns, written_ns, waited_ns, met_ns
        points.record(index, at_ns, spent_ns)
    (found,) = points.passes(made, 3, think_scale=2)
    assert (found.rank, found.epoch, found.steps, found.duration_ns) == (3, 1, 4, 120)
    assert (found.data_wait_ns, found.rank_wait_ns, found.storage_ns, found.compute_ns) == (10 + 2 * 3, 3, 21, 100 - 16 - 3 - 21)
