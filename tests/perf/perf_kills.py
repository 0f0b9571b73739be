"""What twin, run, emulate, compare and prune leave when all their processes are killed at random instants.

Each command is killed 20 times while it writes. Afterwards every file under its final name must be whole, every trace must be
complete or recoverable, files of others must be untouched, and the same command, with --force if it has that, must succeed.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from iotwin.common.checkpoints import checkpoints, verify
from iotwin.trace_store.manifest import read_manifest
from tests.common.stores import fill
from tests.conftest import run_iotwin
from tests.perf.figures import Figure
from tests.processes import left_behind, members, start, wait_for
from tests.synthetic import MILLISECOND, Job, write_job

_KILLS = 20
_NOTES, _MINE = "notes.txt", b"a user's"
# What a job writes as it goes (as emulated checkpoints and their list), a generator's journal and partial files, and locks.
_GROWING_FILES, _GROWING_NAMES = (
    {".log", ".pt", ".jsonl", ".iotwin-partial", ".lock"},
    {"raw", "logs", "lock", "iotwin-emulated.txt", _NOTES},
)
_EXPERIMENT = """
{name: small, container: false, plot: steps, data: {clicks: {workload: dlrm, generate: [--samples, '5000']}},
 jobs: [{workload: dlrm, data: [clicks], variant: [sleep], batch: [100, 200], sleep: '0.1', options: {steps: 5, eval-every: 0}}]}
"""
_EMULATED = """
dataset: {format: npy, num_files_train: 16, num_samples_per_file: 1, record_length: 65536, data_folder: out/data}
reader: {batch_size: 2, read_threads: 2}
train: {epochs: 2, computation_time: 0.01}
checkpoint: {checkpoint_folder: out/checkpoints, epochs_between_checkpoints: 1, model_size: 4194304}
output: {folder: out/output}
workflow: {generate_data: true, train: true, checkpoint: true}
"""
_COMMANDS = {
    "twin": (("twin", "a.trace", "-o", "out"), ("--force",)),
    "run": (("run", "experiment.yaml", "-o", "out"), ()),
    "emulate": (("emulate", "emulated.yaml"), ()),
    "compare": (("compare", "a.trace", "b.trace", "-o", "out"), ()),
    "checkpoints prune": (("checkpoints", "prune", "out", "--keep", "1"), ()),
}


def _inputs(folder: Path, with_store: bool) -> None:
    for seed, trace in enumerate(("a.trace", "b.trace")):
        write_job(folder / trace, Job(files=8, epochs=1, file_bytes=1 << 20, compute_ns=5 * MILLISECOND, seed=seed))
    (folder / "experiment.yaml").write_text(_EXPERIMENT)
    (folder / "emulated.yaml").write_text(_EMULATED)
    for step in fill(folder / "out", *range(1, 41)) if with_store else (folder,):
        (step / _NOTES).write_bytes(_MINE)


def _foreign(folder: Path) -> dict[Path, bytes]:
    """Return the contents of the inputs and of the user's files, by path.

    A user's file in a removed checkpoint remains in its folder, which prune renames to `step-N.gone`: that is no change.
    """
    files = [path for path in folder.rglob("*") if path.is_file()]
    mine = (path for path in files if path.name == _NOTES or path.relative_to(folder).parts[0] != "out")
    return {path.parent.with_suffix(path.parent.suffix.removesuffix(".gone")) / path.name: path.read_bytes() for path in mine}


def _broken(folder: Path, inputs: Path, whole: Path) -> Iterator[str]:
    """Yield the files and traces in `folder` that are not whole; `whole` is the folder after an undisturbed run of `inputs`."""
    for raw in folder.rglob("raw"):
        if read_manifest(raw.parent).status == "recording" and run_iotwin("recover", raw.parent, "--quiet").returncode:
            yield f"{raw.parent.name} cannot be recovered"
    for path in (folder / "out").rglob("*"):
        beneath = path.relative_to(folder)
        is_growing = path.suffix in _GROWING_FILES or _GROWING_NAMES & set(beneath.parts) or _is_partial(beneath)
        if path.is_file() and not is_growing and not _is_whole(path, (inputs / beneath, whole / beneath)):
            yield f"{beneath} is not whole"
    if (folder / "out").is_dir():
        yield from (f"{found.name}: {reason}" for found in checkpoints(folder / "out") if (reason := verify(found).reason))


def _is_partial(path: Path) -> bool:
    """Whether a name of the path says that the file or folder is unfinished, such as an experiment's data, `.NAME.partial`."""
    return any(part.startswith(".") and part.endswith(".partial") for part in path.parts)


def _is_whole(path: Path, same: tuple[Path, Path]) -> bool:
    """Whether the file can be read to its end; one of an unknown format must be as long as one of `same`."""
    readers = {".parquet": pq.read_table, ".npy": np.load, ".npz": np.load, ".json": lambda path: json.loads(path.read_bytes())}
    ends = {".png": b"IEND\xaeB`\x82", ".csv": b"\n", ".yaml": b"\n"}
    if path.suffix in ends:
        return path.read_bytes().endswith(ends[path.suffix])
    if path.suffix not in readers:
        return any(each.is_file() and path.stat().st_size == each.stat().st_size for each in same)
    try:
        readers[path.suffix](path)
    except (ValueError, OSError):
        return False
    return True


def _entries(folder: Path) -> int:
    return sum(len(folders) + len(files) for _, folders, files in os.walk(folder))


def _kill(words: tuple[str, ...], folder: Path, after_s: float) -> bool:
    """Run the command, kill the processes of its session `after_s` after its start, and return whether it still ran then."""
    program = start(*words, "--quiet", cwd=folder)
    time.sleep(after_s)
    was_running = program.poll() is None
    for pid in members(program.pid):
        os.kill(pid, signal.SIGKILL)
    program.communicate()
    wait_for(
        lambda: not _has_processes(folder), "the end of the tracers and jobs that it started, which have sessions of their own"
    )
    return was_running


def _has_processes(folder: Path) -> bool:
    """Whether a process works in the folder."""
    for process in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if process.readlink() == folder:
                return True
    return False


def _kills(name: str, base: Path, instants: random.Random) -> Figure:
    (words, again), inputs, whole, folder = _COMMANDS[name], base / "inputs", base / "whole", base / "folder"
    shutil.copytree(inputs, whole)
    before, begin_s, first_s = _entries(whole), time.monotonic(), 0.0
    program = start(*words, "--quiet", cwd=whole)
    while program.poll() is None:
        first_s = first_s or (time.monotonic() if _entries(whole) != before else 0.0)
    end_s = time.monotonic()
    assert program.returncode == 0 and first_s, program.communicate()
    wrong, tries, killed = list[str](), 0, 0
    while killed < _KILLS:
        shutil.copytree(inputs, folder)
        mine, tries = _foreign(folder), tries + 1
        killed += _kill(words, folder, instants.uniform(first_s - begin_s, end_s - begin_s))
        wrong += [f"kill {tries}: {each}" for each in _broken(folder, inputs, whole)]
        if (folder / "out").is_dir():
            (folder / "out" / _NOTES).write_bytes(_MINE)
            mine[folder / "out" / _NOTES] = _MINE
        done = run_iotwin(*words, *again, "--quiet", cwd=folder)
        wrong += [f"kill {tries}: the repeat failed: {done.stderr.strip()}"] if done.returncode else []
        wrong += [f"repeat {tries}: {each}" for each in _broken(folder, inputs, whole)]
        wrong += [f"kill {tries}: others' files changed"] if _foreign(folder) != mine else []
        wrong += [f"kill {tries}: {each} was left" for each in left_behind()]
        shutil.rmtree(folder)
    shutil.rmtree(whole)
    detail = f"{killed} of {tries} runs killed" + "".join(f"; {each}" for each in wrong[:3])
    return Figure(f"kill -9 of {name}: files not whole, repeats that fail, others' files changed", len(wrong), 0, detail=detail)


def measure() -> Iterator[Figure]:
    """Yield the figures."""
    instants = random.Random(0)
    for name in _COMMANDS:
        with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as base:
            (Path(base) / "inputs").mkdir()
            _inputs(Path(base) / "inputs", with_store=name == "checkpoints prune")
            yield _kills(name, Path(base), instants)
