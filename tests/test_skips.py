"""A test that is skipped for want of a package that setup.sh installs fails in continuous integration."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

_TESTS = """
import pytest
def test_package():
    pytest.skip("no bpftrace here: bpftrace is not installed; install the package bpftrace")
@pytest.mark.skipif(True, reason="PyTorch is not installed")
def test_marked():
    pass
def test_machine():
    pytest.skip("the kernel has no io_uring, or it is switched off")
"""
_MODULE = "import pytest\npytest.importorskip('no_such_module', reason='the Python package x is not installed')\n"


_PACKAGES = ["test_module.py", "test_some.py::test_marked", "test_some.py::test_package"]


@pytest.mark.parametrize(("environment", "failed", "skipped"), [({"CI": "true"}, _PACKAGES, 1), ({}, [], 4)])
def test_skips_that_setup_could_mend(tmp_path, environment, failed, skipped):
    (tmp_path / "test_some.py").write_text(_TESTS)
    (tmp_path / "test_module.py").write_text(_MODULE)
    kept = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-rfE", "--continue-on-collection-errors"]
    done = subprocess.run(
        [*command, "--rootdir", tmp_path, tmp_path],
        cwd=tmp_path,
        env={**kept, **environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    told = sorted(line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR ")))
    assert told == failed, done.stdout
    assert f"{skipped} skipped" in done.stdout
    assert ("./setup.sh test installs" in done.stdout) == bool(failed)
