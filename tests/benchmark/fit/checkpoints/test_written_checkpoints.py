"""When and how a job writes checkpoints: between epochs or after steps, while training goes on or not, under which names."""

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from iotwin.benchmark.emulator.checkpoints.one_file import CheckpointContent, FileWriter, PlannedFile
from iotwin.benchmark.fit.checkpoints.checkpoint_files import find_files
from iotwin.benchmark.fit.parameters.parameters import fit_parameters
from iotwin.common.numbers.sleeper import Sleeper
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from iotwin.workload_yaml import Config, InOrder, TwinCheckpoint, dump, load
from tests.benchmark.made_trace import Made
from tests.common.stores import fill
from tests.conftest import ROOT, run_iotwin
from tests.synthetic import MILLISECOND, Job, write_job

# A job that reads 20 files twice by itself, and writes a checkpoint every ten reads: in place or in numbered folders.
SCRIPT = """
import os, sys, threading, time
data, folder, name, beside = sys.argv[1:]
def save(step):
    path = os.path.join(folder, name.format(step=step))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb", buffering=0) as file:
        for _ in range(4):
            file.write(bytes(40000))
            began.set()
            time.sleep(0.01)
        os.fsync(file.fileno())
threads, began = [], threading.Event()
for step in range(1, 41):
    with open(os.path.join(data, f"{(step - 1) % 20}.bin"), "rb") as file:
        file.read()
    time.sleep(0.005)
    if step % 10 == 0 and beside == "yes":
        threads.append(threading.Thread(target=save, args=(step,)))
        threads[-1].start()
        began.wait()
        began.clear()
    elif step % 10 == 0:
        save(step)
for thread in threads:
    thread.join()
"""


def fitted(folder: Path, script: str, *words: object) -> Config:
    """The parameters of a traced job that reads `folder / "data"`, 20 files."""
    make_small_files(folder / "data", 20)
    command = [sys.executable, "-c", script, str(folder / "data"), *map(str, words)]
    assert trace_command(command, folder / "job.trace", TraceOptions(forward_output=False)).exit_status == 0
    return fit_parameters(Trace(folder / "job.trace")).config


def make_small_files(folder: Path, count: int) -> None:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}.bin").write_bytes(bytes(5000))


@pytest.mark.root
@pytest.mark.parametrize(
    ("name", "beside", "expected"),
    [
        ("step_{step}/model.pt", "yes", "step_{step}/model.pt"),
        ("last.pt", "no", "last.pt"),
    ],
)
def test_checkpoints_after_steps(tmp_path, name, beside, expected):
    config = fitted(tmp_path, SCRIPT, tmp_path / "saved", name, beside)
    assert (config.checkpoint.steps_between_checkpoints, config.checkpoint.checkpoint_after_step) == (10, -1)
    assert config.twin.checkpoint.asynchronous == (beside == "yes")
    (file,) = config.twin.checkpoint.files
    assert (file.name, file.write_sizes, file.fsync) == (expected, [(40000, 4)], True)


def test_names_that_count_epochs_count_on_in_the_twin(tmp_path):
    config = fit_parameters(Trace(write_job(tmp_path / "t", Job(epochs=3, pipes=True)))).config
    (file,) = config.twin.checkpoint.files
    assert (file.name, file.after, config.checkpoint.epochs_between_checkpoints) == ("epoch_{epoch}.pt", None, 1)
    assert not config.twin.checkpoint.asynchronous


def test_a_twin_writes_a_file_for_each_step_that_is_due(tmp_path):
    make_small_files(tmp_path / "data", 12)
    (tmp_path / "job.yaml").write_text(f"""
workflow: {{checkpoint: true}}
dataset: {{data_folder: {tmp_path / "data"}, format: bin}}
reader: {{read_threads: 0}}
checkpoint: {{checkpoint_folder: {tmp_path / "saved"}, steps_between_checkpoints: 4, checkpoint_after_step: 1}}
output: {{folder: {tmp_path / "out"}}}
twin: {{checkpoint: {{lead_time: 0.01, files: [{{name: "step_{{step}}/m.pt", write_sizes: [[100, 2]]}}]}}}}
""")
    assert load(tmp_path / "job.yaml").twin.ranks == 1
    assert run_iotwin("emulate", tmp_path / "job.yaml", "--quiet").returncode == 0
    assert sorted(path.parent.name for path in tmp_path.glob("saved/*/m.pt")) == ["step_1", "step_12", "step_4", "step_8"]
    (tmp_path / "saved" / "iotwin-emulated.txt").unlink()
    refused = run_iotwin("emulate", tmp_path / "job.yaml", "--quiet")
    assert refused.returncode == 2 and "no emulator wrote it" in refused.stderr


def test_where_a_checkpoint_spends_its_time_is_found_again(tmp_path):
    """In ms: 200 before the first and 40 before each other file, 65 of 80 before its first write, 30 behind the file."""
    times = {"checkpoint_ahead_ns": 60 * MILLISECOND, "checkpoint_between_ns": 5 * MILLISECOND}
    leads_ns = (200 * MILLISECOND, 40 * MILLISECOND)
    made = Job(epochs=4, pipes=True, checkpoint_leads_ns=leads_ns, checkpoint_tail_ns=25 * MILLISECOND, **times)
    found = fit_parameters(Trace(write_job(tmp_path / "t", made))).config.twin.checkpoint
    assert found.serialization_ahead == pytest.approx(65 / 80, abs=0.002)
    assert found.lead_time == InOrder(pytest.approx([0.2, 0.04, 0.04, 0.04], abs=1e-6))
    assert isinstance(found.tail_time, float) and found.tail_time == pytest.approx(0.03, abs=1e-4)
    (file,) = found.files
    assert isinstance(file.serialization_time, float) and file.serialization_time == pytest.approx(0.08, abs=2e-4)


@pytest.mark.parametrize("gpu", [False, True])
def test_a_job_without_an_accelerator_trains_on_the_processors_that_write(tmp_path, gpu):
    found = fit_parameters(Trace(write_job(tmp_path / "job.trace", Job(gpu=gpu, pipes=True)))).config.twin.checkpoint
    assert found.on_processors is not gpu


def test_a_file_opened_again_once_closed_is_written_anew_and_one_opened_twice_is_not():
    second = 10**9
    calls = pd.DataFrame(
        [
            (1, 2, "openat", 3), (2, 4, "write", 100), (4, 5, "write", 100), (5, 6, "write", 7), (6, 7, "close", 0),
            (10, 11, "openat", 3), (11, 12, "openat", 4), (12, 13, "write", 50), (13, 14, "close", 0), (15, 17, "write", 60),
            (17, 18, "close", 0), (20, 21, "openat", 3), (21, 22, "read", 40), (22, 23, "close", 0),
        ],
        columns=["start_ns", "end_ns", "op", "result"],
    )  # fmt: skip
    calls[["start_ns", "end_ns"]] *= second
    calls = calls.assign(duration_ns=calls["end_ns"] - calls["start_ns"], pid=7, tid=7, file_id=0, offset=0.0, flags=0)
    files = pd.DataFrame({"file_id": [0], "kind": ["checkpoint"], "path": ["/out/last.pt"], "renamed_to": [None]})
    processes = pd.DataFrame({"pid": [7], "ppid": [1], "role": ["rank"]})
    job = SimpleNamespace(calls=calls, files=files, roles=lambda: {7: "rank"}, processes=processes)
    found = find_files(job)
    assert [(file.start_ns // second, file.end_ns // second) for file in found] == [(1, 7), (10, 18)]
    assert [file.write_sizes for file in found] == [[(100, 2), (7, 1)], [(50, 1), (60, 1)]]
    assert [file.read_back for file in found] == [[], [(0, 40)]]  # by the visit after it
    # From the first open to the last write, less the writes; from the end of that open to the first write; all calls.
    assert [(file.serialization_s, file.ahead_s, file.calls_s) for file in found] == [(1, 0, 6), (4, 1, 7)]
    assert [file.whole_ns // second for file in found] == [7, 18]


def test_checkpoints_that_are_written_at_once_share_a_file_in_turn(tmp_path, monkeypatch):
    """Or one would rename what the other still writes."""
    writer = FileWriter(tmp_path, None, TwinCheckpoint(), CheckpointContent(100, None, 0))
    planned = PlannedFile("LATEST", [(100, 3)], False, True, pattern="LATEST")
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(writer.write, "LATEST", planned, 0.002, Sleeper()) for _ in range(40)]:
            done.result()
    assert [path.name for path in tmp_path.iterdir()] == ["LATEST"]


@pytest.mark.parametrize("log_phases", [True, False])
def test_a_checkpoint_that_is_removed_later_is_not_written_until_then(tmp_path, log_phases):
    """Or the steps in between would have computed nothing."""
    found = []
    for keep in (None, 1):
        path = write_job(
            tmp_path / f"{keep}.trace", Job(epochs=4, checkpoint_every=1, checkpoint_keep=keep, pipes=True, log_phases=log_phases)
        )
        found.append(fit_parameters(Trace(path)).config)
    assert found[0].twin.checkpoint.keep is None and found[1].twin.checkpoint.keep == 1
    assert found[0].train.computation_time == found[1].train.computation_time
    assert not found[1].twin.checkpoint.asynchronous


# A job that writes two checkpoint files after each of two passes over files: one past the page cache but for its end.
DIRECT = """
import fcntl, mmap, os, sys, time
data, folder = sys.argv[1:]
block = mmap.mmap(-1, 1 << 20)
for step in range(40):
    with open(f"{data}/{step % 20}.bin", "rb") as file:
        file.read()
    time.sleep(0.005)
    if step % 20 == 19:
        fd = os.open(f"{folder}/state.pt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        for _ in range(3):
            os.write(fd, block)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        os.write(fd, bytes(100))
        os.close(fd)
        fd = os.open(f"{folder}/index.pt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(fd, bytes(4096))
        os.close(fd)
"""


def test_files_written_past_the_page_cache_are_so_in_the_twin(tmp_path):
    config = fitted(tmp_path, DIRECT, tmp_path)
    assert {file.name: file.direct for file in config.twin.checkpoint.files} == {"state.pt": True, "index.pt": False}
    assert config.twin.checkpoint.files[0].write_sizes == [(1 << 20, 3), (100, 1)]
    dump(config, tmp_path / "twin.yaml")
    assert load(tmp_path / "twin.yaml").twin.checkpoint.files == config.twin.checkpoint.files


# A job that goes four times through 20 files, now and then commits its state to a store that keeps two, and writes light states.
STORE = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from iotwin.common.commit import Store
from iotwin.common.retention import Retention
from tests.common.stores import manifest, tensors
with Store(Path(sys.argv[2]), Retention(2)) as store:
    for step in range(1, 81):
        Path(sys.argv[1], f"{(step - 1) % 20}.bin").read_bytes()
        time.sleep(0.005)
        if step % int(sys.argv[4]) == 0:
            store.commit(manifest(step), tensors(step), {"step": step})
        if step % int(sys.argv[5]) == 0:
            Path(sys.argv[2], f"light-{step}.pt").write_bytes(bytes(1000))
            Path(sys.argv[2], "best.pt").write_bytes(bytes(1000))
            if step > int(sys.argv[5]):
                Path(sys.argv[2], f"light-{step - int(sys.argv[5])}.pt").unlink()
"""


def calls_on_checkpoints(trace: Trace) -> Counter[tuple[str, bool]]:
    """How many opens, reads, syncs and removals there were of files of checkpoints; and of these, how many found nothing."""
    checkpoints = trace.files().query("kind == 'checkpoint'")["file_id"]
    calls = trace.events_frame(("op", "file_id", "result"))
    calls = calls[calls["file_id"].isin(checkpoints)]
    groups = {"open": ("open", "openat"), "read": ("read", "pread64", "preadv", "preadv2"), "sync": ("fsync",)}
    groups["removal"] = ("unlink", "unlinkat")
    named = calls.assign(op=calls["op"].map({op: group for group, ops in groups.items() for op in ops})).dropna(subset="op")
    return Counter(zip(named["op"], named["result"] == 0, strict=True))


@pytest.mark.parametrize(
    ("before", "every", "light", "steps"),
    [
        ([], 20, 100, {}),
        ([7, 12], 20, 100, {}),
        ([], 25, 10, {"light-{step}.pt": [*range(10, 81, 10)], "best.pt": [*range(10, 81, 10)], "store": [25, 50, 75]}),
        ([], 12, 40, {"light-{step}.pt": [40, 80], "best.pt": [40, 80], "store": [*range(12, 73, 12)]}),
    ],
)
def test_an_emulated_job_with_a_store_opens_and_reads_its_checkpoints_as_the_store_does(tmp_path, before, every, light, steps):
    fill(tmp_path / "saved", *before)
    config = fitted(tmp_path, STORE, tmp_path / "saved", ROOT, every, light)
    looks = {file.name.rpartition("/")[2]: file.looked_at for file in config.twin.checkpoint.files}
    other = dict.fromkeys(set(steps) - {"store"})
    assert looks == {"rank-0.raw": "opened", "rank-0.json": "opened", "manifest.json": "read", "LATEST": None, **other}
    assert all(file.after == steps.get(file.name, steps.get("store")) for file in config.twin.checkpoint.files)
    assert config.twin.checkpoint.before == [(step, 0) for step in before]  # they come at ends of epochs
    config.checkpoint.checkpoint_folder, config.output.folder = str(tmp_path / "twin_saved"), str(tmp_path / "twin_out")
    dump(config, tmp_path / "twin.yaml")
    command = [sys.executable, "-m", "iotwin", "emulate", str(tmp_path / "twin.yaml")]
    assert trace_command(command, tmp_path / "twin.trace", TraceOptions(forward_output=False)).exit_status == 0
    # A checkpoint that the store found and counts is verified once; what stands in for it in the twin has nothing to verify.
    verified = Counter({("open", False): 3, ("read", False): 3, ("read", True): 3} if before else {})
    assert calls_on_checkpoints(Trace(tmp_path / "twin.trace")) + verified == calls_on_checkpoints(Trace(tmp_path / "job.trace"))


# A job that goes four times through a file and keeps its two newest checkpoints; it removes one before it writes the last file.
LAST = """
import sys, time
from pathlib import Path
for step in range(1, 81):
    Path(sys.argv[1], f"{(step - 1) % 20}.bin").read_bytes()
    time.sleep(0.005)
    if step % 16 == 0:
        Path(sys.argv[2], f"step-{step}.pt").write_bytes(bytes(5000))
        if step > 32:
            Path(sys.argv[2], f"step-{step - 32}.pt").unlink()
        Path(sys.argv[2], "last.pt").write_bytes(bytes(5000))
"""


def test_a_checkpoint_removed_before_the_next_is_whole_is_counted_by_files_of_its_kind(tmp_path):
    (tmp_path / "saved").mkdir()
    found = fitted(tmp_path, LAST, tmp_path / "saved").twin.checkpoint
    assert ([file.name for file in found.files], found.keep) == (["step-{step}.pt", "last.pt"], 2)


# A job of the same kind that writes a file for each of three ranks.
RANKS = """
import shutil, sys, time
from pathlib import Path
for step in range(1, 81):
    Path(sys.argv[1], f"{(step - 1) % 20}.bin").read_bytes()
    time.sleep(0.005)
    if step % 16 == 0:
        Path(sys.argv[2], f"step-{step}").mkdir()
        for rank in range(3):
            Path(sys.argv[2], f"step-{step}", f"rank-{rank}.pt").write_bytes(bytes(5000))
        if step > 32:
            shutil.rmtree(Path(sys.argv[2], f"step-{step - 32}"))
"""


def test_files_of_one_kind_in_a_checkpoint_do_not_count_as_checkpoints(tmp_path):
    (tmp_path / "saved").mkdir()
    found = fitted(tmp_path, RANKS, tmp_path / "saved").twin.checkpoint
    assert (len(found.files), found.keep) == (3, 2)


def test_a_checkpoint_closed_when_the_next_one_is_opened_is_a_separate_one(tmp_path):
    made, now, last = Made(), 10.0, None
    rank, writer = made.process(1000, 1, "rank"), made.process(1001, 1, "helper")
    files = [made.file(f"/data/{i}.bin", size=60_000) for i in range(120)]
    for step in range(120):
        now = 20 + made.read_file(now, rank, files[step])
        if step % 40 == 20:
            if last is not None:
                made.call(now - 19, writer, "close", last)
            last = made.file(f"/out/state.{step}", "checkpoint")
            made.call(now - 18, writer, "openat", last)
            made.call(now - 17, writer, "write", last, 0, 1 << 20, 2)
    fitted = fit_parameters(made.trace(tmp_path / "t"))
    assert fitted.evidence["checkpoint"].startswith("3 checkpoints")
    assert fitted.config.checkpoint.steps_between_checkpoints == 40
