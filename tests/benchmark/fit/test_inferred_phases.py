"""Phases told from reads and writes are those that the job would have logged."""

import numpy as np
import pytest

from iotwin.benchmark.fit.inferred_phases import inferred_phases
from iotwin.common.errors import IotwinError
from iotwin.trace_store import schema
from iotwin.trace_store.reader import Trace
from tests.processes import call
from tests.synthetic import Job, write_job

LONGEST_STEP_NS = 130_000_000  # a pass whose loaders have read its last batch may still compute


@pytest.mark.parametrize("loaders", [2, 0])
def test_epochs_and_checkpoints_of_a_job_that_logs_none(tmp_path, loaders):
    job = {"evaluation_files": 0, "loaders": loaders, "checkpoint_every": 2, "epochs": 4}
    logged = Trace(write_job(tmp_path / "logged.trace", Job(**job))).phases()
    told = inferred_phases(Trace(write_job(tmp_path / "t.trace", Job(**job, log_phases=False))))
    assert list(told.columns) == schema.PHASES.names and told["start_ns"].is_monotonic_increasing
    assert told["phase"].tolist() == logged["phase"].tolist()
    assert told["epoch"].tolist()[1:] == logged["epoch"].tolist()[1:] and np.isnan(told["epoch"].iloc[0])
    for column in ("start_ns", "end_ns"):
        apart = (told[column] - logged[column]).abs()
        assert apart.max() <= LONGEST_STEP_NS, (told, logged)
    checkpoints = told["phase"] == "checkpoint"
    assert told[checkpoints]["start_ns"].tolist() == logged[checkpoints.to_numpy()]["start_ns"].tolist()


def test_a_trace_without_training_tells_none(tmp_path):
    trace = write_job(tmp_path / "t.trace", Job(files=0, evaluation_files=0, epochs=1, log_phases=False))
    with pytest.raises(IotwinError):
        inferred_phases(Trace(trace))


def test_zoom_and_legend_know_passes_that_nobody_logged(tmp_path):
    trace = write_job(tmp_path / "t.trace", Job(evaluation_files=0, log_phases=False))
    done = call("plot", "timeline", trace, "-o", tmp_path / "t.svg", "--zoom", "epoch:2")
    assert done.returncode == 0, done.stderr
    picture = (tmp_path / "t.svg").read_text()
    assert "epoch 2" in picture and "inferred from reads" in picture and "epoch 3" not in picture
    beyond = call("plot", "timeline", trace, "-o", tmp_path / "u.svg", "--zoom", "epoch:4")
    assert beyond.returncode == 2 and "3 epoch phases" in beyond.stderr and "inferred from its reads" in beyond.stderr
    logged = write_job(tmp_path / "logged.trace")
    assert call("plot", "timeline", logged, "-o", tmp_path / "l.svg").returncode == 0
    assert "inferred from reads" not in (tmp_path / "l.svg").read_text()
