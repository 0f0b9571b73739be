"""What is sorted piece by piece is cut into pieces of the wanted size, as evenly as its sample tells."""

import numpy as np
import pytest

from iotwin.trace_store.importers import sorted_calls
from iotwin.trace_store.raw import sorted_records
from iotwin.trace_store.raw.records import BLOCK


@pytest.mark.parametrize(("rows", "chunks"), [(1000, 1), (1001, 2), (2000, 2), (10_000, 10), (10_001, 11)])
def test_runs_are_cut_into_chunks(monkeypatch, rows, chunks):
    monkeypatch.setattr(sorted_calls, "_CHUNK_ROWS", 1000)
    monkeypatch.setattr(sorted_calls, "_SAMPLED_EACH", 1)
    times = np.random.default_rng(1).permutation(rows).astype(np.int64)
    found = sorted_calls._bounds([np.sort(times[:300]), np.sort(times[300:])], rows)
    assert len(found) == chunks - 1
    sizes = np.diff(np.concatenate([[0], found, [rows]]))
    assert sizes.max() <= 1000 and sizes.max() - sizes.min() <= 1


def test_runs_of_one_time_are_not_cut(monkeypatch):
    monkeypatch.setattr(sorted_calls, "_CHUNK_ROWS", 10)
    assert len(sorted_calls._bounds([np.full(1000, 7)], 1000)) == 1


@pytest.mark.parametrize(("rows", "chunk_rows", "ranges"), [(640, 640, 1), (641, 640, 2), (6400, 640, 10), (6401, 640, 11)])
def test_records_are_cut_into_ranges(tmp_path, monkeypatch, rows, chunk_rows, ranges):
    """From every 64th record of each block, so that ranges differ by no more than a sampled step for each block."""
    monkeypatch.setattr(sorted_records, "_BLOCK_ROWS", 1000)
    records = np.zeros(rows, BLOCK)
    records["issue_ns"] = 1 + np.arange(rows)
    records.tofile(tmp_path / "blocks")
    found = sorted_records._bounds(sorted_records._blocks([tmp_path / "blocks"], BLOCK), BLOCK, "issue_ns", chunk_rows)
    assert len(found) == ranges - 1
    sizes = np.diff(np.concatenate([[1], found, [rows + 1]]))
    assert (np.abs(sizes - rows / ranges) <= 64 * 2).all()
