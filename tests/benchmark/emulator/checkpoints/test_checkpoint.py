"""Checkpoints: the writes that were recorded, and nothing torn under a final name."""

import contextlib
import errno
import glob
import io
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.benchmark.emulator.checkpoints.own_files import OwnFiles
from iotwin.benchmark.emulator.checkpoints.plan import CheckpointPlan
from iotwin.benchmark.emulator.checkpoints.writer import CheckpointWriter
from iotwin.benchmark.emulator.ranks import Rank
from iotwin.benchmark.emulator.results.run_files import write_results
from iotwin.benchmark.emulator.results.step_table import StepTable
from iotwin.benchmark.emulator.run import emulate
from iotwin.common import direct_io
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.numbers.sleeper import Sleeper
from iotwin.workload_yaml import (
    Checkpoint,
    CheckpointFile,
    Config,
    Dataset,
    Evaluation,
    InOrder,
    Model,
    Reader,
    Twin,
    TwinCheckpoint,
    TwinEvaluation,
    Workflow,
    dump,
    load,
)  # fmt: skip
from tests.benchmark.strace import calls_of, needs_strace, strace
from tests.conftest import PATIENCE_S, knows_direct

MARKER = "iotwin-emulated.txt"
WRITE_ONE = """
import sys
from iotwin.benchmark.emulator.checkpoints.writer import CheckpointWriter
from iotwin.workload_yaml import load
from iotwin.common.errors import IotwinError, UsageError
try:
    for epoch in (1, 2, 3):
        CheckpointWriter(load(sys.argv[1])).save(epoch)
except IotwinError as error:
    sys.exit(str(error))
"""


def saved(folder: Path) -> dict[str, int]:
    """Sizes by name, without the note that says whose files these are."""
    return {path.name: path.stat().st_size for path in folder.glob("*") if path.name != MARKER}


@settings(max_examples=30)
@given(sizes=st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 4)), min_size=1, max_size=4), rename=st.booleans())
def test_a_file_is_as_long_as_its_writes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int]], rename: bool
) -> None:
    folder = tmp_path_factory.mktemp("checkpoints")
    config = Config(
        dataset=Dataset(data_folder="d"),
        checkpoint=Checkpoint(checkpoint_folder=str(folder)),
        twin=Twin(checkpoint=TwinCheckpoint(files=[CheckpointFile(name="a.pt", write_sizes=sizes, rename=rename)])),
    )
    expected = sum(size * count for size, count in sizes)
    (written,) = CheckpointWriter(config).save(1)
    assert saved(folder) == {"a.pt": expected} and written.size_bytes == expected


def test_the_seconds_of_a_checkpoint_are_spent_where_they_were_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[float] = []  # seconds slept, bytes written

    def write(descriptor: int, parts: Sequence[memoryview]) -> int:
        done.append(sum(map(len, parts)))
        return int(done[-1])

    monkeypatch.setattr(Sleeper, "sleep", lambda self, seconds: done.append(round(seconds, 9)))
    monkeypatch.setattr("iotwin.benchmark.emulator.checkpoints.one_file.write_once", write)
    section = TwinCheckpoint(
        files=[CheckpointFile(name="m.pt", write_sizes=[(100, 4)], serialization_time=0.08)],
        serialization_ahead=0.75,
        lead_time=InOrder([0.2, 0.04]),
        tail_time=0.03,
    )
    folder = Checkpoint(checkpoint_folder=str(tmp_path))
    checkpoints = CheckpointWriter(Config(dataset=Dataset(data_folder="d"), checkpoint=folder, twin=Twin(checkpoint=section)))
    for epoch in (1, 2):
        checkpoints.save(epoch)
    at_file = [0.06, 100, *[0.005, 100] * 3, 0.005]
    assert done == [0.2, *at_file, 0.03, 0.04, *at_file, 0.03]


def test_names_are_kept_or_overwritten_and_cadences_honoured(twin: Config, tmp_path: Path) -> None:
    twin.twin.checkpoint.files = [
        CheckpointFile(name="run/epoch_{epoch}.pt", write_sizes=[(100, 1)]),
        CheckpointFile(name="last.pt", write_sizes=[(10, 1)], rename=True),
        CheckpointFile(name="best.pt", write_sizes=[(20, 1)], after=[2]),
    ]
    writer = CheckpointWriter(twin)
    assert [file.name for file in writer.save(1)] == ["run/epoch_1.pt", "last.pt"]
    assert [file.name for file in writer.save(2)] == ["run/epoch_2.pt", "last.pt", "best.pt"]
    folder = tmp_path / "checkpoints"
    assert saved(folder / "run") == {"epoch_1.pt": 100, "epoch_2.pt": 100}
    assert {path.name for path in folder.iterdir()} == {"run", "last.pt", "best.pt", MARKER}


def test_a_checkpoint_of_the_real_job_is_spared(twin: Config, tmp_path: Path) -> None:
    model = tmp_path / "checkpoints" / "epoch_2.pt"
    model.parent.mkdir()
    model.write_bytes(b"weeks of training")
    with pytest.raises(UsageError, match=r"epoch_2\.pt: exists, and no emulator wrote it"):
        CheckpointWriter(twin)
    assert saved(model.parent) == {"epoch_2.pt": 17} and not (model.parent / MARKER).exists()
    model.unlink()
    CheckpointWriter(twin).save(2)
    CheckpointWriter(twin).save(2)  # what an emulator wrote may be written again
    assert saved(model.parent) == {"epoch_2.pt": 2 * 1280 + 70_000}


def test_what_another_rank_makes_after_the_notes_were_read_is_an_emulator_s(tmp_path: Path) -> None:
    """Ranks begin together: one may make what stands in for a checkpoint while the other looks at what is there."""
    late = OwnFiles(tmp_path, 1)
    first = OwnFiles(tmp_path, 0)
    first.begin()
    first.add("6/state")
    late.refuse_others(["6/state"])
    with pytest.raises(UsageError, match="7/state: exists, and no emulator wrote it"):
        late.refuse_others(["6/state", "7/state"])


@pytest.mark.parametrize("written", [0, 1, 60, 107])
def test_a_note_that_another_rank_is_about_to_write_is_no_stranger(tmp_path: Path, written: int) -> None:
    OwnFiles(tmp_path, 1).begin()
    note = tmp_path / "iotwin-emulated-1.txt"
    whole = note.read_bytes().rstrip(b"\0")
    assert len(whole) > written
    note.write_bytes(whole[:written] + bytes(100))
    OwnFiles(tmp_path, 0).begin()
    own = OwnFiles(tmp_path, 1)
    own.begin()
    assert note.read_bytes().rstrip(b"\0") == whole
    note.write_bytes(b"strange")
    with pytest.raises(UsageError, match="no list of files"):
        OwnFiles(tmp_path, 0)


def test_content_cannot_be_compressed(twin: Config, tmp_path: Path) -> None:
    CheckpointWriter(twin).save(1)
    content = (tmp_path / "checkpoints" / "epoch_1.pt").read_bytes()
    assert len(zlib.compress(content[2560:], 1)) > 0.99 * (len(content) - 2560)


@needs_strace
def test_the_system_calls_are_those_recorded(twin: Config, tmp_path: Path) -> None:
    large = 20 << 20  # larger than the buffer: still one call
    twin.twin.checkpoint.files = [
        CheckpointFile(
            name="epoch_{epoch}.pt", write_sizes=[(1280, 2), (70_000, 1), (large, 1), (64, 1)], fsync=True, rename=True
        ),
        CheckpointFile(name="best.pt", write_sizes=[(512, 3)], after=[2]),
    ]
    path = tmp_path / "twin.yaml"
    dump(twin, path)
    calls = [
        call
        for process in strace(
            [sys.executable, "-c", WRITE_ONE, str(path)], "write,writev,fsync,fdatasync,rename,openat,close", tmp_path
        )
        for call in process
    ]
    first = calls_of(calls, "epoch_1.pt")
    assert [(call.name, call.result) for call in first] == [
        ("openat", None), ("write", 1280), ("write", 1280), ("write", 70_000), ("writev", large), ("write", 64),
        ("fsync", 0), ("close", 0), ("rename", 0),
    ]  # fmt: skip
    assert [call.name for call in calls_of(calls, "best.pt")] == ["openat", "write", "write", "write", "close"]


@pytest.mark.parametrize("refused", ["nothing", "the mode", "writes"])
def test_files_are_written_past_the_page_cache_where_that_is_possible(
    twin: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """What fills blocks, in one call also when it is larger than the buffer; the rest, and another file, through the cache."""
    large, seen = 20 << 20, []
    twin.checkpoint.checkpoint_folder = str(tmp_path / "saved")
    twin.twin.checkpoint.files = [
        CheckpointFile(
            name="a", write_sizes=[(4 << 20, 2), (1000, 1), (4096, 1), (24, 1), (512, 1), (3072, 1), (large, 1)], direct=True
        ),
        CheckpointFile(name="b", write_sizes=[(4 << 20, 1)]),
    ]
    write, writev, fcntl = os.write, os.writev, direct_io.fcntl.fcntl

    def watched(call: Callable[[int, Any], int], descriptor: int, content: Any) -> int:
        direct = bool(fcntl(descriptor, direct_io.fcntl.F_GETFL) & os.O_DIRECT)
        if direct and refused == "writes":
            raise OSError(errno.EINVAL, "Invalid argument")
        seen.append((call(descriptor, content), direct))
        return seen[-1][0]

    def mode(descriptor: int, command: int, *flags: int) -> int:
        if refused == "the mode" and command == direct_io.fcntl.F_SETFL:
            raise OSError(errno.EINVAL, "Invalid argument")
        return fcntl(descriptor, command, *flags)

    writer = CheckpointWriter(twin)
    with monkeypatch.context() as patch:
        patch.setattr(direct_io.os, "write", partial(watched, write))
        patch.setattr(direct_io.os, "writev", partial(watched, writev))
        patch.setattr(direct_io.fcntl, "fcntl", mode)
        writer.save(1)
    there = refused == "nothing" and knows_direct(tmp_path)
    sizes = [(size, there and direct) for size, direct in (
        (4 << 20, True), (4 << 20, True), (1000, False), (4096, False), (24, False), (512, True), (3072, True), (large, True),
    )]  # fmt: skip
    assert seen == [*sizes, (4 << 20, False)]
    assert saved(tmp_path / "saved") == {"a": sum(size for size, _ in sizes), "b": 4 << 20}


@needs_strace
@pytest.mark.parametrize("wanted", [True, False])
def test_fsync_for_all_files_overrides_what_was_recorded(twin_path: Path, tmp_path: Path, wanted: bool) -> None:
    config = load(twin_path, [f"checkpoint.fsync={wanted}"])
    dump(config, twin_path)
    calls = [call for process in strace([sys.executable, "-c", WRITE_ONE, str(twin_path)], "fsync", tmp_path) for call in process]
    assert len(calls) == (3 if wanted else 0)


@pytest.mark.parametrize("rename", [True, False])
def test_a_write_that_fails_midway_leaves_nothing_torn(twin: Config, twin_path: Path, tmp_path: Path, rename: bool) -> None:
    # A limit on file size makes the kernel refuse a write as a full disk does, without needing a disk to fill.
    twin.twin.checkpoint.files = [
        CheckpointFile(name="small_{epoch}.pt", write_sizes=[(1000, 1)], rename=rename),
        CheckpointFile(name="large.pt", write_sizes=[(1000, 100)], rename=rename),
    ]
    dump(twin, twin_path)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    command = [sys.executable, "-c", WRITE_ONE, str(twin_path)]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{tmp_path}/checkpoints/large.pt: the checkpoint cannot be written: File too large")
    assert done.stderr.count("\n") == 1
    assert saved(tmp_path / "checkpoints") == {"small_1.pt": 1000}


def test_an_old_checkpoint_survives_a_failed_new_one(twin: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twin.twin.checkpoint.files = [CheckpointFile(name="last.pt", write_sizes=[(1000, 2)], rename=True)]
    CheckpointWriter(twin).save(1)
    before = (tmp_path / "checkpoints" / "last.pt").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    twin.twin.checkpoint.files[0].fsync = True
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(IotwinError, match=r"last\.pt: the checkpoint cannot be written: No space left on device"):
        CheckpointWriter(twin).save(2)
    assert (tmp_path / "checkpoints" / "last.pt").read_bytes() == before
    assert saved(tmp_path / "checkpoints") == {"last.pt": 2000}


def of_model(folder: Path, size_bytes: int = 300_000, **twin: object) -> Config:
    """A workload whose checkpoints follow from the model section."""
    return Config(
        model=Model(model_size_bytes=size_bytes),
        dataset=Dataset(data_folder="d"),
        checkpoint=Checkpoint(checkpoint_folder=str(folder), type="all_ranks"),
        twin=Twin(checkpoint=TwinCheckpoint(**twin)),  # type: ignore[arg-type]
    )


def folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("global_*"))


def test_a_models_checkpoint_is_a_folder_with_a_file_of_each_rank(tmp_path: Path) -> None:
    config = of_model(tmp_path)
    writers = [CheckpointWriter(config, Rank(rank, 2)) for rank in range(2)]
    written = [writer.save(1, 20) for writer in writers]
    assert folders(tmp_path) == ["global_epoch1_step20"]
    assert saved(tmp_path / "global_epoch1_step20") == {"model_states-0.pt": 300_000, "model_states-1.pt": 300_000}
    assert [file.name for (file,) in written] == [f"global_epoch1_step20/model_states-{rank}.pt" for rank in range(2)]


@needs_strace
def test_files_and_folders_are_synced_and_renamed_where_asked_for(tmp_path: Path) -> None:
    config = of_model(tmp_path / "c", (8 << 20) + 20_000, directory_sync=True)
    config.checkpoint.fsync = True
    dump(config, tmp_path / "twin.yaml")
    code = WRITE_ONE.replace("(1, 2, 3)", "(1,)")
    calls = strace([sys.executable, "-c", code, str(tmp_path / "twin.yaml")], "write,fsync,renameat,openat,close", tmp_path)
    names = [
        (call.name, call.result)
        for process in calls
        for call in process
        if any("global_epoch1_step0" in path for path in call.paths)
    ]
    assert names == [
        ("openat", None), ("write", 8 << 20), ("write", 20_000), ("fsync", 0), ("close", 0), ("renameat", 0),
        ("close", 0),  # of the checkpoint's folder, which the file was made in by no other way
        ("openat", None), ("fsync", 0), ("close", 0),
    ]  # fmt: skip


def test_only_the_newest_are_kept_and_an_unfinished_one_costs_none(tmp_path: Path) -> None:
    config = of_model(tmp_path, keep=2)
    first, second = (CheckpointWriter(config, Rank(rank, 2)) for rank in range(2))
    for epoch in (1, 2, 3):
        first.save(epoch)
        second.save(epoch)
    assert folders(tmp_path) == ["global_epoch2_step0", "global_epoch3_step0"]
    first.save(4)  # rank 1 has not written it yet
    assert folders(tmp_path) == ["global_epoch2_step0", "global_epoch3_step0", "global_epoch4_step0"]
    second.save(4)
    assert folders(tmp_path) == ["global_epoch3_step0", "global_epoch4_step0"]


def test_recorded_files_are_kept_as_long_as_asked_for(twin: Config, tmp_path: Path) -> None:
    twin.twin.checkpoint.keep = 1
    twin.twin.checkpoint.files = [
        CheckpointFile(name="epoch_{epoch}.pt", write_sizes=[(10, 1)]),
        CheckpointFile(name="last.pt", write_sizes=[(10, 1)]),
    ]
    writer = CheckpointWriter(twin)
    for epoch in (1, 2):
        writer.save(epoch)
    assert saved(tmp_path / "checkpoints") == {"epoch_2.pt": 10, "last.pt": 10}


def test_the_newest_whole_checkpoint_is_read_back(tmp_path: Path) -> None:
    config = of_model(tmp_path)
    for epoch in (2, 10):
        for rank in range(2):
            CheckpointWriter(config, Rank(rank, 2)).save(epoch)
    torn = tmp_path / "global_epoch10_step0" / "model_states-1.pt"
    loaded = CheckpointWriter(config, Rank(0, 2)).load()
    assert [(file.name, file.size_bytes) for file in loaded] == [("global_epoch10_step0/model_states-0.pt", 300_000)]
    os.truncate(torn, 1000)
    config.checkpoint.recovery_rank_shift = True
    assert [file.name for file in CheckpointWriter(config, Rank(0, 2)).load()] == ["global_epoch2_step0/model_states-1.pt"]
    assert [file.name for file in CheckpointWriter(config, Rank(1, 2)).load()] == ["global_epoch2_step0/model_states-0.pt"]
    with pytest.raises(IotwinError, match="holds no whole checkpoint of 3 ranks"):
        CheckpointWriter(config, Rank(0, 3)).load()


KILLED = """
import sys
from iotwin.benchmark.emulator.checkpoints.writer import CheckpointWriter
from iotwin.workload_yaml import load
writer = CheckpointWriter(load(sys.argv[1]))
for epoch in range(1, 1000):
    writer.save(epoch)
    print(epoch, flush=True)
"""


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_checkpoint_torn_by_a_kill_is_passed_over(tmp_path: Path, asynchronous: bool) -> None:
    config = of_model(tmp_path / "c", 20_000_000, keep=2, asynchronous=asynchronous, in_flight=2)
    dump(config, tmp_path / "twin.yaml")
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "twin.yaml")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    partial = f"{tmp_path}/c/*/*.partial"
    while not glob.glob(partial):  # noqa: PTH207 - in the middle of writing one; pathlib fails where a folder is being removed
        assert process.poll() is None
    process.kill()
    process.wait()
    process.stdout.close()
    whole = {path.parent.name for path in (tmp_path / "c").glob("*/model_states-0.pt")}
    ((name, size_bytes),) = [(file.name, file.size_bytes) for file in CheckpointWriter(config).load()]
    assert Path(name).parent.name in whole and size_bytes == 20_000_000


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk_ends_in_one_line_and_leaves_nothing_torn(tmp_path: Path, asynchronous: bool) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs leave to mount a tmpfs (root)")
    try:
        writer = CheckpointWriter(of_model(disk / "c", 300_000, asynchronous=asynchronous))
        with pytest.raises(IotwinError) as error:
            for epoch in range(1, 6):
                writer.save(epoch)
            writer.finish()
        assert "/model_states-0.pt: the checkpoint cannot be written: No space left on device; free space" in str(error.value)
        with contextlib.suppress(IotwinError):
            writer.finish()
        assert {path.stat().st_size for path in (disk / "c").glob("*/*")} == {300_000}
        assert CheckpointWriter(of_model(disk / "c")).load()[0].size_bytes == 300_000
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_training_goes_on_beside_an_asynchronous_checkpoint_but_not_beside_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = CheckpointWriter(of_model(tmp_path, asynchronous=True, in_flight=2))
    gate = threading.Event()
    write = os.write

    def gated(descriptor: int, content: bytes) -> int:
        gate.wait()
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", gated)
    assert writer.save(1) == writer.save(2) == []  # neither is written, and none is waited for
    assert not list(tmp_path.glob("*/model_states-0.pt"))
    third = threading.Thread(target=writer.save, args=(3,))
    third.start()
    time.sleep(0.1)
    assert third.is_alive() and not (tmp_path / "global_epoch3_step0").exists()  # it waits for room
    gate.set()
    third.join()
    writer.finish()
    assert folders(tmp_path) == [f"global_epoch{epoch}_step0" for epoch in (1, 2, 3)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_log_tells_a_rate_of_what_was_written_while_training_waited(tmp_path: Path, asynchronous: bool) -> None:
    config = of_model(tmp_path / "c", asynchronous=asynchronous)
    config.workflow = Workflow(train=False, checkpoint=True)
    config.checkpoint.num_checkpoints_write, config.checkpoint.num_checkpoints_read = 2, 1
    config.output.folder = str(tmp_path)
    measured = emulate(config, None)
    summary = write_results(config, [measured], StepTable([measured.steps]))
    finished = [line for line in (tmp_path / "dlio.log").read_text().splitlines() if "Finished saving" in line]
    assert len(finished) == 2 and all(("written during training" in line) == asynchronous for line in finished)
    stats = json.loads((tmp_path / "0_per_epoch_stats.json").read_text())["1"]
    assert all((stats[name]["throughput"] is None) == asynchronous for name in ("save_ckpt1", "save_ckpt2"))
    assert stats["load_ckpt1"]["throughput"] > 0 and summary["metric"]["save_checkpoint_io_mean_GB_per_second"] > 0


def test_every_asynchronous_file_is_told_once(tmp_path: Path) -> None:
    writer = CheckpointWriter(of_model(tmp_path, asynchronous=True, in_flight=3))
    written = [file for epoch in range(1, 8) for file in writer.save(epoch)] + writer.finish()
    assert [file.epoch for file in written] == list(range(1, 8)) and writer.finish() == []


def test_a_run_that_ends_early_leaves_no_unfinished_checkpoint(tmp_path: Path) -> None:
    config = of_model(tmp_path / "c", 2_000_000_000, asynchronous=True)
    dump(config, tmp_path / "twin.yaml")
    code = KILLED.replace("range(1, 1000)", "(1,)") + "import time; time.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "twin.yaml")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.wait(timeout=PATIENCE_S)
    process.stdout.close()
    assert not list((tmp_path / "c").glob("*/*.partial"))


@settings(max_examples=50)
@given(size=st.integers(1, 10**6), mean=st.integers(1000, 10**5), deviation=st.integers(0, 10**5), small=st.integers(500, 2000))
def test_drawn_writes_make_the_whole_file_and_alternate(size: int, mean: int, deviation: int, small: int) -> None:
    config = of_model(Path("c"), size)
    checkpoint = config.checkpoint
    checkpoint.ckpt_write_sz_mean, checkpoint.ckpt_write_sz_std = mean, deviation
    checkpoint.ckpt_write_sz_q1, checkpoint.ckpt_write_sz_min = small, 200
    (file,) = CheckpointPlan(config, 1).written(0, (1, 0))
    sizes = list(file.sizes())
    assert sum(sizes) == size == file.size_bytes
    assert set(sizes[:-1:2]) <= {small} and min(sizes[:-1], default=200) >= 200


def test_zeros_are_written_where_content_is_not_to_be_random(tmp_path: Path) -> None:
    config = of_model(tmp_path)
    config.checkpoint.randomize_tensor = False
    CheckpointWriter(config).save(1)
    assert not any((tmp_path / "global_epoch1_step0" / "model_states-0.pt").read_bytes())


def test_one_before_training_each_by_its_step_and_read_back_before_the_evaluation(tmp_path: Path) -> None:
    file = CheckpointFile(name="model-{step}.index", write_sizes=[(5000, 1)], rename=True, read_back=[(4000, 1000), (0, 10)])
    config = Config(
        workflow=Workflow(evaluation=True, checkpoint=True),
        dataset=Dataset(format="synthetic", num_files_train=8, num_files_eval=2, record_length_bytes=100),
        reader=Reader(data_loader="synthetic", batch_size=2, read_threads=0),
        evaluation=Evaluation(eval_after_step=4, steps_between_evals=4),
        checkpoint=Checkpoint(checkpoint_folder=str(tmp_path / "c"), steps_between_checkpoints=2, checkpoint_after_step=0),
        twin=Twin(evaluation=TwinEvaluation(after_checkpoint=True), checkpoint=TwinCheckpoint(files=[file])),
    )
    log = io.StringIO()
    measured = emulate(config, log)
    assert [written.name for written in measured.saved] == [f"model-{step}.index" for step in (0, 2, 4)]
    keys = [json.loads(line.partition(" ")[2]) for line in log.getvalue().splitlines()]
    order = [event["key"] for event in keys if event["event_type"] == "INTERVAL_START"]
    assert order == ["init", "run", "checkpoint", "block", "checkpoint", "block", "checkpoint", "eval"]
