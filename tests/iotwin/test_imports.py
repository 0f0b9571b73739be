"""What commands import in a run that does not need it: the import takes more of a short run's processor time than its work."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from iotwin.tracing_tools.backends import strace
from tests.benchmark.emulator.recorded.edits.test_requested_edits import twin
from tests.conftest import PATIENCE_S, ROOT

_EMULATED = {
    "workflow.generate_data": "true",
    "workflow.evaluation": "false",
    "dataset.num_files_train": "4",
    "reader.read_threads": "0",
    "reader.batch_size": "1",
    "train.computation_time": "0.001",
    "twin.clock": "virtual",
}


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        ("trace -o t --backend strace -- true", {"pandas", "matplotlib", "yaml"}),
        ("generate unet3d -o data --samples 1 --scale 0.05", {"pandas", "matplotlib", "pyarrow", "yaml"}),
        (
            " ".join(["emulate workload=default", *(f"++workload.{key}={value}" for key, value in _EMULATED.items())]),
            {"pandas", "matplotlib", "pyarrow.compute", "importlib.metadata", "rich"},
        ),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_a_run_does_not_import(tmp_path, words, unneeded):
    if "strace" in words and (reason := strace.unavailable_reason()):
        pytest.skip(reason)
    assert not unneeded & imported(tmp_path, words.split())


def test_ranks_of_an_edited_twin_do_not_import_pandas(tmp_path):
    words = ["emulate", twin(tmp_path), "--ranks", "2", "++train.epochs=1", "++train.computation_scale=0.01"]
    assert not {"pandas", "matplotlib", "importlib.metadata"} & imported(tmp_path, words)


def imported(folder: Path, words: Sequence[str | Path]) -> set[str]:
    """Return the modules that the command and the processes that it forks import."""
    command = [sys.executable, "-X", "importtime", "-P", "-m", "iotwin", *words]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    found = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "numpy" in found
    return found
