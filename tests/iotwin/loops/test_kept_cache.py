"""Pages of files that others read: mapped, they stay in the page cache even when it is told to drop them."""

import mmap
import multiprocessing
from pathlib import Path

import pytest

from iotwin.loops import kept_cache as module
from iotwin.loops.kept_cache import Pages, kept_cached
from iotwin.loops.page_cache_state import evict
from tests.processes import wait_for

_PAGES = 64


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two files that are out of the page cache, of which the first ends within a page, and an empty one."""
    paths = [tmp_path / name for name in ("a", "b", "empty")]
    for path, size in zip(paths, (_PAGES * mmap.PAGESIZE - 100, _PAGES * mmap.PAGESIZE, 0), strict=True):
        path.write_bytes(bytes(size))
        evict(path)
    if _cached(paths).any():
        pytest.skip(f"the file system of {tmp_path} keeps its files in memory")
    return paths


def _sized(paths: list[Path]) -> list[tuple[Path, int]]:
    return [(path, path.stat().st_size) for path in paths]


def _cached(paths: list[Path]):
    return Pages(_sized(paths)).cached()


def _read_again_and_drop(path: Path) -> None:
    path.read_bytes()
    evict(path)


def test_what_others_have_read_is_held_and_nothing_else(files):
    pages = Pages(_sized(files))
    pages.hold()
    assert not _cached(files).any()  # to look at pages does not read them
    # Another process may have the kernel take back what was read, before it is held.
    wait_for(
        lambda: files[1].read_bytes() and pages.hold() is None and pages.cached().any(), "a page that stays until it is held"
    )
    held = pages.cached()
    evict(files[1])
    assert (pages.cached() >= held).all() and not held[:_PAGES].any() and held.size == 2 * _PAGES


def test_what_is_read_stays_within_the_block_alone(files):
    with kept_cached(files):
        wait_for(lambda: _read_again_and_drop(files[0]) or _cached(files).any(), "the keeper of the pages")
    assert not multiprocessing.active_children()
    wait_for(lambda: evict(files[0]) or not _cached(files).any(), "the file's leaving of the page cache")


@pytest.mark.parametrize("short", [{"free_bytes": lambda: 2 * _PAGES * mmap.PAGESIZE}, {"_MOST_FILES": 2}])
def test_of_too_many_or_too_large_files_nothing_is_kept(files, monkeypatch, short):
    for name, value in short.items():
        monkeypatch.setattr(module, name, value)
    with kept_cached(files):
        assert not multiprocessing.active_children()


def test_a_run_that_fails_leaves_no_keeper(files):
    with pytest.raises(ZeroDivisionError), kept_cached(files):
        assert multiprocessing.active_children() and 1 / 0
    assert not multiprocessing.active_children()


def test_no_files_need_no_keeper(files):
    with kept_cached([]), kept_cached(files[2:]):
        assert not multiprocessing.active_children()
