"""Checkpoints: the writes that were recorded, and nothing torn under a final name."""

import resource
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.checkpoint import CheckpointWriter
from benchmark.config import CheckpointFile, Config, dump, load
from tests.benchmark.strace import calls_of, needs_strace, strace
from tracing_tools.trace.errors import IotwinError, UsageError

MARKER = "iotwin-emulated.txt"
WRITE_ONE = """
import sys
from benchmark.checkpoint import CheckpointWriter
from benchmark.config import load
from tracing_tools.trace.errors import IotwinError, UsageError
try:
    for epoch in (1, 2, 3):
        CheckpointWriter(load(sys.argv[1])).save(epoch)
except IotwinError as error:
    sys.exit(str(error))
"""


def saved(folder: Path) -> dict[str, int]:
    """Sizes by name, without the note that says whose files these are."""
    return {path.name: path.stat().st_size for path in folder.glob("*") if path.name != MARKER}


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 4)), min_size=1, max_size=4), rename=st.booleans())
def test_a_file_is_as_long_as_its_writes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int]], rename: bool
) -> None:
    from benchmark.config import Checkpoint, Dataset, Twin, TwinCheckpoint

    folder = tmp_path_factory.mktemp("checkpoints")
    config = Config(
        dataset=Dataset(data_folder="d"),
        checkpoint=Checkpoint(checkpoint_folder=str(folder)),
        twin=Twin(checkpoint=TwinCheckpoint(files=[CheckpointFile(name="a.pt", write_sizes=sizes, rename=rename)])),
    )
    expected = sum(size * count for size, count in sizes)
    (written,) = CheckpointWriter(config).save(1)
    assert saved(folder) == {"a.pt": expected} and written.size_bytes == expected


def test_names_are_kept_or_overwritten_and_cadences_honoured(twin: Config, tmp_path: Path) -> None:
    twin.twin.checkpoint.files = [
        CheckpointFile(name="run/epoch_{epoch}.pt", write_sizes=[(100, 1)]),
        CheckpointFile(name="last.pt", write_sizes=[(10, 1)], rename=True),
        CheckpointFile(name="best.pt", write_sizes=[(20, 1)], epochs=[2]),
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
        CheckpointFile(name="best.pt", write_sizes=[(512, 3)], epochs=[2]),
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
    import os

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
