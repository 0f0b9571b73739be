"""Phases inferred from reads and writes are those that the job would have logged."""

import json

import numpy as np
import pytest

from iotwin.benchmark.fit.inferred_phases import inferred_phases
from iotwin.common.errors import IotwinError
from iotwin.loops.trace_with_phases import open_with_phases
from iotwin.trace_store import schema
from iotwin.trace_store.importers.import_trace import import_trace
from iotwin.trace_store.reader import Trace
from tests.benchmark.fit.recorded.test_recorded_batches import reading_rank
from tests.processes import call
from tests.synthetic import Job, write_job

LONGEST_STEP_NS = 130_000_000  # a pass whose loaders have read its last batch may still compute


@pytest.mark.parametrize("loaders", [2, 0])
def test_epochs_and_checkpoints_of_a_job_that_logs_none(tmp_path, loaders):
    job = {"evaluation_files": 0, "loaders": loaders, "pipes": True, "checkpoint_every": 2, "epochs": 4}
    logged = Trace(write_job(tmp_path / "logged.trace", Job(**job))).phases()
    inferred = inferred_phases(Trace(write_job(tmp_path / "t.trace", Job(**job, log_phases=False))))
    assert list(inferred.columns) == schema.PHASES.names and inferred["start_ns"].is_monotonic_increasing
    assert inferred["phase"].tolist() == logged["phase"].tolist()
    assert inferred["epoch"].tolist()[1:] == logged["epoch"].tolist()[1:] and np.isnan(inferred["epoch"].iloc[0])
    for column in ("start_ns", "end_ns"):
        apart = (inferred[column] - logged[column]).abs()
        assert apart.max() <= LONGEST_STEP_NS, (inferred, logged)
    checkpoints = inferred["phase"] == "checkpoint"
    assert inferred[checkpoints]["start_ns"].tolist() == logged[checkpoints.to_numpy()]["start_ns"].tolist()


def test_a_trace_without_batches_shows_none(tmp_path):
    trace = write_job(tmp_path / "t.trace", Job(files=0, evaluation_files=0, epochs=1, log_phases=False))
    with pytest.raises(IotwinError):
        inferred_phases(Trace(trace))


def test_zoom_and_legend_know_passes_that_nobody_logged(tmp_path):
    trace = write_job(tmp_path / "t.trace", Job(evaluation_files=0, log_phases=False, pipes=True))
    done = call("plot", "timeline", trace, "-o", tmp_path / "t.svg", "--zoom", "epoch:2")
    assert done.returncode == 0, done.stderr
    picture = (tmp_path / "t.svg").read_text()
    assert "epoch 2" in picture and "inferred from reads" in picture and "epoch 3" not in picture
    beyond = call("plot", "timeline", trace, "-o", tmp_path / "u.svg", "--zoom", "epoch:4")
    assert beyond.returncode == 2 and "3 epoch phases" in beyond.stderr and "inferred from its reads" in beyond.stderr
    logged = write_job(tmp_path / "logged.trace")
    assert call("plot", "timeline", logged, "-o", tmp_path / "l.svg").returncode == 0
    assert "inferred from reads" not in (tmp_path / "l.svg").read_text()


@pytest.mark.parametrize("every", [1, 2])
def test_evaluations_are_of_the_epoch_before(tmp_path, every):
    phases = inferred_phases(reading_rank(tmp_path, epochs=4, every=every))
    passes = phases.loc[phases["phase"].isin(["epoch", "evaluation"]), ["phase", "epoch"]]
    expected = [
        (phase, epoch) for epoch in range(1, 5) for phase in ("epoch", "evaluation") if phase == "epoch" or epoch % every == 0
    ]
    assert list(passes.itertuples(index=False, name=None)) == expected


def test_readers_whose_starter_is_unknown_count_as_ranks(tmp_path):
    """Chrome's trace events name no parents."""
    event = {"name": "read", "cat": "POSIX", "ph": "X", "ts": 1_700_000_000_000_000, "dur": 0, "tid": 1}
    args = {"fname": "/data/f", "offset": 0, "size": 4096, "ret": 4096}
    source = tmp_path / "events.json"
    source.write_text(json.dumps({"traceEvents": [{**event, "pid": index, "args": args} for index in range(300)]}))
    import_trace(source, tmp_path / "trace")
    assert open_with_phases(tmp_path / "trace").manifest.events == 300
