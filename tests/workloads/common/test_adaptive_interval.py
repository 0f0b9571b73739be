"""The interval between checkpoints: against a search by its conditions, and a controller on series made for it."""

import itertools
import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.workloads.policies.adaptive_interval import CheckpointProfile, Controller, IntervalPlan, MeasuredStep, plan, tune

GIB = 1 << 30


def profile(used=4 * GIB, **changes):
    return CheckpointProfile(**{
        "iteration_s": 0.2, "update_s": 0.02, "host_copy_s": 0.6, "device_copy_s": 0.02, "write_s": 2.0, "size_bytes": GIB,
        "memory_used_bytes": used, "memory_total_bytes": 12 * GIB, **changes,
    })  # fmt: skip


def test_the_worked_example():
    assert plan(profile(), 0.05) == IntervalPlan(13, "device", 0.02, 13, 2, None, pytest.approx(0.02 / 2.6))
    found = plan(profile(used=12 * GIB), 0.05)
    assert found == IntervalPlan(42, "host", pytest.approx(0.42), 11, 42, None, pytest.approx(0.05))


def test_the_device_holds_a_snapshot_only_where_there_is_room_and_it_stalls_no_longer():
    assert plan(profile(used=11 * GIB), 0.05).snapshot == "host"  # room for exactly the state
    assert plan(profile(used=11 * GIB - 1), 0.05).snapshot == "device"
    assert plan(profile(device_copy_s=0.42 + 1e-9), 0.05).snapshot == "host"
    assert plan(profile(device_copy_s=None), 0.05).snapshot == "host"
    assert plan(profile(update_s=0.3), 0.05).stall_s == 0.02 and plan(profile(used=12 * GIB, update_s=0.3), 0.05).stall_s == 0.6


def test_what_a_checkpoint_takes_besides_the_wait_counts_against_the_bound_only():
    found = plan(profile(besides_s=0.3, interference_s=0.1), 0.05)
    assert (found.interval, found.interval_no_overlap, found.snapshot) == (42, 13, "device")
    assert found.stall_s == pytest.approx(0.42) and found.overhead == pytest.approx(0.05)


def test_failures_lengthen_the_interval_as_young_says():
    assert plan(profile(), 0.05, mtbf_s=3600).interval_mtbf == 60  # sqrt(2 * 0.02 * 3600) is 12 s
    assert plan(profile(), 0.05, mtbf_s=3600).interval == 60
    assert plan(profile(), 0.05, mtbf_s=10).interval == 13


milliseconds = st.integers(0, 5000)


@given(st.integers(1, 5000), milliseconds, milliseconds, st.none() | milliseconds, milliseconds, st.integers(1, 400),
       st.integers(1, 4), st.integers(0, 3))  # fmt: skip
def test_the_interval_is_the_least_that_keeps_the_rules(step, update, host, device, write, bound, in_flight, used):
    found = plan(
        CheckpointProfile(
            step / 1e3, update / 1e3, host / 1e3, None if device is None else device / 1e3, write / 1e3, 1, used, 2
        ),
        bound / 1e3,
        None,
        in_flight,
    )
    waits = max(0, host - max(0, step - update))
    on_device = device is not None and used == 0 and device <= waits
    stall = device if on_device else waits
    assert found.snapshot == ("device" if on_device else "host")
    k = found.interval
    for interval, kept in ((k, True), (k - 1, False)):
        if interval:
            cheap = Fraction(stall, interval * step) <= Fraction(bound, 1000)
            apart = in_flight * interval * step >= host + write - stall
            assert (cheap and apart) == kept, (interval, found)


def algorithm_1(step, update, host, device, write, size, used, total, bound):
    """Transcribe Algorithm 1 of the paper (Ti, Tw, Tc, Tg, Ts, m, M, Mmax, p), in fractions of the decimals."""
    step, update, host, device, write, bound = map(Fraction, (step, update, host, device, write, bound))
    host_stall = max(Fraction(0), host - (step - update))
    stall, where = (device, "device") if total - used > size and device <= host_stall else (host_stall, "host")
    return max(math.ceil((host + write - stall) / step), math.ceil(stall / (bound * step)), 1), where


def cases_of_algorithm_1():
    """Return 47 cases, of which two in three are ties: both copies stall training equally long."""
    draw, cases = random.Random(47), [("0.2", "0.02", "0.6", "0.42", "2.0", GIB, 4 * GIB, 12 * GIB, "0.05")]
    for number in range(46):
        step = draw.randint(1, 900)
        update, waits, write = draw.randint(0, step), draw.randint(1, 900), draw.randint(0, 5000)
        device = waits + draw.choice([-1, 1]) * (number % 3 == 2)
        times = [str(time / 1000) for time in (step, update, step - update + waits, device, write)]
        used = draw.choice([0, 10 * GIB, 11 * GIB])
        cases.append((*times, GIB, used, 12 * GIB, draw.choice(["0.035", "0.05", "0.1", "0.3"])))
    return cases


def test_plans_are_those_of_algorithm_1_with_ties_as_in_decimals():
    for case in cases_of_algorithm_1():
        *times, size, used, total, bound = case
        found = plan(CheckpointProfile(*map(float, times), size, used, total), float(bound))
        assert (found.interval, found.snapshot) == algorithm_1(*case), case


@pytest.mark.parametrize("bad", [{"iteration_s": 0}, {"write_s": -1}, {"host_copy_s": float("nan")}])
def test_an_impossible_profile_is_refused(bad):
    with pytest.raises(ValueError, match="0 s"):
        profile(**bad)


def drive(
    steps, stall=lambda step: 0.7, base=lambda step: 1.0, slowed=lambda step: 0.0, noise=0.0, seed=0, writing=True, k=14,
    foreseen_s=0.0,
):  # fmt: skip
    """Return the windows of a job whose checkpoints come when the controller says, and write for 6 steps."""
    draw, controller, windows, since = random.Random(seed), Controller(0.05, k, foreseen_s=foreseen_s), [], 99
    for step in range(steps):
        begins = controller.due
        since = 0 if begins else since + 1
        stalled = begins * stall(step) * (1 + draw.uniform(-noise, noise))
        slower = slowed(step) if since < 6 else 0.0
        seconds = base(step) * (1 + draw.uniform(-noise, noise) + slower) + stalled
        ended = controller.step(seconds, begins, stalled, writing and since < 6)
        windows += [ended] if ended else []
    return windows


def during(begin, end, much, otherwise=1.0):
    return lambda step: much if begin <= step < end else otherwise


def windows_after(windows, step, number):
    return [window for window in windows if window.last_step >= step][:number]


@pytest.mark.parametrize("writing", [True, False])
@pytest.mark.parametrize("begin", range(140, 154))
@pytest.mark.parametrize("hog", ["stall", "all"])
def test_a_hog_is_answered_within_two_windows_and_forgotten_within_four(writing, begin, hog):
    slow = during(begin, 400, 1.4)
    series = {"stall": lambda step: 0.7 * slow(step), "base": slow if hog == "all" else lambda step: 1.0}
    windows = drive(700, **series, writing=writing)
    assert [window.interval for window in windows if window.last_step < begin] == [14] * len(windows_before(windows, begin))
    third = windows_after(windows, begin, 3)[-1]
    assert third.overhead <= 0.05 + 1e-9 and windows_after(windows, 400, 4)[-1].interval in (13, 14, 15)
    assert {window.overhead <= 0.05 + 1e-9 for window in windows if third.last_step < window.last_step < 390} == {True}


def windows_before(windows, step):
    return [window for window in windows if window.last_step < step]


@pytest.mark.parametrize("writing", [True, False])
def test_slower_steps_beside_writing_count_as_the_stall_does(writing):
    windows = drive(900, stall=lambda step: 0.1, slowed=during(145, 400, 0.2, 0.1), writing=writing)
    assert windows_before(windows, 140)[-1].interval == 14
    assert windows_before(windows, 400)[-1].interval == 26  # 0.1 and six steps slower by 0.2 are 1.3 steps, over the bound
    assert windows_before(windows, 400)[-1].overhead == pytest.approx(0.05)
    assert windows_before(windows, 400)[-1].interference_share == pytest.approx(1.2 / 26)
    assert windows_after(windows, 400, 4)[-1].interval == 14


@pytest.mark.parametrize("writing", [True, False])
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_a_job_that_starts_with_too_many_checkpoints_keeps_the_bound_after_two_windows(k, writing):
    windows = drive(300, k=k, writing=writing)
    assert [window.interval for window in windows[1:]] == [14] * (len(windows) - 1)
    assert {round(window.overhead, 9) for window in windows[2:]} == {0.05}


def test_a_slower_job_is_not_its_checkpoints_doing():
    slower = during(145, 10**9, 1.4)
    windows = drive(700, base=slower, stall=lambda step: 0.7 * slower(step))
    assert {window.interval for window in windows} == {14}
    assert windows[-1].base_s == pytest.approx(1.4)


def test_noise_moves_the_interval_at_most_once_in_three_windows():
    for seed in range(40):
        intervals = [14, *(window.interval for window in drive(600, noise=0.2, seed=seed))]
        changed = [a != b for a, b in itertools.pairwise(intervals)]
        assert all(sum(changed[first : first + 3]) <= 1 for first in range(len(changed)))
        assert all(10 <= interval <= 28 for interval in intervals), intervals


def test_foreseen_interference_counts_until_it_is_measured_to_be_less():
    stall = lambda step: 0.2  # noqa: E731  alone, it asks for 4 steps
    intervals = [window.interval for window in drive(400, stall, k=14, foreseen_s=0.5)]
    assert intervals[-1] == 4  # without noise it is soon refuted
    for seed in range(10):
        slowed = {"slowed": lambda step: 0.5 / 6, "noise": 0.1, "seed": seed, "k": 14}
        middle = sorted(window.interval for window in drive(900, stall, foreseen_s=0.5, **slowed))
        assert 12 <= middle[len(middle) // 2] <= 16  # steps differ by more than what each is slower by
        assert [window.interval for window in drive(400, stall, foreseen_s=0.5, noise=0.1, seed=seed)][-1] <= 14


def test_writing_that_leaves_no_steps_to_compare_with_lengthens_some_intervals():
    controller, lengths, since = Controller(0.05, 10), [], 0
    for _ in range(400):
        if begins := controller.due:
            lengths.append(since)
            since = 0
        since += 1
        controller.step(1.3 if since <= 12 else 1.0, begins, 0.0, writing=since <= 12)
    assert lengths[1:4] == [10, 10, 10] and 15 in lengths and lengths[-1] >= 60  # 12 steps slower by 0.3, over the bound


def test_writing_that_never_ends_lengthens_few_intervals():
    controller, lengths, since = Controller(0.05, 10), [], 0
    for _ in range(1000):
        if begins := controller.due:
            lengths.append(since)
            since = 0
        since += 1
        controller.step(1.0, begins, 0.0, writing=True)
    assert set(lengths[1:]) == {10, 20} and 0.15 < lengths.count(20) / len(lengths) < 0.35


def test_the_least_holds_against_the_bound():
    controller = Controller(0.05, 20, least=13)
    for step in range(212):
        controller.step(1.0, step % 20 == 0)
    assert controller.interval == 13 and not controller.due
    controller.step(1.0)
    assert controller.due
    controller.least = 30
    assert controller.interval == 30


def test_a_recorded_series_is_cut_at_its_checkpoints():
    made = [MeasuredStep(1.7, True, 0.7) if step % 14 == 3 else MeasuredStep(1.0) for step in range(3 + 5 * 14)]
    windows, changes = tune(made, 0.05, 14)
    assert [(window.first_step, window.last_step) for window in windows] == [(3 + 14 * n, 16 + 14 * n) for n in range(5)]
    assert changes == 0 and {window.interval for window in windows} == {14}
    assert {round(window.stall_share, 9) for window in windows} == {0.05}
    assert len(tune(made[:-1], 0.05, 14)[0]) == 4  # the last one is cut short


@pytest.mark.parametrize("bad", [(0, 1, 1), (0.05, 0, 1), (0.05, 1, 0), (0.05, 1, 1, -0.1)])
def test_a_controller_of_nothing_is_refused(bad):
    with pytest.raises(ValueError, match="above 0"):
        Controller(*bad)
