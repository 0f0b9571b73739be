"""A lock file has one holder, whichever process or thread asks, and leads nowhere else."""

import contextlib
import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from iotwin.common import locks
from iotwin.common.commit import LOCK, Store
from iotwin.common.errors import IotwinError
from iotwin.common.locks import hold_lock, release_lock
from tests.common.stores import fill
from tests.conftest import ROOT

HOLDING = "import sys; from pathlib import Path; from iotwin.common.locks import hold_lock; hold_lock(Path(sys.argv[1]))"


def refused(path):
    with pytest.raises(IotwinError, match=f"^{path.parent} is being written by another job; wait for it or choose another"):
        hold_lock(path)


def another_process_is_refused(path):
    done = subprocess.run([sys.executable, "-c", HOLDING, path], cwd=ROOT, capture_output=True, text=True)
    return "is being written by another job" in done.stderr


def test_a_second_holder_is_refused_in_this_process_and_in_others_until_the_first_lets_go(tmp_path):
    path = tmp_path / "a.lock"
    descriptor = hold_lock(path)
    for _ in range(2):  # nor does a refusal end the lock
        refused(path)
        assert another_process_is_refused(path)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(IotwinError, match="being written"):
        hold_lock(tmp_path / "link" / "a.lock")
    release_lock(descriptor)
    release_lock(hold_lock(path))
    assert not another_process_is_refused(path)


def test_one_of_many_threads_holds_it(tmp_path):
    held, start = [], threading.Barrier(16)

    def one():
        start.wait()
        with contextlib.suppress(IotwinError):
            held.append(hold_lock(tmp_path / "a.lock"))

    threads = [threading.Thread(target=one) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) == 1 and another_process_is_refused(tmp_path / "a.lock")
    release_lock(held[0])


def test_a_forked_process_neither_holds_it_nor_ends_it(tmp_path):
    descriptor = hold_lock(tmp_path / "a.lock")
    wait, proceed = os.pipe()
    if not (pid := os.fork()):
        try:
            refused(tmp_path / "a.lock")  # by the kernel
            os.read(wait, 1)
            release_lock(hold_lock(tmp_path / "a.lock"))
            os._exit(0)
        finally:
            os._exit(1)
    if not (closing := os.fork()):
        try:
            release_lock(descriptor)
        finally:
            os._exit(0)
    os.waitpid(closing, 0)
    assert another_process_is_refused(tmp_path / "a.lock")
    release_lock(descriptor)
    os.write(proceed, b"x")
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("make", [lambda path: path.symlink_to(path.with_name("victim")), os.mkfifo, os.mkdir])
def test_a_link_and_what_is_no_file_is_refused_and_leads_nowhere(tmp_path, make):
    make(tmp_path / "a.lock")
    with pytest.raises(IotwinError, match=r"'a\.lock' is a link or no file; remove it"):
        hold_lock(tmp_path / "a.lock")
    assert [path.name for path in tmp_path.iterdir()] == ["a.lock"]


def test_a_file_system_without_locks_and_a_missing_folder_are_one_line(tmp_path, monkeypatch):
    def unable(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    with pytest.raises(IotwinError, match=r"none/a\.lock cannot be made or opened: No such file or directory"):
        hold_lock(tmp_path / "none" / "a.lock")
    before = sorted(Path("/proc/self/fd").iterdir())
    monkeypatch.setattr(locks.fcntl, "lockf", unable)
    with pytest.raises(IotwinError, match=r"a\.lock cannot be locked: No locks available"):
        hold_lock(tmp_path / "a.lock")
    assert sorted(Path("/proc/self/fd").iterdir()) == before


# The store's


def test_a_store_has_one_writer_in_a_process_too(tmp_path):
    with Store(tmp_path):
        with pytest.raises(IotwinError, match="is being written by another job"), Store(tmp_path):
            pass
        assert another_process_is_refused(tmp_path / LOCK)
    with Store(tmp_path):
        pass


@pytest.mark.parametrize("filled", [False, True])
def test_a_store_whose_lock_is_a_link_makes_no_file_elsewhere(tmp_path, filled):
    store = tmp_path / "store"
    if filled:
        fill(store, 1)
        (store / LOCK).unlink()
    else:
        store.mkdir()
    (store / LOCK).symlink_to(tmp_path / "victim")
    with pytest.raises(IotwinError), Store(store):
        pass
    assert not (tmp_path / "victim").exists()
