"""Files and folders appear whole, and nothing that others planted leads them elsewhere."""

import json
import os
from pathlib import Path

import pytest

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import (
    check_output,
    folder_whole,
    fsync_directory,
    make_folder,
    open_append,
    open_new,
    open_rewritten,
    open_whole,
    partial_of,
    scratch_folder,
    write_json,
    write_whole,
)


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


def test_the_name_of_what_is_unfinished_is_drawn_anew_and_leads_back_to_the_final_one(tmp_path):
    names = []
    for _ in range(2):
        with open_whole(tmp_path / "result"):
            names += [path.name for path in tmp_path.iterdir() if path.name != "result"]
    assert len(set(names)) == 2 and {partial_of(name) for name in names} == {"result"}
    assert partial_of("result") is partial_of(".result.123.partial") is None


@pytest.mark.parametrize("name", ["x" * 255, "ä" * 127])
def test_the_longest_names_are_written_too(tmp_path, name):
    write_whole(tmp_path / name, b"1")
    assert (tmp_path / name).read_bytes() == b"1"


def test_a_link_in_the_place_of_a_result_is_replaced_and_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "result").symlink_to(victim)
    write_whole(tmp_path / "result", b"new")
    assert victim.read_bytes() == b"precious" and not (tmp_path / "result").is_symlink()


def test_no_folder_below_the_users_own_may_be_a_link(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "tables").symlink_to(tmp_path / "outside")
    for write in (
        lambda: write_whole(tmp_path / "out" / "tables" / "a.csv", b"", below=tmp_path / "out"),
        lambda: make_folder(tmp_path / "out" / "tables", below=tmp_path / "out"),
        lambda: make_folder(tmp_path / "out" / "tables" / "inner", below=tmp_path / "out"),
    ):
        with pytest.raises(IotwinError, match="leads through the link 'tables'"):
            write()
    assert not list((tmp_path / "outside").iterdir())
    write_whole(tmp_path / "out" / "a" / "b" / "c.csv", b"1", below=tmp_path / "out")
    make_folder(tmp_path / "out" / "d" / "e", below=tmp_path / "out")
    assert (tmp_path / "out" / "a" / "b" / "c.csv").read_bytes() == b"1" and (tmp_path / "out" / "d" / "e").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to plant another user's link")
def test_a_link_of_another_user_is_not_followed_on_the_way_and_ones_own_is(tmp_path, monkeypatch):
    (tmp_path / "victim").mkdir()
    (tmp_path / "planted").symlink_to("victim")
    write_whole(tmp_path / "planted" / "a", b"own")
    os.lchown(tmp_path / "planted", 12345, 12345)
    for write in (
        lambda: write_whole(tmp_path / "planted" / "b", b""),
        lambda: make_folder(tmp_path / "planted"),
        lambda: make_folder(tmp_path / "planted" / "c" / "d"),
    ):
        with pytest.raises(IotwinError, match="planted is a link that another user made"):
            write()
    assert [path.name for path in (tmp_path / "victim").iterdir()] == ["a"]
    monkeypatch.setenv("SUDO_UID", "12345")
    write_whole(tmp_path / "planted" / "b", b"own")


def test_a_folder_takes_its_name_whole_or_is_removed(tmp_path):
    path = tmp_path / "result"
    with pytest.raises(RuntimeError), folder_whole(path) as made:
        (made / "inside").write_bytes(b"made")
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    with folder_whole(path) as made:
        (made / "inside").write_bytes(b"made")
        assert not path.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["result"] and (path / "inside").read_bytes() == b"made"
    with pytest.raises(OSError, match="not empty"), folder_whole(path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["result"] and (path / "inside").read_bytes() == b"made"


def test_a_folder_that_is_moved_away_meanwhile_still_takes_what_is_written(tmp_path):
    """Who owns the directory could put a link in the place of the unfinished folder."""
    (tmp_path / "outside").mkdir()
    with pytest.raises(OSError), folder_whole(tmp_path / "result") as made:
        [unfinished] = [path for path in tmp_path.iterdir() if path.name != "outside"]
        unfinished.rename(tmp_path / "moved")
        unfinished.symlink_to(tmp_path / "outside")
        (made / "inside").write_bytes(b"made")
        unfinished.unlink()
    assert not list((tmp_path / "outside").iterdir()) and (tmp_path / "moved" / "inside").exists()


def test_nothing_is_appended_through_a_link(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "link").symlink_to(victim)
    for opened in (open_append, open_new, open_rewritten):
        with pytest.raises(OSError):
            opened(tmp_path / "link")
    assert victim.read_bytes() == b"precious"


def test_a_fifo_in_the_place_of_a_log_holds_nobody_up(tmp_path):
    os.mkfifo(tmp_path / "log")
    for opened in (open_append, open_rewritten):
        with pytest.raises(OSError, match="No such device"):
            opened(tmp_path / "log")


def test_a_scratch_folder_goes_with_all_that_is_in_it(tmp_path):
    with scratch_folder(tmp_path) as folder:
        (folder / "a").mkdir()
        (folder / "a" / "b").write_bytes(b"")
        assert folder.parent == tmp_path
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("indent", "text"), [(1, '{\n "a": [\n  1,\n  "ä"\n ]\n}\n'), (None, '{"a": [1, "ä"]}\n')])
def test_json_is_a_value_a_line_or_one_line(tmp_path, indent, text):
    write_json(tmp_path / "a.json", {"a": [1, "ä"]}, indent)
    content = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(content) == {"a": [1, "ä"]} and content == text.replace("ä", "\\u00e4")


def test_numbers_that_json_lacks_become_null(tmp_path):
    write_json(tmp_path / "a.json", {"loss": [1.5, float("nan"), (float("inf"),)], "name": "x"})
    assert json.loads((tmp_path / "a.json").read_text()) == {"loss": [1.5, None, [None]], "name": "x"}


def test_a_directory_is_synced_and_a_file_is_none(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    fsync_directory(tmp_path)
    assert synced == [tmp_path.stat().st_ino]
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        fsync_directory(tmp_path / "x")
