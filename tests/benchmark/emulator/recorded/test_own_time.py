"""The own time of threads on the virtual clock: hand-overs carry it, and the player's part of a row does not count."""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from iotwin.benchmark.emulator.recorded import player
from iotwin.benchmark.emulator.recorded.player import Player, own_costs_ns
from iotwin.benchmark.emulator.recorded.thread_slots import PipeTimes
from iotwin.benchmark.emulator.recorded.virtual_player import VirtualPlayer
from iotwin.loops.emulation import EmulationOptions, run_workload
from iotwin.workload_yaml import load
from iotwin.workload_yaml.recording import Op, Pipe, RecordedFile
from tests.benchmark.recordings import recording, row, write_twin

_MS = 1_000_000


@pytest.mark.parametrize("by_poll", [False, True])
def test_a_slow_player_does_not_delay_what_is_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_poll: bool) -> None:
    """The loader computes for 1 ms in all. The player needs 2 ms for each of its rows, and all of the time of its calls."""
    waits = [row(0, Op.POLL)] if by_poll else [row(0, Op.PIPE_READ, size=100_000)]
    rows = [row(0, Op.START, 1), *waits, row(0, Op.END, think_ns=7), row(0, Op.PIPE_READ, size=100_000 if by_poll else 1)]
    rows += [row(1, Op.POST, think_ns=20_000) for _ in range(50)]
    rows += [row(1, Op.OPEN), row(1, Op.READ, offset=0, size=9), row(1, Op.CLOSE)]
    rows += [row(1, Op.PIPE_WRITE, size=100_001), row(1, Op.END)]
    path = write_twin(tmp_path, recording(rows, [RecordedFile("a", size_bytes=9)], [-1, 0], [0, 1], [Pipe()], channels=1))
    notes, played = os.pipe(), VirtualPlayer._rows

    def noting(self: Player, subject: int, fd: int, offset: int, size: int, flags: int) -> int:
        os.write(notes[1], f"{self._thread} {self._due_ns}\n".encode())
        return 0

    def starting(self: Player, number: int, fd: int, offset: int, size: int, flags: int) -> int:
        os.write(notes[1], f"2 {self._due_ns}\n".encode())
        self._process.start(number, self._due_ns)
        return 0

    def slowly(self: Player) -> Iterator[tuple[int, ...]]:
        for each in played(self):
            time.sleep(0.002)
            yield each

    monkeypatch.setattr(Player, "_end", noting)
    monkeypatch.setattr(Player, "_start", starting)
    monkeypatch.setattr(VirtualPlayer, "_rows", slowly)
    monkeypatch.setattr("iotwin.benchmark.emulator.recorded.replay_rank.own_costs_ns", lambda now_ns: [1 << 62] * len(Op))
    run_workload(load(path, ["++twin.clock=virtual"]), EmulationOptions())
    os.close(notes[1])
    with os.fdopen(notes[0]) as lines:
        due = {int(thread): int(at) for thread, at in map(str.split, lines)}
    # The message is larger than the pipe: its last part is written when the rank reads the first.
    assert due[0] - due[2] == _MS + 7 and due[1] - due[2] == (_MS + 7 if by_poll else _MS)


@pytest.mark.parametrize("entries", [2, 1024])
def test_bytes_are_received_when_their_message_was_due(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    """Compared with a list of the time of each byte. Beyond `entries` writes, bytes may count as later ones, never as earlier."""
    monkeypatch.setattr("iotwin.benchmark.emulator.recorded.thread_slots._ENTRIES", entries)
    chosen, times, bytes_due, now = random.Random(1), PipeTimes(3), list[int](), 0
    for _ in range(2000):
        now += chosen.randrange(1, 9)
        if chosen.random() < 0.5:
            count = chosen.randrange(1, 50)
            times.write(1, count, now)
            bytes_due += [now] * count
        elif bytes_due:
            count = chosen.randrange(1, min(len(bytes_due), 60) + 1)
            first, last = times.next_due(1), times.read(1, count, 5)
            exact = entries > 2
            assert (first == bytes_due[0]) if exact else (first >= bytes_due[0])
            assert (last == max(bytes_due[count - 1], 5)) if exact else (last >= bytes_due[count - 1])
            assert times.room_due(1) == last
            del bytes_due[:count]
        assert times.held(1) == len(bytes_due) and times.held(0) == times.held(2) == 0


def test_the_players_own_part_of_a_call_is_a_time_of_its_clock() -> None:
    """Each look at the clock finds it 3 ns later, so that a call of the player takes 3 ns, and the kernel nothing."""
    ticks = iter(range(0, 10**9, 3))
    assert own_costs_ns(lambda: next(ticks)) == [3] * len(Op)


def test_the_kernels_part_of_an_open_and_a_close_is_not_the_players(monkeypatch: pytest.MonkeyPatch) -> None:
    """An open moves the clock by 700 ns, a close by 300: the player's own work if the bare system calls take none, else none."""
    now, opened, closed = [0], os.open, os.close

    def slow_open(*words: object, **named: object) -> int:
        now[0] += 700
        return opened(*words, **named)

    def slow_close(descriptor: int) -> None:
        now[0] += 300
        closed(descriptor)

    monkeypatch.setattr(os, "open", slow_open)
    monkeypatch.setattr(os, "close", slow_close)
    costs = own_costs_ns(lambda: now[0])
    assert costs[Op.OPEN] == 700 and costs[Op.CLOSE] == 300 and costs[Op.READ] == 0
    slow_libc = SimpleNamespace(
        openat=lambda *words: slow_open(words[1], words[2], dir_fd=words[0]), close=lambda descriptor: slow_close(descriptor) or 0
    )
    monkeypatch.setattr(player, "_LIBC", slow_libc)
    assert own_costs_ns(lambda: now[0])[Op.OPEN] == own_costs_ns(lambda: now[0])[Op.CLOSE] == 0
