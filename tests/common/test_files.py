"""The helpers that every room writes its results by."""

import json
import os
from pathlib import Path

import pytest

from common.errors import IotwinError, UsageError
from common.files import check_output, claim_directory, fsync_directory, made_whole, open_whole, write_json, write_whole


def test_a_file_appears_whole_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "result"
    path.write_bytes(b"old")
    with open_whole(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and [path.name for path in tmp_path.iterdir()] == ["result"]


def test_what_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "result"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), open_whole(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"old" and [path.name for path in tmp_path.iterdir()] == ["result"]
    with pytest.raises(IotwinError, match="cannot be written: No such file or directory"):
        write_whole(tmp_path / "none" / "result", b"")


def test_devices_and_pipes_are_not_replaced(tmp_path):
    """Root may rename a file to /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/null"), Path("/dev/stdout"), Path("/dev/none")):
        with pytest.raises(UsageError, match="no regular file"):
            check_output(path)
    for name in ("pipe", "link"):
        with pytest.raises(UsageError, match="no regular file"):
            write_whole(tmp_path / name, b"new")
    assert {path.name for path in tmp_path.iterdir()} == {"link", "pipe"} and (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("folder", [False, True])
def test_what_is_made_beside_a_name_takes_it_or_goes(tmp_path, folder):
    def make(partial):
        if folder:
            partial.mkdir()
        (partial / "inside" if folder else partial).write_bytes(b"made")

    path = tmp_path / "result"
    with pytest.raises(RuntimeError), made_whole(path) as partial:
        make(partial)
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    with made_whole(path) as partial:
        assert partial == tmp_path / "result.partial"
        make(partial)
    assert list(tmp_path.iterdir()) == [path] and (path / "inside" if folder else path).read_bytes() == b"made"
    (tmp_path / "full" / "taken").mkdir(parents=True)
    with pytest.raises(OSError, match="irectory"), made_whole(tmp_path / "full", tmp_path / "other") as partial:
        make(partial)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "full", path]


@pytest.mark.parametrize(("indent", "text"), [(1, '{\n "a": [\n  1,\n  "ä"\n ]\n}\n'), (None, '{"a": [1, "ä"]}\n')])
def test_json_is_a_value_a_line_or_one_line(tmp_path, indent, text):
    write_json(tmp_path / "a.json", {"a": [1, "ä"]}, indent)
    content = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(content) == {"a": [1, "ä"]} and content == text.replace("ä", "\\u00e4")


def test_a_directory_is_claimed_when_it_is_new_or_empty(tmp_path):
    folder = tmp_path / "a" / "b"
    assert not claim_directory(folder, "demo", lambda: False, force=False) and folder.is_dir()
    assert not claim_directory(folder, "demo", lambda: False, force=False)


def test_a_directory_that_holds_anything_is_claimed_only_if_it_is_ours_and_by_force(tmp_path):
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(UsageError, match="x is a file; choose another directory"):
        claim_directory(tmp_path / "x", "demo", lambda: True, force=True)
    with pytest.raises(UsageError, match="holds other files"):
        claim_directory(tmp_path, "demo", lambda: False, force=True)
    with pytest.raises(UsageError, match=r"holds an earlier demo; .* add --force to replace it"):
        claim_directory(tmp_path, "demo", lambda: True, force=False)
    assert claim_directory(tmp_path, "demo", lambda: True, force=True) and (tmp_path / "x").exists()


def test_a_directory_is_synced_and_a_file_is_none(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    fsync_directory(tmp_path)
    assert synced == [tmp_path.stat().st_ino]
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        fsync_directory(tmp_path / "x")
