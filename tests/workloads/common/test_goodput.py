"""What failures leave of a job: the formulas against failures that are played through."""

import random

import pytest

from iotwin.workloads.policies.goodput import SYSTEMS, FailingJob, goodput


def test_the_formulas_by_hand():
    job = FailingJob(0.2, 2.6, 5.0, 13, in_flight=3)
    assert SYSTEMS["checkfreq"].redo_s(job) == pytest.approx(5 + 2.6)
    assert SYSTEMS["sync"].redo_s(job) == SYSTEMS["ideal"].redo_s(job) == pytest.approx(5 + 1.3)
    assert SYSTEMS["pccheck"].redo_s(job) == pytest.approx(5 + 1.3 + 0.2 * 13 / 2)
    assert SYSTEMS["pccheck"].redo_s(FailingJob(0.2, 20, 5.0, 13, 3)) == pytest.approx(5 + 1.3 + 0.2 * 39 / 2)  # three on the way
    found = goodput("sync", job, 1 / 3600)
    assert found.steps_per_s == pytest.approx((1 - 6.3 / 3600) / 0.4)
    assert found.useful_share == pytest.approx((1 - 6.3 / 3600) / 2) and found.redo_s == pytest.approx(6.3)


def test_one_on_the_way_waits_where_writing_is_longer_than_the_interval():
    slow = FailingJob(1.0, 30.0, 0.0, 10, in_flight=2)
    assert goodput("checkfreq", slow, 0).steps_per_s == pytest.approx(10 / 30)
    assert goodput("pccheck", slow, 0).steps_per_s == pytest.approx(10 / 15)
    assert goodput("ideal", slow, 0).steps_per_s == 1 and goodput("sync", slow, 0).steps_per_s == pytest.approx(10 / 40)


def test_failures_faster_than_their_cost_leave_nothing():
    assert goodput("checkfreq", FailingJob(1.0, 1.0, 100.0, 10), 1 / 50).steps_per_s == 0


@pytest.mark.parametrize(("system", "longest"), [("checkfreq", 2.6), ("pccheck", 4.0), ("ideal", 0.0)])
def test_redone_time_is_that_of_failures_at_random(system, longest):
    """Killed at random instants, with checkpoints that take anything up to `longest`: what is lost since the last whole one."""
    job = FailingJob(0.2, 4.0, 5.0, 13, in_flight=2)
    draws, lost = random.Random(1), 0.0
    for _ in range(20_000):
        now, duration = 1000 + draws.random() * 1000, draws.random() * longest
        lost += now - (now - duration) // job.interval_s * job.interval_s
    assert SYSTEMS[system].redo_s(job) - job.load_s == pytest.approx(lost / 20_000, rel=0.02)


@pytest.mark.parametrize("bad", [(0, 1, 1, 1), (1, -1, 1, 1), (1, 1, float("inf"), 1), (1, 1, 1, 0)])
def test_an_impossible_job_is_refused(bad):
    with pytest.raises(ValueError, match=r"0 s|at least 1"):
        FailingJob(*bad)
