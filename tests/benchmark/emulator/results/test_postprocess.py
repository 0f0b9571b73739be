"""dlio_postprocessor: the figures by hand, and the report of a real run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from iotwin.benchmark.emulator.results import postprocess
from iotwin.benchmark.emulator.results.postprocess import overall, report, statistics
from iotwin.common.errors import IotwinError
from iotwin.main import main
from tests.conftest import ROOT


def test_figures_are_sums_over_ranks_and_epochs(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps({"metric": {"train_throughput_samples_per_second": [2.0, 4.0]}}))
    for rank in (0, 1):
        epochs = {
            str(epoch): {"load": {"block1": [1, 2], "eval": [3]}, "proc": {"block1": [4, 5], "eval": [6]}} for epoch in (1, 2, 3)
        }
        (tmp_path / f"{rank}_output.json").write_text(json.dumps(epochs))
    figures = overall(tmp_path, 2, 2, 3 << 20)
    assert (figures["avg_process_loading_time"], figures["avg_process_processing_time"]) == ("12.00", "30.00")
    assert figures["samples/s"]["mean"] == "3.00" and figures["MB/s"]["max"] == "12.00"
    with pytest.raises(IotwinError, match=r"2_output\.json: no such file"):
        overall(tmp_path, 3, 2, 1)


def test_statistics_have_dlios_definitions() -> None:
    found = statistics(np.array([1.0, 2.0, 3.0, 4.0]))
    assert found == {"mean": "2.50", "std": "1.29", "min": "1.00", "median": "2.50", "p90": "3.70", "p99": "3.97", "max": "4.00"}
    assert set(statistics(np.array([1.0])).values()) == {"n/a"}


def test_the_command_reports_a_run(tmp_path: Path) -> None:
    words = [
        "++workload.dataset.format=synthetic",
        "++workload.dataset.num_files_train=24",
        "++workload.reader.data_loader=native",
        "++workload.train.computation_time=0.001",
        "++workload.evaluation.eval_time=0.001",
        "++workload.train.epochs=2",
        f"++hydra.run.dir={tmp_path}/o",
    ]
    assert main(["emulate", "--dlio", *words, "--quiet"]) == 0
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    command = [str(ROOT / "benchmark" / "bin" / "dlio_postprocessor"), f"--output-folder={tmp_path}/o"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/o/DLIO_default_report.txt\n"), done.stderr
    text = (tmp_path / "o" / "DLIO_default_report.txt").read_text()
    assert "Epoch 2" in text and "    block1" in text and "    eval" in text and "samples/s" in text
    (tmp_path / "iostat.json").write_text((tmp_path / "o" / "summary.json").read_text())
    done = subprocess.run([*command[:1], "-of", str(tmp_path)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "config.yaml: no such file" in done.stderr


@pytest.mark.parametrize(
    ("folder", "text", "told"),
    [
        ("dlio_config", "workload: {}", "/.hydra/config.yaml: no such file; give --hydra-folder=dlio_config\n"),
        (".hydra", "model: {}", "/.hydra/config.yaml: has no workload with model, dataset, reader, train;"),
        (".hydra", "workload: {model: {}, dataset: 3, reader: {}, train: {}}", "has no workload with"),
    ],
)
def test_notes_that_are_elsewhere_or_of_something_else_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: str, text: str, told: str
) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "config.yaml").write_text(text)
    monkeypatch.setattr(sys, "argv", ["dlio_postprocessor", "-of", str(tmp_path)])
    assert postprocess.main() == 1
    assert told in capsys.readouterr().err


def test_disks_and_cpus_are_in_the_report_where_iostat_ran(tmp_path: Path) -> None:
    cpu = {"user": 10.0, "nice": 0.0, "system": 5.0, "iowait": 1.0, "steal": 0.0, "idle": 84.0}
    disk = {
        "disk_device": "vda",
        "r/s": 1.0,
        "w/s": 2.0,
        "rMB/s": 30.0,
        "wMB/s": 4.0,
        "r_await": 5.0,
        "w_await": 6.0,
        "aqu-sz": 0.5,
    }
    samples = [{"avg-cpu": cpu, "disk": [disk]}, {"avg-cpu": cpu, "disk": [disk | {"rMB/s": 50.0}]}]
    (tmp_path / "iostat.json").write_text(json.dumps({"sysstat": {"hosts": [{"statistics": samples}]}}))
    (tmp_path / "summary.json").write_text(
        json.dumps({"start": "a", "end": "b", "metric": {"train_throughput_samples_per_second": [1.0]}})
    )
    (tmp_path / "0_output.json").write_text(json.dumps({"1": {"load": {"block1": [1]}, "proc": {"block1": [2]}}}))
    (tmp_path / "per_epoch_stats.json").write_text(json.dumps({"1": {"start": "a", "block1": {"start": "a"}}}))
    workload = {
        "model": {"name": "m"},
        "dataset": {"record_length": 1},
        "reader": {"batch_size": 1, "batch_size_eval": 1},
        "train": {"epochs": 1},
    }
    text = report(tmp_path, workload)
    assert "Device: vda" in text and "40.00" in text and "IO Wait (%)" in text
