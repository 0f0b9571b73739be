"""Checkpoints that are folders: written below a temporary name, renamed when whole, removed as the job's store removes them."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iotwin import workload_yaml as c
from iotwin.benchmark.emulator.checkpoints.one_file import FileWriter, PlannedFile
from iotwin.benchmark.emulator.checkpoints.writer import CheckpointWriter
from iotwin.benchmark.emulator.ranks import Rank, run_local
from iotwin.benchmark.emulator.readers.access import BufferedToEnd
from iotwin.common.errors import IotwinError, UsageError
from tests.processes import wait_for

NAMES = {"step-{step}/rank-0.raw": 0, "LATEST": 0, "step-{step}/rank-1.raw": 1, "step-{step}/manifest.json": 0}


def workload(folder: Path, **options: object) -> c.Config:
    files = [c.CheckpointFile(name=name, write_sizes=[(100, 2)], fsync=True, rank=rank) for name, rank in NAMES.items()]
    twin = c.TwinCheckpoint(files=files, commit="folder", directory_sync=True, **options)  # type: ignore[arg-type]
    return c.Config(checkpoint=c.Checkpoint(checkpoint_folder=str(folder)), twin=c.Twin(checkpoint=twin))


def there(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and "iotwin" not in path.name)


def test_a_folder_has_its_name_when_all_ranks_have_written_and_what_names_it_comes_last(tmp_path, monkeypatch):
    config, seen = workload(tmp_path), tmp_path / "seen"
    rename = os.rename

    def watched(source: str, target: str, **at: int) -> None:
        seen.write_text(f"{source} {target} {there(tmp_path)}")
        rename(source, target, **at)

    monkeypatch.setattr(os, "rename", watched)

    def save(rank: Rank) -> None:
        writer = CheckpointWriter(config, rank)
        rank.meet()
        writer.save(1, 7)

    run_local(2, save)
    names = ["manifest.json", "rank-0.raw", "rank-1.raw"]
    assert seen.read_text() == f"step-7.tmp step-7 {['seen', *(f'step-7.tmp/{name}' for name in names)]}".replace("'seen', ", "")
    assert there(tmp_path) == ["LATEST", "seen", *(f"step-7/{name}" for name in names)]


def test_old_ones_leave_whole_and_a_run_anew_takes_the_place_of_its_own(tmp_path):
    config = workload(tmp_path, keep=2)
    writer = CheckpointWriter(config)
    for step in (1, 2, 3):
        writer.save(1, step)
    of_one = ["manifest.json", "rank-0.raw", "rank-1.raw"]
    assert there(tmp_path) == ["LATEST", *(f"step-{step}/{name}" for step in (2, 3) for name in of_one)]
    assert not list(tmp_path.glob("*.gone")) and not list(tmp_path.glob("*.tmp"))
    CheckpointWriter(config).save(1, 3)
    assert there(tmp_path)[-3:] == [f"step-3/{name}" for name in of_one]


def test_rank_0_removes_what_all_ranks_wrote(tmp_path):
    config = workload(tmp_path, keep=1)

    def save(rank: Rank) -> None:
        writer = CheckpointWriter(config, rank)
        for step in (1, 2, 3):
            rank.meet()
            writer.save(1, step)

    run_local(2, save)
    assert {name.partition("/")[0] for name in there(tmp_path)} >= {"LATEST", "step-3"}
    assert "step-1/rank-1.raw" not in there(tmp_path)


def test_a_folder_of_somebody_else_s_is_spared(tmp_path):
    writer = CheckpointWriter(workload(tmp_path))
    (tmp_path / "step-5").mkdir()
    (tmp_path / "step-5" / "mine").touch()
    with pytest.raises(IotwinError, match="step-5: the checkpoint cannot be renamed"):
        writer.save(1, 5)
    assert (tmp_path / "step-5" / "mine").exists()
    (tmp_path / "step-6.tmp").mkdir()
    (tmp_path / "step-6.tmp" / "rank-0.raw").touch()
    with pytest.raises(UsageError, match=r"step-6.tmp/rank-0.raw: exists, and no emulator wrote it"):
        CheckpointWriter(workload(tmp_path))


def beside_training(config: c.Config, steps: int, monkeypatch, write: Callable[[FileWriter, int, str], None]) -> None:
    """Write checkpoints beside two ranks that train; `write` is asked by each before it writes a file."""
    write_file = FileWriter.write

    def save(rank: Rank) -> None:
        def watched(self: FileWriter, name: str, file: PlannedFile, *times: Any) -> None:
            write(self, rank.index, name)
            write_file(self, name, file, *times)

        monkeypatch.setattr(FileWriter, "write", watched)
        writer = CheckpointWriter(config, rank)
        rank.meet()
        for step in range(1, steps + 1):
            writer.save(1, step)
        writer.finish()

    run_local(2, save)


def test_ranks_meet_beside_training_before_a_folder_has_its_name(tmp_path, monkeypatch):
    folder, seen = tmp_path / "saved", tmp_path / "seen"
    config = workload(folder, asynchronous=True, in_flight=3, keep=2)
    rename = os.rename

    def watched(source: str, target: str, **at: int) -> None:
        with seen.open("a") as file:
            print(source, len(list((folder / source).iterdir())), file=file)
        rename(source, target, **at)

    def write(writer: FileWriter, rank: int, name: str) -> None:
        if rank == 1:  # each file of rank 1 is late, and that of the first checkpoint comes last
            wait_for(
                lambda: (folder / name).with_name("manifest.json").exists() or name == "step-3.tmp/rank-1.raw", "rank 0's files"
            )
        if name == "step-1.tmp/rank-1.raw":
            wait_for(lambda: (folder / "step-3.tmp" / "rank-1.raw").exists(), "the third one's file")

    monkeypatch.setattr(os, "rename", watched)
    beside_training(config, 3, monkeypatch, write)
    renamed = [line for line in seen.read_text().splitlines() if ".tmp" in line]
    assert renamed == [f"step-{step}.tmp 3" for step in (1, 2, 3)]
    assert {name.partition("/")[0] for name in there(folder)} == {"LATEST", "step-2", "step-3"}


def test_where_one_rank_fails_beside_training_no_folder_has_its_name(tmp_path, monkeypatch):
    def write(writer: FileWriter, rank: int, name: str) -> None:
        if name == "step-1.tmp/rank-1.raw":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    config = workload(tmp_path, asynchronous=True, in_flight=3)
    with pytest.raises(IotwinError, match=r"rank 1: .*step-1.tmp/rank-1.raw: the checkpoint cannot be written: No space left"):
        beside_training(config, 3, monkeypatch, write)
    assert all(name.split("/")[0].endswith(".tmp") for name in there(tmp_path))


def test_a_run_that_goes_on_looks_at_what_is_there_verifies_it_and_reads_it(tmp_path, monkeypatch):
    names = {"step-{step}/rank-0.raw": "opened", "step-{step}/manifest.json": "read", "LATEST": None}
    files = [c.CheckpointFile(name=name, write_sizes=[(3 << 19, 1)], looked_at=look) for name, look in names.items()]
    twin = c.TwinCheckpoint(files=files, commit="folder", keep=2)
    config = c.Config(checkpoint=c.Checkpoint(checkpoint_folder=str(tmp_path)), twin=c.Twin(checkpoint=twin))
    seen: list[str] = []
    open_file, read = os.open, os.preadv

    def opened(path, flags, *mode, **at):
        if not flags & os.O_WRONLY and str(path).startswith(f"{tmp_path}/step-"):
            seen.append(str(path).removeprefix(f"{tmp_path}/step-"))
        return open_file(path, flags, *mode, **at)

    def bytes_read(descriptor, views, offset):
        count = read(descriptor, views, offset)
        seen[-1] += f" {offset}+{count}"
        return count

    writer = CheckpointWriter(config)
    writer.save(1, 1)
    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "preadv", bytes_read)
    size, half, mib = 3 << 19, 1 << 19, 1 << 20
    looks = [f"{{}}/manifest.json 0+{size} {size}+0", "{}/rank-0.raw"]
    writer.save(1, 2)
    assert seen == [look.format(1) for look in looks]
    seen.clear()
    writer.save(1, 3)
    assert seen == [look.format(step) for step in (2, 1) for look in looks]
    seen.clear()
    assert sum(file.size_bytes for file in writer.load()) == 3 * size
    assert seen == [look.format(step) for step in (3, 2) for look in looks] + 3 * [f"3/rank-0.raw 0+{mib} {mib}+{half}"]


def test_what_names_a_folder_is_synced_after_it(tmp_path, monkeypatch):
    from iotwin.benchmark.emulator.checkpoints import checkpoint_folders, writer

    synced: list[tuple[str, bool]] = []
    for module in (checkpoint_folders, writer):
        monkeypatch.setattr(module, "fsync_directory", lambda path: synced.append((path.name, (tmp_path / "LATEST").exists())))
    CheckpointWriter(workload(tmp_path)).save(1, 7)
    assert synced == [("step-7.tmp", False), (tmp_path.name, False), (tmp_path.name, True)]


def test_a_run_that_goes_on_removes_and_looks_at_what_was_there(tmp_path):
    config = workload(tmp_path, keep=2)
    for file in config.twin.checkpoint.files:
        file.looked_at = "opened"
    first = CheckpointWriter(config)
    first.save(1, 1)
    first.save(1, 2)
    anew = CheckpointWriter(config)
    anew.save(1, 3)
    assert {name.partition("/")[0] for name in there(tmp_path)} == {"LATEST", "step-1", "step-2", "step-3"}
    (tmp_path / "step-3" / "manifest.json").unlink()  # which it would look at
    config.twin.resume = c.TwinResume(epoch=1, step=3)
    with pytest.raises(IotwinError, match=r"step-3/manifest.json: cannot be read"):
        CheckpointWriter(config).save(1, 4)
    (tmp_path / "step-3" / "manifest.json").touch()
    CheckpointWriter(config).save(1, 4)
    assert {name.partition("/")[0] for name in there(tmp_path)} == {"LATEST", "step-3", "step-4"}


@pytest.mark.parametrize(
    ("keep", "looked_at", "left"),
    [(None, [[2, 1], [3, 2, 1]], [1, 2, 3, 4]), (2, [[2, 1], [3, 2]], [3, 4]), (1, [[2], [3]], [4])],
)
@pytest.mark.parametrize("earlier_run", [False, True])
def test_what_stands_in_for_older_ones_is_looked_at_and_removed_as_the_run_s_own(
    tmp_path, monkeypatch, keep, looked_at, left, earlier_run
):
    config = workload(tmp_path, keep=keep, before=[(1, 1), (1, 2)])
    for file in config.twin.checkpoint.files:
        file.looked_at = "read" if "manifest" in file.name else None
    if earlier_run:
        CheckpointWriter(config).save(1, 4)
    seen: list[int] = []
    open_it = BufferedToEnd.__init__

    def opened(self: BufferedToEnd, path: str) -> None:
        seen.append(int(path.split("step-")[1][0]))
        open_it(self, path)

    monkeypatch.setattr(BufferedToEnd, "__init__", opened)
    writer = CheckpointWriter(config)
    holes = [path.stat() for path in tmp_path.glob("step-[12]/*")]
    assert [(hole.st_size, hole.st_blocks) for hole in holes] == [(200, 0)] * 6
    for step, expected in zip((3, 4), looked_at, strict=True):
        seen.clear()
        writer.save(1, step)
        assert seen == expected
    assert {name.partition("/")[0] for name in there(tmp_path)} == {"LATEST", *(f"step-{step}" for step in left)}


def test_what_stands_in_for_older_ones_takes_nobody_s_place(tmp_path):
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "manifest.json").write_text("mine")
    with pytest.raises(UsageError, match=r"step-1/manifest.json: exists, and no emulator wrote it"):
        CheckpointWriter(workload(tmp_path, keep=1, before=[(1, 1)]))
    assert (tmp_path / "step-1" / "manifest.json").read_text() == "mine"
    (tmp_path / "step-1" / "manifest.json").unlink()
    (tmp_path / "step-1").rmdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "step-1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IotwinError, match="leads through the link 'step-1'"):
        CheckpointWriter(workload(tmp_path, keep=1, before=[(1, 1)]))
    assert not list((tmp_path / "elsewhere").iterdir())
