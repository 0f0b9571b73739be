"""Replaying recordings: the calls, their order and their bytes as recorded, and waits that are kept as waits."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from iotwin.benchmark.emulator.recorded.player import Player
from iotwin.benchmark.emulator.recorded.replay_rank import lateness, replay
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import file_system_of
from iotwin.loops.emulation import EmulationOptions, run_workload
from iotwin.trace_store.schema import FLAG_DIRECT
from iotwin.workload_yaml import load
from iotwin.workload_yaml.recording import RENAMED, Mark, Op, Pipe, RecordedFile
from tests.benchmark.recordings import CREATE, recording, row, write_twin
from tests.benchmark.strace import needs_strace, strace
from tests.conftest import knows_direct, run_iotwin

SECOND = 1_000_000_000
PAGE = 4096


def one_thread() -> list[dict[str, int]]:
    """Read a file, write another with a sync, rename it, remove it."""
    return [
        row(0, Op.OPEN), row(0, Op.READ, offset=0, size=6000), row(0, Op.READ, offset=6000, size=6000), row(0, Op.CLOSE),
        row(0, Op.OPEN, 1, fd=4, flags=CREATE), row(0, Op.WRITE, 1, fd=4, offset=0, size=5_000_000),
        row(0, Op.WRITE, 1, fd=4, offset=5_000_000, size=17), row(0, Op.SYNC, 1, fd=4), row(0, Op.CLOSE, 1, fd=4),
        row(0, Op.RENAME, 1, fd=-1), row(0, Op.OPEN, 1, fd=4, flags=RENAMED), row(0, Op.READ, 1, fd=4, offset=9, size=300_000),
        row(0, Op.CLOSE, 1, fd=4, flags=RENAMED), row(0, Op.END),
    ]  # fmt: skip


FILES = [RecordedFile("x/in.bin", size_bytes=9000), RecordedFile("part/out.tmp", "out.pt", written=True, made=True)]


def test_what_is_written_and_counted_is_what_was_recorded(tmp_path: Path) -> None:
    path = write_twin(tmp_path, recording(one_thread(), FILES))
    summary = run_workload(load(path), EmulationOptions())
    assert summary is not None
    own = summary["iotwin"]
    assert (own["bytes_read"], own["bytes_written"]) == (9000 + 300_000, 5_000_017)
    assert own["recorded"]["calls"] == {"open": 3, "read": 3, "write": 2, "sync": 1, "close": 3, "rename": 1}
    assert own["recorded"]["timing_error"]["calls"] == 13 and own["recorded"]["waits_given_up"] == 0
    assert {file.name for file in (tmp_path / "made").rglob("*") if file.is_file()} == {"out.pt", "iotwin-emulated.txt"}
    assert (tmp_path / "made" / "out.pt").stat().st_size == 5_000_017
    assert json.loads((tmp_path / "results" / "summary.json").read_text())["iotwin"] == own


def test_a_replay_leaves_no_folder_open(tmp_path: Path) -> None:
    replay(load(write_twin(tmp_path, recording(one_thread(), FILES))), None)
    still_open = {link.resolve() for link in Path("/proc/self/fd").iterdir()}
    assert not [place for place in still_open if place == Path("/dev") or place.is_relative_to(tmp_path)]


@pytest.mark.parametrize("name", ["part/out.tmp", "out.pt"])
def test_files_that_no_emulator_wrote_are_spared(tmp_path: Path, name: str) -> None:
    """The folder of written files may be the job's own; what an emulator wrote there may be written again."""
    path = write_twin(tmp_path, recording(one_thread(), FILES))
    there = tmp_path / "made" / name
    there.parent.mkdir(parents=True)
    there.write_bytes(b"precious")
    with pytest.raises(UsageError, match=rf"made/{name}: exists, and no emulator wrote it"):
        run_workload(load(path), EmulationOptions())
    assert there.read_bytes() == b"precious"
    there.unlink()
    assert run_workload(load(path), EmulationOptions()) and run_workload(load(path), EmulationOptions())


@needs_strace
def test_the_kernel_sees_the_calls_in_the_order_of_the_recording(tmp_path: Path) -> None:
    path = write_twin(tmp_path, recording(one_thread(), FILES))
    command = [sys.executable, "-m", "iotwin", "emulate", str(path), "--quiet"]
    processes = strace(command, "preadv,preadv2,pread64,pwritev,pwritev2,fsync,close", tmp_path)
    own = [
        (call.name, name, call.result)
        for call in processes[0]
        for name in ("in.bin", "out.tmp", "out.pt")
        if any(path.endswith(name) for path in call.paths)
    ]
    kinds = {"p": "move", "f": "fsync", "c": "close"}
    assert [(kinds[call[0]], name, result) for call, name, result in own] == [
        ("move", "in.bin", 6000),
        ("move", "in.bin", 3000),
        ("close", "in.bin", 0),
        ("move", "out.tmp", 5_000_000),
        ("move", "out.tmp", 17),
        ("fsync", "out.tmp", 0),
        ("close", "out.tmp", 0),
        ("move", "out.pt", 300_000),
        ("close", "out.pt", 0),
    ]


@needs_strace
def test_writes_and_large_reads_go_past_the_page_cache_as_recorded(tmp_path: Path) -> None:
    """Whether the file was opened so or switched by fcntl(2), for each write; one that fills no block goes through the cache."""
    rows = [
        each
        for file, opened in ((0, CREATE), (1, CREATE | FLAG_DIRECT))
        for each in (
            row(0, Op.OPEN, file, fd=4, flags=opened),
            row(0, Op.WRITE, file, fd=4, offset=0, size=8192, flags=FLAG_DIRECT),
            row(0, Op.WRITE, file, fd=4, offset=8192, size=5 << 20, flags=FLAG_DIRECT),
            row(0, Op.READ, file, fd=4, offset=8192, size=5 << 20, flags=FLAG_DIRECT),
            row(0, Op.WRITE, file, fd=4, offset=8192 + (5 << 20), size=17),
            row(0, Op.CLOSE, file, fd=4),
        )
    ]
    files = [RecordedFile(name, written=True, made=True) for name in ("a.pt", "b.pt")]
    path = write_twin(tmp_path, recording([*rows, row(0, Op.END)], files))
    calls = "trace=openat,fcntl,pwritev,pwritev2,preadv,preadv2"
    told = ["strace", "-f", "-y", "-s", "0", "-e", calls, "-o", str(tmp_path / "calls")]
    command = [sys.executable, "-m", "iotwin", "emulate", str(path), "--quiet"]
    subprocess.run([*told, *command], check=True, capture_output=True)
    there = knows_direct(tmp_path)
    for name in ("a.pt", "b.pt"):
        lines = [line for line in (tmp_path / "calls").read_text().splitlines() if name in line]
        direct, seen = False, []
        for line in lines:
            if "openat(" in line or "F_SETFL" in line:
                direct = "O_DIRECT" in line
            elif "pwritev" in line or "preadv" in line:
                seen.append((int(line.rpartition("= ")[2].split()[0]), direct))
        assert seen == [(8192, there), (5 << 20, there), (5 << 20, there), (17, False)]


def two_processes() -> list[dict[str, int]]:
    """The first process starts a loader, waits for its word through a pipe, then opens the second file."""
    return [
        row(0, Op.START, 1), row(0, Op.POLL, 0), row(0, Op.PIPE_READ, 0, size=5), row(0, Op.OPEN, 1), row(0, Op.CLOSE, 1),
        row(0, Op.JOIN, 1), row(1, Op.OPEN), row(1, Op.READ, offset=0, size=10), row(1, Op.PIPE_WRITE, 0, size=5),
        row(1, Op.CLOSE), row(1, Op.END),
    ]  # fmt: skip


def noted(monkeypatch: pytest.MonkeyPatch, note: int, slow_s: float) -> None:
    """Have every replayed open and read write a letter to the descriptor, reads of file 0 only after `slow_s`."""
    opened, read = Player._open, Player._read

    def slow_read(self, file, fd, offset, size, flags):
        time.sleep(slow_s)
        os.write(note, b"r")
        return read(self, file, fd, offset, size, flags)

    def noting_open(self, file, fd, offset, size, flags):
        os.write(note, b"ab"[file : file + 1])
        return opened(self, file, fd, offset, size, flags)

    monkeypatch.setattr("iotwin.benchmark.emulator.recorded.replay_rank.own_costs_ns", lambda now_ns: [0] * len(Op))  # it reads
    monkeypatch.setattr(Player, "_read", slow_read)
    monkeypatch.setattr(Player, "_open", noting_open)


@pytest.mark.parametrize("messages", [False, True])
def test_a_slow_read_delays_what_waited_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: bool) -> None:
    files = [RecordedFile("slow", size_bytes=10), RecordedFile("after", size_bytes=10)]
    path = write_twin(tmp_path, recording(two_processes(), files, [-1, 0], [0, 1], [Pipe(messages)]))
    reader, writer = os.pipe()
    noted(monkeypatch, writer, 0.2)
    replayed = replay(load(path), None)
    os.close(writer)
    assert os.read(reader, 100) == b"arb" and replayed.freed_waits == 0
    os.close(reader)


def test_threads_hand_over_within_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits for a post comes after what was posted for, however slow that was."""
    rows = [
        row(0, Op.THREAD, 1),
        row(0, Op.OPEN),
        row(0, Op.READ, offset=0, size=1),
        row(0, Op.POST),
        row(0, Op.END),
        row(1, Op.WAIT),
        row(1, Op.OPEN, 1),
    ]
    files = [RecordedFile("slow", size_bytes=10), RecordedFile("after", size_bytes=10)]
    path = write_twin(tmp_path, recording(rows, files, threads=[0, 0], channels=1))
    reader, writer = os.pipe()
    noted(monkeypatch, writer, 0.2)
    replay(load(path), None)
    os.close(writer)
    assert os.read(reader, 100) == b"arb"
    os.close(reader)


def test_threads_that_wait_for_one_another_are_let_go_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iotwin.benchmark.emulator.recorded.process._STUCK_TICKS", 1)
    path = write_twin(tmp_path, recording([row(0, Op.PIPE_READ, 0, size=1), row(0, Op.END)], [], pipes=[Pipe()]))
    assert replay(load(path), None).freed_waits == 1


def test_loop_scale_and_ranks(tmp_path: Path) -> None:
    rows = [
        row(0, Op.OPEN),
        row(0, Op.READ, offset=0, size=9, at_ns=SECOND),
        row(0, Op.READ, offset=0, size=9, at_ns=3 * SECOND, think_ns=3600 * SECOND),
    ]
    made = recording(rows, [RecordedFile("a", size_bytes=9)])
    path = write_twin(tmp_path, made, think_scale=0)
    assert run_workload(load(path), EmulationOptions(ranks=2))["iotwin"]["bytes_read"] == 36
    assert run_workload(load(path, ["++workload.train.epochs=3"]), EmulationOptions())["iotwin"]["bytes_read"] == 54


def test_a_time_limit_ends_a_replay_early(tmp_path: Path) -> None:
    week_ns = 7 * 24 * 3600 * SECOND  # more than this process has run for, as the replay's start-up begins with the process
    rows = [row(0, Op.START, 1), row(0, Op.PIPE_READ, 0, size=1), row(1, Op.PIPE_WRITE, 0, size=1, think_ns=week_ns)]
    path = write_twin(tmp_path, recording(rows, [], [-1, 0], [0, 1], [Pipe()]))
    assert replay(load(path), None, limit_s=0.2).stopped_early


def test_pages_of_mapped_files_are_touched(tmp_path: Path) -> None:
    rows = [row(0, Op.OPEN), row(0, Op.MAP, offset=0, size=1 << 40 >> 10), row(0, Op.TOUCH, offset=2 * PAGE),
            row(0, Op.TOUCH, offset=500 * PAGE), row(0, Op.UNMAP), row(0, Op.TOUCH, offset=0), row(0, Op.CLOSE)]  # fmt: skip
    path = write_twin(tmp_path, recording(rows, [RecordedFile("m", size_bytes=3 * PAGE)]))
    assert replay(load(path), None).counts["touch"] == 3  # one of them behind the end, which must not be a SIGBUS


@needs_strace
def test_what_a_process_inherits_it_neither_opens_nor_maps_again(tmp_path: Path) -> None:
    """A thread maps a file; another and a forked process touch its pages, the process once more after taking the map away."""
    rows = [
        row(0, Op.OPEN), row(0, Op.MAP, offset=0, size=3 * PAGE), row(0, Op.CLOSE), row(0, Op.POST), row(0, Op.THREAD, 1),
        row(0, Op.WAIT, 1), row(0, Op.START, 1), row(0, Op.JOIN, 1), row(0, Op.TOUCH, offset=PAGE),
        row(1, Op.WAIT), row(1, Op.TOUCH, offset=2 * PAGE), row(1, Op.POST, 1),
        row(2, Op.TOUCH, offset=0), row(2, Op.UNMAP), row(2, Op.TOUCH, offset=0),
    ]  # fmt: skip
    made = recording(rows, [RecordedFile("m", size_bytes=3 * PAGE)], [-1, 0], [0, 0, 1], channels=2)
    command = [sys.executable, "-m", "iotwin", "emulate", str(write_twin(tmp_path, made)), "--quiet"]
    calls = [
        [call.name for call in process if any(path.endswith("/m") for path in call.paths)]
        for process in strace(command, "mmap,close", tmp_path)
    ]
    assert [each for each in calls if each] == [["mmap", "close"], ["mmap"]]  # the child's own, once it took the other away


def test_phases_are_logged_where_they_were(tmp_path: Path) -> None:
    rows = [row(0, Op.MARK, 0), row(0, Op.OPEN), row(0, Op.CLOSE), row(0, Op.MARK, 1)]
    marks = [Mark("epoch", True, epoch=2), Mark("epoch", False, epoch=2)]
    path = write_twin(tmp_path, recording(rows, [RecordedFile("a", size_bytes=1)], marks=marks))
    done = run_iotwin("emulate", path)
    lines = [json.loads(line.removeprefix(":::MLLOG ")) for line in done.stdout.splitlines() if line.startswith(":::MLLOG")]
    assert [(line["event_type"], line["metadata"]) for line in lines] == [
        ("INTERVAL_START", {"epoch_num": 2}),
        ("INTERVAL_END", {"epoch_num": 2}),
    ]


def test_a_missing_file_and_a_failing_child_end_in_one_line(tmp_path: Path) -> None:
    path = write_twin(tmp_path, recording([row(0, Op.OPEN)], [RecordedFile("a", size_bytes=1)]))
    (tmp_path / "data" / "a").unlink()
    with pytest.raises(IotwinError, match=r"data/a: is not there"):
        replay(load(path), None)
    (tmp_path / "child").mkdir()
    rows = [row(0, Op.START, 1), row(0, Op.JOIN, 1), row(1, Op.UNLINK)]
    path = write_twin(tmp_path / "child", recording(rows, [RecordedFile("gone", written=True, made=True)], [-1, 0], [0, 1]))
    with pytest.raises(IotwinError, match="gone No such file"):
        replay(load(path), None)


def test_the_quantiles_of_lateness_are_upper_edges_of_octaves() -> None:
    late = np.zeros(64, np.int64)
    late[[0, 10, 20]] = 50, 49, 1
    found = lateness(late)
    assert (found["calls"], found["median_s"], found["p99_s"]) == (100, 1e-9, 1024e-9)


@pytest.mark.parametrize("op", [Op.PIPE_WRITE, Op.PIPE_READ])
def test_a_large_message_that_nobody_reads_or_writes_is_given_up_as_a_whole(tmp_path, monkeypatch, op) -> None:
    monkeypatch.setattr("iotwin.benchmark.emulator.recorded.process._STUCK_TICKS", 1)
    rows = [row(0, op, 0, size=(1 << 31) - 1), row(0, Op.END)]
    replayed = replay(load(write_twin(tmp_path, recording(rows, [], pipes=[Pipe()]))), None)
    assert replayed.freed_waits >= 1 and not replayed.stopped_early


def test_a_found_file_takes_no_room_however_large_it_was(tmp_path) -> None:
    found = RecordedFile("found", size_bytes=1 << 40, written=True)
    replay(load(write_twin(tmp_path, recording([row(0, Op.END)], [found]))), None)
    made = (tmp_path / "made" / "found").stat()
    assert made.st_size == 1 << 40 and made.st_blocks * 512 < 1 << 20


def test_a_found_file_larger_than_any_is_refused_in_one_line(tmp_path) -> None:
    found = RecordedFile("found", size_bytes=1 << 53, written=True)
    path = write_twin(tmp_path, recording([row(0, Op.END)], [found]))
    if file_system_of(tmp_path) != "ext4":
        pytest.skip("other file systems have files of 8 PiB")
    with pytest.raises(IotwinError, match="found cannot be made"):
        replay(load(path), None)
