"""Scripts of TensorFlow resume equal, although Keras makes its variables in the first step."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")
ZOO = Path(__file__).parent / "zoo"


def steps(folder: Path, name: str, *options: str) -> list[dict]:
    log = folder / f"{len(list(folder.iterdir()))}.jsonl"
    command = [sys.executable, "-m", "iotwin.workloads.detrain", "-o", folder / "run", "--steps-log", log, *options, ZOO / name]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize(
    ("name", "replay", "profile"), [("tf_music.py", "restore", "strict"), ("tf_pipeline.py", "replay-data", "off")]
)
def test_later_steps_of_a_resumed_script_are_equal(tmp_path, name, replay, profile):
    whole = steps(tmp_path, name, "--determinism", profile, "--at", "1:2")
    resumed = steps(tmp_path, name, "--determinism", profile)
    assert resumed == whole[-len(resumed) :]
    assert (resumed[0]["epoch"], resumed[0]["batch"]) == (1, 2)
    assert len({step["parameters_sha256"] for step in whole}) == len(whole)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["replay"] == replay
