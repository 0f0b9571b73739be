"""A recording of a traced job is replayed as that of the untraced one."""

from dataclasses import replace

import numpy as np
import pytest

from iotwin.benchmark.emulator.recorded import tracing_cost
from iotwin.benchmark.emulator.recorded.tracing_cost import is_traced, without_tracing
from iotwin.workload_yaml.recording import Op, RecordedFile
from tests.benchmark.recordings import recording, row

OPS = [Op.OPEN, Op.READ, Op.COPY, Op.COPY_TO, Op.TOUCH, Op.CLOSE, Op.PIPE_READ, Op.POLL, Op.WAIT, Op.END]


def traced_job(thinks_ns: list[int]):
    made = recording([row(0, op, think_ns=think) for op, think in zip(OPS, thinks_ns, strict=True)], [RecordedFile("a")])
    return replace(made, header=replace_header(made.header))


def replace_header(header):
    header.transfer_ns, header.call_ns = 300, 700
    return header


@pytest.mark.parametrize(("traced", "less"), [(False, [700, 300, 300, 0, 0, 700, 300, 700, 0, 0]), (True, [0] * 10)])
def test_untraced_calls_follow_one_another_sooner(monkeypatch, traced, less):
    monkeypatch.setattr(tracing_cost, "is_traced", lambda cost_ns: traced)
    found = without_tracing(traced_job([5000] * 10)).columns["think_ns"]
    assert (5000 - found).tolist() == less and found.dtype == np.int64
    short = without_tracing(traced_job([200] * 10)).columns["think_ns"]
    assert short.min() >= 0 and (short[0] == 0) is not traced


def test_a_job_whose_tracing_was_not_measured_remains_as_it_is(monkeypatch):
    made = recording([row(0, Op.READ, think_ns=5)], [RecordedFile("a")])
    assert without_tracing(made) is made


@pytest.mark.parametrize(("close_ns", "traced"), [(1100, False), (1200, True)])
def test_a_process_is_traced_if_closing_takes_longer_than_an_untraced_call(monkeypatch, close_ns, traced):
    times = iter([close_ns, 1000])
    monkeypatch.setattr(tracing_cost, "_median_ns", lambda call: next(times))
    assert is_traced(300) is traced
