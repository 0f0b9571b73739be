"""The store of checkpoints: what is written is what is read, and nothing that is not a checkpoint is believed or harmed."""

import errno
import json
import mmap
import os
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import commit, direct_io, tensor_file
from common.checkpoints import (
    LATEST,
    MANIFEST,
    checkpoints,
    encode,
    look,
    named_latest,
    newest,
    open_checkpoint,
    read_rank,
    verify,
)
from common.commit import Retention, Store
from common.errors import IotwinError, UsageError
from tests.common.stores import fill, manifest, step_of, tensors
from tests.conftest import ROOT, knows_direct

NOBODY = pytest.fail  # where nothing may be refused


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def rewritten(folder, **changes):
    """Put a manifest with other values in a checkpoint, its own checksum right."""
    (folder / MANIFEST).write_bytes(encode(msgspec.structs.replace(look(folder).manifest, **changes)))


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


def test_the_buffer_is_kept_from_one_file_to_the_next_and_is_a_forked_process_own(tmp_path):
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


# Retention


@given(
    st.lists(st.tuples(st.integers(1, 30), st.none() | st.floats(-1, 1), st.booleans()), min_size=1, max_size=12),
    st.integers(0, 3), st.integers(0, 4), st.integers(0, 2), st.booleans(),
)  # fmt: skip
def test_what_stays(drawn, last, every, best, epoch_ends):
    given_ones = [
        manifest(step, metric=metric, position=msgspec.structs.replace(manifest(1).position, position=0 if end else 3))
        for step, metric, end in drawn
    ]
    kept = Retention(last, every, best, epoch_ends).kept(given_ones)
    if not (last or every or best or epoch_ends):
        assert all(kept)
        return
    scores = sorted((each.metric for each in given_ones if each.metric is not None), reverse=True)
    for number, (stays, each) in enumerate(zip(kept, given_ones, strict=True)):
        must = number < max(1, last) or (every and each.step % every == 0) or (epoch_ends and each.position.position == 0)
        assert stays or not must
        if stays and not must:
            assert each.metric is not None and each.metric >= scores[:best][-1]
    assert sum(kept) >= min(best, len(scores))


def test_older_ones_go_when_the_new_one_is_durable_and_damaged_ones_stay(tmp_path):
    fill(tmp_path, 1, 2, 3)
    (tmp_path / "step-2" / "rank-0.raw").write_bytes(b"")
    fill(tmp_path, 4, retention=Retention(1))
    assert names(tmp_path) == [LATEST, "step-2", "step-4", "store.lock"]


def test_prune_keeps_what_loads_rather_than_what_is_new(tmp_path):
    fill(tmp_path, 1, 2, 3)
    path = tmp_path / "step-3" / "rank-0.raw"
    path.write_bytes(bytes(path.stat().st_size))  # whole by its size
    (tmp_path / "step-9.gone").mkdir()
    with Store(tmp_path, Retention(1)) as store:
        assert [found.name for found in store.prune()] == ["step-1"]
    assert names(tmp_path) == [LATEST, "step-2", "step-3", "store.lock"]


# Hostile and foreign files


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "..", ".", "", "x" * 300, ".hidden", "a\0b"])
def test_a_manifest_names_files_of_its_folder_only(tmp_path, name):
    fill(tmp_path, 1, 2)
    (tmp_path / "x").write_text("outside")
    file = look(tmp_path / "step-2").manifest.files[0]
    rewritten(tmp_path / "step-2", files=[msgspec.structs.replace(file, name=name)])
    assert look(tmp_path / "step-2").reason.startswith("manifest.json is no manifest")
    assert step_of(newest(tmp_path, lambda line: None)) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no manifest"),
        (b"{", "is no manifest"),
        (b"[" * 100_000, "is no manifest"),
        (b'{"version": 1}', "is no manifest"),
        (b'{"version": 2, "anything": 1}', "is of version 2, newer than this program's 1; use the newer program"),
        (b"\xff\xfe", "is no manifest"),
        (bytes(500), "is no manifest"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_torn_and_foreign_manifests(tmp_path, content, said):
    fill(tmp_path, 1, 2)
    (tmp_path / "step-2" / MANIFEST).write_bytes(content)
    assert said in look(tmp_path / "step-2").reason
    assert step_of(newest(tmp_path, lambda line: None)) == 1


def test_no_prefix_and_no_changed_byte_of_a_manifest_is_believed(tmp_path):
    fill(tmp_path, 2)
    path = tmp_path / "step-2" / MANIFEST
    content = path.read_bytes()
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        assert look(tmp_path / "step-2").reason
        path.write_bytes(content[:cut] + bytes([content[cut] ^ 1]) + content[cut + 1 :])
        assert look(tmp_path / "step-2").reason


def test_sizes_that_cannot_be_take_no_memory(tmp_path):
    fill(tmp_path, 1)
    folder = tmp_path / "step-1"
    files = look(folder).manifest.files
    rewritten(folder, files=[msgspec.structs.replace(files[0], size_bytes=2**61), files[1]])
    assert "instead of" in look(folder).reason
    with pytest.raises(IotwinError, match="has 476 bytes instead of"):
        read_rank(look(folder), 0)


@pytest.mark.parametrize("change", [{"offset": 2**60}, {"size_bytes": 10**6}, {"shape": [2**40]}, {"dtype": "object"}])
def test_an_index_that_leads_out_of_its_file_is_refused(tmp_path, change):
    fill(tmp_path, 1)
    folder = tmp_path / "step-1"
    index = json.loads((folder / "rank-0.json").read_text())
    index["tensors"][0] |= change
    content = json.dumps(index).encode()
    (folder / "rank-0.json").write_bytes(content)
    files = look(folder).manifest.files
    changed = msgspec.structs.replace(files[1], size_bytes=len(content), crc32c=tensor_file.crc32c(content))
    rewritten(folder, files=[files[0], changed])
    assert verify(look(folder)).reason is None
    with pytest.raises(IotwinError, match=r"layer0\.weight' (does not lie in its file|has the unknown type)"):
        read_rank(look(folder), 0)


def test_links_pipes_and_directories_are_no_files_of_a_checkpoint(tmp_path):
    fill(tmp_path, 1, 2, 3, 4)
    for step, make in (
        (2, os.mkfifo),
        (3, type(tmp_path).mkdir),
        (4, lambda path: path.symlink_to(tmp_path / "step-1" / "rank-0.raw")),
    ):
        (tmp_path / f"step-{step}" / "rank-0.raw").unlink()
        make(tmp_path / f"step-{step}" / "rank-0.raw")
    (tmp_path / "step-5").symlink_to(tmp_path / "step-1")
    told = []
    assert step_of(newest(tmp_path, told.append)) == 1
    assert len(told) == 3


def test_a_folder_of_strangers_is_refused_and_not_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "data").write_text("mine")
    with pytest.raises(UsageError, match="holds other files than checkpoints"), Store(tmp_path):
        pass
    assert names(tmp_path) == ["step-1", "thesis.tex"]


def test_strangers_in_a_store_are_left_alone(tmp_path):
    fill(tmp_path, 1)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step-7").mkdir()
    (tmp_path / "step-7" / "weights.pt").write_text("mine")
    fill(tmp_path, 2, 3, retention=Retention(1))
    assert names(tmp_path) == [LATEST, "notes.txt", "step-3", "step-7", "store.lock"]
    (tmp_path / "step-4.tmp").mkdir()
    (tmp_path / "step-4.tmp" / "weights.pt").write_text("mine")
    with pytest.raises(UsageError, match=r"step-4\.tmp holds weights\.pt, which is no part of a checkpoint"):
        fill(tmp_path, 4)
    assert (tmp_path / "step-4.tmp" / "weights.pt").read_text() == "mine"


def test_what_a_killed_commit_left_goes_with_the_next(tmp_path):
    fill(tmp_path, 1)
    (tmp_path / "step-2.tmp").mkdir()
    (tmp_path / "step-2.tmp" / "rank-0.raw").write_bytes(b"half")
    (tmp_path / "step-0.gone").mkdir()
    (tmp_path / f".{LATEST}.7.partial").write_bytes(b"st")
    fill(tmp_path, 2)
    assert names(tmp_path) == [LATEST, "step-1", "step-2", "store.lock"]


def test_a_second_writer_is_refused_until_the_first_is_done(tmp_path):
    code = "import sys; from pathlib import Path; from tests.common.stores import fill; fill(Path(sys.argv[1]), 2)"
    with Store(tmp_path):
        done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, capture_output=True, text=True)
        assert "is being written by another job; wait for it" in done.stderr.splitlines()[-1]
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, check=True)
    assert step_of(newest(tmp_path, NOBODY)) == 2


# A disk that fails


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_whichever_call_fails_the_one_before_stays(tmp_path, monkeypatch, number):
    """Every write, fsync, mkdir and rename in turn; until one commit goes through."""
    fill(tmp_path, 1)
    failed = 0
    while True:
        left = [failed]
        with monkeypatch.context() as patch:
            for module, name in ((os, "write"), (os, "fsync"), (os, "mkdir"), (os, "rename"), (os, "replace")):
                patch.setattr(module, name, _failing(getattr(module, name), left, number))
            try:
                fill(tmp_path, 2, retention=Retention(1))
                break
            except IotwinError as error:
                assert os.strerror(number) in str(error) and "\n" not in str(error)
        failed += 1
        assert step_of(newest(tmp_path, NOBODY)) in (1, 2)
        assert not [name for name in names(tmp_path) if name.endswith((".tmp", ".partial"))]
    assert failed > 10 and step_of(newest(tmp_path, NOBODY)) == 2


def _failing(call, left, number):
    def instead(*arguments, **options):
        left[0] -= 1
        if left[0] == -1:
            raise OSError(number, os.strerror(number))
        return call(*arguments, **options)

    return instead


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
