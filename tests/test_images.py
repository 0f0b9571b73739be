"""Images on a base of Debian packages, run by their scripts: the emulator's, and DLRM's sleep variant, without a framework."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import yaml

from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import DlrmLayout
from iotwin.trace_store.reader import Trace
from tests.conftest import ROOT, run_iotwin
from tests.docker_engine import client, containers
from tests.workloads.mllog import entries, parts

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap needs root"),
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="debootstrap is not installed"),
]
BASE, IMAGE, EMULATOR = "iotwin-test-base", "dlrm:sleep", "dlio:test"
# Of the base: what the two images need, as they are built without a network.
PACKAGES = ["numpy>=1.26", "msgspec>=0.18", "pyarrow>=15", "PyYAML>=6", "rich>=13", "xxhash>=3", "google-crc32c>=1.5"]


@pytest.fixture(scope="session")
def base(docker_host):
    """Options of docker build: the base image, of Debian packages and what the images need, and no network."""
    environment = os.environ | {"PYTHON": sys.executable}
    command = [ROOT / "workloads" / "base_image.sh", BASE, *PACKAGES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        # A mirror that does not answer, or a Debian whose Python is not ours, is no fault of the image's.
        pytest.skip(f"no base image can be made here: {done.stderr.strip().splitlines()[-1:]}")
    return ["--build-arg", f"BASE={BASE}", "--network", "none"]


@pytest.fixture(scope="session")
def image(base):
    """The image dlrm:sleep."""
    build = [ROOT / "workloads" / "build_image.sh", "dlrm", "sleep", "--build-arg", "TORCH=", *base]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return IMAGE


@pytest.fixture(scope="session")
def emulator(base):
    """The emulator's image."""
    options = ["--build-arg", "PIP_OPTIONS=--no-deps --no-build-isolation", *base]
    build = ["docker", "build", "--file", ROOT / "benchmark" / "Dockerfile", "--tag", EMULATOR, *options, ROOT]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return EMULATOR


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("criteo")
    generate(DlrmLayout(), directory, samples=5000, seed=3, workers=1)
    directory.chmod(0o755)  # the job is not root
    return directory


def test_docker_build_alone_says_what_is_to_be_done_first(base, tmp_path):
    """In a checkout that no script has been called in."""
    folder = shutil.copytree(ROOT / "workloads" / "dlrm", tmp_path / "dlrm", ignore=shutil.ignore_patterns("shared.tar"))
    done = subprocess.run(
        ["docker", "build", "--force-rm", "--build-arg", "TORCH=", *base, folder], capture_output=True, text=True
    )
    assert done.returncode != 0 and "put it there by workloads/shared_code.sh" in done.stdout


FEW = {
    "unet3d": ("dataset.num_files_train=4", "dataset.num_files_eval=1", "dataset.record_length_bytes=1"),
    "bert": ("dataset.num_files_train=4", "dataset.num_samples_per_file=4", "dataset.eval_num_samples_per_file=1"),
    "dlrm": (
        "dataset.num_samples_per_file=64",
        "dataset.eval_num_samples_per_file=1",
        "reader.batch_size_eval=1",
        "evaluation.steps_between_evals=2",
        "checkpoint.steps_between_checkpoints=2",
    ),
}
QUICK = ("train.computation_time=0", "evaluation.eval_time=0", "model.model_size_bytes=9000", "evaluation.total_eval_steps=1")


@pytest.mark.parametrize(("workload", "ranks", "steps"), [("unet3d", 2, 2), ("bert", 2, 2), ("dlrm", 1, 2)])
def test_the_emulator_in_its_image(emulator, tmp_path, workload, ranks, steps):
    environment = os.environ | {
        "DATA_DIR": str(tmp_path / "data"),
        "OUTPUT_DIR": str(tmp_path / "out"),
        "LOGGING_DIR": str(tmp_path / "logs"),
    }
    few, quick = ([f"++workload.{word}" for word in words] for words in (FEW[workload], QUICK))
    for script, *arguments in (
        ("start_datagen.sh", workload, emulator, tmp_path / "data", *few),
        (f"benchmark_{workload}.sh", "2", f"run_{workload}", tmp_path / "logs", emulator, "1", "2", *few, *quick),
    ):
        done = subprocess.run([ROOT / "benchmark" / script, *arguments], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    # unet3d has two epochs, the others two steps.
    assert (summary["num_accelerators"], summary["iotwin"]["steps"]) == (ranks, steps * (2 if workload == "unet3d" else 1))
    assert summary["iotwin"]["checkpoint_files"] and summary["iotwin"]["evaluation_steps"]
    assert '"init"' in (tmp_path / "logs" / "dlio.log").read_text()


def test_the_emulator_s_image_holds_no_framework(emulator):
    program = "import importlib.util as u; print([name for name in ('torch', 'tensorflow', 'mpi4py') if u.find_spec(name)])"
    command = ["docker", "run", "--rm", "--entrypoint", "python", emulator, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


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


TRAINED_ON = "/data/terabyte_processed_train.bin"
IN_NO_TIME = (
    "++workload.train.computation_time=0",
    "++workload.workflow.evaluation=false",
    "++workload.workflow.checkpoint=false",
)


@pytest.mark.root
def test_cells_are_traced_inside_their_containers(image, emulator, data, tmp_path):
    """The real job's and its emulation's; the first after an attempt whose tracer was killed, and whose container runs on."""
    document = {
        "name": "contained", "images": {"dlrm": image, "emulated": emulator}, "plot": "timeline",
        "data": {"clicks": {"workload": "dlrm", "folder": str(data)}},
        "jobs": [{"workload": "dlrm", "data": ["clicks"], "variant": ["sleep", "emulated"], "batch": [100], "sleep": "0.001",
                  "options": {"steps": 5}, "emulate": ["workload=dlrm", "++workload.train.total_training_steps=5", *IN_NO_TIME]}],
    }  # fmt: skip
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(document))
    cell = tmp_path / "out" / "cells" / "dlrm-sleep-clicks-r1-b100-w1-1"
    cell.mkdir(parents=True)
    left = client().containers.create(image, entrypoint=["sleep", "600"], labels={"iotwin.cell": str(cell)}, network="none")
    left.start()
    done = run_iotwin("run", tmp_path / "e.yaml", "-o", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert left.name not in containers()
    for variant, made_of, wrote in (("sleep", image, "result.json"), ("emulated", emulator, "summary.json")):
        cell = cell.with_name(f"dlrm-{variant}-clicks-r1-b100-w1-1")
        trace = Trace(cell / "trace")
        reads = trace.events_frame(columns=["op", "file_id", "result"])
        data_files = trace.files().set_index("file_id")["path"]
        reads = reads[reads["op"].isin(["read", "preadv2"]) & (reads["file_id"].map(data_files) == TRAINED_ON)]
        assert reads.loc[reads["result"] > 0, "result"].sum() == 5 * 16_000  # what the job read, by the paths that it sees
        assert trace.manifest.target.image == made_of
        assert (cell / "output" / wrote).stat().st_uid == 1000
    assert (tmp_path / "out" / "plots" / "dlrm-clicks-r1-b100-w1-1.png").stat().st_size > 1000


def test_a_cell_without_its_image_is_named(docker_host, data, tmp_path):
    document = {
        "name": "contained",
        "images": {"dlrm": "nothing:here"},
        "data": {"clicks": {"workload": "dlrm", "folder": str(data)}},
        "jobs": [{"workload": "dlrm", "data": ["clicks"], "variant": ["sleep"], "sleep": "0"}],
    }
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(document))
    done = run_iotwin("run", tmp_path / "e.yaml", "-o", tmp_path / "out")
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert "dlrm-sleep-clicks-r1-b1-w1-1" in line and "nothing:here" in line
