"""`iotwin emulate` as a user runs it: what it prints and writes, and how it ends when something fails."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from iotwin.workload_yaml import Config, dump, load
from tests.conftest import PATIENCE_S
from tests.processes import children, name_of, wait_for

COMMAND = [sys.executable, "-m", "iotwin", "emulate"]


def emulate(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def mllog(output: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in output.splitlines() if line.startswith(":::MLLOG ")]


def test_a_run_prints_its_phases_and_leaves_its_results(twin_path: Path, tmp_path: Path) -> None:
    done = emulate(twin_path)
    assert done.returncode == 0, done.stderr
    events = mllog(done.stdout)
    edges = [
        (event["key"], event["event_type"].removeprefix("INTERVAL_"), event["metadata"].get("epoch_num"))
        for event in events
        if event["event_type"] != "POINT_IN_TIME"
    ]
    in_epoch = [(key, edge, epoch) for epoch in (1, 2) for key in ("epoch", "eval", "checkpoint") for edge in ("START", "END")]
    assert edges == [("init", "START", None), ("init", "END", None), ("run", "START", None), *in_epoch, ("run", "END", None)]
    times = [event["time_ns"] for event in events]
    assert times == sorted(times) and all(event["time_ms"] == event["time_ns"] // 1_000_000 for event in events)
    assert "accelerator utilisation" in done.stdout
    assert sorted(path.name for path in (tmp_path / "output").iterdir()) == [
        "0_output.json",
        "0_per_epoch_stats.json",
        "dlio.log",
        "metrics.parquet",
        "summary.json",
    ]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "epoch_1.pt",
        "epoch_2.pt",
        "iotwin-emulated.txt",
    ]


def test_a_trace_finds_the_phases_in_the_log(twin_path: Path, tmp_path: Path) -> None:
    from iotwin.trace_store.logs.job_log import read_log

    log = tmp_path / "stdout"
    log.write_text(emulate(twin_path).stdout)
    logged = read_log([log], lambda time_ns: time_ns)
    rows = logged.phases
    assert logged.torn == 0
    assert [(row["phase"], row["epoch"]) for row in rows] == [
        ("init", None),
        ("epoch", 1),
        ("evaluation", 1),
        ("checkpoint", 1),
        ("epoch", 2),
        ("evaluation", 2),
        ("checkpoint", 2),
    ]
    # No phase begins before the one before it has ended.
    assert all(before["end_ns"] <= after["start_ns"] for before, after in pairwise(rows))


def test_json_is_one_document_and_quiet_is_silent(twin_path: Path, tmp_path: Path, cases: Path) -> None:
    done = emulate(twin_path, "--json")
    document = json.loads(done.stdout)
    summary = json.loads((tmp_path / "output" / "summary.json").read_text())
    assert {key: document[key] for key in summary} == summary
    assert len(mllog(done.stderr)) > 0
    assert document["num_files_train"] == 8 and document["num_files_eval"] == 2
    per_case = sum((cases / f"case_00000_{half}.npy").stat().st_size for half in "xy")
    assert document["iotwin"]["bytes_read"] == 2 * 10 * per_case
    assert document["iotwin"]["bytes_written"] == 2 * (2 * 1280 + 70_000)
    assert 0 < document["metric"]["train_au_mean_percentage"] <= 100
    quiet = emulate(twin_path, "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_a_rerun_computes_and_reads_the_same_whatever_the_workers(twin_path: Path, tmp_path: Path) -> None:
    def steps(*overrides: str) -> pd.DataFrame:
        assert emulate(twin_path, "--quiet", *overrides).returncode == 0
        frame = pd.read_parquet(tmp_path / "output" / "metrics.parquet")
        return frame[["phase", "epoch", "step", "compute_ns", "samples", "bytes_read"]]

    first = steps()
    assert len(first) == 2 * (4 + 2) and set(first["phase"]) == {"train", "evaluation"}
    pd.testing.assert_frame_equal(first, steps())
    pd.testing.assert_frame_equal(first, steps("++workload.reader.read_threads=0"))
    pd.testing.assert_frame_equal(first, steps("++workload.reader.read_threads=3", "++workload.twin.persistent_workers=true"))
    assert not first["compute_ns"].equals(steps("++workload.train.seed=5")["compute_ns"])


def test_the_first_step_may_differ(twin_path: Path, tmp_path: Path) -> None:
    times = "train.computation_time=0.01", "twin.epoch_warm_up_time={type: in_order, values: [0.2, 0]}"
    assert emulate(twin_path, "--quiet", *(f"++workload.{time}" for time in times)).returncode == 0
    frame = pd.read_parquet(tmp_path / "output" / "metrics.parquet")
    trained = frame.loc[frame["phase"] == "train", "compute_ns"]
    assert trained.tolist() == [210_000_000] + [10_000_000] * (len(trained) - 1)


def test_the_first_step_of_each_epoch_may_take_longer(twin_path: Path, tmp_path: Path) -> None:
    times = "++workload.train.computation_time=0.01", "++workload.twin.epoch_warm_up_time=0.1"
    assert emulate(twin_path, "--quiet", *times).returncode == 0
    frame = pd.read_parquet(tmp_path / "output" / "metrics.parquet")
    trained = frame[frame["phase"] == "train"]
    assert trained["epoch"].nunique() == 2
    assert (trained["compute_ns"] == np.where(trained["step"] == 1, 110_000_000, 10_000_000)).all()


@pytest.mark.parametrize(
    ("override", "status", "expected"),
    [
        ("dataset.data_folder=/nowhere", 1, "/nowhere: no such data folder"),
        ("dataset.num_files_train=9", 1, "has 8 training samples, but dataset.num_files_train is 9"),
        ("reader.batch_size=9", 1, "fewer than a batch of 9"),
        ("twin.train_files=[case_00077]", 1, "case_00077_x.npy: no such case"),
        ("reader.batch=9", 2, "reader.batch: unknown key (did you mean 'batch_size'?)"),
        ("output.folder=/proc/none", 1, "/proc/none: cannot be made"),
    ],
)
def test_a_wrong_request_ends_in_one_line(tmp_path: Path, twin_path: Path, override: str, status: int, expected: str) -> None:
    done = emulate(twin_path, "--quiet", f"++workload.{override}")
    assert done.returncode == status
    assert expected in done.stderr and done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not (tmp_path / "checkpoints").exists()


def test_a_missing_twin_is_a_usage_error(tmp_path: Path) -> None:
    done = emulate(tmp_path / "none.yaml")
    assert done.returncode == 2 and "no such file" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00"])
def test_a_damaged_case_is_named_and_leaves_no_results(twin: Config, cases: Path, tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "data"
    shutil.copytree(cases, folder)
    (folder / "case_00003_y.npy").write_bytes(content)
    twin.dataset.data_folder = str(folder)
    dump(twin, tmp_path / "twin.yaml")
    done = emulate(tmp_path / "twin.yaml")
    assert done.returncode == 1
    assert done.stderr.startswith(f"iotwin emulate: {folder}/case_00003_y.npy: ") and done.stderr.count("\n") == 1
    assert list((tmp_path / "output").iterdir()) == []


def test_a_full_disk_in_a_checkpoint_ends_in_one_line(twin_path: Path, tmp_path: Path) -> None:
    dump(load(twin_path, ["twin.checkpoint.files=[{name: a.pt, write_sizes: [[1000, 1000]], rename: true}]"]), twin_path)
    limited = ["prlimit", "--fsize=100000", *COMMAND, str(twin_path), "--quiet"]
    done = subprocess.run(limited, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert "checkpoints/a.pt: the checkpoint cannot be written" in done.stderr and done.stderr.count("\n") == 1
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["iotwin-emulated.txt"]
    assert list((tmp_path / "output").iterdir()) == []


@pytest.fixture
def running(twin_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A twin in its first epoch, slow enough to stay there, and its two workers."""
    slow = ["++workload.reader.preprocess_time=60", "--quiet"]
    process = subprocess.Popen([*COMMAND, str(twin_path), *slow], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: sum(map(_is_loader, children(process.pid))) == 2, "two workers")
    workers = sorted(children(process.pid))
    yield process, workers
    process.kill()
    for pid in filter(_is_loader, workers):  # left by a failed test; they would hold the pipes open
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()


def _is_loader(pid: int) -> bool:
    return name_of(pid).startswith("iotwin-loader")


def _wait_for_the_end_of(pids: list[int]) -> None:
    wait_for(lambda: not any(map(_is_loader, pids)), f"the end of {pids}")


@pytest.mark.parametrize("which", [0, 1])
def test_a_killed_worker_ends_the_run(running: tuple[subprocess.Popen[str], list[int]], which: int, tmp_path: Path) -> None:
    process, workers = running
    os.kill(workers[which], signal.SIGKILL)
    _, error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert f"(process {workers[which]}) was killed by SIGKILL" in error and error.count("\n") == 1
    _wait_for_the_end_of(workers)
    assert list((tmp_path / "output").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_and_its_workers(running: tuple[subprocess.Popen[str], list[int]], number: signal.Signals) -> None:
    process, workers = running
    process.send_signal(number)
    _, error = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, error) == (130, "iotwin emulate: interrupted\n")
    _wait_for_the_end_of(workers)


def test_workers_die_with_a_killed_main_process(running: tuple[subprocess.Popen[str], list[int]]) -> None:
    process, workers = running
    process.kill()
    process.wait()
    _wait_for_the_end_of(workers)
