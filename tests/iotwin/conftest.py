"""A job's traces and its data, for all tests of the command line; read only."""

from pathlib import Path

import pytest

from tests.synthetic import MILLISECOND, Job, write_job


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs of one small job."""
    folder = tmp_path_factory.mktemp("traces")
    job = {"files": 20, "evaluation_files": 4, "epochs": 2, "compute_ns": 5 * MILLISECOND}
    return [write_job(folder / f"{seed}.trace", Job(**job, seed=seed)) for seed in (1, 2)]


@pytest.fixture
def trace(traces: list[Path]) -> Path:
    """One of them."""
    return traces[0]
