"""Which checkpoints leave a store, and what stays when they do: all that loads in their place, and all files of others."""

import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.common import checkpoints as known
from iotwin.common.checkpoints import (
    LATEST,
    checkpoints,
    newest,
)
from iotwin.common.commit import Store
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.retention import Retention
from tests.common.stores import fill, manifest, names, step_of

NOBODY = pytest.fail  # where nothing may be refused


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


def rot(folder):
    """Change the tensors and not their size."""
    path = folder / "rank-0.raw"
    path.write_bytes(bytes(path.stat().st_size))


def as_a_new_process(monkeypatch):
    """Forget what this one has verified; return the files that are read from now on."""
    read, checksum_of = [], known.checksum_of
    monkeypatch.setattr(known, "_verified", {})
    monkeypatch.setattr(known, "checksum_of", lambda path: read.append(f"{path.parent.name}/{path.name}") or checksum_of(path))
    return read


def test_a_newer_one_that_has_rotted_takes_no_place_of_one_that_loads(tmp_path, capsys):
    fill(tmp_path, 1, 2, 3)
    rot(tmp_path / "step-3")
    fill(tmp_path, 4, retention=Retention(2))
    assert names(tmp_path) == [LATEST, "step-2", "step-3", "step-4", "store.lock"]
    assert f"{tmp_path}/step-3 is not counted: rank-0.raw does not have its checksum" in capsys.readouterr().err
    fill(tmp_path, 5, retention=Retention(2))
    assert step_of(newest(tmp_path, NOBODY)) == 5


def test_a_best_one_that_has_rotted_takes_no_place_of_one_that_loads(tmp_path):
    for step, metric in ((1, 0.7), (2, 0.9), (3, 0.1)):
        fill(tmp_path, step, metric=metric)
    rot(tmp_path / "step-2")
    fill(tmp_path, 4, retention=Retention(best=1), metric=0.2)
    assert names(tmp_path) == [LATEST, "step-1", "step-2", "step-4", "store.lock"]


def test_a_store_of_rotten_ones_only_loses_none_of_them(tmp_path):
    folders = fill(tmp_path, *range(1, 40))
    for folder in folders:
        rot(folder)
    fill(tmp_path, 40, retention=Retention(2))
    assert len(checkpoints(tmp_path)) == 40


def test_a_commit_reads_what_counts_once_and_never_what_its_process_wrote_or_read(tmp_path, monkeypatch):
    fill(tmp_path, 1, 2, 3, 4)
    read = as_a_new_process(monkeypatch)
    fill(tmp_path, 5, retention=Retention(2, every=3))
    assert read == ["step-4/rank-0.raw", "step-4/rank-0.json"]
    fill(tmp_path, 6, 7, 8, retention=Retention(2, every=3))
    assert len(read) == 2
    assert names(tmp_path) == [LATEST, "step-3", "step-6", "step-7", "step-8", "store.lock"]
    read = as_a_new_process(monkeypatch)
    assert step_of(newest(tmp_path, NOBODY)) == 8
    del read[:]
    fill(tmp_path, 9, retention=Retention(2))
    assert read == []


def test_a_change_whose_time_is_set_back_is_noticed(tmp_path):
    fill(tmp_path, 1, 2)
    path = tmp_path / "step-2" / "rank-0.raw"
    before = path.stat()
    rot(path.parent)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    fill(tmp_path, 3, retention=Retention(2))
    assert names(tmp_path) == [LATEST, "step-1", "step-2", "step-3", "store.lock"]


# Files of others


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


def with_files_of_a_user(folder):
    """Put files in a checkpoint that no manifest lists; return them by name with their content."""
    (folder / "plots" / "rank-0.raw").mkdir(parents=True)
    content = {"notes.txt": "mine", "rank-7.raw": "mine, too", "plots/rank-0.raw/loss.png": "a picture"}
    for name, text in content.items():
        (folder / name).write_text(text)
    return content


def files_in(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("by", ["prune", "commit"])
def test_files_of_a_user_in_a_checkpoint_stay_when_it_leaves(tmp_path, by, capsys):
    fill(tmp_path, 1, 2)
    content = with_files_of_a_user(tmp_path / "step-1")
    if by == "prune":
        with Store(tmp_path, Retention(1)) as store:
            assert [found.name for found in store.prune()] == ["step-1"]
    else:
        fill(tmp_path, 3, retention=Retention(1))
        said = f"{tmp_path}/step-1.gone keeps files that are no part of the checkpoint that was removed; move them elsewhere"
        assert said in capsys.readouterr().err
    assert files_in(tmp_path / "step-1.gone") == content
    assert "step-1" not in [found.name for found in checkpoints(tmp_path)]
    # The step once more, and others' files in it once more; no later run fails because of the first ones.
    [folder] = fill(tmp_path, 1)
    (folder / "again.txt").write_text("mine")
    fill(tmp_path, 4, 5, retention=Retention(1))
    with Store(tmp_path, Retention(1)) as store:
        assert store.prune() == []
    assert [found.name for found in checkpoints(tmp_path)] == ["step-5"]
    assert files_in(tmp_path / "step-1.gone") == content
    assert files_in(tmp_path / "step-1.gone.1") == {"again.txt": "mine"}


def test_a_removal_that_was_killed_is_ended_by_what_the_manifest_lists(tmp_path):
    fill(tmp_path, 1, 2, 3)
    (tmp_path / "step-1").rename(tmp_path / "step-1.gone")
    (tmp_path / "step-1.gone" / "rank-0.raw").unlink()
    (tmp_path / "step-1.gone" / "rank-7.raw").write_text("mine")
    (tmp_path / "step-2").rename(tmp_path / "step-2.gone")
    fill(tmp_path, 4)
    assert names(tmp_path) == [LATEST, "step-1.gone", "step-3", "step-4", "store.lock"]
    assert files_in(tmp_path / "step-1.gone") == {"rank-7.raw": "mine"}


def test_no_folder_of_an_unfinished_checkpoint_is_removed_with_what_is_in_it(tmp_path):
    (tmp_path / "step-2.tmp" / "rank-0.raw").mkdir(parents=True)
    (tmp_path / "step-2.tmp" / "rank-0.raw" / "thesis.tex").write_text("years")
    (tmp_path / "store.lock").touch()
    with pytest.raises(IotwinError, match=r"step-2\.tmp"):
        fill(tmp_path, 2)
    fill(tmp_path, 3)
    assert files_in(tmp_path / "step-2.tmp") == {"rank-0.raw/thesis.tex": "years"}


def test_what_a_killed_commit_left_goes_with_the_next(tmp_path):
    fill(tmp_path, 1)
    (tmp_path / "step-2.tmp").mkdir()
    (tmp_path / "step-2.tmp" / "rank-0.raw").write_bytes(b"half")
    (tmp_path / "step-0.gone").mkdir()
    (tmp_path / f".{LATEST}.7.partial").write_bytes(b"st")
    fill(tmp_path, 2)
    assert names(tmp_path) == [LATEST, "step-1", "step-2", "store.lock"]
