"""What is removed is what we made or listed, and never what a link leads to."""

import pytest

from iotwin.common.errors import IotwinError
from iotwin.common.removal import remove_empty, remove_entry, remove_file, remove_listed, remove_own


@pytest.fixture
def outside(tmp_path):
    """A folder with a file that nothing here may touch."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious").write_bytes(b"")
    yield folder
    assert (folder / "precious").exists()


def test_a_link_is_removed_and_not_what_it_leads_to(tmp_path, outside):
    for remove in (remove_file, remove_entry, remove_own):
        (tmp_path / "link").symlink_to(outside)
        remove(tmp_path / "link")
        assert not (tmp_path / "link").is_symlink()


def test_a_missing_file_is_no_error_and_a_folder_is(tmp_path):
    remove_file(tmp_path / "none")
    remove_own(tmp_path / "none")
    with pytest.raises(OSError, match="directory"):
        remove_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        remove_entry(tmp_path / "none")


def test_a_folder_goes_with_its_links_and_not_with_what_they_lead_to(tmp_path, outside):
    (tmp_path / "made" / "inner").mkdir(parents=True)
    (tmp_path / "made" / "inner" / "link").symlink_to(outside)
    remove_entry(tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_only_listed_names_are_removed(tmp_path, outside):
    for name in ("listed", "other"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    remove_listed(tmp_path, ["listed", "folder", "none", "none/inner"])
    assert {path.name for path in tmp_path.iterdir()} == {"other", "outside"}


@pytest.mark.parametrize("name", ["../outside/precious", "/etc/none", "link/precious", "a/../../outside"])
def test_a_listed_name_that_leads_out_is_refused(tmp_path, outside, name):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(outside)
    with pytest.raises(IotwinError):
        remove_listed(tmp_path / "in", [name])


def test_a_folder_is_removed_as_empty_only_if_it_is(tmp_path, outside):
    (tmp_path / "empty").mkdir()
    assert remove_empty(tmp_path / "empty") and not (tmp_path / "empty").exists()
    assert remove_empty(tmp_path / "empty") and not remove_empty(outside)
