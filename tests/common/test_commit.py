"""The store of checkpoints: what is written is what is read, and nothing that is not a checkpoint is believed or harmed."""

import errno
import json
import mmap
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.common import commit, direct_io, tensor_file
from iotwin.common.checkpoints import (
    LATEST,
    MANIFEST,
    checkpoints,
    look,
    named_latest,
    newest,
    open_checkpoint,
    read_rank,
    verify,
)
from iotwin.common.commit import Store
from iotwin.common.errors import IotwinError
from tests.common.stores import fill, manifest, names, step_of, tensors
from tests.conftest import ROOT, knows_direct

NOBODY = pytest.fail  # where nothing may be refused


# What is written is what is read


def test_the_newest_is_read_as_it_was_written(tmp_path):
    folders = fill(tmp_path / "s", 5, 10)
    assert [folder.name for folder in folders] == ["step-5", "step-10"]
    assert names(tmp_path / "s") == [LATEST, "step-10", "step-5", "store.lock"]
    assert step_of(newest(tmp_path / "s", NOBODY)) == 10 and named_latest(tmp_path / "s") == "step-10"
    assert step_of(open_checkpoint(folders[0], NOBODY)) == 5  # one of them by its own path


@pytest.mark.parametrize("refused", ["nothing", "the mode", "writes"])
@pytest.mark.parametrize("extra", [-1, 0, 1, 5000])
@pytest.mark.parametrize("packed", [False, True])
def test_large_states_are_written_past_the_page_cache_where_that_is_possible(tmp_path, monkeypatch, refused, extra, packed):
    """Sizes around two whole buffers, of tensors that do not end with them."""
    rng, total = tensor_file.np.random.default_rng(1), 2 * tensor_file._BUFFER_BYTES + extra
    data = tensor_file.np.frombuffer(mmap.mmap(-1, total), "uint8")  # at whole pages
    data[:] = rng.integers(0, 256, total, "uint8")
    first = 1_000_000 // tensor_file.ALIGNMENT * tensor_file.ALIGNMENT
    written, write, fcntl = [], os.write, direct_io.fcntl.fcntl

    def watched(descriptor, content):
        direct = bool(fcntl(descriptor, direct_io.fcntl.F_GETFL) & os.O_DIRECT)
        if direct and refused == "writes":
            raise OSError(errno.EINVAL, "Invalid argument")
        written.append((len(content), direct))
        return write(descriptor, content)

    def mode(descriptor, command, *flags):
        if refused == "the mode" and command == direct_io.fcntl.F_SETFL:
            raise OSError(errno.EINVAL, "Invalid argument")
        return fcntl(descriptor, command, *flags)

    monkeypatch.setattr(direct_io.os, "write", watched)
    monkeypatch.setattr(direct_io.fcntl, "fcntl", mode)
    parts = [tensor_file.Tensor(name, "uint8", (part.size,), part) for name, part in (("a", data[:first]), ("b", data[first:]))]
    if packed:
        places = [
            tensor_file.Entry("a", "uint8", (first,), 0, first),
            tensor_file.Entry("b", "uint8", (1,), first, total - first),
        ]
        parts = tensor_file.Packed(places, data)
    entries, size_bytes, checksum = tensor_file.write_tensors(tmp_path / "raw", parts)
    assert (tmp_path / "raw").read_bytes() == data.tobytes()
    assert size_bytes == total and checksum == tensor_file.crc32c(data) == tensor_file.checksum_of(tmp_path / "raw")
    assert [(entry.offset, entry.size_bytes) for entry in entries] == [(0, first), (first, total - first)]
    whole, rest = divmod(total, tensor_file._BUFFER_BYTES)
    there = refused == "nothing" and knows_direct(tmp_path)
    assert written == [(tensor_file._BUFFER_BYTES, there)] * whole + [(rest, False)] * bool(rest)


def test_the_buffer_is_kept_from_one_file_to_the_next_and_is_a_forked_process_own(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_file, "_kept_buffers", [])  # an earlier test may have written by several threads

    def write(name, number):
        data = tensor_file.np.full(5000, number, "uint8")
        tensor_file.write_tensors(tmp_path / name, [tensor_file.Tensor("a", "uint8", data.shape, data)])
        return data.tobytes()

    written = write("first", 1)
    [buffer] = tensor_file._kept_buffers
    if not (pid := os.fork()):
        try:
            write("of the other", 2)
        finally:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert buffer[:5000].tobytes() == written and (tmp_path / "of the other").read_bytes() == bytes([2]) * 5000
    with pytest.raises(FileExistsError):
        write("first", 3)
    write("second", 4)
    assert [id(each) for each in tensor_file._kept_buffers] == [id(buffer)]


@given(st.lists(st.tuples(st.sampled_from(sorted(tensor_file.ITEM_BYTES)), st.lists(st.integers(0, 5), max_size=3)), max_size=6))
def test_tensors_of_every_type_and_shape_come_back_aligned(tmp_path_factory, drawn):
    directory = tmp_path_factory.mktemp("tensors")
    written = []
    for number, (dtype, shape) in enumerate(drawn):
        size = tensor_file.ITEM_BYTES[dtype] * int(tensor_file.np.prod(shape, dtype=int))
        written.append(tensor_file.Tensor(f"t{number}", dtype, tuple(shape), tensor_file.np.arange(size, dtype="uint8")))
    with Store(directory / "s") as store:
        folder = store.commit(manifest(1), written, {"a": [1, None, "x"], "b": 0.1})
    read, values = read_rank(look(folder), 0)
    assert values == {"a": [1, None, "x"], "b": 0.1}
    assert [(t.name, t.dtype, t.shape, t.data.tobytes()) for t in read.values()] == [
        (t.name, t.dtype, t.shape, t.data.tobytes()) for t in written
    ]
    entries = json.loads((folder / "rank-0.json").read_text())["tensors"]
    assert all(entry["offset"] % 64 == 0 for entry in entries)


def test_large_tensors_are_checksummed_over_all_their_chunks(tmp_path):
    sizes = (3 << 18, 5, (1 << 18) + 1)  # 3 MiB, and one float more than a chunk
    with Store(tmp_path) as store:
        folder = store.commit(manifest(3), tensors(3, sizes=sizes), {"step": 3})
    assert step_of(verify(look(folder)), sizes=sizes) == 3
    raw = bytearray((folder / "rank-0.raw").read_bytes())
    raw[2 << 20] ^= 1
    (folder / "rank-0.raw").write_bytes(raw)
    assert verify(look(folder)).reason == "rank-0.raw does not have its checksum"
    with pytest.raises(IotwinError, match=r"rank-0\.raw: does not have the checksum"):
        read_rank(look(folder), 0)


def test_the_checksum_is_crc32c():
    assert tensor_file.crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert tensor_file.crc32c(b"6789", tensor_file.crc32c(b"12345")) == 0xE3069283


# Which one is the newest


def test_a_step_written_again_after_a_return_is_the_newest(tmp_path):
    fill(tmp_path, 5, 10, 15)
    [folder] = fill(tmp_path, 10, reason="again")
    assert folder.name == "step-10.1" and named_latest(tmp_path) == "step-10.1"
    found = newest(tmp_path, NOBODY)
    assert found.name == "step-10.1" and found.manifest.reason == "again"
    assert [each.name for each in checkpoints(tmp_path)] == ["step-10.1", "step-15", "step-10", "step-5"]
    [folder] = fill(tmp_path, 10)
    assert folder.name == "step-10.2"


def test_a_damaged_one_is_told_and_the_one_before_is_used(tmp_path):
    fill(tmp_path, 1, 2, 3, 4)
    (tmp_path / "step-4" / "rank-0.raw").write_bytes(b"")
    (tmp_path / "step-3" / MANIFEST).unlink()
    told = []
    assert step_of(newest(tmp_path, told.append)) == 2
    assert told == [
        f"{tmp_path}/step-3 is not used: manifest.json no such file or directory",
        f"{tmp_path}/step-4 is not used: rank-0.raw has 0 bytes instead of 476",
    ]
    with pytest.raises(IotwinError, match=r"step-4 cannot be used: rank-0\.raw has 0 bytes"):
        open_checkpoint(tmp_path / "step-4", told.append)


@pytest.mark.parametrize("content", ["", "step-99\n", "../../etc/passwd\n", "step-2\0", "\xff" * 5000])
def test_latest_may_say_what_it_likes(tmp_path, content):
    fill(tmp_path, 1, 2)
    (tmp_path / LATEST).write_bytes(content.encode("latin-1"))
    assert step_of(newest(tmp_path, NOBODY)) == 2
    fill(tmp_path, 3)
    assert named_latest(tmp_path) == "step-3"


def test_nothing_that_loads_is_one_line(tmp_path):
    with pytest.raises(IotwinError, match="No such file"):
        open_checkpoint(tmp_path / "nowhere", NOBODY)
    with pytest.raises(IotwinError, match="holds no checkpoint that loads"):
        open_checkpoint(tmp_path, NOBODY)


# Ranks and writers


def test_a_second_writer_is_refused_until_the_first_is_done(tmp_path):
    code = "import sys; from pathlib import Path; from tests.common.stores import fill; fill(Path(sys.argv[1]), 2)"
    with Store(tmp_path):
        done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, capture_output=True, text=True)
        assert "is being written by another job; wait for it" in done.stderr.splitlines()[-1]
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, check=True)
    assert step_of(newest(tmp_path, NOBODY)) == 2


def test_one_rank_that_fails_fails_all(tmp_path):
    class Two:
        rank, world_size = 0, 2

        def sum(self, *values):
            calls.append(values)
            return [value + (len(calls) == 3) for value in values]  # the other rank fails where both write

    calls = []
    with Store(tmp_path, together=Two()) as store, pytest.raises(IotwinError, match="another rank could not write"):
        store.commit(manifest(1, 2), tensors(1), {})
    assert len(calls) == 3 and names(tmp_path) == ["store.lock"]


def test_each_rank_has_its_files(tmp_path):
    class Rank:
        world_size = 2

        def __init__(self, rank):
            self.rank = rank

        def sum(self, *values):
            if len(steps) == 1:  # rank 0 has made the folder; now rank 1 writes, as it does beside rank 0
                commit.write_rank(tmp_path / "step-7.tmp", 1, tensors(7, 1), {"step": 7})
            steps.append(values)
            return list(values)

    steps = []
    with Store(tmp_path, together=Rank(0)) as store:
        folder = store.commit(manifest(7, 2), tensors(7), {"step": 7})
    found = verify(look(folder))
    assert found.reason is None and [(file.name, file.rank) for file in found.manifest.files] == [
        ("rank-0.raw", 0), ("rank-0.json", 0), ("rank-1.raw", 1), ("rank-1.json", 1),
    ]  # fmt: skip
    assert [step_of(found, rank) for rank in (0, 1)] == [7, 7]
    with pytest.raises(IotwinError, match="has no state of rank 2"):
        read_rank(found, 2)
