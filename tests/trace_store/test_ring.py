"""A ring keeps the newest records whole, counts all others, and stays within its size; a kill at any moment changes nothing."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from iotwin.trace_store.manifest import Manifest
from iotwin.trace_store.raw import ring
from iotwin.trace_store.raw.finish import finish_trace, recover_trace
from iotwin.trace_store.raw.records import (
    BLOCK,
    EVENT,
    GPU_CALL,
    NAME_EXIT,
    NAME_FORK,
    NAME_INHERITED,
    NAME_OPENED,
    NameRecord,
    pack_call,
    pack_name,
)
from iotwin.trace_store.raw.ring import RingRecording
from iotwin.trace_store.reader import Trace
from tests.trace_store.test_store import manifest

BURST, START_NS, STEP_NS = 40, 10**9, 1000
SEGMENT_BYTES = 100 * EVENT.itemsize
SIZE_BYTES = 16 * SEGMENT_BYTES
HELD, PASSING, JOB, LOADER = 11, 1000, 70, 71  # inodes of a file that stays open and of the first of many; pids


class Program:
    """A process that reads a file that it opened first, and opens, reads and closes another file for each burst of calls.

    It forks a loader for every 50th burst, which reads and ends. Time is virtual: the recorder drains after each burst.
    """

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, manifest_: Manifest) -> None:
        self.now_ns, self.path, self.bursts, self.largest_bytes = START_NS, path, 0, 0
        monkeypatch.setattr(ring, "time", SimpleNamespace(monotonic_ns=lambda: self.now_ns))
        self.recording = RingRecording(path, manifest_, False, SIZE_BYTES)
        self.made = manifest_
        self.made.start_ns = START_NS
        self.recording.append_journal("container", {"cgroup": 5, "name": "box"})
        self.recording.append_names(self.running())

    def running(self) -> bytes:
        """The job's process and its open file, as /proc shows them."""
        life = NameRecord(0, NAME_FORK, JOB, JOB, parent=1, inode=5, text=b"job")
        held = NameRecord(0, NAME_INHERITED, JOB, JOB, inode=HELD, device=8, mode=8 << 12, text=b"/data/held")
        return pack_name(life) + pack_name(held)

    def burst(self) -> None:
        events = np.zeros(BURST, EVENT)
        events["header"] = EVENT.itemsize - 8
        events["start_ns"] = self.now_ns + STEP_NS * np.arange(BURST)
        events["duration_ns"] = STEP_NS // 2
        events["offset"] = self.bursts * BURST + np.arange(BURST)
        events["inode"], events["device"] = HELD, 8
        passing = PASSING + self.bursts
        events["inode"][1::2] = passing
        events["pid"] = events["tid"] = JOB
        events["call_flags_cpu"] = pack_call(0, 8)
        names = pack_name(NameRecord(self.now_ns, NAME_OPENED, JOB, JOB, inode=passing, device=8, text=b"/data/%d" % passing))
        if self.bursts % 50 == 0:
            names += pack_name(NameRecord(self.now_ns, NAME_FORK, LOADER, LOADER, parent=JOB, inode=5, text=b"loader"))
            events["pid"][-1] = events["tid"][-1] = LOADER
        self.now_ns += STEP_NS * BURST
        if self.bursts % 50 == 0:
            names += pack_name(NameRecord(self.now_ns, NAME_EXIT, LOADER, LOADER, parent=JOB, text=b"loader"))
        self.bursts += 1
        self.recording.make_room(self.running)
        self.recording.append_names(names)
        self.recording.append_blocks(self._blocks())
        self.recording.append_events(events)
        self.recording.append_journal("ledger", {"seen": self.bursts * BURST, "lost": {}})
        self.recording.append_journal(
            "memory", {"time_ns": self.now_ns, "available_bytes": 1, "page_cache_bytes": 1, "dirty_bytes": 1}
        )
        size = sum(file.stat().st_size for file in self.path.glob("raw/segment-*/*"))
        self.largest_bytes = max(self.largest_bytes, size)

    def _blocks(self) -> np.ndarray:
        found = np.zeros(1, BLOCK)
        found["issue_ns"] = self.now_ns
        return found


@pytest.fixture
def program(tmp_path, monkeypatch):
    return Program(tmp_path / "t", monkeypatch, manifest())


def check(program: Program, made: Manifest) -> None:
    """Compare the finished trace with what the program did."""
    trace, made_events = Trace(program.path), program.bursts * BURST
    events, state = trace.events_frame(), made.ring
    assert state is not None and state.size_bytes == SIZE_BYTES
    assert made.events == len(events) and made.events + state.overwritten_events == made_events == made.seen
    assert made.lost_events == 0
    assert events["offset"].tolist() == list(range(made_events - len(events), made_events))  # the newest, each once, none between
    assert made.start_ns == state.kept_from_ns and (events["start_ns"] >= state.kept_from_ns).all()
    paths = trace.files()["path"].to_numpy()[events["file_id"].to_numpy(np.int64)]
    expected = [b"/data/held" if offset % 2 == 0 else b"/data/%d" % (PASSING + offset // BURST) for offset in events["offset"]]
    assert [path.encode() for path in paths] == expected
    processes = trace.processes()
    assert (processes["pid"] == JOB).sum() == 1 and set(processes["container"]) == {"box"}
    forks = [number for number in range(0, program.bursts, 50) if number * BURST >= made_events - len(events)]
    assert (processes["pid"] == LOADER).sum() == len(forks)
    assert (trace.samples("memory")["time_ns"] >= state.kept_from_ns).all()
    assert (trace.block()["issue_ns"] >= state.kept_from_ns).all()


@pytest.mark.parametrize("bursts", [0, 1, 12, 150])
def test_the_newest_is_kept_and_everything_counted(program, bursts):
    with program.recording:
        for _ in range(bursts):
            program.burst()
    made = finish_trace(program.path, program.made)
    check(program, made) if bursts else None
    state = made.ring
    if bursts == 150:
        assert 0 < state.overwritten_bytes >= state.overwritten_events * EVENT.itemsize
        assert made.events * EVENT.itemsize > SIZE_BYTES / 3  # names, journal and requests take the rest of this small ring
        assert sum("overwrote" in text for text in made.notes) == 1
    else:
        assert (state.overwritten_events, state.overwritten_bytes, state.kept_from_ns) == (0, 0, made.start_ns)
    assert program.largest_bytes <= SIZE_BYTES + SEGMENT_BYTES
    assert not (program.path / "raw").exists()


def test_a_killed_recorders_ring_is_recovered(program, tmp_path):
    """At each moment of a removal: with all, some or none of the overwritten segments' files still there."""
    for _ in range(100):
        program.burst()
    copies: list[Path] = []
    while not copies:
        folders = {folder.name: folder for folder in program.path.glob("raw/segment-*")}
        before = {name: shutil.copytree(folder, tmp_path / f"{program.bursts}" / name) for name, folder in folders.items()}
        program.burst()
        after = {folder.name for folder in program.path.glob("raw/segment-*")}
        if gone := before.keys() - after:
            copies = [before[name] for name in gone] + [before[min(after)]]
    program.recording.close()  # the lock goes with the process
    whole = program.path
    for number, kept in enumerate((copies, copies[:1], copies[1:], [])):
        path = shutil.copytree(whole, tmp_path / f"kill-{number}")
        for folder in kept:
            shutil.copytree(folder, path / "raw" / folder.name, dirs_exist_ok=True)
        with (sorted(path.glob("raw/segment-*"))[-1] / "events.bin").open("ab") as file:
            file.write(bytes(50))  # a torn record
        program.path = path
        made = recover_trace(path)
        assert made.status == "recovered"
        check(program, made)


def test_a_manifest_that_a_crash_destroyed_is_in_every_segment(program):
    for _ in range(100):
        program.burst()
    program.recording.close()
    (program.path / "manifest.json").write_bytes(b"")
    made = recover_trace(program.path)
    assert made.backend == "test" and made.ring.overwritten_events
    check(program, made)


def test_a_ring_keeps_the_newest_gpu_calls(program):
    for number in range(150):
        calls = np.zeros(1, GPU_CALL)
        calls["start_ns"], calls["pid"], calls["tid"] = program.now_ns, JOB, 1 + number
        program.recording.append_gpu_calls(calls)
        program.burst()
    program.recording.close()
    made = finish_trace(program.path, program.made)
    table = Trace(program.path).gpu()
    assert table["tid"].tolist() == list(range(151 - len(table), 151)) and 10 < len(table) < 150
    assert (table["start_ns"] >= made.ring.kept_from_ns).all()
