"""What a trace says and takes at its end: a job that failed is told of, also to those who asked for quiet."""

import pytest

from tests.conftest import run_iotwin


@pytest.mark.root
@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_a_failed_job_is_told(tmp_path, quiet):
    done = run_iotwin("trace", "-o", tmp_path / "t", *quiet, "--", "sh", "-c", "exit 3")
    assert done.returncode == 3 and "the traced command ended with status 3" in done.stderr
    done = run_iotwin("trace", "-o", tmp_path / "u", *quiet, "--", "true")
    assert done.returncode == 0 and "ended with status" not in done.stderr
