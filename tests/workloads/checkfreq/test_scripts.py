"""The original's scripts: its matrix of runs, and what watches the machine beside them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import ImagenetLayout
from tests.conftest import PATIENCE_S, ROOT

FOLDER = ROOT / "workloads" / "checkfreq"


def call(script, *words, cwd, **environment):
    path = f"{Path(sys.executable).parent}:{environment.pop('PATH', os.environ['PATH'])}"
    own = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment, "PATH": path}
    command = [FOLDER / script, *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=own, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.torch
def test_the_matrix_has_the_original_s_folders_and_waits_at_the_interval_that_was_measured(tmp_path):
    generate(ImagenetLayout(classes=2, scale=0.1), tmp_path / "images", samples=120, seed=1, workers=1)
    options = "--preset tiny -b 1 --threads 1 --lr 0.01"
    settings = {"GPUS": "1", "BATCH": "1", "NETWORKS": "vgg16", "OPTIONS": options}
    done = call("run_all_256.sh", tmp_path / "images", tmp_path / "out", 0, cwd=tmp_path, **settings)
    assert done.returncode == 0, done.stderr
    name = "vgg16_b1_w0_g1_dali_fp32_"
    runs = {
        kind: json.loads((tmp_path / "out" / f"{name}{kind}" / "result.json").read_text())
        for kind in ("cf", "epoch_chk", "iter_chk_baseline_persist")
    }
    assert [run["epochs"] for run in runs.values()] == [2, 1, 1]
    told = {kind: run["checkpoints"] for kind, run in runs.items()}
    assert [each["policy"] for each in told.values()] == ["auto", "epoch", "sync"]
    assert told["iter_chk_baseline_persist"]["interval"] == told["cf"]["intervals"][0][1]
    assert told["epoch_chk"]["count"] == 1
    assert (tmp_path / "out" / f"{name}cf" / "time-split0.csv").read_text().count("\n") > 200


def test_the_matrix_needs_three_words(tmp_path):
    done = call("run_all_256.sh", "data", cwd=tmp_path)
    assert done.returncode == 2 and "DATA OUT WORKERS" in done.stderr


def test_monitors_begin_and_end_by_their_process_id_and_leave_their_files_where_asked(tmp_path):
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin" / "iotwin"  # in place of what records the whole machine
    lines = ["#!/bin/sh", 'echo "$@" >asked', 'trap "touch monitor.trace/ended; exit" INT', "mkdir monitor.trace"]
    stand_in.write_text("\n".join([*lines, "while :; do sleep 0.1; done", ""]))
    stand_in.chmod(0o755)
    own = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}

    def run(script, *words):
        command = [FOLDER / script, *words]
        return subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert run("start_monitor.sh").returncode == 0
    pid = int((tmp_path / "monitor.pid").read_text())
    again = run("start_monitor.sh")
    assert again.returncode == 1 and "call stop_monitor.sh first" in again.stderr
    while not (tmp_path / "monitor.trace").exists():
        assert Path(f"/proc/{pid}").exists()
    assert run("stop_monitor.sh", "results").returncode == 0
    assert not Path(f"/proc/{pid}").exists()
    assert (tmp_path / "results" / "monitor.trace" / "ended").exists() and not (tmp_path / "monitor.pid").exists()
    assert (tmp_path / "asked").read_text().split()[:2] == ["trace", "--all"]
    stopped = run("stop_monitor.sh", "results")
    assert stopped.returncode == 1 and "no monitor.pid here" in stopped.stderr
    assert run("stop_monitor.sh").returncode == 2
