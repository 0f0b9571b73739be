"""The test behind the verdict: is a twin as a further run of its job would be?"""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from iotwin.trace_store.reader import Trace
from iotwin.tracesim import compare
from iotwin.tracesim.profile import profiles_of, summarise
from iotwin.tracesim.verdict.aspects import TIME
from iotwin.tracesim.verdict.equivalence import AspectDifference, _margin, _student
from iotwin.tracesim.verdict.verdict_words import verdict
from iotwin.tracesim.verdict.wrong_twins import CONTROLS, computation_halved
from tests.synthetic import MILLISECOND, Job

JOB = Job(files=32, log_waits=True)


def run(trace, seed, **changes):
    """A run of the job, whose computation takes a little less or more time each time."""
    factor = np.random.default_rng(seed).normal(1, 0.02)
    compute_ns = changes.pop("compute_ns", JOB.compute_ns)
    return trace(seed=seed, compute_ns=int(compute_ns * factor), **changes)


WRONG = {
    "computation halved": {"compute_ns": JOB.compute_ns // 2},
    "computation 25 % longer": {"compute_ns": JOB.compute_ns * 5 // 4},
    "batch doubled": {"batch": JOB.batch * 2},
    "loaders doubled": {"loaders": JOB.loaders * 2},
    "order sequential": {"shuffle": False},
    "one checkpoint of three": {"checkpoint_every": 2},
    "10 % of bytes missing": {"file_bytes": JOB.file_bytes * 9 // 10},
}


@pytest.mark.parametrize("repeats", [1, 3])
def test_reruns_are_alike_and_wrong_twins_different(trace, repeats):
    job = [run(trace, seed) for seed in range(repeats + 1)]
    for seed in range(20, 24):
        similarity = compare(job[0], run(trace, seed), job[1:])
        assert similarity.equivalence.result == "alike", similarity.equivalence.reason
        assert similarity.equivalence.distance_ratio < similarity.equivalence.margin
        assert similarity.verdict in ("alike", "indistinguishable from a rerun")
    for name, changes in WRONG.items():
        found = compare(job[0], run(trace, 30, **changes), job[1:]).equivalence
        assert found.result == "different", name
        assert found.distance_ratio > found.margin, name


def test_a_difference_is_told_with_what_reruns_differ_by(trace):
    job = [run(trace, seed) for seed in range(3)]
    reason = compare(job[0], run(trace, 30, compute_ns=JOB.compute_ns // 2), job[1:]).equivalence.reason
    assert "less time in training without waits for data (a rerun may differ by" in reason


def test_batches_that_are_there_when_they_are_asked_for_need_no_wait(trace):
    """How often a rank waits is its loaders' luck: of two batches that come in the wrong order, the second is there already."""
    job, twin = [run(trace, seed) for seed in range(3)], run(trace, 30)
    for part in (twin.path / "events.parquet").glob("*.parquet"):
        events = pq.read_table(part)
        polls = np.flatnonzero(pc.equal(events["op"].cast("string"), "poll"))
        assert len(polls) > 8
        threads = events["tid"].to_numpy().copy()
        threads[polls[1::2]] = threads.max() + 1  # not the rank's any more
        of_thread = pa.array(threads, events.schema.field("tid").type)
        pq.write_table(events.set_column(events.schema.get_field_index("tid"), events.schema.field("tid"), of_thread), part)
    found = compare(job[0], Trace(twin.path), job[1:]).equivalence
    names = [difference.name for difference in found.differences]
    assert found.result == "alike" and "time in training without waits for data" in names, found.reason


def test_without_reruns_it_cannot_be_told(trace):
    similarity = compare(run(trace, 0), run(trace, 1))
    document = similarity.to_document()["equivalence"]
    assert document["result"] == "inconclusive" and "no reruns" in similarity.verdict
    assert document["distance_ratio"] is None and document["margin"] is None
    assert document["controls"]["computation halved"]["overall"] < 0.99
    assert document["controls"]["computation halved"]["noticed"] is None


def test_without_reruns_a_dimension_that_falls_low_in_reruns_too_makes_no_twin_different(trace):
    similarity = compare(run(trace, 0), run(trace, 1))
    for low, said in (("timeline", "inconclusive"), ("concurrency", "different"), ("timing", "different")):
        scores = {d.name: d.score for d in similarity.dimensions}
        assert low in scores
        assert verdict(0.95, None, scores | {low: 0.6}, [], similarity.equivalence).startswith(said), low


def test_every_control_is_noticed_where_reruns_hardly_differ(trace):
    job = [run(trace, seed) for seed in range(3)]
    document = compare(job[0], run(trace, 9), job[1:]).to_document()["equivalence"]
    assert set(document["controls"]) == {"order sorted", "times shuffled", "sizes by marginals alone", "computation halved"}
    assert {name: control["noticed"] for name, control in document["controls"].items()} == dict.fromkeys(
        document["controls"], True
    )
    in_order = [run(trace, seed, shuffle=False) for seed in range(2)]
    found = compare(in_order[0], in_order[0], in_order[1:]).to_document()["equivalence"]["controls"]
    assert found["order shuffled"]["noticed"] and "order sorted" not in found


def test_reruns_that_differ_too_much_leave_it_open(trace):
    job = [trace(seed=number, compute_ns=n * MILLISECOND) for number, n in enumerate((70, 45, 85))]
    found = compare(job[0], trace(seed=9, compute_ns=60 * MILLISECOND), job[1:])
    assert found.equivalence.result == "inconclusive" and "computation halved would not be noticed" in found.verdict


def test_the_smallest_change_noticed_is_where_the_verdict_turns(trace):
    job = [run(trace, seed) for seed in range(3)]
    least = compare(job[0], job[1], job[1:]).to_document()["equivalence"]["smallest_change_noticed"]
    least_bytes = least["bytes read from dataset files"]
    assert 0.02 < least_bytes < 0.1
    for factor, result in ((1 + least_bytes * 0.7, "alike"), (1 + least_bytes * 1.3, "different")):
        read_bytes = int(JOB.read_bytes * factor)
        changed = run(trace, 9, file_bytes=4 * read_bytes, read_bytes=read_bytes)
        assert compare(job[0], changed, job[1:]).equivalence.result == result


def test_halving_the_computation_leaves_what_is_read(trace):
    profile = profiles_of([trace()], True, frozenset(("read", "write", "open", "close", "sync", "map")), map, lambda _: None)[0]
    before, after = summarise(profile), summarise(computation_halved(profile))
    assert np.array_equal(before.bytes, after.bytes) and np.array_equal(before.calls, after.calls)
    training = 1
    assert 0.5 < after.duration_ns[training] / before.duration_ns[training] < 0.8
    assert after.pause_ns.sum() < before.pause_ns.sum()
    assert all(made is None or made.path == profile.path for made in (make(profile) for make in CONTROLS.values()))


def test_margins_grow_with_the_spread_of_reruns_and_shrink_with_their_number():
    still, moved = np.zeros(3), np.array([-0.1, 0.0, 0.1])
    assert TIME.tolerance < _margin(TIME, still, 1) < _margin(TIME, moved, 1)
    assert _margin(TIME, np.tile(moved, 4), 1) < _margin(TIME, moved, 1)
    assert _margin(TIME, moved, 1) < _margin(TIME, moved, 9)


@pytest.mark.parametrize(("probability", "freedom", "value"), [(0.975, 5, 2.571), (0.995, 10, 3.169), (0.999, 8, 4.501)])
def test_quantiles_of_student(probability, freedom, value):
    assert _student(probability, freedom) == pytest.approx(value, rel=0.02)


def test_the_series_of_student_has_the_published_coefficients():
    assert _student(0.95, 5) == pytest.approx(2.015048, rel=1e-3)
    assert _student(0.9, 5) == pytest.approx(1.475884, rel=2e-4)


def test_a_finding_says_the_difference_and_what_a_rerun_may_differ_by():
    assert AspectDifference("access_order", True, 0.25, 0.1).sentence() == "access order scores 0.75, a rerun 0.90 or more"
    longer = AspectDifference("time", False, float(np.log(1.5)), float(np.log(1.2)))
    assert "time (a rerun may differ by 20 %)" in longer.sentence() and "50 %" in longer.sentence()
    assert longer.distance == pytest.approx(np.log(1.5) / np.log(1.2)) == replace(longer, difference=-longer.difference).distance
