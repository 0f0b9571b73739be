"""Checkpoints: whether any loss of power, any kill and any step of a job loses one, and what writing them costs.

python -m tests.perf.perf_checkpoints [crash|kills|faults|steps|positions|costs ...]
"""

import collections
import json
import logging
import os
import random
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from iotwin.common.checkpoints import newest
from iotwin.common.commit import Store
from iotwin.common.retention import Retention
from iotwin.common.tensor_file import Tensor
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import BertLayout, DlrmLayout, Unet3dLayout
from tests.common.committing import SIZES, run
from tests.common.crash_states import Judged, judge, record
from tests.common.saving import in_place, load_dcp, load_torch, renamed
from tests.common.stores import manifest, step_of, tensors
from tests.conftest import ROOT
from tests.perf.figures import Figure, interleaved, median_ratio
from tests.perf.records import record_figures
from tests.perf.store_faults import faults
from tests.workloads import killed
from tests.workloads.bert import test_resume as of_bert
from tests.workloads.dlrm import test_resume as of_dlrm
from tests.workloads.unet3d import test_resume as of_unet3d

_KILLS, _GIB = 1000, 1 << 30
_COPIES, _MOST_A_CUT = 12, 2400  # copies of the tensors, so that many writes are not yet on disk at once
_KILLED_SIZES = (1_300_000, 0, 7)  # of tensors: more bytes than one write past the page cache takes
_KILLING = ("write", "fcntl", "fsync", "openat", "mkdir", "rename", "unlinkat", "rmdir", "close", "lseek", "fstat", "newfstatat")


def measure(parts: Sequence[str] = ()) -> Iterator[Figure]:
    """Yield the figures of the `parts`, by default of all."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-", dir=os.environ.get("TMPDIR")) as name:
        for part in parts or _PARTS:
            yield from _PARTS[part](Path(name))


def _say_nothing(line: str) -> None:
    pass


def _load(directory: Path) -> int | None:
    found = newest(directory, _say_nothing)
    return None if found is None else {step_of(found, rank, SIZES * _COPIES) for rank in (0, 1)}.pop()


def _recorded(base: Path, *words: object):
    (base / "recording").mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", *(str(word) for word in words)]
    return record(command, base / "root", base / "recording", cwd=ROOT)


def _crash_states(base: Path) -> list[Figure]:
    store = base / "crash" / "root"
    store.mkdir(parents=True)
    run(store, 1, 1, 2, _COPIES)
    recording = _recorded(base / "crash", "tests.common.committing", store, 2, 4, 2, _COPIES)
    judged = judge(recording, _load, _MOST_A_CUT, before=1)
    figures = [
        Figure(
            "power cut in a commit: states enumerated", judged.states, 10_000, at_most=False, detail="three commits of two ranks"
        ),
        Figure("... without a checkpoint that loads, or with an older one", judged.lost, 0),
        Figure("... that load wrong bytes", judged.wrong, 0),
    ]
    for name, save in (("in_place", in_place), ("renamed", renamed)):
        root = base / name / "root"
        root.mkdir(parents=True)
        save(root, 1)
        found = judge(_recorded(base / name, "tests.common.saving", name, root, 2), load_torch, 200, before=1)
        figures.append(_control(f"torch.save {name.replace('_', ' ')}", found))
    logging.disable(logging.CRITICAL)  # of every checkpoint that does not load
    root = base / "dcp" / "root"
    root.mkdir(parents=True)
    recording = _recorded(base / "dcp", "tests.common.saving", "dcp", root, 2)
    found = judge(recording, lambda directory: load_dcp(directory, 2), 300, before=0, only_after=True)
    return [*figures, _control("torch's distributed checkpoint, after it has returned", found)]


def _control(name: str, judged: Judged) -> Figure:
    detail = f"of {judged.states}; a control, which must find some"
    return Figure(f"the same of {name}: states that lose both", judged.lost + judged.wrong, 1, at_most=False, detail=detail)


# Kills


def _kills(base: Path) -> list[Figure]:
    """Kill committing processes at random system calls, one kill each; the next goes on in the store that is left."""
    store = base / "kills"
    _commit(store, 1)
    calls = _calls_of_a_commit(base)
    rng = random.Random(1)
    lost = wrong = missed = 0
    last = 1
    for _ in range(_KILLS):
        call, number = rng.choice(calls)
        returned, died = _killed_at(store, last + 1, call, number)
        missed += not died
        try:
            step = step_of(newest(store, _say_nothing), 0, _KILLED_SIZES)
            lost += step < max(last, returned)
            last = step
        except (AssertionError, AttributeError):
            wrong += 1
    return [
        Figure(
            "kill -9 at a random system call of a commit: checkpoints lost",
            lost + wrong,
            0,
            detail=f"{_KILLS - missed} of {_KILLS} killed, at {len({call for call, _ in calls})} kinds of call; "
            f"states of {sum(_KILLED_SIZES) * 4 / 2**20:.1f} MiB",
        ),
    ]


def _calls_of_a_commit(base: Path) -> list[tuple[str, int]]:
    """Every call of one commit, as its name and which of that name it is."""
    log = base / "commit.strace"
    child, begin, _ = _start(base / "counted", 1)
    with subprocess.Popen(["strace", "-qq", "-e", f"trace={','.join(_KILLING)}", "-o", log, "-p", str(child)]) as tracer:
        _wait_for_tracer(child)
        os.write(begin, b"x")
        os.waitpid(child, 0)
        tracer.wait()
    os.close(begin)
    counts = collections.Counter(re.findall(r"^(\w+)\(", log.read_text(), re.MULTILINE))
    return [(name, number) for name, count in counts.items() for number in range(1, count + 1)]


def _commit(store: Path, first: int, last: int = 0, then: Callable[[int], object] = lambda step: None) -> None:
    with Store(store, Retention(2)) as writer:
        for step in range(first, max(first, last) + 1):
            writer.commit(manifest(step), tensors(step, sizes=_KILLED_SIZES), {"step": step})
            then(step)


def _start(store: Path, first: int) -> tuple[int, int, int]:
    """Fork a process that waits for a byte, then commits three steps and reports each; return it and the pipes' ends."""
    wait_for, begin = os.pipe()
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(begin)
        os.read(wait_for, 1)
        _commit(store, first, first + 1, lambda step: os.write(tell, bytes([step - first + 1])))
        os._exit(0)
    os.close(wait_for)
    os.close(tell)
    return child, begin, told


def _wait_for_tracer(child: int) -> None:
    while "TracerPid:\t0\n" in Path(f"/proc/{child}/status").read_text():
        time.sleep(0.001)


def _killed_at(store: Path, first: int, call: str, number: int) -> tuple[int, bool]:
    """Kill a commit at the `number`-th `call`; return the last step that it had returned from, 0 of none, and whether it died."""
    child, begin, told = _start(store, first)
    command = ["strace", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={number}"]
    with subprocess.Popen([*command, "-p", str(child)], stderr=subprocess.DEVNULL) as tracer:
        _wait_for_tracer(child)
        os.write(begin, b"x")
        status = os.waitpid(child, 0)[1]
        tracer.wait()
    os.close(begin)
    said = os.read(told, 100) if select.select([told], [], [], 0)[0] else b""
    os.close(told)
    return (first + said[-1] - 1 if said else 0), os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


# Jobs


def _every_step(base: Path) -> list[Figure]:
    cases, criteo = base / "cases", base / "criteo"
    generate(Unet3dLayout(scale=0.1), cases, samples=20, seed=3, workers=1)
    generate(DlrmLayout(), criteo, samples=7 * of_dlrm.BATCH + 30, seed=3, workers=1)
    generate(BertLayout(), base / "shards", samples=of_bert.SAMPLES, seed=3, workers=1)
    figures = []
    jobs = (
        ("unet3d", of_unet3d, cases, of_unet3d.STEPS),
        ("dlrm", of_dlrm, criteo, of_dlrm.STEPS),
        ("bert, deterministic", of_bert, base / "shards", of_bert.STEPS),
    )
    for name, job, data, steps in jobs:
        for ranks in (1, 2):
            of_all = steps // ranks if name == "unet3d" else steps
            folder = base / f"{name}{ranks}"
            folder.mkdir()
            unequal = [step for step in range(1, of_all + 1) if not _same(job.run, data, folder, ranks, step)]
            figures.append(
                Figure(
                    f"{name}, {ranks} ranks, killed at each step and resumed: other weights or samples",
                    len(unequal),
                    0,
                    detail=f"of {of_all} steps",
                )
            )
    return figures


_whole: dict[Path, object] = {}


def _same(run_job, data: Path, folder: Path, ranks: int, step: int) -> bool:
    if folder not in _whole:
        _whole[folder] = run_job(data, folder, "whole", ranks=ranks)
    _, before = run_job(data, folder, f"out{step}", ranks=ranks, killed_at=step, checkpoint_steps=1)
    result, rest = run_job(data, folder, f"out{step}", ranks=ranks, resume="auto")
    try:
        killed.same(_whole[folder], result, killed.until(before, step - 1), rest)
    except AssertionError:
        return False
    return True


def _positions(base: Path) -> list[Figure]:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "tests/workloads/common/test_position.py", "-k", "any_chain"]
    environment = {**os.environ, "POSITION_EXAMPLES": "10000"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    name = "chains of stops, batches and ranks: one that takes a kept sample twice or never"
    return [Figure(name, done.returncode, 0, detail="of 10000; 1 where there is one")]


# Costs


def _costs(base: Path) -> list[Figure]:
    state = {f"layer{number}": torch.rand(_GIB // 4 // 16) for number in range(16)}
    written = [Tensor(name, "float32", tuple(value.shape), value.view(torch.uint8).numpy()) for name, value in state.items()]
    cpu: dict[str, list[float]] = {"ours": [], "torch": []}
    target = base / "cost"

    def ours() -> float:
        shutil.rmtree(target, ignore_errors=True)
        with Store(target) as store:
            begin, used = time.perf_counter(), time.process_time()
            store.commit(manifest(1), written, {})
            cpu["ours"].append(time.process_time() - used)
            return time.perf_counter() - begin

    def torchs() -> float:
        path = base / "torch.pt"
        path.unlink(missing_ok=True)
        begin, used = time.perf_counter(), time.process_time()
        with path.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        cpu["torch"].append(time.process_time() - used)
        return time.perf_counter() - begin

    def fio() -> float:
        path = base / "fio"
        path.unlink(missing_ok=True)
        command = ["fio", "--name=write", f"--filename={path}", "--rw=write", "--bs=1M", f"--size={_GIB}", "--ioengine=psync",
                   "--end_fsync=1", "--fallocate=none", "--output-format=json"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return _GIB / json.loads(done.stdout)["jobs"][0]["write"]["bw_bytes"]

    ours_s, torch_s, fio_s = interleaved(5, ours, torchs, fio)
    words = ", ".join(
        f"{name} {statistics.median(times):.2f} s" for name, times in (("ours", ours_s), ("torch", torch_s), ("fio", fio_s))
    )
    return [
        Figure("writing 1 GiB with checksum and fsync: throughput over fio's write and fsync", median_ratio(fio_s, ours_s), 0.9,
               at_most=False, detail=words),
        Figure("processor time of it over torch.save and fsync", median_ratio(cpu["ours"], cpu["torch"]), 0.5,
               detail=f"{statistics.median(cpu['ours']):.2f} s against {statistics.median(cpu['torch']):.2f} s"),
    ]  # fmt: skip


_PARTS: dict[str, Callable[[Path], list[Figure]]] = {
    "crash": _crash_states,
    "kills": _kills,
    "faults": lambda base: list(faults(base)),
    "steps": _every_step,
    "positions": _positions,
    "costs": _costs,
}

if __name__ == "__main__":
    record_figures("checkpoints", measure(sys.argv[1:]))
