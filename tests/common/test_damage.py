"""Manifests, indexes and files that are not what they seem: found, refused in one line, and never read for what they say."""

import json
import os
import re
import threading

import msgspec
import pytest

from iotwin.common import tensor_file
from iotwin.common.checkpoints import (
    MANIFEST,
    checkpoints,
    encode,
    look,
    newest,
    read_rank,
    verify,
)
from iotwin.common.commit import Alone, Store
from iotwin.common.errors import IotwinError, UsageError
from tests.common.committing import ThreadRanks
from tests.common.stores import fill, manifest, names, rewritten, step_of, tensors

NOBODY = pytest.fail  # where nothing may be refused


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


def of_ranks(directory, step, world_size):
    """Commit a step by ranks that are threads."""
    ranks = ThreadRanks(world_size)

    def one(rank):
        with Store(directory, together=ranks.of(rank)) as store:
            store.commit(manifest(step, world_size), tensors(step, rank), {"step": step})

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def without(*dropped):
    return lambda files: [file for number, file in enumerate(files) if number not in dropped]


@pytest.mark.parametrize(
    "change",
    [
        lambda files: [],
        without(0),
        without(1),
        without(2, 3),
        lambda files: [*files, files[0]],
        lambda files: [*files[:3], msgspec.structs.replace(files[3], name="rank-2.json")],
        lambda files: [*files[:3], msgspec.structs.replace(files[3], rank=0)],
        lambda files: [*files, *(msgspec.structs.replace(f, name=f.name.replace("0", "2"), rank=2) for f in files[:2])],
    ],
)
def test_a_manifest_that_does_not_list_the_files_of_its_ranks_is_found_and_the_one_before_is_used(tmp_path, change):
    fill(tmp_path, 1)
    of_ranks(tmp_path, 4, 3)
    rewritten(tmp_path / "step-4", files=change(look(tmp_path / "step-4").manifest.files))
    told = []
    assert newest(tmp_path, told.append).name == "step-1"
    assert "does not list the files of 3 ranks, nor those of one" in told[0]


def test_a_manifest_without_files_is_found(tmp_path):
    fill(tmp_path, 1, 2)
    content = json.loads((tmp_path / "step-2" / MANIFEST).read_text())
    del content["files"], content["crc32c"]
    head = json.dumps({**content, "crc32c": 0}).encode().removesuffix(b"0}")
    (tmp_path / "step-2" / MANIFEST).write_bytes(head + b"%d}" % tensor_file.crc32c(head))
    assert look(tmp_path / "step-2").reason == "manifest.json does not list the files of 1 rank, nor those of one"
    assert step_of(newest(tmp_path, lambda line: None)) == 1


def test_a_manifest_of_the_highest_number_is_found_and_does_not_spoil_the_next(tmp_path):
    fill(tmp_path, 1, 2)
    good = look(tmp_path / "step-2").manifest
    for sequence in (2**62, 2**53 + 1):
        (tmp_path / "step-2" / MANIFEST).write_bytes(encode(msgspec.structs.replace(good, sequence=sequence)))
        assert "$.sequence" in look(tmp_path / "step-2").reason
    fill(tmp_path, 3)
    assert step_of(newest(tmp_path, lambda line: None)) == 3


@pytest.mark.parametrize(
    ("step", "changes", "said"),
    [
        (2**62 + 1, {}, r"Expected `int` <= 4611686018427387904 - at `\$\.step`"),
        (-1, {}, r"Expected `int` >= 0 - at `\$\.step`"),
        (5, {"epoch": -1}, r"\$\.epoch"),
        (5, {"version": 2}, "is of version 2, newer"),
        (5, {"world_size": 3}, "does not list the files of 3 ranks"),
        (5, {"reason": "x" * (65 << 20)}, "more than any such file"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_could_not_be_read_again_is_refused_before_anything_is_written(tmp_path, step, changes, said):
    together = type("Two", (Alone,), {"world_size": 2}) if "world_size" in changes else Alone
    with Store(tmp_path, together=together()) as store, pytest.raises(UsageError, match=said):
        store.commit(manifest(step, **changes), NOBODY, {})
    assert names(tmp_path) == ["store.lock"]


def test_no_commit_follows_the_highest_number(tmp_path):
    fill(tmp_path, 1)
    rewritten(tmp_path / "step-1", sequence=2**53)
    with pytest.raises(UsageError, match=r"step 2 is not written, as its manifest\.json .*\$\.sequence"):
        fill(tmp_path, 2)
    assert step_of(newest(tmp_path, NOBODY)) == 1


@pytest.mark.parametrize("step", [10**18 - 1, 10**18, 2**60])
def test_the_highest_steps_are_found_again(tmp_path, step):
    folder = fill(tmp_path, 1, step)[-1]
    assert folder.name == f"step-{step}" and newest(tmp_path, NOBODY).manifest.step == step
    (folder / MANIFEST).unlink()
    assert checkpoints(tmp_path)[0].reason == "manifest.json no such file or directory"


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
    said = r"layer0\.weight' (does not lie in its file|has the unknown type)"
    assert re.search(said, verify(look(folder)).reason)
    with pytest.raises(IotwinError, match=said):
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
