"""Checkpoints in a format of choice: the calls that PyTorch really makes for the same tensors, and slots that are mapped."""

import errno
import os
import struct
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from iotwin import workload_yaml as c
from iotwin.benchmark.emulator.checkpoints.formats import as_format
from iotwin.benchmark.emulator.checkpoints.one_file import FileWriter, PlannedFile
from iotwin.benchmark.emulator.checkpoints.plan import CheckpointPlan
from iotwin.benchmark.emulator.checkpoints.writer import CheckpointWriter
from iotwin.benchmark.emulator.ranks import Rank, run_local
from iotwin.common.errors import IotwinError, UsageError
from tests.benchmark.strace import Call, needs_strace, strace
from tests.conftest import PATIENCE_S

PAGE = 4096
TENSORS = [4 * (3000 + 137 * number) for number in range(60)]
REAL = """
import sys, torch
import torch.distributed.checkpoint as dcp
form, target, threads, *sizes = sys.argv[1:]
state = {f"layer{number}.weight": torch.zeros(int(size) // 4) for number, size in enumerate(sizes)}
if form == "dcp":
    dcp.save(state, storage_writer=dcp.FileSystemWriter(target, thread_count=int(threads)), no_dist=True)
else:
    torch.save(state, target + ".pt", _use_new_zipfile_serialization=form == "zip")
"""
EMULATED = """
import sys
from iotwin.workload_yaml import load
from iotwin.benchmark.emulator.checkpoints.writer import CheckpointWriter
CheckpointWriter(load(sys.argv[1])).save(1)
"""


def workload(folder: Path, tensors: Sequence[int] = (5000, 6000), files: Sequence[str] = ("m.pt",), **options: Any) -> c.Config:
    sizes = [(size, 1) for size in tensors]
    each = [
        c.CheckpointFile(name=name, write_sizes=sizes, rank=rank % options.get("ranks", 1)) for rank, name in enumerate(files)
    ]
    options.pop("ranks", None)
    twin = c.Twin(checkpoint=c.TwinCheckpoint(files=each, **options))
    return c.Config(checkpoint=c.Checkpoint(checkpoint_folder=str(folder)), twin=twin, train=c.Train(epochs=1))


def by_file(processes: Sequence[Sequence[Call]], folder: Path) -> dict[str, list[tuple[str, int]]]:
    """Return (call, bytes) of all threads by file below the folder, in the order of each; a temporary name is the final one's."""
    found: dict[str, list[tuple[str, int]]] = {}
    for call in (call for calls in processes for call in calls):
        for path in call.paths[:1]:
            if path.startswith(f"{folder}/") and "iotwin" not in path:
                name = path.removeprefix(f"{folder}/").removesuffix(".tmp").removesuffix(".partial")
                written = call.name in ("write", "writev")
                found.setdefault(name, []).append(("write" if written else call.name, call.result if written else 0))
    return found


@pytest.mark.torch
@needs_strace
@pytest.mark.parametrize(
    ("form", "threads", "tensors"),
    [("zip", 1, TENSORS), ("legacy", 1, TENSORS), ("dcp", 1, TENSORS[:5]), ("dcp", 2, TENSORS)],
)
def test_the_calls_are_those_of_pytorch(tmp_path: Path, form: Any, threads: int, tensors: list[int]) -> None:
    real, ours = tmp_path / "real", tmp_path / "ours"
    real.mkdir()
    config = workload(ours, tensors, format=form, persist_threads=threads)
    c.dump(config, tmp_path / "twin.yaml")
    calls = "write,writev,pwrite64,fsync,fdatasync,ftruncate"
    asked = [sys.executable, "-c", REAL, form, str(real / "m"), str(threads), *map(str, tensors)]
    expected = by_file(strace(asked, calls, tmp_path), real)
    found = by_file(strace([sys.executable, "-c", EMULATED, str(tmp_path / "twin.yaml")], calls, tmp_path), ours)
    assert found.keys() == expected.keys()
    for name, own in expected.items():
        assert [kind for kind, _ in found[name]] == [kind for kind, _ in own]
        sizes, wanted = ([size for kind, size in each if kind == "write"] for each in (found[name], own))
        named = {"zip": 2, "legacy": 3}.get(form, len(wanted) if name.endswith(".metadata") else 0)  # hold names of tensors
        assert sizes[:named] == pytest.approx(wanted[:named], rel=0.2)
        if form == "legacy":  # in an order of its own
            assert sorted(sizes[named:]) == sorted(wanted[named:])
        else:
            assert sizes[named:] == wanted[named:]


def test_a_format_that_was_recorded_stays_as_it_was_and_another_takes_its_tensors(tmp_path: Path) -> None:
    recorded = PlannedFile("m.pt", [(900, 1), (5000, 2), (98, 1)], False, True, format="zip")
    small = PlannedFile("best.json", [(120, 1)], False, False)

    def of(rank: int) -> list[PlannedFile]:
        return [recorded, small]

    assert as_format("zip", of, 0, 1, 1) == [recorded, small]
    legacy, unchanged = as_format("legacy", of, 0, 1, 1)
    assert [size for size, _ in legacy.write_sizes][-4:] == [8, 5000, 8, 5000] and legacy.rename and unchanged == small
    assert replace(recorded, name="x/.metadata", format="dcp") not in as_format(
        "zip", lambda rank: [replace(recorded, name="x/.metadata", format="dcp")], 0, 1, 1
    )


def test_of_several_ranks_the_first_says_that_a_distributed_checkpoint_is_whole(tmp_path: Path) -> None:
    names = [f"step_{{step}}/rank{rank}.pt" for rank in range(3)]
    config = workload(tmp_path, files=names, format="dcp", ranks=3)
    each = [[file.name for file in CheckpointPlan(config, 3).written(rank, (1, 7))] for rank in range(3)]
    assert each == [["step_7/__0_0.distcp", "step_7/.metadata"], ["step_7/__1_0.distcp"], ["step_7/__2_0.distcp"]]

    def save(rank: Rank) -> None:
        CheckpointWriter(config, rank).save(1, 7)

    run_local(3, save)
    (metadata,) = tmp_path.rglob(".metadata")
    others = [path.stat().st_mtime_ns for path in tmp_path.rglob("*.distcp")]
    assert len(others) == 3 and metadata.stat().st_mtime_ns >= max(others)


def test_distributed_checkpoints_are_kept_read_back_and_spare_what_is_not_theirs(tmp_path: Path) -> None:
    config = workload(tmp_path, files=["m_{step}.pt"], format="dcp", keep=1)
    writer = CheckpointWriter(config)
    writer.save(1, 1)
    writer.save(1, 2)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["iotwin-emulated.txt", "m_2/.metadata", "m_2/__0_0.distcp"]
    assert [file.name for file in writer.load()] == ["m_2/__0_0.distcp", "m_2/.metadata"]
    (tmp_path / "m_3").mkdir()
    (tmp_path / "m_3" / "__0_0.distcp").write_bytes(b"weeks of training")
    with pytest.raises(UsageError, match=r"m_3/__0_0\.distcp: exists, and no emulator wrote it"):
        CheckpointWriter(config)


def test_of_a_model_every_rank_writes_its_share_in_the_format(tmp_path: Path) -> None:
    config = c.Config(
        checkpoint=c.Checkpoint(checkpoint_folder=str(tmp_path), type="all_ranks"),
        model=c.Model(model_size_bytes=20 << 20),
        twin=c.Twin(checkpoint=c.TwinCheckpoint(format="dcp")),
    )
    names = [[file.name for file in CheckpointPlan(config, 2).written(rank, (2, 5))] for rank in range(2)]
    folder = "global_epoch2_step5"
    assert names == [[f"{folder}/__0_0.distcp", f"{folder}/.metadata"], [f"{folder}/__1_0.distcp"]]
    (data, _) = CheckpointPlan(config, 2).written(0, (2, 5))
    assert [size for size, _ in data.write_sizes if size >= 1 << 20] == [8 << 20, 8 << 20, 4 << 20]


@pytest.mark.parametrize("threads", [1, 2])
def test_so_many_threads_write_files_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    together = threading.Barrier(threads)
    write = FileWriter.write

    def met(self: FileWriter, *args: Any) -> None:
        together.wait(PATIENCE_S)
        write(self, *args)

    monkeypatch.setattr(FileWriter, "write", met)
    writer = CheckpointWriter(workload(tmp_path, files=["a.pt", "b.pt"], persist_threads=threads))
    assert [file.name for file in writer.save(1)] == ["a.pt", "b.pt"]


def newest(path: Path) -> tuple[int, int, int]:
    """Return the number of the newest slot's checkpoint, where it lies and how long it is."""
    number, offset, size = struct.unpack("<QQQ", path.read_bytes()[:24])
    return number, offset, size


def test_slots_are_overwritten_in_turns_one_more_than_may_be_under_way(tmp_path: Path) -> None:
    config = workload(tmp_path, [10_000, 3000], format="slots", asynchronous=True, in_flight=2, persist_threads=3)
    writer = CheckpointWriter(config)
    path, found = tmp_path / "slots-0", []
    for epoch in range(1, 5):
        writer.save(epoch)
        assert [(file.name, file.size_bytes) for file in writer.finish()] == [("slots-0", 13_000)]
        found.append(newest(path))
    slot = 4 * PAGE
    assert found == [(n, PAGE + n % 3 * slot, 13_000) for n in (1, 2, 3, 4)] and path.stat().st_size == PAGE + 3 * slot
    content = path.read_bytes()
    slots = [content[PAGE + n * slot :][:13_000] for n in range(3)]
    assert slots[0] == slots[1] == slots[2] and not slots[0].startswith(bytes(8))
    assert not content[PAGE + 13_000 : PAGE + slot].strip(b"\0")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["iotwin-emulated.txt", "slots-0"]


@needs_strace
@pytest.mark.parametrize(("fsync", "synced"), [(True, [16_384, 16_384, 7232, 24]), (False, [])])
def test_each_thread_syncs_its_part_of_a_slot(tmp_path: Path, fsync: bool, synced: list[int]) -> None:
    config = workload(tmp_path / "ck", [40_000], format="slots", persist_threads=3)
    config.checkpoint.fsync = fsync
    c.dump(config, tmp_path / "twin.yaml")
    processes = strace([sys.executable, "-c", EMULATED, str(tmp_path / "twin.yaml")], "msync,write", tmp_path)
    lines = [call for calls in processes for call in calls]
    assert sorted(call.result for call in lines if call.name == "msync") == [0] * len(synced)
    assert not [call for call in lines if call.name == "write" and any("slots-0" in path for path in call.paths)]


def test_slots_that_find_no_room_are_refused_and_others_files_spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slots-0").write_bytes(b"weeks of training")
    with pytest.raises(UsageError, match=r"slots-0: exists, and no emulator wrote it"):
        CheckpointWriter(workload(tmp_path, format="slots"))
    of_model = c.Config(checkpoint=c.Checkpoint(checkpoint_folder=str(tmp_path)), model=c.Model(model_size_bytes=1 << 20))
    of_model.twin.checkpoint.format = "slots"
    with pytest.raises(UsageError, match=r"slots-0: exists, and no emulator wrote it"):
        CheckpointWriter(of_model)

    allocate = os.posix_fallocate

    def full(descriptor: int, offset: int, size: int) -> None:
        if size > 1 << 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(IotwinError, match=r"slots cannot be made: No space left on device; free space"):
        CheckpointWriter(workload(tmp_path / "other", [1 << 20], format="slots"))
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == ["iotwin-emulated.txt"]
