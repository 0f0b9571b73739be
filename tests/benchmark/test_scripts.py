"""The scripts around the emulator: their arguments, run against a stand-in docker, and what the image is made of."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT

BENCHMARK = ROOT / "benchmark"


@pytest.fixture
def run(tmp_path: Path):
    """Runs a script with a docker that runs its command here, where its mounts would be, without a container."""
    tools = tmp_path / "tools"
    tools.mkdir()
    stand_in = f"""#!{sys.executable}
import json, os, subprocess, sys
words = sys.argv[1:]
if words[:2] == ["container", "inspect"]: sys.exit(words[2] != "taken")
if words[:2] == ["image", "inspect"]: sys.exit(words[2] == "none")
mounts = [dict(part.split("=", 1) for part in word.split(",")) for word in words if word.startswith("type=bind")]
command = words[words.index("emulate"):]
open({str(tmp_path / "call")!r}, "w").write(json.dumps(command))
os.chdir({str(tmp_path)!r})
for mount in mounts:
    link = os.path.basename(mount["target"])
    if not os.path.lexists(link): os.symlink(mount["source"], link)
environment = {{**os.environ, "PYTHONPATH": {str(ROOT)!r}}}
sys.exit(subprocess.run([{sys.executable!r}, "-m", "iotwin", *command], env=environment).returncode)
"""
    (tools / "docker").write_text(stand_in)
    (tools / "docker").chmod(0o755)

    def run(script: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        environment = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "DATA_DIR": str(tmp_path / "my data"),
            "OUTPUT_DIR": str(tmp_path / "out"),
            "LOGGING_DIR": str(tmp_path / "logs"),
        }
        done = subprocess.run([BENCHMARK / script, *arguments], env=environment, capture_output=True, text=True, check=False)
        call = tmp_path / "call"
        return done, json.loads(call.read_text()) if call.exists() else []

    return run


@pytest.mark.parametrize("script", sorted(path.name for path in BENCHMARK.glob("*.sh")))
def test_scripts_parse(script: str) -> None:
    subprocess.run(["bash", "-n", BENCHMARK / script], check=True)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("benchmark_unet3d.sh", ["--ranks", "4", "++workload.reader.batch_size=3", "++workload.train.epochs=7"]),
        ("benchmark_bert.sh", ["--ranks", "4", "++workload.reader.batch_size=3", "++workload.train.total_training_steps=7"]),
        (
            "benchmark_dlrm.sh",
            ["++workload.num_gpus=4", "++workload.reader.batch_size=3", "++workload.train.total_training_steps=7"],
        ),
    ],
)
def test_the_order_of_arguments(run, script: str, expected: list[str], tmp_path: Path) -> None:
    _, call = run(script, "4", "c", str(tmp_path), "image", "3", "7", "--show")
    start = call.index(expected[0])
    assert call[start : start + len(expected)] == expected
    assert call[-1] == "--show"


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["many"], 2, "num_gpus 'many' is not a number above 0"),
        (["1", "taken"], 1, "a container named 'taken' exists already"),
        (["1", "c", "logs", "none"], 1, "no image 'none'; build it with"),
    ],
)
def test_what_is_wrong_is_one_line(run, arguments: list[str], status: int, expected: str) -> None:
    done, call = run("benchmark_bert.sh", *arguments)
    assert (done.returncode, call) == (status, [])
    assert expected in done.stderr and done.stderr.count("\n") == 1


def test_scripts_that_call_dlio_benchmark_run(tmp_path: Path) -> None:
    words = [
        "workload=unet3d_a100",
        "++workload.workflow.query=train.computation_time",
        "--config-dir",
        str(ROOT / "workload_yaml" / "workloads"),
    ]
    environment = {"PATH": f"{BENCHMARK / 'bin'}:{os.environ['PATH']}", "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["dlio_benchmark", *words], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("0.636\n", 0), done.stderr


def test_the_image_has_all_that_a_run_needs_and_no_torch(tmp_path: Path) -> None:
    for line in (BENCHMARK / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY "):
            *sources, target = line.split()[1:]
            for source in sources:
                if source.endswith("/"):
                    ignored = shutil.ignore_patterns("__pycache__")
                    shutil.copytree(ROOT / source, tmp_path / target, symlinks=True, ignore=ignored)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not any("torch" in name or "tensorflow" in name or "mpi" in name for name in project["dependencies"])
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'tensorflow', 'mpi4py', 'h5py', 'PIL']));"  # as if not installed
        "from iotwin.main import main; raise SystemExit(main(sys.argv[1:]))"
    )
    words = [
        "emulate",
        "workload=default",
        "++workload.workflow.generate_data=true",
        "++workload.train.computation_time=0",
        "++workload.evaluation.eval_time=0",
        "++workload.train.epochs=2",
        "--quiet",
    ]
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
