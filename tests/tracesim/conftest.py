"""Traces of made-up jobs, as many as a test asks for, and comparisons in a fifth of the time."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from iotwin.trace_store.reader import Trace
from tests.synthetic import Job, write_job


@pytest.fixture
def trace(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Trace]:
    """A function that writes a trace of a job, that of the module (`JOB`) or another, with some fields changed."""
    numbers, usual = count(), getattr(request.module, "JOB", Job())

    def make(job: Job = usual, **changes: object) -> Trace:
        return Trace(write_job(tmp_path / f"{next(numbers)}", replace(job, **changes)))

    return make


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw intervals from a few bootstrap draws: they take most of a comparison, and no score or verdict depends on them."""
    for module in ("interval", "verdict.equivalence"):
        monkeypatch.setattr(f"iotwin.tracesim.{module}._DRAWS", 20)
