"""The emulator under mpirun: ranks of one run, results gathered, one rank's end the end of all."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun (Open MPI) is not installed")
pytest.importorskip("mpi4py", reason="mpi4py is not installed")

SMALL = [
    "workload=default", "++workload.workflow.generate_data=true", "++workload.workflow.evaluation=false",
    "++workload.dataset.num_files_train=64", "++workload.reader.read_threads=0", "++workload.reader.batch_size=1",
    "++workload.train.epochs=2", "++workload.train.computation_time=0.001",
]  # fmt: skip
PATIENCE_S = 100  # only a failing test waits this long


def command(ranks: int, *words: str) -> list[str]:
    launcher = ["mpirun", "-np", str(ranks), "--oversubscribe", "--allow-run-as-root"]
    return [*launcher, sys.executable, "-m", "iotwin.main", "emulate", *SMALL, *words]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMPI_MCA_mpi_yield_when_idle": "1"}


def run(ranks: int, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(ranks, *words), cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("ranks", [2, 16])
def test_ranks_share_the_samples_and_rank_0_has_the_results_of_all(ranks: int, tmp_path: Path) -> None:
    done = run(ranks, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["num_accelerators"], document["num_hosts"]) == (ranks, 1)
    assert document["iotwin"]["steps"] == 2 * 64 // ranks
    output = tmp_path / "output"
    assert {path.name for path in output.glob("*_output.json")} == {f"{rank}_output.json" for rank in range(ranks)}
    import pandas as pd

    frame = pd.read_parquet(output / "metrics.parquet")
    assert sorted(frame["rank"].unique()) == list(range(ranks))
    assert frame.groupby("epoch")["samples"].sum().tolist() == [64, 64]


def test_a_run_of_ranks_here_reads_and_computes_as_one_under_mpi(tmp_path: Path) -> None:
    import pandas as pd

    varied = "++workload.train.computation_time={type: uniform, min: 0, max: 0.002}"
    assert run(2, "--quiet", varied, "++workload.output.folder=mpi", folder=tmp_path).returncode == 0
    here = [sys.executable, "-m", "iotwin.main", "emulate", *SMALL, varied, "--quiet", "--ranks", "2"]
    assert subprocess.run(here, cwd=tmp_path, env=environment(), check=False).returncode == 0
    columns = ["phase", "rank", "epoch", "step", "compute_ns", "samples", "bytes_read"]
    frames = [pd.read_parquet(tmp_path / folder / "metrics.parquet")[columns] for folder in ("mpi", "output")]
    pd.testing.assert_frame_equal(*frames)


@pytest.mark.parametrize(
    ("word", "status", "expected"),
    [
        ("++workload.reader.batch=3", 2, "reader.batch: unknown key (did you mean 'batch_size'?)"),
        ("++workload.dataset.num_files_train=2", 1, "fewer than a batch of 1 on each of 3 ranks"),
    ],
)
def test_what_is_wrong_on_all_ranks_is_told_once(word: str, status: int, expected: str, tmp_path: Path) -> None:
    done = run(3, "--quiet", word, folder=tmp_path)
    told = [line for line in done.stderr.splitlines() if line.startswith("iotwin emulate:")]
    assert done.returncode == status
    assert len(told) == 1 and expected in told[0]
    assert not (tmp_path / "output" / "summary.json").exists()


def test_a_killed_rank_ends_the_run_everywhere(tmp_path: Path) -> None:
    slow = ["++workload.train.computation_time=60", "--quiet"]
    process = subprocess.Popen(command(3, *slow), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, start_new_session=True)
    try:
        ranks = _wait_for_ranks(process.pid, 3)
        os.kill(ranks[1], signal.SIGKILL)
        _, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode != 0
        deadline = time.monotonic() + PATIENCE_S
        while any(map(_runs_python, ranks)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(_runs_python, ranks))
    finally:
        if process.poll() is None:
            process.kill()


def _wait_for_ranks(launcher: int, count: int) -> list[int]:
    """The pids of the ranks once all of them are in their first step, asleep."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        children = [int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]
        if len(children) == count and all(_runs_python(pid) for pid in children):
            time.sleep(1)  # let them start MPI; a rank that dies before is noticed as well
            return children
        time.sleep(0.05)
    raise AssertionError("mpirun started no ranks")


def _runs_python(pid: int) -> bool:
    try:
        return b"iotwin.main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
