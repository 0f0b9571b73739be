"""What a probe counts: the seconds until what was written is synced."""

import itertools
import os

import pytest

from iotwin.common.errors import IotwinError
from iotwin.common.files import file_system_of
from iotwin.workloads.checkfreq import write_probe


def test_speed_is_bytes_over_seconds_until_the_sync(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ticks = itertools.count()
    synced, written = [], []
    fsync, write = os.fsync, os.write
    monkeypatch.setattr(write_probe.os, "fsync", lambda file: (synced.append(sum(written)), fsync(file)))
    monkeypatch.setattr(write_probe.os, "write", lambda file, content: written.append(len(content)) or write(file, content))
    found = write_probe.probe(tmp_path, 3 << 19, clock=lambda: next(ticks) ** 2)
    assert found.write_bytes_per_s == 3 << 19 and found.size_bytes == 3 << 19  # from 0 to 1
    assert found.fsync_s == 7**2 - 6**2  # the third of five
    assert synced == [(3 << 19) + number * 4096 for number in range(6)]


def test_a_full_disk_is_said_and_damaged_memory_is_measured_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_probe.probe(tmp_path, 4096)
    [kept] = (tmp_path / "cache" / "iotwin" / "write-probe").iterdir()
    kept.write_text("[]")
    assert not write_probe.probe(tmp_path, 4096).cached and write_probe.probe(tmp_path, 4096).cached

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write_probe.os, "write", full)
    with pytest.raises(IotwinError, match="No space left on device; free space"):
        write_probe.probe(tmp_path, 4096, fresh=True)


def test_the_file_system_is_of_where_a_link_leads(tmp_path):
    (tmp_path / "link").symlink_to("/proc/self")
    assert file_system_of(tmp_path / "link") == "proc" != file_system_of(tmp_path)
