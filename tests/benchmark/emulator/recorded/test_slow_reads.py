"""Added latency: each read that the page cache does not serve is delayed once, and reads the same bytes."""

import os
from pathlib import Path

import pytest

from iotwin.benchmark.emulator.recorded.replay_rank import replay
from iotwin.benchmark.emulator.recorded.slow_reads import read_slowly
from iotwin.loops.page_cache_state import evict, fetch
from iotwin.workload_yaml import load
from iotwin.workload_yaml.recording import Op, RecordedFile
from tests.benchmark.recordings import recording, row, write_twin

SIZE = 300_000  # more than the scratch memory holds


def _read(path: Path, size: int, offset: int) -> tuple[int, int]:
    """Return the bytes that were read, and how often the read was delayed."""
    delays = []
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return read_slowly(descriptor, size, offset, memoryview(bytearray(1 << 17)), lambda: delays.append(1)), len(delays)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("offset", [0, 1000, -1])
def test_only_reads_that_the_page_cache_lacks_are_delayed(tmp_path, offset):
    path = tmp_path / "data"
    path.write_bytes(bytes(SIZE))
    fetch(path)
    expected = SIZE - max(offset, 0)
    assert _read(path, 1 << 20, offset) == (expected, 0)
    evict(path)
    assert _read(path, 1 << 20, offset) == (expected, 1)
    assert _read(path, 1 << 20, SIZE) == (0, 0)  # at the end of the file, nothing is missing


def test_a_twin_delays_the_first_read_of_evicted_data_and_no_later_one(tmp_path, monkeypatch):
    rows = [row(0, Op.OPEN), *(row(0, Op.READ, offset=0, size=4096) for _ in range(3)), row(0, Op.CLOSE)]
    path = write_twin(tmp_path, recording(rows, [RecordedFile("a", size_bytes=4096)]), read_latency=0.001)
    delayed = []
    monkeypatch.setattr("iotwin.benchmark.emulator.recorded.player.Player.sleep", lambda self, seconds: delayed.append(seconds))
    replay(load(path), None)
    (data,) = [each for each in tmp_path.rglob("a") if each.is_file()]
    evict(data)
    delayed.clear()
    replay(load(path), None)
    assert delayed.count(0.001) == 1
