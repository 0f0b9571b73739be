"""What counts as a copy of files, and how many programs are no ranks, at the bounds."""

from types import SimpleNamespace

import pandas as pd
import pytest

from iotwin.benchmark.fit.refusal import _are_programs, _copies, _made_by_loaders


def copying(written: int, stretches: int = 10) -> bool:
    """Ten reads of 100 bytes, one after the other of one file; `written` bytes after the first `stretches` of them."""
    reads = [(10 * index, "read", 0, 100 * index, 100) for index in range(10)]
    sizes = [written // stretches + (index < written % stretches) for index in range(stretches)]
    writes = [(10 * index + 5, "write", 1, None, size) for index, size in enumerate(sizes)]
    calls = pd.DataFrame(sorted(reads + writes), columns=["start_ns", "op", "file_id", "offset", "result"]).assign(pid=7)
    files = pd.DataFrame({"file_id": [0, 1], "kind": ["dataset", "other"]})
    return _copies(SimpleNamespace(calls=calls, files=files), SimpleNamespace(rank=7, workers=0))


@pytest.mark.parametrize(("written", "expected"), [(799, False), (800, True), (1000, True), (1250, True), (1251, False)])
def test_a_copy_writes_about_what_it_reads(written, expected):
    assert copying(written) is expected


@pytest.mark.parametrize(("stretches", "expected"), [(7, False), (8, True)])
def test_a_copy_writes_all_along_the_way(stretches, expected):
    """Of the nine stretches between ten reads, eight are nine tenths, seven less than eight tenths."""
    assert copying(1000, stretches) is expected


@pytest.mark.parametrize(("programs", "expected"), [(2, False), (3, True)])
def test_two_processes_may_be_ranks_and_three_with_a_pass_each_are_programs(programs, expected):
    processes = pd.DataFrame({"pid": range(programs), "role": "rank"})
    passes = [SimpleNamespace(rank=pid, workers=0) for pid in range(programs)]
    assert _are_programs(SimpleNamespace(processes=processes), passes) is expected


@pytest.mark.parametrize(("by_rank", "by_loaders", "expected"), [(0, 6, 6), (3, 4, 4), (4, 4, 0), (4, 1, 0), (0, 0, 0)])
def test_loaders_that_write_most_of_what_is_kept_prepare_data(by_rank, by_loaders, expected):
    writers = [1] * by_rank + [7 + index % 2 for index in range(by_loaders)]
    saved = [SimpleNamespace(pid=pid) for pid in writers]
    passes = [SimpleNamespace(pids=(7,), saved=saved), SimpleNamespace(pids=(8,), saved=saved)]
    assert _made_by_loaders(passes) == expected
