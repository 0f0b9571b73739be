"""Jobs that nothing here was written for: four shapes of fio and training jobs of public data paths, fitted and twinned.

    python -m tests.perf.perf_unseen [NAME ...]

The shapes are the job files of tests/perf/fio, the training jobs the programs of tests/perf/unseen, which log nothing. Each is
traced twice: the twin is fitted to the first run and held against the second, which the fit has not seen.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from iotwin.loops.twin import make_twin
from tests.perf.figures import Figure
from tracing_tools.recorder.session import Options, trace_command

_JOBS = Path(__file__).parent / "fio"
_PROGRAMS = Path(__file__).parent / "unseen"
_ROUNDS = 3
# By name: program and its options; what is mapped is traced with its page faults.
_TRAINING = {
    "HDF5 chunks": ("hdf5",), "tar shards": ("tar_shards",), "a .pt file a sample": ("features",),
    "a resumed job": ("features", "--resume"), "two ranks": ("two_ranks",), "distributed checkpoints": ("two_ranks", "--sharded"),
    "Parquet": ("parquet",), "mapped Arrow tables": ("arrow",), "mapped tokens": ("tokens",), "chunk files": ("zarr_chunks",),
    "TFRecords": ("tfrecords",),
}  # fmt: skip
_MAPPED = ("arrow", "tokens")


def measure(shapes: Sequence[str] = ()) -> Iterator[Figure]:
    """Yield the figure of each shape and the figures of each training job, by default of all."""
    for job in sorted(_JOBS.glob("*.fio")):
        if not shapes or job.stem in shapes:
            with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
                yield _figure(job, Path(name))
    for name, program in _TRAINING.items():
        if not shapes or name in shapes:
            with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as folder:
                yield from _of_training(name, program, Path(folder))


def _of_training(name: str, program: tuple[str, ...], folder: Path) -> Iterator[Figure]:
    (data := folder / "data").mkdir()
    groups = ("data", "mmap") if program[0] in _MAPPED else ("data",)
    traces = []
    for seed in ("1", "2"):
        command = [sys.executable, str(_PROGRAMS / f"{program[0]}.py"), str(data), seed, *program[1:]]
        if seed == "1":
            subprocess.run(command, check=True, capture_output=True)  # which makes its data
            shutil.rmtree(data / "out1")
        options = Options(forward_output=False, detail=groups)
        assert trace_command(command, folder / f"{seed}.trace", options).exit_status == 0
        traces.append(folder / f"{seed}.trace")
    made = make_twin(traces, folder / "twin", _ROUNDS, force=False)
    held_out, floor = made["held_out"][0], made["noise_floor"]
    lowest = min(held_out["dimensions"].items(), key=lambda item: item[1])
    kind = made["kind"].partition(":")[0].partition(",")[0]
    told = f"{kind}; lowest part {lowest[0]} {lowest[1]:.3f}; a rerun {floor:.3f}; {len(made['rounds'])} rounds"
    yield Figure(f"{name}, unseen: twin against a rerun, overall", held_out["overall"], min(0.95, floor - 0.01), False, told)
    yield Figure(f"{name}: bytes read that its twin accounts for", made["coverage"]["read_share"], 0.98, False, kind)


def _figure(job: Path, folder: Path) -> Figure:
    data = folder / "data"
    data.mkdir()
    fio = ["env", "-C", str(data), "fio", f"--output={folder / 'fio.log'}", str(job)]
    subprocess.run([*fio, "--create_only=1"], check=True)
    traces = []
    for run in ("job", "rerun"):
        for written in data.glob("checkpoint.*"):
            written.unlink()
        manifest = trace_command(fio, folder / f"{run}.trace", Options(forward_output=False))
        assert manifest.exit_status == 0, (folder / "fio.log").read_text()
        traces.append(folder / f"{run}.trace")
    shutil.rmtree(data)
    made = make_twin(traces, folder / "twin", _ROUNDS, force=False)
    score = made["held_out"][0]["overall"]
    lowest = min(made["held_out"][0]["dimensions"].items(), key=lambda item: item[1])
    told = f"lowest part {lowest[0]} {lowest[1]:.3f}; a rerun {made['noise_floor']:.3f}; {len(made['rounds'])} rounds"
    return Figure(f"fio's {job.stem}, unseen: twin against a rerun, overall", score, 0.90, False, told)


if __name__ == "__main__":
    for figure in measure(sys.argv[1:]):
        print(figure.line(), flush=True)
