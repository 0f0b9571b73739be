"""Advice on jobs with a planted problem and without one, and its figures against naive programs."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.benchmark.fit.fit_trace import quiet_fit
from iotwin.common.numbers.confidence import Estimate
from iotwin.loops.answers.checkpoint_times import steps_between_saves
from iotwin.loops.answers.data_findings import DataReads
from iotwin.loops.answers.finding import JobChange, JobFinding
from iotwin.loops.answers.loader_findings import _no_decoding, decoding_share
from iotwin.loops.answers.tested_advice import Advice, _judge, advise
from iotwin.loops.answers.training_view import TrainingView, training_view
from iotwin.loops.answers.twin_runs import TrainingFigures
from iotwin.trace_store.figures.distinct_bytes import distinct_bytes
from iotwin.trace_store.figures.sql import query
from iotwin.trace_store.reader import Trace
from tests.benchmark.loader_job import LoaderJob
from tests.conftest import run_iotwin

QUICK = {"files": 96, "epochs": 2}
PLANTED = {
    "few_loaders": LoaderJob(**QUICK, loaders=1, compute_ms=1),
    "checkpoint_stall": LoaderJob(**QUICK, compute_ms=5, save_after=2),
}
JOBS = [*PLANTED.items(), (None, LoaderJob(**QUICK, loaders=2, compute_ms=20))]


def view_of(trace: Trace) -> TrainingView:
    view = training_view(trace, quiet_fit(trace))
    assert view is not None
    return view


def kinds(advice: Advice) -> list[str]:
    return [each.kind for each in advice.findings]


@pytest.mark.parametrize(("kind", "job"), JOBS, ids=str)
def test_a_planted_problem_is_found_and_no_other_job_has_it(tmp_path, kind, job):
    found = kinds(advise(job.trace(tmp_path / "t"), tested=False))
    assert set(found) & set(PLANTED) == ({kind} if kind else set())


def test_waits_are_the_time_between_the_end_of_a_step_and_the_next_batch(tmp_path):
    """A loader of the job takes 4 * (0.1 + ...) ms a batch, and the rank computes for 1 ms: it waits for most of its time."""
    view = view_of(PLANTED["few_loaders"].trace(tmp_path / "t"))
    computing = 1 / (1e3 * view.step_s)
    assert view.waiting_share == pytest.approx(1 - computing, abs=0.1)
    assert view.busy_share > 0.9 and view.service_s > view.computation_s
    assert steps_between_saves(view_of(PLANTED["checkpoint_stall"].trace(tmp_path / "c"))) == 2


@pytest.mark.parametrize(("kind", "job"), PLANTED.items(), ids=str)
def test_every_query_shows_rows(tmp_path, kind, job):
    trace = job.trace(tmp_path / "t")
    for finding in advise(trace, tested=False).findings:
        assert query(trace, finding.sql).num_rows, finding.kind


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(1, 10)), max_size=12))
def test_different_bytes_are_those_of_a_naive_set(reads):
    expected = {(file, byte) for file, begin, size in reads for byte in range(begin, begin + size)}
    frame = pd.DataFrame(reads, columns=["file_id", "offset", "result"]).astype({"offset": float, "result": np.int64})
    assert distinct_bytes(frame) == len(expected)


def finding(kind: str, gain: float | None, significant: bool = True) -> JobFinding:
    predicted = None if gain is None else Estimate(1 - gain, 1 - gain - 0.01, 1 - gain + 0.01)
    return JobFinding(kind, "", {}, "", JobChange("a", 1, 2, "b"), predicted=predicted, runs=3, significant=significant)


def test_findings_are_ordered_by_gain_and_alike_gains_by_how_specific_they_are():
    from iotwin.loops.answers.tested_advice import _rank

    found = [
        finding("checkpoint_not_durable", None, False), finding("slow_decode", 0.51), finding("few_loaders", 0.50),
        finding("checkpoint_stall", 0.2), finding("small_reads", 0.51),
    ]  # fmt: skip
    assert [each.kind for each in sorted(found, key=_rank)] == [
        "small_reads", "few_loaders", "slow_decode", "checkpoint_stall", "checkpoint_not_durable",
    ]  # fmt: skip


def test_without_decoding_steps_do_not_wait_for_a_processor_any_more(tmp_path):
    """If the job uses all processors; every second step of the job takes three times as long."""
    view = view_of(PLANTED["few_loaders"].trace(tmp_path / "t"))
    for each in view.training:
        each.computed[:] = each.taken + np.where(np.arange(len(each.taken)) % 2 == 0, 1_000_000, 3_000_000)
    usual, busy = (_no_decoding(view, 0.5, share).overrides for share in (0.5, 0.95))
    assert usual == ("++workload.twin.recorded.decode_scale=0.0000",)
    assert busy is not None and float(busy[1].partition("computation_scale=")[2]) == pytest.approx(1 / 2)


# Twins run on the virtual clock: beside such times, delays by a loaded machine do not count.
SLOW = {"compute_ms": 500, "decode_ms": 50}


def local_job(folder: Path, job: LoaderJob) -> Trace:
    """The trace of a job whose data are in `folder`."""
    job.root = str(folder / "data")
    job.write_data(folder)
    return job.trace(folder / "t")


def test_a_change_is_tested_on_the_twin_before_it_is_given(tmp_path):
    job = LoaderJob(files=96, batch=16, epochs=1, loaders=1, **SLOW, file_bytes=1_000)
    advice = advise(local_job(tmp_path, job), runs=2)
    assert not advice.notes and advice.twin_step_s is not None
    first = next(each for each in advice.findings if each.kind == "few_loaders")
    assert first.predicted is not None and first.predicted.value < 0.9 and first.runs == 2
    recipe = advice.to_document()["recipe"]
    assert recipe["runs"] == 2 and recipe["machine"] and set(recipe["load"]) == {"start", "end"}
    unchanged, *changed = recipe["variants"]
    assert unchanged["value"] is None and unchanged["values"]["dataset.data_folder"] == str(tmp_path / "data" / "train")
    assert {each["cache"] for each in recipe["variants"]} <= {"cold", "warm"}
    threads = int(first.change.after)
    assert {"reader.read_threads": threads} in [each["values"] for each in changed]
    assert recipe["trace"]["sha256"] == sha256((tmp_path / "t" / "manifest.json").read_bytes()).hexdigest()
    assert set(recipe["twin"]) == set(recipe["recording"]) == {"sha256"}


def test_without_the_data_no_change_is_tested_and_the_reason_is_given(tmp_path):
    advice = advise(PLANTED["few_loaders"].trace(tmp_path / "t"))
    assert "96 of 96 files of the data set are not here" in advice.notes[0]
    assert all(each.predicted is None for each in advice.findings)


def test_the_document_has_the_keys_that_scripts_rely_on(tmp_path):
    trace = PLANTED["checkpoint_stall"].trace(tmp_path / "t")
    document: dict[str, Any] = json.loads(run_iotwin("advise", trace.path, "--untested", "--json").stdout)
    assert set(document["verdict"]) == {"limited_by", "waiting_share", "window", "sentence"}
    first = document["findings"][0]
    assert set(first) >= {"kind", "rank", "sentence", "evidence", "sql", "change", "predicted", "significant"}
    assert first["kind"] == "checkpoint_stall" and first["rank"] == 1
    assert first["change"]["from"] == 2 and first["change"]["to"] == 20
    assert document["machine"] == {"crowded": False} and document["recipe"] is None


@pytest.mark.parametrize(("slow", "change"), [
    ({"loaders": 1}, "loader processes: 4"), ({"decode_ms": 6000}, "loading of a sample: as the others"),
])  # fmt: skip
def test_a_slow_rank_is_tested_with_ranks_that_are_alike(tmp_path, slow, change):
    """The rank takes 4 or 6 times as long for its batches as it computes on them."""
    job = LoaderJob(files=64, ranks=2, epochs=1, loaders=4, compute_ms=1000, decode_ms=1000, last_rank=slow)
    advice = advise(local_job(tmp_path, job), runs=1)
    [found] = [each for each in advice.findings if each.kind == "uneven_ranks"]
    assert str(found.change) == change and found.evidence["rank"] == 1 and "few_loaders" not in kinds(advice)
    assert found.predicted is not None and found.predicted.value < 0.8


def test_a_change_that_the_twin_cannot_follow_is_not_tested_and_its_finding_gives_the_reason(tmp_path):
    """Both ranks write parts of checkpoints, so that the twin of two ranks cannot be dealt to others."""
    job = LoaderJob(files=96, ranks=2, epochs=1, loaders=4, compute_ms=10, decode_ms=10, save_after=2, last_rank={"loaders": 1})
    advice = advise(local_job(tmp_path, job), runs=1)
    found = {each.kind: each for each in advice.findings}
    assert "each rank writes a part" in found["uneven_ranks"].notes[0] and found["uneven_ranks"].predicted is None
    assert not advice.notes and advice.twin_step_s is not None


STALLED = {"files": 64, "epochs": 1, "loaders": 2, "compute_ms": 5}


@pytest.mark.parametrize(("kind", "job"), [
    ("read_twice", LoaderJob(**STALLED, reads=3, decode_ms=3)),
    ("metadata_storm", LoaderJob(**STALLED, stats=20, file_bytes=1000)),
    ("evaluation_stall", LoaderJob(**STALLED, evaluated=64, held_loaders=1, decode_ms=3)),
    ("checkpoint_stall", LoaderJob(**STALLED, save_after=3, file_bytes=1000)),
    ("checkpoint_not_durable", LoaderJob(**STALLED, save_after=3, file_bytes=1000)),
])  # fmt: skip
def test_the_twin_makes_the_change_of_each_finding(tmp_path, kind, job):
    advice = advise(local_job(tmp_path, job), runs=1)
    found = [each for each in advice.findings if each.kind == kind]
    assert not advice.notes and len(found) == (2 if kind == "checkpoint_stall" else 1)
    assert all(each.predicted is not None and each.runs == 1 and "not tested" not in str(each.notes) for each in found)
    assert [each.of_run for each in found] == [kind == "evaluation_stall"] * len(found)


def test_without_metadata_a_loader_saves_the_time_of_these_calls_and_of_making_them(tmp_path):
    """20 calls of 0.1 ms a sample, of which the next one follows 0.1 ms later: 20 us of that are the call's."""
    job = LoaderJob(**STALLED, stats=20, file_bytes=1000)
    reads = DataReads(view_of(job.trace(tmp_path / "t")))
    assert reads.metadata_ns == pytest.approx(64 * 20 * (0.1 + 0.02) * 1e6, rel=0.05)
    assert reads.metadata_ns < reads.thinking_ns < reads.service_ns


def test_short_times_between_calls_are_no_decoding(tmp_path):
    """10 us after a call are the making of the next one, and remain without decoding; 20 us are decoding."""
    view = view_of(LoaderJob(**STALLED, reads=20, decode_ms=3).trace(tmp_path / "t"))
    calls = view.data_calls.sort_values(["tid", "start_ns"])
    ends = calls["start_ns"] + calls["duration_ns"]
    gaps = [
        after - end
        for _, own in calls.groupby("tid")
        for end, after in zip(ends[own.index][:-1], own["start_ns"][1:], strict=True)
    ]
    assert sorted(view.gaps_ns[view.gaps_ns > 0]) == sorted(gap for gap in gaps if gap > 0)
    view.__dict__["gaps_ns"] = np.full(len(calls), 10_000)
    before = decoding_share(view)
    view.__dict__["gaps_ns"] = np.full(len(calls), 20_000)
    del view.__dict__["call_gaps_ns"]
    service_ns = view.service_s * 1e9 * sum(len(each.taken) for each in view.training)
    assert decoding_share(view) - before == pytest.approx(len(calls) * 10_000 / service_ns)
    del view.__dict__["call_gaps_ns"]
    view.__dict__["gaps_ns"] = np.full(len(calls), 10_000)
    [scale] = _no_decoding(view, share=0.5, floor=0.0).overrides
    expected = len(calls) * 10_000 / (len(calls) * 10_000 + service_ns / 2)
    assert float(scale.rpartition("=")[2]) == pytest.approx(expected, abs=1e-4)


def test_findings_with_the_same_change_share_its_runs(tmp_path, monkeypatch):
    """Cached data mend cold reads and a small page cache alike; the unchanged twin finds its data cold."""
    monkeypatch.setattr(TrainingView, "device_bytes", property(lambda view: 2 * 64 * 100_000))
    figures = TrainingFigures(0.01, 0.1, None, {})
    monkeypatch.setattr(
        "iotwin.loops.answers.tested_advice.run_variants", lambda twin, tried, *_, **__: {each.name: [figures] for each in tried}
    )
    advice = advise(local_job(tmp_path, LoaderJob(files=64, epochs=1, loaders=1, compute_ms=1, decode_ms=0.1)), runs=1)
    assert {each.kind for each in advice.findings if each.change.warms and each.predicted} == {"cache_too_small", "slow_storage"}
    assert advice.recipe is not None
    assert [each["cache"] for each in advice.recipe["variants"] if not each["overrides"]] == ["cold", "warm"]


def test_what_durability_costs_is_reported():
    durable = finding("checkpoint_not_durable", None)
    figures = [[TrainingFigures(step_s, step_s, None, {}) for step_s in each] for each in ((1.2, 1.21, 1.19), (1.0, 1.0, 1.0))]
    _judge(durable, *figures, noise=0.03)
    assert durable.notes == ["costs 20.0% of the step time"] and not durable.significant


def test_tracing_lengthens_a_step_by_its_calls_at_most(tmp_path):
    """A batch has 4 files, each opened, read by 2 calls and closed; two loaders read batches at once."""
    view = view_of(LoaderJob(**QUICK, loaders=2).trace(tmp_path / "t"))
    view.trace.manifest.cost.transfer_ns, view.trace.manifest.cost.call_ns = 300, 700
    assert view.tracing_s == pytest.approx(4 * (2 * 300 + 2 * 700) / 2 / 1e9)
