"""A disk that fails at any call: the checkpoint before stays, a durable one is no failure, a bad sector costs one checkpoint."""

import contextlib
import errno
import os
import re
import shutil

import pytest

from iotwin.common import tensor_file
from iotwin.common.checkpoints import (
    LATEST,
    MANIFEST,
    checkpoints,
    named_latest,
    newest,
    verify,
)
from iotwin.common.errors import IotwinError
from iotwin.common.retention import Retention
from tests.common.stores import fill, names, step_of

NOBODY = pytest.fail  # where nothing may be refused
WRITING = ("write", "writev", "fsync", "open", "mkdir", "rename", "replace", "unlink", "rmdir", "scandir", "lstat", "fstat")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_whichever_call_fails_the_one_before_stays_and_a_durable_one_is_no_failure(tmp_path, monkeypatch, number):
    """Every call in turn, until a commit makes fewer; the same afterwards with a disk that works again."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # which takes most of the time, and is asked to fail all the same
    fill(tmp_path / "before", 1)
    failed, left = 0, [-1]
    while left[0] < 0:
        store = shutil.copytree(tmp_path / "before", tmp_path / str(failed))
        left = [failed]
        with monkeypatch.context() as patch:
            for name in WRITING:
                patch.setattr(os, name, _failing(getattr(os, name), left, number))
            try:
                fill(store, 2, retention=Retention(1))
                returned = True
            except IotwinError as error:
                assert os.strerror(number).lower() in str(error).lower() and "\n" not in str(error)
                returned = False
        found = newest(store, NOBODY)
        assert step_of(found) == 2 or not returned
        assert not [name for name in names(store) if name.endswith(".tmp")] or not returned
        fill(store, 3, retention=Retention(1))
        assert names(store) == [LATEST, "step-3", "store.lock"]
        failed += 1
    assert failed > 30


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize(
    ("broken", "of", "is_noted"),
    [("replace", LATEST, True), ("replace", ".gone", True), ("unlink", "rank-0.raw", True), ("unlink", MANIFEST, True),
     ("rmdir", ".gone", False)],
)  # fmt: skip
def test_a_durable_checkpoint_is_never_told_as_failed(tmp_path, monkeypatch, capsys, broken, of, is_noted, number):
    """LATEST that cannot be replaced, old ones that cannot be removed: a line each, and the job goes on."""
    call = getattr(os, broken)

    def fails(*arguments, **options):
        if of in str(arguments):
            raise OSError(number, os.strerror(number))
        return call(*arguments, **options)

    fill(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, broken, fails)
        fill(tmp_path, 2, 3, retention=Retention(1))
    lines = capsys.readouterr().err.splitlines()
    assert bool(lines) == is_noted
    assert all(os.strerror(number) in line and "no checkpoint is lost by that" in line for line in lines)
    assert step_of(newest(tmp_path, NOBODY)) == 3
    fill(tmp_path, 4, retention=Retention(1))
    assert names(tmp_path) == [LATEST, "step-4", "store.lock"] and named_latest(tmp_path) == "step-4"


def _failing(call, left, number):
    def instead(*arguments, **options):
        left[0] -= 1
        if left[0] == -1:
            raise OSError(number, os.strerror(number), *(argument for argument in arguments[:1] if isinstance(argument, str)))
        return call(*arguments, **options)

    return instead


class _Unreadable:
    """An opened file of which one read fails."""

    def __init__(self, file, left):
        self._file = file
        self.read, self.readinto = (_failing(call, left, errno.EIO) for call in (file.read, getattr(file, "readinto", None)))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()


@contextlib.contextmanager
def one_read_fails(monkeypatch, left):
    """Have the open, stat or read of a checkpoint's file fail before which `left` others succeed."""
    opened = open
    with monkeypatch.context() as patch:
        patch.setattr(tensor_file, "open", lambda *a, **o: _Unreadable(opened(*a, **o), left), raising=False)
        for name in ("open", "fstat", "lstat"):
            patch.setattr(os, name, _failing(getattr(os, name), left, errno.EIO))
        yield


def test_a_bad_sector_anywhere_in_the_newest_leaves_the_one_before(tmp_path, monkeypatch):
    fill(tmp_path, 1, 2)
    failed, left, lines = 0, [-1], []
    while left[0] < 0:
        left, told = [failed], []
        with one_read_fails(monkeypatch, left):
            found = newest(tmp_path, told.append)
        assert step_of(found) == (1 if any("step-2" in line for line in told) else 2)
        failed, lines = failed + 1, [*lines, *told]
    damaged = r"step-[12] is not used: (rank-0\.raw:|rank-0\.json:|manifest\.json) input/output error$"
    assert len(lines) > 15 and all(re.search(damaged, line) for line in lines)


def test_verify_tells_each_bad_sector_with_its_file(tmp_path, monkeypatch):
    fill(tmp_path, 1, 2)
    failed, left, reasons = 0, [-1], []
    while left[0] < 0:
        left = [failed]
        with one_read_fails(monkeypatch, left):
            found = [verify(each) for each in checkpoints(tmp_path)]
        failed, reasons = failed + 1, [*reasons, *(each.reason for each in found if each.reason is not None)]
        assert sum(each.reason is not None for each in found) <= 1
    assert len(reasons) > 25
    assert set(reasons) == {f"{name} input/output error" for name in ("rank-0.raw:", "rank-0.json:", "manifest.json")}
