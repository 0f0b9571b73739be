"""Traces count as larger than memory from the size of their decoded events on."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from iotwin.trace_store.workers import _larger_than_memory


@pytest.mark.parametrize(("events", "larger"), [((10,), False), ((11,), True), ((5, 5), False), ((5, 6), True), ((), False)])
def test_events_take_80_bytes_each(monkeypatch, events, larger):
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 8, "SC_PAGE_SIZE": 100}.__getitem__)
    traces: Any = [SimpleNamespace(manifest=SimpleNamespace(events=each)) for each in events]
    assert _larger_than_memory(traces) is larger
