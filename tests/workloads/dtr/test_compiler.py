"""What numba compiled is never older than any module that it was compiled from."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from iotwin.workloads.dtr.simulator import compiler, eviction

pytestmark = pytest.mark.skipif(not compiler.has_numba(), reason="numba is not installed")
OUTER = """
from iotwin.workloads.dtr.simulator.compiler import compiler_of
from made.inner import inner
@compiler_of(__name__)
def outer(x):
    return inner(x)
print(outer(1), sum(outer.stats.cache_hits.values()))
"""
INNER = """
from iotwin.workloads.dtr.simulator.compiler import compiler_of
@compiler_of(__name__, inline=True)
def inner(x):
    return x + {added}
"""


def run_outer(path: Path, added: int) -> list[int]:
    """Return what `outer` gives for 1, and how often it was taken from what was compiled before; `inner`'s time and size stay."""
    (path / "made" / "inner.py").write_text(INNER.format(added=added))
    os.utime(path / "made" / "inner.py", (1e9, 1e9))
    environment = os.environ | {"PYTHONPATH": f"{path}:{Path(compiler.__file__).parents[2]}", "PYTHONDONTWRITEBYTECODE": "1"}
    words = [sys.executable, "-c", "import made.outer"]
    return [int(word) for word in subprocess.run(words, env=environment, capture_output=True, check=True).stdout.split()]


def test_a_change_in_a_module_that_is_compiled_into_another_is_seen(tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "__init__.py").touch()
    (tmp_path / "made" / "outer.py").write_text(OUTER)
    assert [run_outer(tmp_path, added) for added in (1, 1, 2)] == [[2, 0], [2, 1], [3, 0]]


def test_the_kernel_is_kept_under_the_content_of_its_package():
    content = compiler.content_of(Path(eviction.__file__).parent)
    assert f"compiled-{content}" in eviction.run.stats.cache_path


def test_where_nothing_can_be_kept_nothing_is(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compiler._kept_in(tmp_path / "file") is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = compiler._kept_in(tmp_path / "file")
    assert found is not None and found.parent == tmp_path / "cache" / "iotwin"
