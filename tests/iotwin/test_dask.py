"""On a Dask cluster as in one process: the same numbers, from four workers, of several parts and traces."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from iotwin.trace_store import fold, writer
from iotwin.trace_store.parallel_fold import in_this_process
from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.report.analysis import Detail, analyse
from iotwin.tracesim.calls import GROUPS
from iotwin.tracesim.profile import profiles_of
from tests.processes import call, one_line
from tests.synthetic import Job, write_job

distributed = pytest.importorskip("distributed", reason="the Python package distributed is not installed")


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """Two traces, each in several parts."""
    folder = tmp_path_factory.mktemp("cut")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "_ROWS_PER_PART", 100)
        patch.setattr(
            writer, "_row_groups", lambda tables: (table.slice(at, 100) for table in tables for at in range(0, len(table), 100))
        )
        return [write_job(folder / f"{seed}.trace", Job(seed=seed, loaders=seed + 1)) for seed in (1, 2)]


@pytest.fixture(scope="module")
def scheduler():
    with distributed.LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster:
        yield cluster.scheduler_address


def test_four_workers_give_the_numbers_of_one_process(cut, scheduler, tmp_path, monkeypatch):
    assert all(len(Trace(path).part_rows) > 4 for path in cut)
    monkeypatch.setattr(fold, "_LEAST_EVENTS", 100)
    assert all(len(fold.stretches(Trace(path).part_rows)) > 3 for path in cut)
    for arguments in (
        ["stats", *cut, "--by", "file"],
        ["stats", *cut, "--by", "process"],
        ["compare", *cut, "--repeats", cut[0]],
    ):
        alone, together = call(*arguments, "--json"), call(*arguments, "--dask", scheduler, "--json")
        assert together.returncode == 0, together.stderr
        assert json.loads(alone.stdout) == json.loads(together.stdout), arguments
    for name, traces, more in (
        ("alone.html", cut, []),
        ("together.html", cut, ["--dask", scheduler]),
        ("one_alone.html", cut[:1], []),
        ("one_together.html", cut[:1], ["--dask", scheduler]),
    ):
        assert call("report", *traces, "-o", tmp_path / name, *more, "--quiet").returncode == 0
    for name in ("", "one_"):
        assert (tmp_path / f"{name}alone.html").read_bytes() == (tmp_path / f"{name}together.html").read_bytes()


def test_a_trace_in_chunks_is_the_whole_trace(cut, monkeypatch):
    """The same profile and the same analysis, whatever chunks they are put together from, calls across their borders included."""
    traces = [Trace(path) for path in cut]
    found = []
    for least in (10**9, 100):
        monkeypatch.setattr(fold, "_LEAST_EVENTS", least)
        pieces = [fold.TraceStretch(trace, parts) for trace in traces for parts in fold.stretches(trace.part_rows)]
        every = profiles_of(traces, True, frozenset(GROUPS), in_this_process, lambda amount: None)
        detail, zeros = Detail(512, 0), [trace.manifest.start_ns for trace in traces]
        found.append((every, analyse(traces, ["a", "b"], zeros, detail, in_this_process, lambda amount: None)))
    assert any(len(piece.in_flight(("start_ns",))) for piece in pieces)
    for whole, merged in zip(*(profiles for profiles, _ in found), strict=True):
        for name in vars(whole.each):
            np.testing.assert_allclose(getattr(merged.each, name), getattr(whole.each, name), rtol=1e-9, err_msg=name)
        for name in vars(whole.order):
            np.testing.assert_array_equal(getattr(merged.order, name), getattr(whole.order, name))
    for whole, merged in zip(*(analyses for _, analyses in found), strict=True):
        for name in ("files", "processes", "slowest"):
            pd.testing.assert_frame_equal(getattr(merged, name), getattr(whole, name))
        pd.testing.assert_frame_equal(merged.operations.frame(merged.ops), whole.operations.frame(whole.ops))
        for name in ("calls", "busy", "in_flight"):
            np.testing.assert_allclose(getattr(merged.lanes, name), getattr(whole.lanes, name), rtol=1e-9, atol=1e-12)
        assert np.abs(merged.lanes.size_bytes - whole.lanes.size_bytes).max() <= 1
        assert merged.survey.calls == whole.survey.calls and merged.survey.busiest == whole.survey.busiest


def test_a_failing_worker_fails_as_one_process_would(cut, scheduler, tmp_path):
    broken = tmp_path / "broken.trace"
    shutil.copytree(cut[0], broken)
    part = next((broken / "events.parquet").glob("*.parquet"))
    content = bytearray(part.read_bytes())
    content[200:260] = bytes(60)
    part.write_bytes(content)
    result = call("stats", broken, "--dask", scheduler)
    assert result.returncode == 1 and "damaged" in one_line(result)


def test_no_scheduler_is_one_line(cut, monkeypatch):
    monkeypatch.setattr("iotwin.trace_store.parallel_fold._CONNECT_S", 1)
    result = call("stats", cut[0], "--dask", "127.0.0.1:9")
    assert (
        result.returncode == 1
        and "no Dask scheduler answers at 127.0.0.1:9" in result.stderr
        and "Traceback" not in result.stderr
    )
