"""Checkpoints in the background and durable ones, and evaluations with more loaders, against jobs that were so changed."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from iotwin.benchmark.emulator.recorded.edits.edited_recording import edit
from iotwin.benchmark.emulator.recorded.edits.requested_edits import Edits, edits_of
from iotwin.common.errors import UsageError
from iotwin.loops.emulation import EmulationOptions, run_workload
from iotwin.workload_yaml import load
from iotwin.workload_yaml.recording import Op, TwinRecording
from tests.benchmark.emulator.recorded.edits.test_requested_edits import count, rank_think_ms, reads, recorded, twin
from tests.benchmark.loader_job import LoaderJob, fit_once

SAVING: dict[str, Any] = {"save_after": 5, "epochs": 2}
UNCHANGED = Edits(prefetch=4)  # as recorded


def on_checkpoints(made: TwinRecording) -> list[tuple[str, int, int]]:
    """Operation, name and written bytes of each call on a file that the job wrote, by thread and time."""
    of, rows = made.columns, np.flatnonzero(made.columns["op"] < Op.PIPE_WRITE)
    files = made.header.files
    return [
        (Op(of["op"][i]).name, files[of["subject"][i]].name, int(of["size"][i]) * (of["op"][i] == Op.WRITE))
        for i in rows if files[of["subject"][i]].written
    ]  # fmt: skip


def threads_that_write(made: TwinRecording) -> list[int]:
    return np.unique(made.columns["thread"][made.columns["op"] == Op.WRITE]).tolist()


def test_a_thread_in_the_background_writes_checkpoints_as_in_the_job_so_changed():
    changed = edit(recorded(LoaderJob(**SAVING, saves_aside=True)), UNCHANGED)
    before = recorded(LoaderJob(**SAVING))
    found = edit(before, UNCHANGED._replace(asynchronous=True))
    assert Counter(on_checkpoints(found)) == Counter(on_checkpoints(changed)) == Counter(on_checkpoints(before))
    assert reads(found) == reads(changed) == reads(before)
    assert threads_that_write(found) == threads_that_write(changed) == [1] and threads_that_write(before) == [0]
    assert rank_think_ms(found) == pytest.approx(rank_think_ms(changed), rel=0.02)


def test_the_next_checkpoint_waits_for_the_last_one():
    """Four checkpoints, of which three wait for the one before; the thread in the background waits for each order."""
    of = edit(recorded(LoaderJob(**SAVING)), Edits(asynchronous=True)).columns
    order = of["op"][(of["thread"] == 0) & np.isin(of["op"], [Op.POST, Op.WAIT])].tolist()
    assert order == [Op.POST, *[Op.WAIT, Op.POST] * 3]
    aside = of["op"][(of["thread"] == 1)].tolist()
    assert aside.count(Op.WAIT) == aside.count(Op.POST) == aside.count(Op.OPEN) == 4


@pytest.mark.parametrize("lives", [False, True])
@pytest.mark.parametrize(("factor", "evaluations"), [(2, 2), (0.5, 9)])
def test_evaluations_after_every_so_many_steps_stay_so(factor, evaluations, lives):
    """48 steps of the run, which evaluates after every 10, also within epochs; 24 or 96 steps if so edited."""
    job = {"evaluated": 8, "evaluate_every": 9, "interrupt_every": 10, "files": 96, "held_lives": lives}
    found, changed = edit(recorded(LoaderJob(**job)), Edits(batch=factor)), recorded(LoaderJob(**job, batch=round(4 * factor)))
    assert reads(found) == reads(changed)
    assert sum(count for (name, _, _), count in reads(found).items() if "held" in name) == 16 * evaluations


@pytest.mark.parametrize("held", [8, 60])  # the larger set has as many batches as an epoch
@pytest.mark.parametrize("lives", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("factor", [1, 2, 0.5])
def test_evaluations_at_ends_of_epochs_may_belong_to_steps(factor, persistent, lives, held):
    """60 steps of the run, which evaluates after every 6: within epochs of 15, and at the ends of two of the four epochs."""
    job = {"files": 60, "epochs": 4, "evaluated": held, "evaluate_every": 9, "interrupt_every": 6, "interrupts_at_ends": True}
    job |= {"persistent": persistent, "held_lives": lives}
    found, changed = edit(recorded(LoaderJob(**job)), Edits(batch=factor)), recorded(LoaderJob(**job, batch=round(4 * factor)))
    assert reads(found) == reads(changed)


def test_evaluations_that_divide_epochs_still_do():
    """Evaluations after each half of an epoch of 24 steps, or of 12 if the batch is doubled."""
    found = edit(recorded(LoaderJob(evaluated=8, interrupt_every=12, files=96)), Edits(batch=2))
    assert sum(count for (name, _, _), count in reads(found).items() if "held" in name) == 16 * 4


@pytest.mark.parametrize("background", [False, True])
def test_durable_checkpoints_are_synced_as_in_the_job_so_changed(background):
    usual, synced = (recorded(LoaderJob(**SAVING, syncs=syncs)) for syncs in (False, True))
    wanted, without = (edit(each, UNCHANGED._replace(asynchronous=background)) for each in (synced, usual))
    assert count(wanted, Op.SYNC) == 4 and not count(without, Op.SYNC)
    for before in (usual, synced):
        found = [edit(before, UNCHANGED._replace(asynchronous=background, fsync=fsync)) for fsync in (True, False)]
        assert [on_checkpoints(each) for each in found] == [on_checkpoints(wanted), on_checkpoints(without)]
        assert rank_think_ms(found[0]) == pytest.approx(rank_think_ms(wanted), rel=0.01)


@pytest.mark.parametrize("loaders", [1, 2, 4])
def test_evaluations_have_as_many_loaders_as_in_the_job_so_changed(loaders):
    job = {"loaders": 4, "files": 48, "evaluated": 32}
    wanted = edit(recorded(LoaderJob(**job, held_loaders=loaders)), Edits(batch=0.5))
    found = edit(recorded(LoaderJob(**job, held_loaders=1)), Edits(batch=0.5, evaluation_loaders=loaders))
    assert reads(found) == reads(wanted)
    for op in (Op.START, Op.JOIN, Op.PIPE_READ, Op.PIPE_WRITE):
        assert count(found, op) == count(wanted, op)
    assert rank_think_ms(found) == pytest.approx(rank_think_ms(wanted), rel=0.05)


def test_what_a_job_does_not_do_cannot_be_changed():
    fitted = fit_once(LoaderJob())
    fitted.config.twin.evaluation.read_threads = 2
    with pytest.raises(UsageError, match=r"twin.evaluation.read_threads: the recording shows no evaluation"):
        edits_of(fitted.config, fitted.recording.header, 1)
    aside = recorded(LoaderJob(**SAVING, saves_aside=True))
    with pytest.raises(UsageError, match=r"twin.checkpoint.asynchronous: no rank's main thread wrote a checkpoint"):
        edit(aside, Edits(asynchronous=True))
    for file in aside.header.files:
        file.checkpoint = False
    with pytest.raises(UsageError, match=r"checkpoint.fsync: the recording shows no checkpoint"):
        edit(aside, Edits(fsync=True))


@pytest.mark.parametrize("words", [["++workload.twin.checkpoint.asynchronous=true"], ["++workload.checkpoint.fsync=true"]])
@pytest.mark.parametrize("clock", ["real", "virtual"])
def test_twins_with_other_checkpoints_run(tmp_path, words, clock):
    path = twin(tmp_path, LoaderJob(**SAVING))
    summary = run_workload(load(path, [*words, f"++workload.twin.clock={clock}"]), EmulationOptions())
    assert summary is not None
    calls = summary["iotwin"]["recorded"]["calls"]
    assert calls["write"] == 4 and calls.get("sync", 0) == (4 if "fsync" in words[0] else 0)
    assert summary["iotwin"]["recorded"]["waits_given_up"] == 0
