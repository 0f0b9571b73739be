"""The measure as a whole, on made-up traces of made-up jobs."""

import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.commands.compare import CompareCommand
from iotwin.common.errors import IotwinError
from iotwin.main import main
from iotwin.trace_store import schema
from iotwin.trace_store.manifest import read_manifest, write_manifest
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.writer import write_table
from iotwin.tracesim import compare
from tests.conftest import ROOT
from tests.synthetic import MILLISECOND, Job, write_job

# Those of a job that logs neither its waits nor block requests.
DIMENSIONS = [
    "volume", "operation_mix", "request_size", "access_order", "timing", "bursts", "concurrency", "timeline", "files",
    "checkpoint",
]  # fmt: skip
JOB = Job()


@pytest.fixture
def rerun(trace):
    """The base job once more: another shuffle, and every compute time 5 % longer on top of the jitter within."""
    return trace(seed=2, compute_ns=63 * MILLISECOND)


def scores(similarity):
    return {d.name: d.score for d in similarity.dimensions}


def test_a_trace_is_exactly_like_itself(trace):
    similarity = compare(trace(), trace())
    assert scores(similarity) == dict.fromkeys(DIMENSIONS, 1.0)
    assert similarity.overall == similarity.storage_independent == 1.0
    assert similarity.confidence_interval == (1.0, 1.0)
    assert similarity.verdict == "inconclusive: no reruns of the job are given"
    assert similarity.differences == () and similarity.warnings == ()


def test_pids_paths_and_start_do_not_matter(trace):
    assert scores(compare(trace(), trace(pid=70_000, root="/mnt/elsewhere", start_ns=10**15))) == dict.fromkeys(DIMENSIONS, 1.0)


small_jobs = st.builds(
    Job,
    files=st.integers(1, 12),
    file_bytes=st.integers(1, 1 << 22),
    read_bytes=st.sampled_from([1 << 16, 1 << 20]),
    batch=st.integers(1, 5),
    loaders=st.integers(0, 3),
    prefetch=st.integers(1, 3),
    epochs=st.integers(1, 3),
    compute_ns=st.integers(0, 10**8),
    checkpoint_every=st.integers(0, 2),
    checkpoint_writes=st.lists(st.integers(1, 1 << 20), min_size=1, max_size=4).map(tuple),
    shuffle=st.booleans(),
    read_from_end=st.booleans(),
    evaluation_files=st.integers(0, 3),
    log_phases=st.booleans(),
    seed=st.integers(0, 99),
)


@settings(max_examples=10)
@given(small_jobs, small_jobs)
def test_bounded_symmetric_and_identical_to_itself(tmp_path, one, other):
    a, b = Trace(write_job(tmp_path / "a", one)), Trace(write_job(tmp_path / "b", other))
    there, back = compare(a, b), compare(b, a)
    assert scores(there) == scores(back) and there.overall == back.overall
    assert all(0.0 <= value <= 1.0 for d in there.dimensions for value in [d.score, *d.parts.values()])
    assert 0.0 <= there.overall <= 1.0
    assert there.confidence_interval is None or there.confidence_interval[0] <= there.confidence_interval[1]
    assert compare(a, a).overall == 1.0
    json.dumps(there.to_document(), allow_nan=False)


@pytest.mark.parametrize("seed", range(3, 8))
def test_a_rerun_scores_high_and_each_wrong_twin_clearly_lower(trace, rerun, seed):
    base = trace()
    like = compare(base, rerun).overall
    assert like > 0.95
    wrong = {
        "batch doubled": trace(batch=JOB.batch * 2, seed=seed),
        "compute halved": trace(compute_ns=JOB.compute_ns // 2, seed=seed),
        "loaders doubled": trace(loaders=JOB.loaders * 2, seed=seed),
    }
    for name, twin in wrong.items():
        similarity = compare(base, twin)
        assert similarity.overall < like - 0.05, name
        assert min(scores(similarity).values()) < 0.75, name
        assert similarity.verdict.startswith("different: "), name


def test_training_counts_however_long_evaluation_takes(trace):
    """As in a job that evaluates for three quarters of its time, where half the compute in training is an eighth of the whole."""
    job = replace(JOB, evaluation_ns=450 * MILLISECOND)
    like = compare(trace(job), trace(job, seed=2, compute_ns=63 * MILLISECOND, evaluation_ns=470 * MILLISECOND)).overall
    halved = compare(trace(job), trace(job, seed=2, compute_ns=30 * MILLISECOND))
    assert like > 0.98 and halved.overall < like - 0.04
    assert any("less time in training" in sentence for sentence in halved.differences)


def test_another_shuffle_is_alike_but_no_shuffle_is_not(trace):
    assert all(score > 0.95 for seed in range(5) for score in scores(compare(trace(), trace(seed=seed + 10))).values())
    similarity = compare(trace(), trace(shuffle=False))
    assert scores(similarity)["access_order"] < 0.4
    assert all(score > 0.95 for name, score in scores(similarity).items() if name != "access_order")
    assert "less randomly" in similarity.verdict


@dataclass
class Graded:
    """Changes of rising strength, the dimension that is about them, and others that they may move too."""

    main: str
    others: set[str]
    changes: list[dict]


GRADED = {
    "compute time": Graded("timing", {"bursts", "timeline"}, [{"compute_ns": 15 * MILLISECOND * n} for n in (4, 3, 2, 1)]),
    "request size": Graded(
        "request_size",
        {"volume", "operation_mix", "access_order", "bursts"},
        [{"read_bytes": 1 << b, "read_ns": MILLISECOND >> 20 - b} for b in (20, 19, 18, 17, 16)],
    ),
    "epochs": Graded("volume", {"timing", "access_order", "checkpoint", "files"}, [{"epochs": n} for n in (3, 4, 6, 9)]),
    "loaders": Graded("concurrency", {"timing", "bursts", "timeline"}, [{"loaders": n} for n in (2, 3, 4, 6)]),
    "checkpoint size": Graded(
        "checkpoint",
        {"volume", "operation_mix", "files", "request_size", "access_order", "timeline"},
        [{"checkpoint_writes": JOB.checkpoint_writes * n} for n in (1, 2, 3, 5)],
    ),
    "checkpoints left out": Graded(
        "checkpoint",
        {"volume", "operation_mix", "files", "request_size", "timeline"},
        [{"checkpoint_every": n} for n in (1, 2, 0)],
    ),
    "checkpoints kept": Graded("checkpoint", set(), [{"checkpoint_keep": n} for n in (None, 2, 1)]),
    "file size": Graded(
        "files",
        {"volume", "operation_mix", "access_order", "timing", "bursts", "concurrency", "timeline"},
        [{"file_bytes": n << 20} for n in (4, 5, 6, 8)],
    ),
}


@pytest.mark.parametrize("what", GRADED)
def test_the_dimension_concerned_falls_with_the_strength_of_a_change_and_the_others_stay(trace, what):
    graded = GRADED[what]
    base = trace()
    found = [compare(base, trace(seed=2, **change)) for change in graded.changes]
    main = [scores(similarity)[graded.main] for similarity in found]
    overall = [similarity.overall for similarity in found]
    assert main == sorted(main, reverse=True) and main[-1] < main[0] - 0.1
    assert overall == sorted(overall, reverse=True) and overall[-1] < overall[0]
    untouched = {name: score for name, score in scores(found[-1]).items() if name not in graded.others | {graded.main}}
    assert all(score > 0.95 for score in untouched.values()), untouched


def test_reading_files_backwards_is_another_order_and_nothing_else(trace):
    found = scores(compare(trace(), trace(seed=2, read_from_end=True)))
    assert found.pop("access_order") < 0.5
    assert min(found.values()) > 0.95


def test_a_job_that_waits_for_data_is_told_from_one_that_computes_as_long(trace):
    """Steps of about 60 ms either way: in one job the accelerator is busy, in the other it starves."""
    computing = trace(log_waits=True, files=48, loaders=6)
    assert "steps" not in scores(compare(computing, trace(files=48, loaders=6)))
    starving = {
        n: {"loaders": 1, "prefetch": 1, "compute_ns": (60 - n) * MILLISECOND, "read_ns": n * MILLISECOND // 8}
        for n in (10, 25, 40)
    }
    found = [compare(computing, trace(log_waits=True, files=48, **change)) for change in starving.values()]
    parts = [next(d for d in similarity.dimensions if d.name == "steps").parts["data_wait"] for similarity in found]
    assert parts == sorted(parts, reverse=True) and parts[-1] < 0.7
    assert any("B waits for data" in sentence for sentence in found[-1].differences)
    assert scores(compare(computing, trace(log_waits=True, files=48, loaders=6, seed=2)))["steps"] > 0.95


def add_steps(found, step_ns):
    phases = pq.read_table(found.path / "phases.parquet").to_pylist()
    epochs = [row for row in phases if row["phase"] == "epoch"]
    steps = [
        {**row, "phase": "step", "start_ns": start, "end_ns": start + step_ns, "step": number}
        for row in epochs for number, start in enumerate(range(row["start_ns"], row["end_ns"] - step_ns, step_ns))
    ]  # fmt: skip
    write_table(found.path, "phases.parquet", schema.PHASES, pa.Table.from_pylist(phases + steps, schema=schema.PHASES))
    return Trace(found.path)


def test_step_times_are_compared_where_both_jobs_log_steps(trace):
    base = add_steps(trace(), 60 * MILLISECOND)
    found = [scores(compare(base, add_steps(trace(), n * MILLISECOND)))["steps"] for n in (60, 45, 30, 15)]
    assert found[0] == 1.0 and found == sorted(found, reverse=True) and found[-1] < 0.3


def add_block_requests(found, op="read", size_bytes=1 << 17, every_ns=10 * MILLISECOND):
    start, end = found.manifest.start_ns, found.manifest.end_ns
    issue = np.arange(start, end, every_ns)
    n = len(issue)
    columns = {
        "queued_ns": issue - 1000, "issue_ns": issue, "duration_ns": np.full(n, MILLISECOND), "op": [op] * n, "device": [64] * n,
        "sector": np.arange(n) * 256, "size_bytes": [size_bytes] * n, "flags": [0] * n, "cgroup": [1] * n, "origin": ["task"] * n,
        "pid": [1000] * n, "comm": ["python"] * n,
    }  # fmt: skip
    columns |= {name: [None] * n for name in schema.BLOCK.names if name not in columns}
    arrays = {f.name: pa.array(columns[f.name], pa.string() if pa.types.is_dictionary(f.type) else f.type) for f in schema.BLOCK}
    write_table(found.path, "block.parquet", schema.BLOCK, pa.table(arrays).cast(schema.BLOCK))
    return Trace(found.path)


def test_block_traffic_is_compared_where_both_have_it(trace):
    base = add_block_requests(trace())
    assert "block" not in scores(compare(base, trace()))
    same = compare(base, add_block_requests(trace()))
    assert scores(same)["block"] == 1.0 and same.overall == 1.0
    part = {name: d.parts for d in same.dimensions for name in [d.name]}["timeline"]
    assert set(part) == {"READ", "WRITE", "BIOR"}
    fewer = [compare(base, add_block_requests(trace(), every_ns=n * MILLISECOND)) for n in (12, 20, 40)]
    falling = [scores(similarity)["block"] for similarity in fewer]
    assert falling == sorted(falling, reverse=True) and falling[-1] < 0.75
    assert scores(compare(base, add_block_requests(trace(), size_bytes=1 << 12)))["block"] < 0.5
    assert any("read from the device in B" in sentence for sentence in fewer[-1].differences)


def test_bars_are_the_union_of_what_is_in_flight():
    """Against a count of every nanosecond, in batches that cut through overlapping calls."""
    from iotwin.tracesim.busy_time import _Union

    rng = np.random.default_rng(3)
    start = np.sort(rng.integers(0, 900, 60))
    end = start + rng.integers(0, 80, 60)
    edges = np.arange(0, 1001, 50)
    union = _Union(edges)
    for begin in range(0, 60, 7):
        union.add(start[begin : begin + 7], end[begin : begin + 7])
    busy = np.zeros(1000, bool)
    for s, e in zip(start, end, strict=True):
        busy[s:e] = True
    assert np.diff(union.before_ns).tolist() == [busy[a:b].sum() for a, b in pairwise(edges)]


def test_verdict_with_repeats(trace, rerun):
    repeats = [trace(seed=3, compute_ns=57 * MILLISECOND), trace(seed=4, compute_ns=66 * MILLISECOND)]
    similarity = compare(trace(), rerun, repeats)
    assert 0.9 < similarity.noise_floor <= similarity.overall
    assert similarity.verdict == "indistinguishable from a rerun"
    assert set(similarity.noise_floor_dimensions) == set(DIMENSIONS)
    further = compare(trace(), trace(seed=2, compute_ns=48 * MILLISECOND), repeats)
    assert further.overall < further.noise_floor and further.verdict == "alike"  # what such reruns do not tell apart
    halved = compare(trace(), trace(seed=2, compute_ns=30 * MILLISECOND), repeats)
    assert halved.verdict.startswith("different: ") and "less time" in halved.verdict


def test_repeats_of_another_job_make_no_noise_floor_to_hide_under(trace):
    similarity = compare(trace(), trace(batch=6), [trace(batch=8, loaders=6, read_bytes=1 << 16)])
    assert similarity.noise_floor < 0.9
    assert similarity.verdict.startswith("different")
    assert any("repeats" in warning for warning in similarity.warnings)


def test_differences_come_in_words_with_numbers(trace):
    kept = compare(trace(checkpoint_keep=1), trace(seed=2)).differences
    assert "B removes 0% of the checkpoint files that it writes, A 67%" in kept
    told = compare(trace(), trace(seed=2, evaluation_files=2, loaders=4, checkpoint_writes=(4096, 1 << 20))).differences
    assert "B reads 2 times fewer bytes in evaluation" in told
    assert "4 processes or threads of B read in each training, 2 of A" in told
    assert any(sentence.startswith("B's checkpoint files are 2 times smaller (1 MiB against 2 MiB)") for sentence in told)
    none = compare(trace(), trace(seed=2, checkpoint_every=0)).differences
    assert "B writes no bytes in checkpoints (A: 6.01 MiB)" in none


def test_losses_are_never_silent(trace):
    few = compare(trace(), trace(lost={"ring": 2}))
    assert few.overall == 1.0
    assert few.confidence_interval[0] == pytest.approx(1 - 2 / 527) and "lost 2 events" in few.warnings[0]
    many = compare(trace(), trace(lost={"ring": 50}))
    assert many.overall is None and many.storage_independent is None and many.confidence_interval is None
    assert many.verdict.startswith("withheld: a trace lost 8.7 % of its events")
    assert many.to_document()["overall"] is None


def test_a_verdict_counts_lost_events_as_differences(trace):
    base, repeat = trace(), trace(seed=3)
    assert compare(base, trace(seed=3), [repeat]).verdict == "indistinguishable from a rerun"
    assert compare(base, trace(seed=3, lost={"ring": 2}), [repeat]).verdict == "alike"


def test_without_phases_the_whole_run_is_one_and_the_result_says_so(trace, rerun):
    blind = trace(log_phases=False)
    similarity = compare(blind, rerun)
    assert similarity.warnings == ("A did not log phases; the runs are compared as one phase each",)
    assert similarity.overall > 0.95 and similarity.confidence_interval is None
    halved = compare(blind, trace(seed=2, compute_ns=30 * MILLISECOND))
    assert halved.overall < similarity.overall - 0.05
    assert "in the whole run" in halved.verdict


def test_a_trace_without_storage_calls_is_refused(trace):
    empty = trace()
    change_table(empty.path / "files.parquet", schema.FILES, "kind", lambda kinds: pa.array(["library"] * len(kinds)))
    with pytest.raises(IotwinError, match=r"has no call on a dataset or checkpoint file: nothing to compare"):
        compare(trace(), Trace(empty.path))


def change_table(path, expected, column, change):
    table = pq.read_table(path)
    changed = table.set_column(table.column_names.index(column), column, change(table[column]))
    pq.write_table(changed.cast(expected), path)


def test_a_files_table_that_lacks_files_is_refused(trace):
    short = trace()
    table = pq.read_table(short.path / "files.parquet")
    write_table(short.path, "files.parquet", schema.FILES, table.slice(0, 3))
    with pytest.raises(IotwinError, match="its column file_id has"):
        compare(trace(), Trace(short.path))


def change_manifest(trace, **values):
    manifest = read_manifest(trace.path)
    for name, value in values.items():
        setattr(manifest, name, value)
    write_manifest(trace.path, manifest)
    return Trace(trace.path)


def test_operations_that_one_trace_did_not_capture_are_left_out_of_both(trace):
    ops = ["read", "openat", "close", "write", "mmap"]
    without_sync = change_manifest(trace(), probes=[f"tracepoint:syscalls:sys_enter_{op}" for op in ops], backend="bpftrace")
    similarity = compare(trace(), without_sync)
    assert similarity.warnings[0] == "not every trace captured sync calls; they are left out of all"
    assert "different backends (A synthetic, B bpftrace)" in similarity.warnings[1]
    labels = next(d for d in similarity.dimensions if d.name == "operation_mix")
    assert labels.curve_a.y[labels.curve_a.labels.index("sync")] == 0


def test_clocks_that_do_not_meet_and_recovered_traces_are_told(trace):
    shifted = trace()
    for column in ("start_ns", "end_ns"):
        change_table(shifted.path / "phases.parquet", schema.PHASES, column, lambda times: pc.add(times, 10**12))
    warnings = compare(trace(), change_manifest(shifted, status="recovered")).warnings
    assert any("B was recovered" in warning for warning in warnings)
    assert any("B has no call on its files in any phase" in warning for warning in warnings)


def test_a_crowded_machine_is_told(trace):
    crowded = trace()

    def busy(values):
        return pa.array([0.9] * len(values), type=values.type)

    change_table(crowded.path / "samples/cpu.parquet", schema.CPU_SAMPLES, "user", busy)
    change_table(crowded.path / "samples/cpu.parquet", schema.CPU_SAMPLES, "job_cpus", busy)
    change_table(crowded.path / "samples/cpu.parquet", schema.CPU_SAMPLES, "idle", lambda v: pa.array([0.05] * len(v), v.type))
    (warning,) = compare(trace(), crowded).warnings
    assert warning.startswith("B's machine was crowded (other work took 1.0 of 2 CPUs)")


def test_latency_is_reported_but_scores_nothing(trace):
    slow = compare(trace(), trace(read_ns=2 * MILLISECOND, compute_ns=52 * MILLISECOND))
    assert slow.latency["read"]["b"]["median_ns"] == pytest.approx(2 * slow.latency["read"]["a"]["median_ns"], rel=0.2)
    assert slow.latency["read"]["score"] < 0.7
    assert slow.storage_independent == 1.0


def test_curves_are_there_to_be_plotted(trace):
    similarity = compare(trace(), trace(batch=4))
    for dimension in similarity.dimensions:
        for curve in (dimension.curve_a, dimension.curve_b):
            assert curve.x.shape == curve.y.shape and np.isfinite(curve.y).all() and curve.y.any()
            assert not curve.labels or len(curve.labels) == len(curve.x)
        assert dimension.unit and dimension.x_unit
    timing = next(d for d in similarity.dimensions if d.name == "timing")
    assert timing.curve_a.y[-1] == pytest.approx(3 * 28 * (4 << 20) + 3 * sum(JOB.checkpoint_writes))
    assert timing.curve_b.x[-1] < 0.75 * timing.curve_a.x[-1]


def test_interval_is_the_same_every_time_and_holds_the_score(trace, rerun, monkeypatch):
    monkeypatch.undo()  # all draws, as users have them
    base = trace()
    first, second = compare(base, rerun), compare(base, rerun)
    assert first.confidence_interval == second.confidence_interval
    low, high = first.confidence_interval
    assert low < high and low - 0.005 <= first.overall <= high + 0.005


def test_large_traces_are_read_side_by_side_with_the_same_result(trace, rerun, monkeypatch):
    base, repeat = trace(), trace(seed=5)
    alone = compare(base, rerun, [repeat]).to_document()
    monkeypatch.setattr("iotwin.tracesim.similarity.WORTH_PROCESSES", 0)
    assert compare(base, rerun, [repeat]).to_document() == alone
    short = trace(seed=9)
    write_table(short.path, "files.parquet", schema.FILES, pq.read_table(short.path / "files.parquet").slice(0, 3))
    with pytest.raises(IotwinError, match="its column file_id has"):
        compare(base, short)


def test_results_are_written_with_curves_and_a_picture(trace, rerun, tmp_path):
    output = tmp_path / "results"
    assert main(["compare", str(trace().path), str(rerun.path), "-o", str(output), "--quiet"]) == 0
    document = json.loads((output / "similarity.json").read_text())
    assert set(document["curves"]) == set(document["dimensions"])
    for curve in document["curves"].values():
        assert all(len(curve[side]["x"]) == len(curve[side]["y"]) > 0 for side in "ab")
    assert (output / "similarity.png").read_bytes().startswith(b"\x89PNG")


def test_folders_are_compared_pair_by_pair_and_each_twin_finds_its_job(tmp_path, capsys):
    """Two jobs, alike but for the batch; their twins are reruns under another name."""
    jobs = {"small": replace(JOB, batch=1), "large": replace(JOB, batch=6)}
    for name, job in jobs.items():
        write_job(tmp_path / "real" / f"{name}.trace", job)
        write_job(tmp_path / "emulated" / f"{name}_<b>twin.trace", replace(job, seed=7))
    script = ROOT / "tracesim" / "generate_similarity_breakdowns.sh"
    iotwin = tmp_path / "bin" / "iotwin"
    iotwin.parent.mkdir()
    iotwin.write_text(f'#!/bin/sh\nexec {sys.executable} -m iotwin "$@"\n')
    iotwin.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{iotwin.parent}:{os.environ['PATH']}"}
    subprocess.run([script, "real", "emulated", "out"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert len(list((tmp_path / "out").glob("*__*.json"))) == len(list((tmp_path / "out").glob("*__*.png"))) == 4
    assert (tmp_path / "out" / "matrix.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "out" / "matrix.csv").read_text().splitlines()) == 3
    assert main(["compare", str(tmp_path / "real"), str(tmp_path / "emulated"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["nearest"] == {f"{name}_<b>twin.trace": f"{name}.trace" for name in jobs}


def test_the_command(trace, rerun, capsys):
    parser = ArgumentParser()
    command = CompareCommand()
    command.prepare_parser(parser)
    base, other = trace(), trace(seed=5)
    args = parser.parse_args([str(base.path), str(rerun.path), "--repeats", str(other.path)])
    document = json.loads(json.dumps(command.run(args).document))
    assert list(document["dimensions"]) == DIMENSIONS
    assert document["overall"] > 0.95 and document["noise_floor"] > 0.95
    command.show(document)
    shown = capsys.readouterr().out
    assert "operation mix" in shown and "reruns of A score" in shown and document["verdict"] in shown
    args = parser.parse_args([str(base.path), str(base.path / "nowhere")])
    with pytest.raises(IotwinError, match="no such trace"):
        command.run(args)


def test_sentences_take_names():
    from iotwin.tracesim.difference_sentences import with_names

    text = "B reads 2 times fewer bytes in training (B: 1 MiB, A: 2 MiB); half of B's bytes; BIOR"
    said = with_names(text, "the job", "its twin")
    assert (
        said == "its twin reads 2 times fewer bytes in training (its twin: 1 MiB, the job: 2 MiB); half of its twin's bytes; BIOR"
    )


def test_a_sentence_of_the_verdict_is_not_printed_again(trace, capsys):
    assert main(["compare", str(trace().path), str(trace(seed=2, loaders=6, evaluation_files=2).path)]) == 0
    shown = capsys.readouterr().out
    assert "further differences" in shown and "with a fault put into it on purpose, A scores: " in shown
    assert shown.count("6 processes or threads of B read in each training, 2 of A") == 1
