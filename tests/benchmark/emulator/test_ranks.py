"""Ranks of one machine: they meet, hand over what they found, and none is left when one of them ends."""

import os
import signal
import time
from pathlib import Path

import pytest

from iotwin.benchmark.emulator import ranks, waits
from iotwin.benchmark.emulator.journal import RankTotals
from iotwin.benchmark.emulator.ranks import CHECKPOINT, STOP, Rank, run_local
from iotwin.benchmark.emulator.results.run_files import machine_document
from iotwin.common.errors import IotwinError, UsageError
from tests.conftest import PATIENCE_S
from tests.processes import children


@pytest.fixture(autouse=True)
def nobody_is_left():
    before = children()
    yield
    assert children() <= before


def test_results_come_back_by_number_however_large_they_are() -> None:
    results = run_local(3, lambda rank: (rank.index, rank.count, b"x" * 300_000))
    assert [(number, count, len(blob)) for number, count, blob in results] == [(0, 3, 300_000), (1, 3, 300_000), (2, 3, 300_000)]


def test_a_single_rank_is_this_process() -> None:
    assert run_local(1, lambda rank: (os.getpid(), rank.meet(STOP))) == [(os.getpid(), STOP)]


@pytest.mark.parametrize("count", [2, 5])
def test_nobody_leaves_a_meeting_before_the_last_has_come(count: int, tmp_path: Path) -> None:
    marks = [tmp_path / str(number) for number in range(count)]

    def job(rank: Rank) -> bool:
        in_step = True
        for meeting in range(1, 301):
            marks[rank.index].write_text(str(meeting))
            rank.meet(0)
            # Whoever has left meeting n finds everybody at n or already at n + 1, never behind.
            in_step = in_step and all(mark.read_text() in ("", str(meeting), str(meeting + 1)) for mark in marks)
        return in_step

    assert run_local(count, job) == [True] * count


def test_what_one_rank_says_all_hear_at_the_same_meeting() -> None:
    def job(rank: Rank) -> list[int]:
        return [
            rank.meet((STOP if meeting == 50 and rank.index == 2 else 0) | (CHECKPOINT if meeting == rank.index else 0))
            for meeting in range(60)
        ]

    heard = run_local(3, job)
    assert heard[0] == heard[1] == heard[2]
    assert heard[0] == [CHECKPOINT] * 3 + [0] * 47 + [STOP] + [0] * 9


def test_all_hear_the_latest_time_of_the_same_meeting() -> None:
    def job(rank: Rank) -> list[tuple[int, int, int]]:
        return [rank.exchange(0, due_ns) for due_ns in (100 * rank.index, 50 - rank.index, 7)]

    assert run_local(3, job) == [[(0, 200, 200 - 100 * index), (0, 50, index), (0, 7, 0)] for index in range(3)]


def test_no_rank_leaves_a_meeting_before_all_are_due_and_only_one_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleeping ranks would wake up twice in a step: at the end of their own computation, and when all have computed."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", lambda seconds, sleep=time.sleep: (slept.append(seconds), sleep(seconds)))

    def job(rank: Rank) -> tuple[bool, int, int]:
        rank.meet()
        due_ns = waits.now_ns() + 20_000_000 * (1 + rank.index)
        _, latest_ns, waited_ns = rank.exchange(0, due_ns)
        return waits.now_ns() >= latest_ns, latest_ns - due_ns - waited_ns, len(slept)

    first, *others = run_local(3, job)
    assert first[:2] == (True, 0) and 1 <= first[2] <= 2
    assert others == [(True, 0, 0)] * 2


def test_ranks_that_share_a_processor_make_up_for_longer_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    for count, longest_ms in ((2, 12), (256, 266)):
        sleeper = waits.new_sleeper(ranks_here=count)
        sleeper.sleep(0, waits.now_ns() - 10**12)
        before_ns = waits.now_ns()
        due_ns = sleeper.due_ns()
        assert before_ns - due_ns <= longest_ms * 1_000_000 <= waits.now_ns() - due_ns


def test_the_summary_has_what_ranks_took_of_the_machine() -> None:
    measured = [
        RankTotals(0, memory_bytes=3000, cpu_s=2.5, run_cpu_s=2.0, compensated_s=0.5),
        RankTotals(1, memory_bytes=5000, cpu_s=3.5, run_cpu_s=1.0, compensated_s=1.5),
        RankTotals(2),
    ]
    document = machine_document(measured, 30)
    assert document["cpus"] == os.cpu_count()
    assert document["ranks"] == {
        "count": 3, "memory_bytes": 4000, "cpu_s": 2.0, "cpu_s_per_step": 0.1, "compensated_s": pytest.approx(2 / 3)
    }  # fmt: skip
    assert machine_document([RankTotals(0)], 0)["ranks"]["memory_bytes"] is None


@pytest.mark.parametrize("count", [1, 3])
def test_what_ranks_send_arrives_before_their_results_and_in_order(count: int) -> None:
    received: list[tuple[int, bytes]] = []

    def job(rank: Rank) -> int:
        assert rank.send is not None
        for number in range(5):
            rank.send(bytes([number]) * 100_000)
        return rank.index

    assert run_local(count, job, lambda index, rows: received.append((index, rows))) == list(range(count))
    for index in range(count):
        assert [(rows[0], len(rows)) for sender, rows in received if sender == index] == [(n, 100_000) for n in range(5)]


def test_an_error_of_who_receives_ends_all_ranks() -> None:
    def job(rank: Rank) -> None:
        assert rank.send is not None
        rank.send(b"steps")
        rank.meet()
        time.sleep(PATIENCE_S)

    def receive(index: int, rows: bytes) -> None:
        raise IotwinError("no space")

    with pytest.raises(IotwinError, match="no space"):
        run_local(2, job, receive)


@pytest.mark.parametrize("kind", [IotwinError, UsageError])
def test_the_error_of_a_rank_ends_all(kind: type[IotwinError]) -> None:
    def job(rank: Rank) -> None:
        if rank.index == 1:
            raise kind("no such file")
        rank.meet(0)

    with pytest.raises(kind, match="rank 1: no such file"):
        run_local(3, job)


def test_a_killed_rank_ends_all_and_is_named() -> None:
    def job(rank: Rank) -> None:
        if rank.index == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        rank.meet(0)

    with pytest.raises(IotwinError, match=r"rank 2 \(process \d+\) was killed by SIGKILL; the run is ended on all ranks"):
        run_local(3, job)


@pytest.mark.parametrize("status", [0, 3])
def test_a_rank_that_ends_without_a_result_ends_all_and_is_named(status: int) -> None:
    def job(rank: Rank) -> None:
        if rank.index == 1:
            os._exit(status)
        rank.meet(0)

    with pytest.raises(IotwinError, match=rf"rank 1 \(process \d+\) ended with status {status}; the run is ended"):
        run_local(2, job)


def test_a_rank_puts_away_what_it_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_EXIT_PATIENCE_S", PATIENCE_S)

    def job(rank: Rank) -> None:
        if rank.index == 0:
            while not (tmp_path / "begun").exists():
                time.sleep(0.01)
            raise IotwinError("enough")
        try:
            (tmp_path / "begun").touch()
            time.sleep(PATIENCE_S)
        finally:
            (tmp_path / "put away").touch()

    with pytest.raises(IotwinError, match="rank 0: enough"):
        run_local(2, job)
    assert (tmp_path / "put away").exists()


def test_a_rank_that_does_not_listen_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_EXIT_PATIENCE_S", 0.5)

    def job(rank: Rank) -> None:
        if rank.index == 0:
            raise IotwinError("enough")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(PATIENCE_S)

    begin = time.monotonic()
    with pytest.raises(IotwinError, match="enough"):
        run_local(2, job)
    assert time.monotonic() - begin < PATIENCE_S  # it did not sleep to the end
