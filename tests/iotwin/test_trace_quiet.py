"""What a trace says and takes at its end: a job that failed is told of, also to those who asked for quiet."""

import subprocess
import sys

import pytest

from iotwin.tracing_tools.backends import strace
from tests.conftest import PATIENCE_S, ROOT, run_iotwin


@pytest.mark.root
@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_a_failed_job_is_told(tmp_path, quiet):
    done = run_iotwin("trace", "-o", tmp_path / "t", *quiet, "--", "sh", "-c", "exit 3")
    assert done.returncode == 3 and "the traced command ended with status 3" in done.stderr
    done = run_iotwin("trace", "-o", tmp_path / "u", *quiet, "--", "true")
    assert done.returncode == 0 and "ended with status" not in done.stderr


def test_a_trace_without_a_data_set_ends_without_the_import_of_pandas(tmp_path):
    """It took a third of the processor time of a short trace."""
    if reason := strace.unavailable_reason():
        pytest.skip(reason)
    words = ["-X", "importtime", "-m", "iotwin", "trace", "-o", tmp_path / "t", "--backend", "strace", "--", "true"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0 and "pyarrow" in done.stderr and "pandas" not in done.stderr.replace("pandas_shim", "")
