"""Workers: their number follows the memory limit, and tells each how much it may take."""

import json
import os

import pytest

from iotwin.common.errors import UsageError
from iotwin.common.processes import memory_limit
from iotwin.trace_store import reader
from iotwin.trace_store.parallel_fold import in_this_process, workers
from iotwin.trace_store.reader import Trace
from tests.processes import call, one_line
from tests.synthetic import Job, write_job


@pytest.fixture(autouse=True)
def default_afterwards():
    yield
    memory_limit.limit_memory(None)


@pytest.mark.parametrize(
    ("limit", "number", "share"), [("471MiB", 1, 165), ("472MiB", 2, 64), ("1GiB", 2, 248), ("128MiB", 1, 0), (None, 2, 1953)]
)
def test_a_worker_needs_236_mib_of_the_limit(monkeypatch, limit, number, share):
    monkeypatch.setattr(memory_limit, "_half_of_free", lambda: 6140 << 20)
    memory_limit.limit_memory(limit)
    assert (memory_limit.workers_within_limit(2)[0], memory_limit.workers_within_limit(2)[1] >> 20) == (number, share)


def test_workers_that_hold_tables_of_files_are_fewer(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    memory_limit.limit_memory("1GiB")
    trace = Trace(write_job(tmp_path / "t.trace", Job(files=4, epochs=1)))
    for file_bytes, alone in ((1, False), (200 << 20, True)):
        monkeypatch.setattr(reader, "_FILE_BYTES", file_bytes)
        with workers(None, [trace], worth_processes=0) as each:
            assert (each is in_this_process) == alone


@pytest.mark.parametrize(("limit", "rows"), [("128MiB", 1 << 14), ("1GiB", 1 << 17), ("256MiB", 1 << 15)])
def test_a_batch_takes_an_eighth_of_the_limit(limit, rows):
    memory_limit.limit_memory(limit)
    assert memory_limit.rows_of_batch() == rows


@pytest.mark.parametrize("text", ["127MiB", "1", "lots", "0"])
def test_too_little_memory_is_refused(text):
    with pytest.raises(UsageError, match=r"too small|not a positive number|at least one byte"):
        memory_limit.limit_memory(text)


def test_few_events_and_little_memory_stay_in_this_process(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    memory_limit.limit_memory("300MiB")
    with workers(None, [], worth_processes=0) as each:
        assert each is in_this_process
    memory_limit.limit_memory("1GiB")
    with workers(None, [], worth_processes=1) as each:
        assert each is in_this_process
    with workers(None, [], worth_processes=0) as each:
        assert list(each(_limit_of_worker, [1, 2])) == [memory_limit.workers_within_limit(2)[1]] * 2


def _limit_of_worker(item: int) -> int:
    return memory_limit.memory_limit()


def test_a_fit_that_would_exceed_the_limit_is_refused_and_left_out_of_info(tmp_path, monkeypatch):
    trace, twin = write_job(tmp_path / "t.trace", Job(files=4, epochs=1)), tmp_path / "twin.yaml"
    for event_bytes, fits in ((1 << 16, True), (1 << 22, False)):
        monkeypatch.setattr(reader, "EVENT_BYTES", event_bytes)
        fitted, info = call("fit", trace, "-o", twin, "--memory", "128MiB"), call("info", trace, "--json", "--memory", "128MiB")
        assert fitted.returncode == (not fits) and (fits or "give --memory" in one_line(fitted))
        assert (json.loads(info.stdout)["twin"] is not None, json.loads(info.stdout)["verdict"] is not None) == (fits, fits)
