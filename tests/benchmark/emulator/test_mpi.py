"""The emulator under mpirun: ranks of one run, results gathered, one rank's end the end of all."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from iotwin.benchmark.emulator.ranks import started_as, under_mpi
from iotwin.common.ranks import MPI_VARIABLES
from tests.conftest import PATIENCE_S, ROOT

pytestmark = pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun (Open MPI) is not installed")
pytest.importorskip("mpi4py", reason="mpi4py is not installed")

SMALL = [
    "workload=default",
    "++workload.workflow.generate_data=true",
    "++workload.workflow.evaluation=false",
    "++workload.dataset.num_files_train=64",
    "++workload.reader.read_threads=0",
    "++workload.reader.batch_size=1",
    "++workload.train.epochs=2",
    "++workload.train.computation_time=0.001",
]


def launcher(ranks: int, *options: str) -> list[str]:
    return ["mpirun", "-np", str(ranks), "--oversubscribe", "--allow-run-as-root", *options]


def command(ranks: int, *words: str, launch: Sequence[str] = ()) -> list[str]:
    return [*launcher(ranks, *launch), sys.executable, "-m", "iotwin", "emulate", *SMALL, *words]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMPI_MCA_mpi_yield_when_idle": "1"}


def run(ranks: int, *words: str, folder: Path, launch: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(ranks, *words, launch=launch),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
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


def test_steps_that_ranks_send_before_they_end_are_those_of_the_run(tmp_path: Path) -> None:
    import pandas as pd

    words = [
        "++workload.dataset.format=synthetic",
        "++workload.dataset.num_files_train=600",
        "++workload.train.computation_time=0",
    ]
    done = run(2, "--quiet", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    frame = pd.read_parquet(tmp_path / "output" / "metrics.parquet")
    expected = [(rank, epoch, step) for rank in range(2) for epoch in (1, 2) for step in range(1, 301)]
    assert list(frame[["rank", "epoch", "step"]].itertuples(index=False, name=None)) == expected
    assert (frame.groupby("rank")["start_ns"].diff().dropna() > 0).all()


@pytest.mark.skipif(os.geteuid() != 0, reason="a name of its own for each node (unshare --uts) needs root")
def test_ranks_are_numbered_node_by_node_however_they_were_dealt_out(tmp_path: Path) -> None:
    agent = tmp_path / "agent"  # stands for ssh: starts what it is given on this machine, under the name of the node
    agent.write_text('#!/bin/sh\nnode=$1; shift\nexec unshare --uts sh -c "hostname $node; $*"\n')
    agent.chmod(0o755)
    over_loopback = ["--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo", "--mca", "oob_tcp_if_include", "lo"]
    nodes = ["--host", "node-a:2,node-b:2", "--map-by", "node", "--mca", "plm_rsh_agent", str(agent), "-x", "PYTHONPATH"]
    done = run(4, "--json", folder=tmp_path, launch=[*nodes, *over_loopback])
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["num_accelerators"], document["num_hosts"], len(document["host_memory_GB"])) == (4, 2, 2)
    hosts = [json.loads((tmp_path / "output" / f"{rank}_output.json").read_text())["hostname"] for rank in range(4)]
    assert hosts == ["node-a", "node-a", "node-b", "node-b"]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "3"}, (True, 3)),  # srun
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, (False, 0)),  # sbatch's own script
        ({"PMI_SIZE": "2", "PMI_RANK": "1"}, (True, 1)),
        ({"PMI_SIZE": "", "SLURM_PROCID": "x"}, (False, 0)),
    ],
)
def test_launchers_are_known_by_their_variables(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: tuple[bool, int]
) -> None:
    for name in (name for pair in MPI_VARIABLES for name in pair):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (under_mpi(), started_as()) == expected


def test_processes_that_mpi_does_not_know_of_one_another_are_refused(tmp_path: Path) -> None:
    """As srun starts them for an MPI that does not speak its PMI: all would be rank 0 and write the same files."""
    words = [sys.executable, "-m", "iotwin", "emulate", *SMALL]
    known = {**environment(), "PMI_SIZE": "2"}
    done = subprocess.run(words, cwd=tmp_path, env=known, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr.splitlines()[-1].partition(":")[0]) == (1, "iotwin emulate")
    assert "each is alone to MPI" in done.stderr and not (tmp_path / "output" / "summary.json").exists()


def test_a_run_of_ranks_here_reads_and_computes_as_one_under_mpi(tmp_path: Path) -> None:
    import pandas as pd

    varied = "++workload.train.computation_time={type: uniform, min: 0, max: 0.002}"
    assert run(2, "--quiet", varied, "++workload.output.folder=mpi", folder=tmp_path).returncode == 0
    here = [sys.executable, "-m", "iotwin", "emulate", *SMALL, varied, "--quiet", "--ranks", "2"]
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


CHECKPOINTS = [
    "++workload.workflow.checkpoint=true",
    "++workload.checkpoint.num_checkpoints_read=1",
    "++workload.checkpoint.type=all_ranks",
]


@pytest.mark.parametrize("error", ["IotwinError", "KeyError"])
@pytest.mark.parametrize(
    ("point", "rank"),
    [
        ("iotwin.workload_yaml:compose_job", 0),
        ("iotwin.benchmark.emulator.results.run_files:prepare_output", 0),
        ("iotwin.datagen.nodes:plan", 1),
        ("iotwin.datagen.nodes:prepare", 0),
        ("iotwin.datagen.nodes:start_journal", 1),
        ("iotwin.datagen.nodes:write_units", 0),
        ("iotwin.datagen.nodes:write_manifest", 0),
        ("iotwin.benchmark.emulator.run:open_dataset", 1),
        ("iotwin.benchmark.emulator.run:Accelerator.step", 0),
        ("iotwin.benchmark.emulator.checkpoints.one_file:FileWriter.write", 1),
        ("iotwin.benchmark.emulator.checkpoints.recovery:read_whole", 0),
        ("iotwin.benchmark.emulator.results.run_files:write_results", 0),
    ],
)
def test_a_rank_that_fails_anywhere_ends_all(point: str, rank: int, error: str, tmp_path: Path) -> None:
    failing = [sys.executable, str(Path(__file__).with_name("failing_rank.py")), point, str(rank), error]
    words = ["emulate", "--dlio", *SMALL, *CHECKPOINTS, "--quiet"]
    done = subprocess.run(
        [*launcher(2), *failing, *words],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 1
    reports = [line for line in done.stderr.splitlines() if line.startswith(("iotwin emulate: ", "KeyError: "))]
    assert len(reports) == 1 and "made to fail" in reports[0]


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
        return b"\0iotwin\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
