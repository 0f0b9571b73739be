"""Batches of jobs that log their steps, and whose calls do not show when the rank took which batch."""

import numpy as np
import pytest

from iotwin.benchmark.fit.batches.labels import label_calls
from iotwin.benchmark.fit.batches.logged_steps import logged_steps
from iotwin.benchmark.fit.fit_trace import fit
from iotwin.benchmark.fit.passes import find_passes
from iotwin.benchmark.fit.traced_job import look
from iotwin.trace_store.reader import Trace
from iotwin.workload_yaml.recorded_structure import structure_of
from iotwin.workload_yaml.recording import Label
from tests.benchmark.made_trace import Made

EPOCHS, STEPS, FILES, AHEAD = 2, 6, 4, 2
WAIT_MS, STEP_MS = 3, 20


def read_ahead(folder, logs: bool = True, evaluates: bool = False, ranks: int = 1) -> Trace:
    """A rank for which two threads read the files of the batches that come two steps later; it may log its phases."""
    made, now = Made(), 100.0
    for rank in range(ranks):
        made.process(1000 + rank, 1, "rank", end_ms=600)
    files = [made.file(f"/d/{number:02}.npy", size=100_000) for number in range(STEPS * FILES)]
    for epoch in range(EPOCHS):
        begin, order = now, np.random.default_rng(epoch).permutation(files).reshape(STEPS, FILES).tolist()
        for step in range(-AHEAD, STEPS):
            for number, file in enumerate(order[step + AHEAD] if step + AHEAD < STEPS else []):
                at = now + 0.2 + 1.5 * (number // 2) + 0.05 * (number % 2)
                tid = 1001 + number % 2
                at = made.call(at, 1000, "openat", file, tid=tid)
                at = made.call(at, 1000, "read", file, 0, 100_000, tid=tid)
                made.call(at, 1000, "close", file, tid=tid)
            now += WAIT_MS
            if step >= 0 and logs:
                made.phase("step", now, now + STEP_MS)
            now += STEP_MS * (step >= 0)
        if logs:
            made.phase("epoch", begin, now)
        if evaluates:
            made.phase("evaluation", now, now + 10)
            made.phase("step", now + 2, now + 9)
            now += 10
        now = made.write_file(now, 1000, f"/out/{epoch}.pt", 1_000_000)
    return made.trace(folder / "t")


def mapped(folder, logs: bool = True) -> Trace:
    """A rank that reads a batch from a map before each step; a third of the batches are in memory and cause no fault."""
    made, now = Made(), 100.0
    made.process(1000, 1, "rank")
    data = made.file("/d/tokens.bin", size=1 << 26)
    now = made.call(made.call(now, 1000, "openat", data), 1000, "mmap", data, 0, 1 << 26)
    for step in range(12):
        for fault in range(3 if step % 3 else 0):
            now = made.call(now + 0.5, 1000, "page_fault", data, (7 * step + fault) << 16, 1 << 16, 0.01)
        if logs:
            made.phase("step", now, now + STEP_MS)
        now += STEP_MS
    return made.trace(folder / "t")


@pytest.mark.parametrize("job", [read_ahead, mapped])
def test_without_logged_steps_no_batches_are_known(tmp_path, job):
    assert fit(job(tmp_path, logs=False)).recording.header.batches is None


@pytest.mark.parametrize("evaluates", [False, True])
def test_steps_are_the_batches_of_a_rank_whose_threads_read_ahead(tmp_path, evaluates):
    trace = read_ahead(tmp_path, evaluates=evaluates)
    found = fit(trace).recording.header.batches
    assert [(each.training, each.batches, each.depth) for each in found.passes] == [(True, STEPS, 0)] * EPOCHS
    structure = structure_of(found)
    assert (structure.epochs, structure.computation_s, structure.ranks, structure.samples_known) == (EPOCHS, 0.02, 1, False)
    phases = trace.phases()
    steps = phases[(phases["phase"] == "step") & (phases["end_ns"] - phases["start_ns"] == STEP_MS * 1_000_000)]
    origin_ns = trace.manifest.start_ns
    assert found.taken_ns == found.delivered_ns == (steps["start_ns"] - origin_ns).tolist()
    assert found.computed_ns == (steps["end_ns"] - origin_ns).tolist()
    waits = np.subtract(found.taken_ns, found.requested_ns) / 1e6
    assert waits.tolist() == ([(AHEAD + 1) * WAIT_MS] + [WAIT_MS] * (STEPS - 1)) * EPOCHS


def test_what_threads_read_since_a_step_began_streams_to_the_next(tmp_path):
    job = look(read_ahead(tmp_path))
    calls = label_calls(job).calls
    data = calls[calls["file_id"].isin(job.file_ids("dataset"))]
    assert (data["label"] == Label.STREAMED).all()
    reads = data[data["op"] == "read"].groupby("batch").size()
    assert reads.tolist() == [FILES * (AHEAD + 1), *[FILES] * (STEPS - AHEAD - 1)] * EPOCHS
    assert reads.index.tolist() == [*range(STEPS - AHEAD), *range(STEPS, 2 * STEPS - AHEAD)]
    assert (calls.loc[calls["file_id"].isin(job.file_ids("checkpoint")), "label"] == Label.TIMED).all()


def test_batches_in_memory_count_though_they_cause_no_fault(tmp_path):
    trace = mapped(tmp_path)
    job = look(trace)
    labelled = label_calls(job)
    faults = labelled.calls[labelled.calls["op"] == "page_fault"]
    assert faults.groupby("batch").size().to_dict() == {step: 3 for step in range(12) if step % 3}
    found = find_passes(job, labelled)
    assert [len(each.batches) for each in found.training] == [12] and not found.evaluations
    assert found.training[0].computation_s.tolist() == pytest.approx([STEP_MS / 1e3] * 12)


def test_steps_of_several_ranks_or_of_none_are_no_evidence(tmp_path):
    """No log line names the process that prints it."""
    assert logged_steps(look(read_ahead(tmp_path, ranks=2))).empty
    assert logged_steps(look(read_ahead(tmp_path / "silent", logs=False))).empty


def test_steps_in_which_the_rank_itself_reads_are_no_evidence(tmp_path):
    made, now = Made(), 100.0
    made.process(1000, 1, "rank")
    data = made.file("/d/tokens.bin", size=1 << 26)
    now = made.call(made.call(now, 1000, "openat", data), 1000, "mmap", data, 0, 1 << 26)
    for step in range(12):
        made.phase("step", now, now + STEP_MS)
        for fault in range(3):
            made.call(now + 5 * fault, 1000, "page_fault", data, (3 * step + fault) << 16, 1 << 16, 0.01)
        now += STEP_MS
    assert fit(made.trace(tmp_path / "t")).recording.header.batches is None
