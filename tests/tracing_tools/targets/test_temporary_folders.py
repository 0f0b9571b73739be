"""A temporary folder is its run's while that lives, and a later run's to remove when it was killed."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from iotwin.tracing_tools.targets import temporary_folders
from iotwin.tracing_tools.targets.temporary_folders import HeldFolder, remove_stale

KILLED = """
import os, sys
from iotwin.tracing_tools.targets.temporary_folders import HeldFolder
folder = HeldFolder("iotwin-kind-", 0o755)
if sys.argv[1]:
    (folder.path / sys.argv[1]).touch()
os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def removed(may_go: bool = True) -> list[str]:
    return remove_stale("iotwin-kind-", 0o755, "thing", lambda path, status: may_go and stat.S_ISREG(status.st_mode))


@pytest.mark.parametrize("name", ["thing", ""])  # killed before it put anything there
def test_what_a_killed_run_left_is_removed(temporary, name):
    done = subprocess.run([sys.executable, "-c", KILLED, name], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = temporary.iterdir()
    if name:
        assert removed(may_go=False) == []
    assert removed() == [left.name] and not left.exists()


def test_a_living_runs_folder_stays_until_it_closes_it(temporary):
    folder = HeldFolder("iotwin-kind-", 0o755)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o755
    assert removed() == []
    (folder.path / "thing").touch()
    assert removed() == [] and (folder.path / "thing").exists()
    folder.close()
    folder.close()
    assert not list(temporary.iterdir())


def test_one_that_was_removed_before_it_was_locked_is_made_anew(temporary, monkeypatch):
    made = temporary_folders.temporary_folder
    raced: list[Path] = []

    def removed_at_once(prefix: str) -> Path:
        path = made(prefix)
        if not raced:
            raced.append(path)
            path.chmod(0o755)
            descriptor = os.open(path, os.O_RDONLY)
            monkeypatch.setattr(temporary_folders.os, "open", lambda *_: (path.rmdir(), monkeypatch.undo(), descriptor)[-1])
        return path

    monkeypatch.setattr(temporary_folders, "temporary_folder", removed_at_once)
    folder = HeldFolder("iotwin-kind-", 0o755)
    assert folder.path.is_dir() and folder.path not in raced
    folder.close()
