"""DLIO's own tests, every parameter set as typed and with its own assertions, where a checkout of them is at hand."""

import os
import shutil
from pathlib import Path

import pytest

from tests.benchmark.dlio_suite.runner import Setup, run_suite

# Sets that do not pass, with the reason.
KNOWN: dict[str, str] = {}


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun (Open MPI) is not installed")
@pytest.mark.timeout(4 * 3600)
def test_every_parameter_set_of_dlios_tests_passes() -> None:
    checkout = os.environ.get("IOTWIN_DLIO_CHECKOUT")
    if not checkout:
        pytest.skip("set IOTWIN_DLIO_CHECKOUT to a checkout of github.com/mlcommons/DLIO_local_changes; takes over an hour")
    outcomes = run_suite(Setup(Path(checkout)))
    failed = {name: reason for name, reason in outcomes.items() if reason and name not in KNOWN}
    assert len(outcomes) >= 290 and not failed, "\n".join(f"{name}: {reason[-300:]}" for name, reason in failed.items())
