"""The directory in which the examples of a page run: a data set, a training job, traces and a twin."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from iotwin.benchmark.fit.fit_trace import fit
from iotwin.benchmark.fit.parameters.parameters import fit_parameters
from iotwin.trace_store.manifest import Host, Manifest, Target
from iotwin.trace_store.raw.record_files import Recording
from iotwin.trace_store.reader import Trace
from tests.benchmark.loader_job import LoaderJob
from tests.conftest import ROOT
from tests.docs.program_server import CLIENT, PACKAGES
from tests.synthetic import MILLISECOND, Job, write_job

JOB = {
    "files": 20,
    "evaluation_files": 4,
    "epochs": 2,
    "compute_ns": 5 * MILLISECOND,
    "file_bytes": 1 << 17,
    "read_bytes": 1 << 16,
    "pipes": True,
}


def cut_off_recording(path: Path) -> None:
    """Write a recording whose tracer was killed, as far as anybody can tell."""
    manifest = Manifest("recording", "libbpf", Host("h", "k", 1, 1, "x86_64"), Target(["python", "train.py"]))
    with Recording(path, manifest) as recording:
        recording.append_clock()


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples take for granted; read only: every page runs in a copy."""
    from iotwin.datagen.generate import generate
    from iotwin.datagen.layouts import Unet3dLayout

    base = tmp_path_factory.mktemp("examples")
    shutil.copy(ROOT / "docs" / "train.py", base)
    pipedream = ROOT / "tests" / "workloads" / "pipedream" / "data"
    shutil.copy(pipedream / "vgg16.graph.txt", base)
    shutil.copy(pipedream / "drivers" / "vgg16_4pipedream.yml", base)
    generate(Unet3dLayout(scale=0.1), base / "data", samples=24, workers=1)
    for seed, name in enumerate(("real", "rerun", "twin")):
        write_job(base / f"{name}.trace", Job(**JOB, seed=seed, root="data"))
    fit(Trace(base / "real.trace")).write(base / "twin.yaml")
    fit_parameters(Trace(base / "real.trace")).write(base / "parameters.yaml")
    with_loaders = LoaderJob(root="images", epochs=2, evaluated=4, compute_ms=5)
    with_loaders.trace(base / "loaders.trace")
    with_loaders.write_data(base)
    cut_off_recording(base / "cut.trace")
    return base


@pytest.fixture
def page_directory(prepared: Path, tmp_path: Path, page: Path) -> Path:
    """A fresh copy of `prepared`, or of the part of it that the page names: <!-- examples start with: train.py data -->."""
    named = re.search(r"<!-- examples start with: (.+?) -->", page.read_text(encoding="utf-8"))
    if not named:
        return shutil.copytree(prepared, tmp_path / "page")
    for name in named[1].split():
        copy = shutil.copytree if (prepared / name).is_dir() else shutil.copy
        copy(prepared / name, tmp_path / name)
    return tmp_path


def _write_programs(folder: Path, begin: str) -> None:
    for name, arguments in (("iotwin", "-m iotwin "), ("python", "")):
        (folder / name).write_text(f'#!/bin/sh\nexec {begin} {arguments}"$@"\n')
        (folder / name).chmod(0o755)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of an example: `iotwin` and `python` are the ones under test, as after installation."""
    programs = tmp_path_factory.mktemp("bin")
    _write_programs(programs, sys.executable)
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "120", **as_root}


@pytest.fixture(scope="session")
def quick_environment(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The same, but what an example calls runs in forks of a process that has imported PyTorch, pandas and others."""
    folder = tmp_path_factory.mktemp("forked")
    packages = [name for name in PACKAGES if find_spec(name.partition(".")[0])]
    (folder / "client.py").write_text(CLIENT)
    _write_programs(folder, f"{sys.executable} -I -S {folder}/client.py {folder}/socket")
    command = [sys.executable, "-P", "-m", "tests.docs.program_server", folder / "socket", *packages]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdout.readline() == "ready\n"
        yield {**environment, "PATH": f"{folder}:{environment['PATH']}"}
        server.kill()
