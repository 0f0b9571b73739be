"""Traces of made-up jobs, as many as a test asks for."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from tests.synthetic import Job, write_job
from tracing_tools.trace.reader import Trace


@pytest.fixture
def trace(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Trace]:
    """A function that writes a trace of a job, that of the module (`JOB`) or another, with some fields changed."""
    numbers, usual = count(), getattr(request.module, "JOB", Job())

    def make(job: Job = usual, **changes: object) -> Trace:
        return Trace(write_job(tmp_path / f"{next(numbers)}", replace(job, **changes)))

    return make
