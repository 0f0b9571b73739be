"""Several nodes, one data set: the same bytes as from one, whatever their number, whoever is killed."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from iotwin.common.errors import IotwinError, UsageError
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import DlrmLayout, Unet3dLayout
from iotwin.datagen.nodes import Node, parse_node
from iotwin.datagen.nodes import generate as generate_on
from tests.conftest import PATIENCE_S

ROOT = Path(__file__).parents[2]
SMALL = Unet3dLayout(scale=0.1)
# Two units of the training file, so that two nodes write the same file.
REQUESTS = {"unet3d": ["unet3d", "--samples", "7", "--scale", "0.1"], "dlrm": ["dlrm", "--samples", "300000"]}


def content(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def command(*arguments):
    return [sys.executable, "-m", "iotwin", "generate", *map(str, arguments), "--workers", "1"]


def alone(workload, directory):
    layout, samples = (SMALL, 7) if workload == "unet3d" else (DlrmLayout(), 300_000)
    generate(layout, directory, samples=samples, workers=1)
    return content(directory)


@pytest.mark.parametrize("workload", REQUESTS)
def test_three_processes_make_the_same_bytes(workload, tmp_path):
    calls = [command(*REQUESTS[workload], "-o", tmp_path / "shared", "--nodes", f"{index}/3") for index in range(3)]
    started = [subprocess.Popen(call, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for call in calls]
    outcomes = [process.communicate(timeout=PATIENCE_S) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], outcomes
    assert content(tmp_path / "shared") == alone(workload, tmp_path / "alone")


def test_another_number_of_nodes_goes_on(tmp_path, monkeypatch):
    """Node 0 of 2 does its share and is stopped while it waits; one node alone does the rest, and only that."""
    from iotwin.datagen import nodes

    def interrupted(planned, directory):
        raise KeyboardInterrupt

    monkeypatch.setattr(nodes, "_finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        generate_on(SMALL, tmp_path / "shared", Node(0, 2), samples=7, workers=1)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "shared").glob("*.npy")}
    assert sorted(before) == [f"case_{index:05d}_{half}.npy" for index in (0, 2, 4, 6) for half in "xy"]
    assert content(tmp_path / "shared") != alone("unet3d", tmp_path / "alone")
    generate(SMALL, tmp_path / "shared", samples=7, workers=1)
    assert content(tmp_path / "shared") == content(tmp_path / "alone")
    assert all((tmp_path / "shared" / name).stat().st_mtime_ns == time_ns for name, time_ns in before.items())
    # Whoever comes late finds the data set finished.
    assert generate_on(SMALL, tmp_path / "shared", Node(1, 2), samples=7).size_bytes > 0


def test_what_nodes_refuse(tmp_path):
    for text in ("2/2", "1", "a/b", "-1/2", "1/0"):
        with pytest.raises(UsageError, match="names no node"):
            parse_node(text)
    with pytest.raises(UsageError, match="--force cannot go with --nodes"):
        generate_on(SMALL, tmp_path / "data", Node(0, 2), samples=2, existing="replace")
    generate(SMALL, tmp_path / "data", samples=2, workers=1)
    for index in (0, 1):
        with pytest.raises(IotwinError, match="another data set"):
            generate_on(SMALL, tmp_path / "data", Node(index, 2), samples=3)


def test_mpirun(tmp_path):
    missing = [name for name in ("mpirun",) if shutil.which(name) is None]
    missing += [name for name in ("mpi4py",) if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}")
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    for force in ([], ["--force"]):
        call = ["mpirun", "-np", "3", "--oversubscribe", *command(*REQUESTS["dlrm"], "-o", tmp_path / "shared", *force)]
        done = subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
    assert content(tmp_path / "shared") == alone("dlrm", tmp_path / "alone")
