"""The scripts of the checkout find an environment that was not activated."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import PATIENCE_S, ROOT

SYSTEM = "/usr/sbin:/usr/bin:/sbin:/bin"


def call(script: Path, *words: object, path: str = SYSTEM, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the script as from a new shell: nothing of the environment of these tests is on PATH or PYTHONPATH."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHON")}
    command = [str(script), *map(str, words)]
    own = {**kept, "PATH": path, **settings}
    return subprocess.run(command, env=own, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.fixture
def not_activated():
    if not (ROOT / ".venv" / "bin" / "iotwin").exists():
        pytest.skip("the checkout has no .venv")
    if shutil.which("iotwin", path=SYSTEM):
        pytest.skip("an iotwin is installed for the whole machine")


@pytest.mark.usefixtures("not_activated")
def test_a_script_of_the_command_line_finds_iotwin():
    done = call(ROOT / "tracing_tools" / "run_timeline_experiments.sh", "--smoke", "--dry-run", "--json")
    assert done.returncode == 0 and "timeline-smoke" in done.stdout, done.stderr


@pytest.mark.usefixtures("not_activated")
def test_scripts_of_python_find_its_packages(tmp_path):
    done = call(ROOT / "datagen" / "generation.sh", tmp_path / "data", "1MB", SCALE="0.05")
    assert done.returncode == 0 and (tmp_path / "data" / "dlrm").is_dir(), done.stderr
    done = call(ROOT / "trace_visuals" / "generate_instrumentation_plots.sh", tmp_path / "none", tmp_path / "plots")
    assert done.returncode != 0 and done.stderr.startswith("iotwin plot: "), done.stderr


def test_an_iotwin_on_path_comes_first(tmp_path):
    (tmp_path / "iotwin").write_text('#!/bin/sh\necho "asked to $1"\n')
    (tmp_path / "iotwin").chmod(0o755)
    done = call(ROOT / "tracing_tools" / "run_timeline_experiments.sh", path=f"{tmp_path}:{SYSTEM}")
    assert done.stdout == "asked to run\n", done.stderr


def test_without_an_environment_one_line_names_what_makes_it(tmp_path):
    for name in ("common/environment.sh", "tracesim/generate_similarity_breakdowns.sh"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(ROOT / name, tmp_path / name)
    if shutil.which("iotwin", path=SYSTEM):
        pytest.skip("an iotwin is installed for the whole machine")
    done = call(tmp_path / "tracesim" / "generate_similarity_breakdowns.sh")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and f"{tmp_path}/setup.sh" in done.stderr
