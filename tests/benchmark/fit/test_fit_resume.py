"""Traces of jobs that were resumed: where they went on, what they read to do so, and how the whole job counts."""

import sys

import pytest

from iotwin.benchmark.fit import fit
from iotwin.benchmark.fit.look import look
from iotwin.benchmark.fit.passes import find_passes
from iotwin.benchmark.fit.plan import plan
from iotwin.benchmark.fit.resume import find_resume
from iotwin.benchmark.fit.samples.find_samples import find_samples
from iotwin.benchmark.fit.startup import find_start_up
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.recorder.session import TraceOptions, trace_command
from iotwin.workload_yaml import TwinResume
from tests.common.stores import fill
from tests.conftest import ROOT
from tests.synthetic import Job, write_job

STEPS = 12  # of an epoch of the synthetic job
PLAIN = {"loaders": 1, "prefetch": 1, "evaluation_files": 0, "by_numpy": True}


@pytest.mark.parametrize("log_phases", [True, False])
@pytest.mark.parametrize(("done", "position"), [(5, (1, 5)), (STEPS + 3, (2, 3)), (2 * STEPS, (3, 0))])
def test_a_resumed_job_goes_on_where_it_was_stopped(tmp_path, done, position, log_phases):
    job = Job(epochs=3, resumed_steps=done, log_phases=log_phases, **PLAIN)
    fitted = fit(Trace(write_job(tmp_path / "t", job)))
    config, (epoch, step) = fitted.config, position
    assert config.twin.resume == TwinResume(epoch=epoch, step=step)
    assert config.train.epochs == epoch - 1 + 3
    assert config.twin.startup_files == [f"out/step-{done}/rank-0.raw"]
    assert config.twin.startup_reads == ["0:0+70000 0:70000+500"]
    assert "resume" in fitted.evidence
    assert not log_phases or plan(fitted).steps == (STEPS - step) + 2 * STEPS  # what is left of the first epoch, then whole ones
    shares = [fitted.coverage[f"{name}_share"] for name in ("read", "write", "open")]
    assert shares == [1.0, 1.0, 1.0]


def test_checkpoints_are_due_by_the_epochs_of_the_whole_job(tmp_path):
    job = Job(epochs=5, resumed_steps=STEPS + 4, checkpoint_every=3, **PLAIN)  # epochs 2 to 6
    config = fit(Trace(write_job(tmp_path / "t", job))).config
    assert (config.checkpoint.checkpoint_after_epoch, config.checkpoint.epochs_between_checkpoints) == (3, 3)
    assert config.train.epochs == 6


def test_a_job_that_starts_from_a_state_is_not_resumed(tmp_path):
    trace = Trace(write_job(tmp_path / "t", Job(epochs=3, resumed_steps=7, **PLAIN)))
    whole = Trace(write_job(tmp_path / "u", Job(epochs=3, **PLAIN)))
    job, other = look(trace), look(whole)
    passes = find_passes(other, find_samples(other))
    start_up = find_start_up(job, "/data", passes)  # the same reads, before epochs that are whole
    assert start_up.read_bytes == {"checkpoint": 70_500}
    assert find_resume(other, start_up, passes, STEPS) is None
    assert fit(whole).config.twin.resume is None


def test_steps_that_no_epochs_count_go_on_after_those_that_the_checkpoint_names(tmp_path):
    trace = Trace(write_job(tmp_path / "t", Job(epochs=1, resumed_steps=7, **PLAIN)))
    job = look(trace)
    passes = find_passes(job, find_samples(job))
    start_up = find_start_up(job, "/data", passes)
    assert find_resume(job, start_up, passes, 100) is None  # one epoch, of which nothing says how long it is
    passes[0].phase = "block"
    assert find_resume(job, start_up, passes, STEPS) == TwinResume(epoch=1, step=7)
    assert find_resume(job, start_up, passes, STEPS - 3) is None  # that would be more than the data has


# A job that goes on from the newest state of a store, and then twice through a file.
RECOVERY = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from iotwin.common.checkpoints import newest, read_rank
read_rank(newest(Path(sys.argv[2]), print), 0)
source = os.open(sys.argv[1], os.O_RDONLY)
for step in range(40):
    os.pread(source, 4096, step % 20 * 4096)
"""


def test_of_a_store_the_state_that_is_read_tells_the_step_and_the_others_are_looked_at(tmp_path):
    (tmp_path / "data.bin").write_bytes(bytes(20 * 4096))
    folders = fill(tmp_path / "saved", 7, 9, 8)  # the last one is of a run that went back
    sizes = {name: (folders[-1] / name).stat().st_size for name in ("rank-0.json", "rank-0.raw")}
    command = [sys.executable, "-c", RECOVERY, str(tmp_path / "data.bin"), str(tmp_path / "saved"), str(ROOT)]
    assert trace_command(command, tmp_path / "job.trace", TraceOptions(forward_output=False)).exit_status == 0
    job = look(Trace(tmp_path / "job.trace"))
    passes = find_passes(job, find_samples(job))
    start_up = find_start_up(job, str(tmp_path), passes)
    names = {name.split("saved/")[1]: str(number) for number, (name, _) in enumerate(start_up.files)}
    raw, index = (f"{names[f'step-8/{name}']}:" for name in ("rank-0.raw", "rank-0.json"))
    read = {name: [reads for reads in start_up.reads if reads.startswith(f"{names[name]}:")] for name in names}
    assert read["step-9/rank-0.raw"] == [f"{names['step-9/rank-0.raw']}:0+0"]  # opened, to learn its size
    size = sizes["rank-0.raw"]
    assert read["step-8/rank-0.raw"] == [f"{raw}0+0", f"{raw}0+{size} {raw}{size}+0", f"{raw}0+0", f"{raw}0+{size}"]
    size = sizes["rank-0.json"]
    assert f"{index}0+{size} {index}{size}+0" in read["step-8/rank-0.json"]
    passes[0].phase = "block"
    assert find_resume(job, start_up, passes, 100) == TwinResume(epoch=1, step=8)
