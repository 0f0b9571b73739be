"""Steps of ranks that log none, and whose other threads read ahead."""

import numpy as np
import pytest

from iotwin.benchmark.emulator.recorded.edits.edited_recording import edit
from iotwin.benchmark.emulator.recorded.edits.requested_edits import Edits
from iotwin.benchmark.fit.batches.paced_steps import paced_steps, time_of_a_step
from iotwin.benchmark.fit.batches.rank_steps import known_steps
from iotwin.benchmark.fit.fit_trace import fit
from iotwin.benchmark.fit.traced_job import look
from iotwin.trace_store.reader import Trace
from iotwin.workload_yaml.recorded_structure import structure_of
from iotwin.workload_yaml.recording import Op
from tests.benchmark.made_trace import Made

STEP_MS, STEPS, RECORDS, FILES = 30.0, 120, 6, 4  # a batch has so many records
RECORD_BYTES, BUFFER_BYTES, AHEAD = 10_000, 1 << 16, 40
SAVED_AFTER = 40  # steps
EPOCH_RECORDS = STEPS * RECORDS


def shards(folder, epochs: int = 1, jitter_ms: float = 0.3, logs: bool = False) -> Trace:
    """A rank for which two threads read records from four files in turn, a buffer of each at once, AHEAD records ahead.

    The first step begins 50 ms after the job, and each lasts STEP_MS; the rank saves for 25 ms after each 40 steps.
    """
    made, rng = Made(), np.random.default_rng(1)
    made.process(1000, 1, "rank", end_ms=50 + epochs * (STEP_MS * STEPS + 75) + 1)
    size = EPOCH_RECORDS * RECORD_BYTES // FILES
    files = [made.file(f"/d/{number}.tfrecord", size=size) for number in range(FILES)]
    now = 50.0
    for epoch in range(epochs):
        held = 0  # bytes of the records that are in the buffers, of each file
        for step in range(STEPS):
            wanted = min((step + 1) * RECORDS + AHEAD, EPOCH_RECORDS) * RECORD_BYTES // FILES
            at = now + (0.1 if step else -5)
            while held < wanted:
                for number, file in enumerate(files):
                    tid = 1001 + number % 2
                    at = made.call(at, 1000, "openat", file, tid=tid) if not held else at
                    at = made.call(at + 0.02, 1000, "pread64", file, held, min(BUFFER_BYTES, size - held), tid=tid)
                held += BUFFER_BYTES
            if logs:
                made.phase("step", now, now + STEP_MS)
            now += STEP_MS + rng.uniform(-jitter_ms, jitter_ms)
            if (step + 1) % SAVED_AFTER == 0:
                file = made.file(f"/out/{epoch}-{step}.pt", "checkpoint")
                made.call(made.call(now, 1000, "openat", file, flags=3), 1000, "write", file, 0, 1_000_000, 25)
                now += 25.2
    return made.trace(folder / "t")


@pytest.mark.parametrize("epochs", [1, 2])
def test_steps_are_those_of_the_rank_without_its_saving(tmp_path, epochs):
    trace = shards(tmp_path, epochs)
    found = paced_steps(look(trace))
    assert found.groupby("pass").size().tolist() == [STEPS] * epochs
    took_ms = (found["end_ns"] - found["start_ns"]).to_numpy() / 1e6
    saves = np.arange(1, len(found) + 1) % SAVED_AFTER == 0
    assert took_ms[~saves] == pytest.approx([STEP_MS] * int((~saves).sum()), abs=1)
    begin_ms = (found["start_ns"].to_numpy() - trace.manifest.start_ns) / 1e6
    numbers = np.arange(len(found))
    assert begin_ms == pytest.approx(50 + STEP_MS * numbers + 25.2 * (numbers // SAVED_AFTER), abs=4)
    follows = found["end_ns"].to_numpy()[:-1] == found["start_ns"].to_numpy()[1:]
    assert np.flatnonzero(~follows).tolist() == [STEPS * epoch - 1 for epoch in range(1, epochs)]


def test_logged_steps_count_more_than_inferred_ones(tmp_path):
    job = look(shards(tmp_path, logs=True, jitter_ms=0))
    took, paced = known_steps(job)
    assert (
        not paced and len(took) == STEPS and (took["end_ns"] - took["start_ns"]).to_numpy() == pytest.approx(STEP_MS * 1e6, abs=1)
    )


@pytest.mark.parametrize(("edits", "seconds", "saves"), [
    (Edits(computation=0.5), STEPS * STEP_MS / 2, 3), (Edits(batch=2), STEPS * STEP_MS, 1),
    (Edits(batch=0.5), STEPS * STEP_MS, 6), (Edits(epochs=2), 2 * STEPS * STEP_MS, 6),
    (Edits(samples=2), 2 * STEPS * STEP_MS, 6),
])  # fmt: skip
def test_streams_without_logged_steps_are_edited(tmp_path, edits, seconds, saves):
    before = fit(shards(tmp_path)).recording
    structure = structure_of(before.batches)
    assert (structure.epochs, structure.samples, structure.loaders) == (1, STEPS * structure.batch_size, 0)
    after = edit(before, edits)
    columns = after.columns
    read = int(columns["size"][columns["op"] == Op.READ].sum())
    assert read == EPOCH_RECORDS * RECORD_BYTES * (edits.epochs or 1) * edits.samples
    assert (columns["op"] == Op.WRITE).sum() == saves
    assert columns["think_ns"][columns["thread"] == 0].sum() / 1e6 == pytest.approx(50 + seconds, rel=0.02)


def test_ranks_share_the_files_of_a_stream(tmp_path):
    before = fit(shards(tmp_path)).recording
    each = [edit(before, Edits(ranks=2), rank).columns for rank in (0, 1)]
    assert [int(own["size"][own["op"] == Op.READ].sum()) for own in each] == [EPOCH_RECORDS * RECORD_BYTES // 2] * 2
    assert [int((own["op"] == Op.MEET).sum()) for own in each] == [STEPS // 2] * 2


def test_the_twin_names_what_it_assumes_of_inferred_steps(tmp_path):
    named = "never waits for data"
    assert any(named in note for note in fit(shards(tmp_path / "paced")).config.twin.assumptions)
    assert not any(named in note for note in fit(shards(tmp_path / "logged", logs=True)).config.twin.assumptions)


def test_a_time_of_which_pauses_are_multiples_is_found():
    rng = np.random.default_rng(3)
    for step in (2e6, 40e6, 3e9):
        pauses = step * rng.integers(1, 20, 30) + rng.normal(0, step / 50, 30)
        assert time_of_a_step(pauses) == pytest.approx(step, rel=0.01)


def test_a_million_pauses_show_the_same_time():
    pauses = 4e7 * np.random.default_rng(4).integers(1, 20, 1_000_000)
    assert time_of_a_step(pauses) == 4e7


def test_random_pauses_are_multiples_of_no_time():
    rng = np.random.default_rng(5)
    found = [time_of_a_step(rng.exponential(4e7, count) + 1e6) for count in (9, 20, 60, 200) for _ in range(50)]
    assert not any(found)
    assert time_of_a_step(np.full(8, 4e7)) == 0 and time_of_a_step(np.full(9, 4e7)) == 4e7


def test_a_rank_whose_threads_read_at_random_times_has_no_steps(tmp_path):
    made, rng = Made(), np.random.default_rng(2)
    made.process(1000, 1, "rank")
    file = made.file("/d/0.bin", size=1 << 30)
    for number, at in enumerate(np.cumsum(rng.exponential(20, 200)).tolist()):
        made.call(at, 1000, "pread64", file, number << 16, 1 << 16, tid=1001)
    trace = made.trace(tmp_path / "t")
    assert paced_steps(look(trace)).empty and fit(trace).recording.header.batches is None


def test_a_rank_that_stays_idle_for_hours_after_it_has_read_has_no_steps(tmp_path):
    made = Made()
    made.process(1000, 1, "rank", end_ms=3.6e6)
    file = made.file("/d/0.bin", size=1 << 30)
    for number in range(40):
        made.call(30 * number, 1000, "pread64", file, number << 16, 1 << 16, tid=1001)
    assert paced_steps(look(made.trace(tmp_path / "t"))).empty


def test_steps_last_until_the_process_ends_if_nothing_is_saved(tmp_path):
    made = Made()
    made.process(1000, 1, "rank", end_ms=30 * 50)
    file = made.file("/d/0.bin", size=1 << 30)
    for number in range(40):
        made.call(30 * number, 1000, "pread64", file, number << 16, 1 << 16, tid=1001)
    assert len(paced_steps(look(made.trace(tmp_path / "t")))) == 50


@pytest.mark.parametrize("reads", [0, 1, 9])
def test_few_reads_show_no_steps(tmp_path, reads):
    made = Made()
    made.process(1000, 1, "rank", end_ms=1000)
    file = made.file("/d/0.bin", size=1 << 30)
    for number in range(20):
        made.call(30 * number, 1000, "openat", file, tid=1001)
    for number in range(reads):
        made.call(30 * number + 5, 1000, "pread64", file, number << 16, 1 << 16, tid=1001)
    assert paced_steps(look(made.trace(tmp_path / "t"))).empty
