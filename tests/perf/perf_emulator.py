"""The emulator's own cost: the smallest run compared with DLIO's, its loop without any I/O, starting on very many samples, and
very many ranks on one machine.

    python -m tests.perf.perf_emulator                   # very many ranks alone

Set IOTWIN_DLIO_PYTHON to an interpreter that has dlio_benchmark 2.0.0 and PyTorch, and its smallest run is measured beside ours;
else ours is held against what it took earlier.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.conftest import ROOT
from tests.perf.figures import Figure, interleaved, median_ratio
from tests.perf.records import record_figures

_ROUNDS = 5
_FILES, _RECORD_BYTES = 8, 65536
# CPU seconds of DLIO at e1919d7 for the same run on a quiet machine of 2 CPUs: the middle of several.
_UPSTREAM_EARLIER_S = 4.2
_LOOP_STEPS = {0.01: 400, 0.001: 3000}  # by computation time
_ASKED = {0.01: 99, 0.001: 95}
_RANKS, _MPI_RANKS, _RANK_STEPS = 256, 16, 20
_MANY = {"1.28 million": 1_281_167, "4.2 billion": 4_195_197_692}


def measure() -> list[Figure]:
    """Return the figures."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
        directory = Path(name)
        figures = _smallest_run(directory)
        figures += [_utilisation(directory, seconds) for seconds in _LOOP_STEPS]
        for label, samples in _MANY.items():
            figures += _start_up(directory, label, samples)
        return figures + _many_ranks(directory)


def _emulate(directory: Path, *words: str, launcher: Sequence[str] = ()) -> tuple[dict, float, int]:
    """Run `iotwin emulate`; return its document, the CPU seconds of all its processes and the bytes of the largest."""
    program = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], check=True, stderr=subprocess.DEVNULL);"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print('\\n%f %d' % (used.ru_utime + used.ru_stime, used.ru_maxrss * 1024))"
    )
    command = [sys.executable, "-c", program, *launcher, sys.executable, "-m", "iotwin", "emulate", *words, "--json"]
    done = subprocess.run(
        command, cwd=directory, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    document, _, usage = done.stdout.strip().rpartition("\n")
    seconds, memory = usage.split()
    return json.loads(document), float(seconds), int(memory)


def _smallest_run(directory: Path) -> list[Figure]:
    """Eight samples of 64 KiB, one epoch, no computation, one rank that reads by itself."""
    words = [
        "workload=default",
        "++workload.workflow.evaluation=false",
        f"++workload.dataset.num_files_train={_FILES}",
        f"++workload.dataset.record_length_bytes={_RECORD_BYTES}",
        "++workload.dataset.num_subfolders_train=0",
        "++workload.dataset.data_folder=data",
        "++workload.reader.batch_size=1",
        "++workload.reader.read_threads=0",
        "++workload.train.epochs=1",
        "++workload.train.computation_time=0",
    ]
    _emulate(directory, *words, "++workload.workflow.generate_data=true")
    memories: list[int] = []

    def ours() -> float:
        _, seconds, memory = _emulate(directory, *words)
        memories.append(memory)
        return seconds

    interpreter = os.environ.get("IOTWIN_DLIO_PYTHON")
    theirs = partial(_upstream, interpreter, directory) if interpreter else lambda: _UPSTREAM_EARLIER_S
    upstream, used = interleaved(_ROUNDS, theirs, ours)
    rival = "side by side" if interpreter else "as measured earlier"
    detail = f"{statistics.median(used):.2f} CPU s; DLIO {statistics.median(upstream):.2f}, {rival}"
    return [
        Figure("smallest emulated run: DLIO's CPU over ours", median_ratio(upstream, used), 5, at_most=False, detail=detail),
        Figure("smallest emulated run: memory of one rank, MB", statistics.median(memories) / 1e6, 120),
    ]


def _upstream(interpreter: str, directory: Path) -> float:
    script = Path(__file__).with_name("smallest_dlio_run.py")
    command = [interpreter, str(script), str(directory), str(_FILES), str(_RECORD_BYTES)]
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=True)
    return float(next(line for line in done.stdout.splitlines() if line.startswith("CPU seconds: ")).split()[-1])


def _utilisation(directory: Path, seconds: float) -> Figure:
    """Accelerator utilisation with samples that need no I/O, two ranks: what the emulator's own loop leaves of it."""
    steps = _LOOP_STEPS[seconds]
    words = [
        "workload=default",
        "++workload.workflow.evaluation=false",
        "++workload.dataset.format=synthetic",
        f"++workload.dataset.num_files_train={2 * steps * 4}",
        "++workload.reader.batch_size=4",
        "++workload.reader.read_threads=0",
        "++workload.train.epochs=2",
        f"++workload.train.computation_time={seconds}",
        "--ranks",
        "2",
    ]
    reached = [_emulate(directory, *words)[0]["metric"]["train_au_mean_percentage"] for _ in range(_ROUNDS)]
    told = ", ".join(f"{value:.1f}" for value in reached)
    name = f"AU without I/O at {1000 * seconds:g} ms steps, 2 ranks, %"
    return Figure(name, statistics.median(reached), _ASKED[seconds], at_most=False, detail=told)


def _start_up(directory: Path, label: str, samples: int) -> list[Figure]:
    """Seconds from the command to the end of its first steps, and memory, with `samples` samples that are shuffled."""
    words = [
        "workload=default", "++workload.workflow.evaluation=false", "++workload.dataset.format=synthetic",
        "++workload.dataset.num_files_train=1", f"++workload.dataset.num_samples_per_file={samples}",
        "++workload.reader.batch_size=64", "++workload.reader.sample_shuffle=seed", "++workload.reader.read_threads=0",
        "++workload.train.epochs=1", "++workload.train.total_training_steps=10", "++workload.train.computation_time=0",
    ]  # fmt: skip
    seconds, memories = zip(*(_emulate(directory, *words)[1:] for _ in range(_ROUNDS)), strict=True)
    return [
        Figure(f"{label} samples: CPU seconds of starting and 10 steps", statistics.median(seconds), 1),
        Figure(f"{label} samples: memory of one rank, MB", statistics.median(memories) / 1e6, 150),
    ]


def _many_ranks(directory: Path) -> list[Figure]:
    """256 forked ranks, and 16 by mpirun where it is installed, whose steps compute for 1 s and read nothing."""
    import pandas as pd

    def words(ranks: int) -> list[str]:
        return [
            "workload=default", "++workload.workflow.evaluation=false", "++workload.dataset.format=synthetic",
            f"++workload.dataset.num_files_train={ranks * _RANK_STEPS}", "++workload.reader.batch_size=1",
            "++workload.reader.read_threads=0", "++workload.train.epochs=1", "++workload.train.computation_time=1",
        ]  # fmt: skip

    begin_ns = time.monotonic_ns()
    document = _emulate(directory, *words(_RANKS), "--ranks", str(_RANKS))[0]
    steps = pd.read_parquet(directory / "output" / "metrics.parquet")
    started_s = (steps[steps["step"] == 1]["start_ns"].max() - begin_ns) / 1e9
    ranks, name = document["machine"]["ranks"], f"{_RANKS} ranks, 1 s steps"
    reached = document["metric"]["train_au_mean_percentage"]
    shorter = f"sleeps shortened by {1000 * ranks['compensated_s'] / _RANK_STEPS:.1f} ms a step"
    figures = [
        Figure(f"{name}: AU, %", reached, 98, at_most=False, detail=shorter),
        Figure(f"{name}: memory of a rank, MiB", ranks["memory_bytes"] / (1 << 20), 8),
        Figure(f"{name}: seconds until all ranks train", started_s, 10),
        Figure(f"{name}: CPU of a rank's step, ms", 1000 * ranks["cpu_s_per_step"], 0.2),
    ]
    if shutil.which("mpirun") and os.geteuid() == 0:
        document = _emulate(directory, *words(_MPI_RANKS), launcher=_two_nodes(directory))[0]
        name, ranks = f"{_MPI_RANKS} ranks by Open MPI", document["machine"]["ranks"]
        reached, nodes = document["metric"]["train_au_mean_percentage"], f"{document['num_hosts']} nodes (namespaces)"
        figures.append(Figure(f"{name}, 1 s steps: AU, %", reached, 98, at_most=False, detail=nodes))
        figures.append(Figure(f"{name}: memory of a rank, MiB", ranks["memory_bytes"] / (1 << 20), 40, detail=nodes))
    return figures


def _two_nodes(directory: Path) -> list[str]:
    """Return the start of a command that starts ranks on two nodes: namespaces with host names of their own, linked by TCP."""
    agent = directory / "agent"  # in place of ssh
    agent.write_text('#!/bin/sh\nnode=$1; shift\nexec unshare --uts sh -c "hostname $node; $*"\n')
    agent.chmod(0o755)
    half = _MPI_RANKS // 2
    return [
        "mpirun", "-n", str(_MPI_RANKS), "--host", f"node-a:{half},node-b:{half}", "--allow-run-as-root", "-x", "PYTHONPATH",
        "--mca", "plm_rsh_agent", str(agent), "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo",
        "--mca", "oob_tcp_if_include", "lo", "--mca", "mpi_yield_when_idle", "1",
    ]  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as made:
        record_figures("emulator", _many_ranks(Path(made)))
