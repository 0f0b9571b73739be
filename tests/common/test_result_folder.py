"""`--force` replaces what a list of ours names, and nothing that only looks like ours."""

import json

import pytest

from iotwin.common.errors import UsageError
from iotwin.common.result_folder import LIST, MadeFolder


def claim(folder, force=False, what="demo"):
    return MadeFolder.claim(folder, what, force)


def test_a_folder_is_claimed_when_it_is_new_or_empty(tmp_path):
    folder = tmp_path / "a" / "b"
    claim(folder)
    assert folder.is_dir()
    (tmp_path / "empty").mkdir()
    claim(tmp_path / "empty")


def test_only_what_is_listed_is_replaced(tmp_path):
    folder = tmp_path / "made"
    made = claim(folder)
    made.entry("data").mkdir()
    (folder / "data" / "sample").write_bytes(b"")
    made.entry("twin.yaml").write_bytes(b"")
    (folder / "notes.txt").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"holds an earlier demo; .* add --force to replace it"):
        claim(folder)
    assert (folder / "data" / "sample").exists()
    claim(folder, force=True)
    assert {path.name for path in folder.iterdir()} == {LIST, "notes.txt"}


def test_a_folder_that_only_looks_like_ours_is_refused_with_force(tmp_path):
    (tmp_path / "dataset.csv").write_bytes(b"")
    with pytest.raises(UsageError, match="holds other files"):
        claim(tmp_path, force=True)
    (tmp_path / LIST).write_text(json.dumps({"kind": "folder made by iotwin", "what": "response", "made": ["dataset.csv"]}))
    with pytest.raises(UsageError, match="holds other files"):
        claim(tmp_path, force=True, what="twin")
    assert (tmp_path / "dataset.csv").exists()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="file is a file; choose another directory"):
        claim(tmp_path / "file", force=True)


@pytest.mark.parametrize("listed", [["../victim"], ["/etc/none"], "victim", [1], None])
def test_a_list_that_leads_out_or_is_none_is_no_list_of_ours(tmp_path, listed):
    (tmp_path / "victim").write_bytes(b"")
    (tmp_path / "made").mkdir()
    content = {"kind": "folder made by iotwin", "what": "demo", "made": listed}
    (tmp_path / "made" / LIST).write_text(json.dumps(content))
    with pytest.raises(UsageError, match="holds other files"):
        claim(tmp_path / "made", force=True)
    assert (tmp_path / "victim").exists()


def test_what_is_in_the_way_of_an_entry_is_not_taken_for_ours(tmp_path):
    made = claim(tmp_path / "made")
    (tmp_path / "made" / "data").symlink_to("nowhere")
    with pytest.raises(UsageError, match="data is in the way, and iotwin did not make it"):
        made.entry("data")
    claim(tmp_path / "made", force=True)
    assert (tmp_path / "made" / "data").is_symlink()


def test_an_entry_is_cleared_only_if_it_is_listed(tmp_path):
    made = claim(tmp_path / "made")
    made.entry("output").mkdir()
    (tmp_path / "made" / "mine").mkdir()
    later = MadeFolder.of(tmp_path / "made", "demo")
    later.clear("output")
    later.clear("mine")
    assert {path.name for path in (tmp_path / "made").iterdir()} == {LIST, "mine"}
    MadeFolder.of(tmp_path, "demo").clear("made")
    assert (tmp_path / "made").is_dir()
