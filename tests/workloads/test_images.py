"""A workload's image on a base made of Debian packages, run by its script: DLRM's sleep variant, which needs no framework."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import yaml

from datagen.generate import generate
from datagen.layouts import DlrmLayout
from tests.conftest import ROOT, run_iotwin
from tests.workloads.mllog import entries, parts
from tracing_tools.trace.reader import Trace

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap needs root"),
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="debootstrap is not installed"),
]
BASE, IMAGE = "iotwin-test-base", "dlrm:sleep"


@pytest.fixture(scope="session")
def base(docker_host):
    """The base image, of Debian packages."""
    environment = os.environ | {"PYTHON": sys.executable}
    command = [ROOT / "workloads" / "base_image.sh", BASE, "numpy>=1.26", "msgspec>=0.18"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        # A mirror that does not answer, or a Debian whose Python is not ours, is no fault of the image's.
        pytest.skip(f"no base image can be made here: {done.stderr.strip().splitlines()[-1:]}")
    return ["--build-arg", f"BASE={BASE}", "--build-arg", "TORCH=", "--network", "none"]


@pytest.fixture(scope="session")
def image(base):
    """The image dlrm:sleep."""
    build = [ROOT / "workloads" / "build_image.sh", "dlrm", "sleep", *base]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return IMAGE


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("criteo")
    generate(DlrmLayout(), directory, samples=5000, seed=3, workers=1)
    directory.chmod(0o755)  # the job is not root
    return directory


def test_docker_build_alone_says_what_is_to_be_done_first(base, tmp_path):
    """In a checkout that no script has been called in."""
    folder = shutil.copytree(ROOT / "workloads" / "dlrm", tmp_path / "dlrm", ignore=shutil.ignore_patterns("shared.tar"))
    done = subprocess.run(["docker", "build", "--force-rm", *base, folder], capture_output=True, text=True)
    assert done.returncode != 0 and "put it there by workloads/shared_code.sh" in done.stdout


def test_training_in_a_container(image, data, tmp_path):
    environment = os.environ | {"DATA_DIR": str(data), "OUTPUT_DIR": str(tmp_path / "out")}
    environment.pop("SUDO_UID", None)
    script = ROOT / "workloads" / "dlrm" / "start_training.sh"
    command = [script, "0", "train_dlrm", tmp_path / "logs", image, "100", "5", "--sleep", "0.001"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = tmp_path / "out" / "result.json"
    assert json.loads(result.read_text())["configuration"]["variant"] == "sleep"  # as the image was built
    assert result.stat().st_uid == 1000  # not root inside
    log = (tmp_path / "logs" / "dlrm.log").read_text()
    assert log == done.stdout and len(parts(entries(log))["step_end"]) == 5
    left = subprocess.run(["docker", "ps", "-aq", "--filter", "name=train_dlrm"], capture_output=True, text=True, check=True)
    assert left.stdout == ""


def test_an_image_that_is_not_there(docker_host, data, tmp_path):
    environment = os.environ | {"DATA_DIR": str(data), "OUTPUT_DIR": str(tmp_path / "out")}
    command = [ROOT / "workloads" / "dlrm" / "start_training.sh", "0", "c", tmp_path / "logs", "nothing:here", "100", "5"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "docker has no image nothing:here" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.root
def test_a_cell_is_traced_inside_its_container(image, data, tmp_path):
    document = {
        "name": "contained", "images": {"dlrm": image}, "data": {"clicks": {"workload": "dlrm", "folder": str(data)}},
        "plot": "timeline",
        "jobs": [{"workload": "dlrm", "data": ["clicks"], "variant": ["sleep"], "batch": [100], "sleep": "0.001",
                  "options": {"steps": 5}}],
    }  # fmt: skip
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(document))
    done = run_iotwin("run", tmp_path / "e.yaml", "-o", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    cell = tmp_path / "out" / "cells" / json.loads(done.stdout)["finished"][0]["cell"]
    trace = Trace(cell / "trace")
    reads = trace.events_frame(columns=["op", "file_id", "requested"])
    data_files = trace.files().set_index("file_id")["path"]
    batches = reads[(reads["op"] == "read") & (reads["file_id"].map(data_files) == "/data/terabyte_processed_train.bin")]
    assert batches["requested"].tolist() == [16_000] * 5  # what the job read, by the paths that it sees
    assert trace.manifest.target.image == image
    assert (cell / "output" / "result.json").stat().st_uid == 1000
    assert (tmp_path / "out" / "plots" / "dlrm-clicks-r1-b100-w1-1.png").stat().st_size > 1000


def test_a_cell_without_its_image_is_named(docker_host, data, tmp_path):
    document = {
        "name": "contained", "images": {"dlrm": "nothing:here"}, "data": {"clicks": {"workload": "dlrm", "folder": str(data)}},
        "jobs": [{"workload": "dlrm", "data": ["clicks"], "variant": ["sleep"], "sleep": "0"}],
    }  # fmt: skip
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(document))
    done = run_iotwin("run", tmp_path / "e.yaml", "-o", tmp_path / "out")
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert "dlrm-sleep-clicks-r1-b1-w1-1" in line and "nothing:here" in line
