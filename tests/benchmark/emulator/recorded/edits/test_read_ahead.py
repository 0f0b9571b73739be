"""Edited twins of ranks whose other threads read ahead: for each batch that the rank takes, before it takes it."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from iotwin.benchmark.emulator.recorded.edits.edited_recording import edit
from iotwin.benchmark.emulator.recorded.edits.read_ahead import ReadAhead, TakenBatches, read_ahead_rows
from iotwin.benchmark.emulator.recorded.edits.requested_edits import Edits
from iotwin.benchmark.fit.fit_trace import fit
from iotwin.loops.emulation import EmulationOptions, run_workload
from iotwin.workload_yaml import TwinRecorded
from iotwin.workload_yaml.recorded_structure import structure_of
from iotwin.workload_yaml.recording import Op, TwinRecording, write_recording
from tests.benchmark.emulator.recorded.edits.test_requested_edits import JOB as LOADED
from tests.benchmark.emulator.recorded.edits.test_requested_edits import count, rank_think_ms, reads, writes
from tests.benchmark.fit.recorded.test_logged_steps import EPOCHS, FILES, STEP_MS, STEPS, read_ahead
from tests.benchmark.loader_job import fit_once

BYTES = 100_000


@pytest.fixture
def before(tmp_path) -> TwinRecording:
    found = fit(read_ahead(tmp_path)).recording
    assert found is not None
    return found


def reads_by_thread(made: TwinRecording) -> Counter[int]:
    rows = made.columns["op"] == Op.READ
    return Counter(made.columns["thread"][rows].tolist())


@pytest.mark.parametrize(("factor", "steps"), [(2, STEPS // 2), (0.5, 2 * STEPS), (1, STEPS)])
def test_each_file_is_read_once_an_epoch_whatever_the_batch_size(before, factor, steps):
    after = edit(before, Edits(batch=factor, seed=7))
    assert reads(after) == reads(before) and sorted(reads_by_thread(after)) == sorted(reads_by_thread(before)) == [1, 2]
    marks = [before.header.marks[subject] for subject in after.columns["subject"][after.columns["op"] == Op.MARK].tolist()]
    assert sum(mark.key == "step" and mark.begins for mark in marks) == EPOCHS * steps
    assert rank_think_ms(after) == pytest.approx(rank_think_ms(before), abs=2)


def test_threads_read_for_a_batch_while_the_rank_computes_on_the_one_before(before):
    """Without an edit, the files that a thread reads between two waits for it are those of the recording."""
    after = edit(before, Edits(computation=0.5))
    of = after.columns
    main = of["thread"] == 0
    order = of["op"][main & np.isin(of["op"], [Op.POST, Op.WAIT])]
    assert (np.flatnonzero(order == Op.POST)[0], order[-1]) == (0, Op.WAIT) and (order == Op.POST).sum() == (
        order == Op.WAIT
    ).sum()
    begun = of["subject"][main & (of["op"] == Op.POST)]
    assert set(begun.tolist()) == {0, 2} and set(of["subject"][main & (of["op"] == Op.WAIT)].tolist()) == {1, 3}
    # The main thread computes between what it asks for and what it waits for.
    rows = np.flatnonzero(main)
    posts, waits = (rows[of["op"][rows] == op] for op in (Op.POST, Op.WAIT))
    thinks = np.cumsum(of["think_ns"])
    later = waits[np.searchsorted(waits, posts)]
    assert np.median((thinks[later] - thinks[posts]) / 1e6) == pytest.approx(STEP_MS / 2, rel=0.1)


@pytest.mark.parametrize("epochs", [1, 3])
def test_epochs_are_left_out_or_repeated(before, epochs):
    after = edit(before, Edits(epochs=epochs))
    assert sum(reads(after).values()) == epochs * STEPS * FILES and len(set(writes(after))) == epochs
    once = {name for name, _, _ in reads(after)}
    assert len(once) == STEPS * FILES


def test_more_samples_lie_on_copies(before):
    after = edit(before, Edits(samples=2))
    assert sum(reads(after).values()) == 2 * EPOCHS * STEPS * FILES
    assert sum("-copy1" in name for name, _, _ in reads(after)) == STEPS * FILES


def test_loaders_take_over_from_threads(before):
    after = edit(before, Edits(loaders=2))
    assert reads(after) == reads(before) and count(after, Op.START) == EPOCHS * 2
    process = np.array(after.header.threads)[after.columns["thread"][after.columns["op"] == Op.READ]]
    assert not (process == 0).any()


def test_ranks_share_what_threads_read(before):
    each = [edit(before, Edits(ranks=2), rank) for rank in (0, 1)]
    assert sum((reads(made) for made in each), Counter()) == reads(before)


def test_parts_of_a_batch_follow_one_another_in_time(before):
    taken, own = np.array(before.batches.taken_ns), [np.arange(STEPS), np.arange(STEPS, 2 * STEPS)]
    passes = [TakenBatches(each, taken[each], before.batches.requested_ns[each[0]]) for each in own]
    rows = read_ahead_rows(before, 0)
    ahead = ReadAhead(before, 0, rows, passes, lambda batch: 4)
    at_ns, found = before.columns["at_ns"], []
    for part in range(4):
        stretch = ahead.of(1, part)
        found.append(np.sort(np.concatenate([at_ns[mine] for _, mine, _ in stretch.others])))
    whole = np.concatenate(found)
    assert len(whole) == 3 * FILES and (np.diff(whole) >= 0).all() and [len(each) for each in found] == [3] * 4
    assert ahead.of(STEPS - 1, 0) is None and not ahead.is_streamed()
    stretches = [ahead.of(1, part) for part in range(4)]
    first = {position: thinks[0] for stretch in reversed(stretches) for position, _, thinks in stretch.others}
    begin_ns = taken[0]
    begins = [at_ns[np.flatnonzero(rows & (before.columns["thread"] == thread) & (at_ns >= begin_ns))[0]] for thread in (1, 2)]
    assert first == {1: begins[0] - begin_ns, 2: begins[1] - begin_ns}


def test_a_recording_with_loaders_has_no_rows_that_threads_read_ahead():
    made = fit_once(LOADED).recording
    assert not read_ahead_rows(made, structure_of(made.batches).ranks - 1).any()


@pytest.mark.parametrize("change", ["batch_size", "epochs", "nothing"])
def test_an_edited_twin_runs(tmp_path, change):
    made = fit(read_ahead(tmp_path))
    write_recording(made.recording, tmp_path / "job.recording")
    for name, size in made.files:
        path: Path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
    config = made.config
    config.twin.recorded = TwinRecorded(str(tmp_path / "job.recording"))
    config.dataset.data_folder = str(tmp_path / "data")
    config.checkpoint.checkpoint_folder, config.output.folder = str(tmp_path / "made"), str(tmp_path / "results")
    if change == "batch_size":
        config.reader.batch_size *= 2
    if change == "epochs":
        config.train.epochs = 3
    summary = run_workload(config, EmulationOptions())
    assert summary["iotwin"]["bytes_read"] == (3 if change == "epochs" else EPOCHS) * STEPS * FILES * BYTES
    assert summary["iotwin"]["recorded"]["waits_given_up"] == 0
