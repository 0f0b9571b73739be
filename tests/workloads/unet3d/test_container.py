"""What surrounds the job in a container: the files the image gets, and the launch script, run against a stand-in docker."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.workloads.unet3d.conftest import options

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "workloads" / "unet3d" / "start_training.sh"
IMAGES = ["bert", "checkfreq", "dlrm", "unet3d"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The workloads' folders of a checkout of its own, each with its shared.tar, as docker build finds them."""
    root = tmp_path_factory.mktemp("checkout")
    for folder in ("workloads", "datagen", "common", "iotwin"):
        ignored = shutil.ignore_patterns("shared.tar*", "__pycache__")
        shutil.copytree(ROOT / folder, root / folder, symlinks=True, ignore=ignored)
    subprocess.run([root / "workloads" / "shared_code.sh"], check=True)
    return root / "workloads"


def test_each_folder_gets_the_shared_code_with_the_same_bytes_every_time(folders):
    before = {path: path.read_bytes() for path in folders.glob("*/shared.tar*")}
    assert [path.parent.name for path in sorted(before)] == IMAGES and len({*before.values()}) == 1
    for path in before:
        path.unlink()
        (path.parent / "__init__.py").touch()
    subprocess.run([folders / "shared_code.sh"], check=True)
    assert {path: path.read_bytes() for path in folders.glob("*/shared.tar*")} == before  # docker keeps its layers


@pytest.mark.parametrize("workload", IMAGES)
def test_git_ignores_the_shared_code(workload):
    done = subprocess.run(["git", "check-ignore", "-q", ROOT / "workloads" / workload / "shared.tar"], cwd=ROOT)
    assert done.returncode in (0, 128)  # 128: not a repository


@pytest.mark.torch
def test_the_image_s_files_are_enough(folders, data, tmp_path):
    image, folder = tmp_path / "image", folders / "unet3d"
    copies = [line.split()[1:] for line in (folder / "Dockerfile").read_text().splitlines() if line.startswith("COPY ")]
    assert copies == [["Dockerfile", "shared.ta[r]", "./"], ["*.py", "iotwin/workloads/unet3d/"], ["--from=code", "/job", "./"]]
    with tarfile.open(folder / "shared.tar") as members:
        members.extractall(image, filter="data")
    (image / "iotwin" / "workloads" / "unet3d").mkdir()
    for file in folder.glob("*.py"):
        shutil.copy(file, image / "iotwin" / "workloads" / "unet3d")
    heavy = "pyarrow, pandas, rich, yaml, matplotlib"
    program = (
        f"import sys; sys.modules.update(dict.fromkeys('{heavy}'.split(', ')));"  # as if not installed
        "from iotwin.workloads.unet3d.__main__ import main;"
        f"assert sys.modules['iotwin.workloads'].__file__.startswith({str(image)!r});"
        "raise SystemExit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *options(data, tmp_path / "out", epochs=1)],
        cwd=image,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(image)},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "result.json").exists()


@pytest.fixture
def launch(tmp_path):
    """Runs the script with a docker that only notes its arguments."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tmp_path / "my data").mkdir()

    def tool(name, text):
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)

    note = "import json,sys; open(sys.argv[1],'a').write(json.dumps(sys.argv[2:])+chr(10))"
    tool(
        "docker",
        f'[ "$1" = container ] && {{ [ "$3" = taken ]; exit $?; }}\n'
        f'[ "$1" = image ] && {{ [ "$3" != none ]; exit $?; }}\n'
        f'"{sys.executable}" -c "{note}" "{tmp_path}/calls" "$@"\necho log line',
    )

    tool("iotwin", f'mkdir -p "$4"; "{sys.executable}" -c "{note}" "{tmp_path}/calls" "$@"')

    def run(*arguments, gpus=False, script=SCRIPT, **environment):
        tool("nvidia-smi", "printf 'GPU 0\nGPU 1\nGPU 2\nGPU 3\n'" if gpus else "exit 9")
        base = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "DATA_DIR": str(tmp_path / "my data"),
            "OUTPUT_DIR": str(tmp_path / "o o"),
        }
        done = subprocess.run([script, *arguments], env=base | environment, capture_output=True, text=True)
        calls = tmp_path / "calls"
        return done, [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []

    return run


@pytest.mark.parametrize(
    "script", sorted((ROOT / "workloads").rglob("*.sh")), ids=lambda script: f"{script.parent.name}/{script.name}"
)
def test_scripts_parse(script):
    subprocess.run(["bash", "-n", script], check=True)


def test_more_gpus_than_there_are(launch, tmp_path):
    done, calls = launch("8", "c", str(tmp_path / "logs"), "i", "4", "5", gpus=True)
    assert done.returncode == 1 and calls == []
    assert "8 GPUs asked for and 4 there" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("workload", "gpus", "start"),
    [
        ("bert", "2", ["iotwin.workloads.launch", "2", "iotwin.workloads.bert"]),
        ("bert", "1", ["iotwin.workloads.bert"]),
        ("dlrm", "4", ["iotwin.workloads.dlrm"]),
    ],
)
def test_the_other_workloads(launch, tmp_path, workload, gpus, start):
    script = ROOT / "workloads" / workload / "start_training.sh"
    done, [call] = launch(gpus, "c", str(tmp_path), "i", "6", "300", "--seed", "7", gpus=True, script=script)
    assert done.returncode == 0, done.stderr
    job = ["--data", "/data", "--output", "/output", "--batch-size", "6", "--steps", "300", "--seed", "7"]
    assert call[call.index("i") + 1 :] == [*start, *job]
    assert call[call.index("--gpus") + 1] == gpus


def test_on_generated_data(launch, tmp_path):
    """The data set is made where there is none, and left alone where there is one."""
    script = SCRIPT.with_name("start_training_on_generated.sh")
    data = {"DATA_DIR": str(tmp_path / "new data"), "DATA_SIZE": "1MiB"}
    done, [made, call] = launch("0", "c", str(tmp_path), "i", "4", "5", script=script, **data)
    assert done.returncode == 0, done.stderr
    assert made == ["generate", "unet3d", "-o", str(tmp_path / "new data"), "--size", "1MiB"]
    assert f"type=bind,source={tmp_path / 'new data'},target=/data,readonly" in call
    (tmp_path / "new data" / "case").write_text("")
    _, calls = launch("0", "c", str(tmp_path), "i", "4", "5", script=script, **data)
    assert [call[0] for call in calls] == ["generate", "run", "run"]


def test_one_gpu(launch, tmp_path):
    done, [call] = launch("1", "train_unet3d", str(tmp_path / "my logs"), "unet3d:latest", "4", "50", "--seed", "7", gpus=True)
    assert done.returncode == 0, done.stderr
    assert call[:2] == ["run", "--rm"] and call[call.index("--name") + 1] == "train_unet3d"
    assert call[call.index("--gpus") + 1] == "1"
    assert f"type=bind,source={tmp_path / 'my data'},target=/data,readonly" in call
    assert f"type=bind,source={tmp_path / 'o o'},target=/output" in call
    job = call[call.index("unet3d:latest") + 1 :]
    assert job == ["iotwin.workloads.unet3d", "--data", "/data", "--output", "/output", "--batch-size", "4", "--epochs", "50",
                   "--checkpoint-every", "50", "--seed", "7"]  # fmt: skip
    assert (tmp_path / "my logs" / "unet3d.log").read_text() == "log line\n"


def test_many_gpus_are_many_ranks(launch, tmp_path):
    _, [call] = launch("4", "c", str(tmp_path), "i", "4", "50", gpus=True, CUDA_VISIBLE_DEVICES="4,5,6,7")
    assert call[call.index("--gpus") + 1] == '"device=4,5,6,7"'
    job = call[call.index("i") + 1 :]
    assert job[:4] == ["torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    assert job[4:8] == ["--nproc-per-node", "4", "--module", "iotwin.workloads.unet3d"]


@pytest.mark.parametrize("wanted", ["0", "2"])
def test_no_gpu_is_asked_for_where_there_is_none(launch, tmp_path, wanted):
    done, [call] = launch(wanted, "c", str(tmp_path), "i", "4", "50", gpus=wanted == "0")
    assert done.returncode == 0 and "--gpus" not in call
    assert ("no GPU here" in done.stderr) == (wanted == "2")


@pytest.mark.parametrize(
    ("arguments", "environment", "status", "message"),
    [
        (["1", "c", "logs"], {}, 2, "usage:"),
        (["1", "c", "logs", "i", "4", "many"], {}, 2, "not 'many'"),
        (["1", "c", "logs", "i", "4", "5"], {"DATA_DIR": ""}, 2, "set DATA_DIR"),
        (["1", "c", "logs", "i", "4", "5"], {"DATA_DIR": "/nowhere"}, 1, "/nowhere is not a directory"),
        (["1", "taken", "logs", "i", "4", "5"], {}, 1, "the container name taken is taken"),
        (["1", "c", "logs", "none", "4", "5"], {}, 1, "docker has no image none"),
    ],
)
def test_the_script_refuses(launch, tmp_path, arguments, environment, status, message):
    arguments = [str(tmp_path / "logs") if argument == "logs" else argument for argument in arguments]
    done, calls = launch(*arguments, **environment)
    assert done.returncode == status and calls == []
    assert message in done.stderr and done.stderr.count("\n") == 1
