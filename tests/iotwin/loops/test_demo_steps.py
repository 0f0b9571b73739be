"""The demo: the whole loop on a real network, at a size that a test can afford; what it replaces, and how it ends early."""

import json
import shutil

import pytest

from iotwin.common.result_folder import LIST
from iotwin.loops import demo_steps
from iotwin.main import main
from iotwin.trace_store.reader import Trace
from tests.conftest import ROOT, nothing_can_trace
from tests.processes import one_line, press_ctrl_c, start, wait_for

pytestmark = pytest.mark.torch

_SMALL_JOB = [
    "--epochs", "2", "--batch-size", "2", "--workers", "2", "--eval-every", "2", "--checkpoint-every", "2",
    "--base-channels", "2", "--depth", "2", "--crop", "16", "--overlap", "0", "--threads", "1", "--seed", "1",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _can_trace():
    if reason := nothing_can_trace():
        pytest.skip(reason)


def test_the_loop_on_a_real_network(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(demo_steps, "JOB", _SMALL_JOB)
    monkeypatch.setattr(demo_steps, "_SCALE", 0.1)
    monkeypatch.setattr(demo_steps, "_DATA_BYTES", 3 << 20)
    assert main(["demo", "-o", "demo", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    directory = tmp_path / "demo"
    assert document == json.loads((directory / "summary.json").read_text())
    assert {path.name for path in directory.iterdir()} == {*demo_steps._MADE, "README.txt", LIST}
    for name in ("real", "rerun", "twin"):
        trace = Trace(directory / f"{name}.trace")
        assert trace.manifest.exit_status == 0 and trace.manifest.lost_events == 0
        assert set(trace.phases()["phase"]) >= {"init", "epoch", "evaluation", "checkpoint"}
    losses = json.loads((directory / "real_output" / "result.json").read_text())["train_loss"]
    assert len(losses) == 2
    # So short a run says little about times; what is read, written and in which order is the same at any size.
    twin = document["real_vs_twin"]["dimensions"]
    assert min(twin[name] for name in ("volume", "operation_mix", "request_size", "files", "checkpoint")) > 0.9
    assert json.loads((directory / "similarity.json").read_text())["real_vs_rerun"] == document["real_vs_rerun"]
    assert (directory / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert (directory / "report.html").read_text().lower().startswith("<!doctype html>")


def test_only_what_a_demo_made_is_replaced(tmp_path, monkeypatch, capsys):
    directory = tmp_path / "demo"
    demo_steps._prepare(directory, force=False)
    (directory / "real.trace").mkdir()
    (directory / "real.trace" / "manifest.json").write_text("old")
    (directory / "notes.txt").write_text("mine")
    assert main(["demo", "-o", str(directory)]) == 2
    assert "--force" in capsys.readouterr().err
    demo_steps._prepare(directory, force=True)
    assert sorted(path.name for path in directory.iterdir()) == [LIST, "README.txt", "notes.txt"]
    shutil.rmtree(directory)


def test_ctrl_c_in_training_ends_the_demo(tmp_path):
    directory = tmp_path / "demo"
    running = start("demo", "-o", directory, "--quiet")
    wait_for((directory / "real.trace" / "logs" / "stdout").exists, "the training run")
    result = press_ctrl_c(running)
    assert result.returncode == 130, result.stderr
    assert one_line(result) == "iotwin demo: interrupted"
    left = {path.name for path in directory.iterdir()}
    assert left <= {LIST, "README.txt", "data", "real.trace", "real_output"}
    if (directory / "real.trace" / "manifest.json").exists():
        assert not (directory / "real.trace" / "raw").exists(), "a trace under its name is whole"
        assert Trace(directory / "real.trace").manifest.status == "complete"
