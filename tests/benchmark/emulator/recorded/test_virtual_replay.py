"""Replays on the virtual clock: the same calls in the same order per thread as on the real one, in less time."""

import os
import signal
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from iotwin.benchmark.emulator.recorded.player import Player
from iotwin.common.errors import IotwinError
from iotwin.loops.emulation import EmulationOptions, run_workload
from iotwin.workload_yaml import load
from iotwin.workload_yaml.recording import Op, Pipe, RecordedFile, TwinRecording
from tests.benchmark.recordings import recording, row, write_twin

MINUTE = 60 * 1_000_000_000  # so long that delays by a loaded machine do not count


def loaders(count: int, batches: int, size: int) -> TwinRecording:
    """Return a job of a rank with `count` loaders: 2 min to load a batch, 3 min a step, messages of `size` bytes."""
    rows = [row(0, Op.START, 1 + loader) for loader in range(count)]
    for batch in range(batches):
        rows += [row(0, Op.POLL, batch % count), row(0, Op.PIPE_READ, batch % count, size=size)]
        rows += [row(0, Op.OPEN, think_ns=3 * MINUTE), row(0, Op.CLOSE)]
    rows += [*(row(0, Op.JOIN, 1 + loader) for loader in range(count)), row(0, Op.END)]
    for loader in range(count):
        for _ in range(loader, batches, count):
            rows += [row(1 + loader, Op.OPEN, 1, think_ns=2 * MINUTE), row(1 + loader, Op.READ, 1, offset=0, size=50)]
            rows += [row(1 + loader, Op.CLOSE, 1), row(1 + loader, Op.PIPE_WRITE, loader, size=size)]
        rows.append(row(1 + loader, Op.END))
    files = [RecordedFile("a", size_bytes=50), RecordedFile("b", size_bytes=50)]
    return recording(rows, files, [-1] + [0] * count, list(range(count + 1)), [Pipe() for _ in range(count)])


def within() -> TwinRecording:
    """Return a job of two threads that post to one another in turns, after a minute each."""
    rows = [row(0, Op.THREAD, 1)]
    for _ in range(5):
        rows += [row(0, Op.POST, 0, think_ns=MINUTE), row(0, Op.WAIT, 1), row(0, Op.OPEN), row(0, Op.CLOSE)]
    rows.append(row(0, Op.END))
    for _ in range(5):
        rows += [row(1, Op.WAIT, 0), row(1, Op.OPEN), row(1, Op.CLOSE), row(1, Op.POST, 1, think_ns=MINUTE)]
    return recording(rows, [RecordedFile("a", size_bytes=9)], threads=[0, 0], channels=2)


@pytest.mark.parametrize(
    ("made", "minutes"), [(loaders(2, 12, 9), 36), (loaders(3, 12, 300_000), 36), (loaders(1, 5, 70_000), 15), (within(), 10)]
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_waiting_is_computed_and_calls_are_real(tmp_path: Path, made: TwinRecording, minutes: int, ranks: int) -> None:
    config = load(write_twin(tmp_path, made), ["++twin.clock=virtual"])
    own = run_workload(config, EmulationOptions(ranks=ranks, one_of_several=True))["iotwin"]  # type: ignore[index]
    clock = own["clock"]
    assert clock["kind"] == "virtual" and clock["jumps"] > 0 and "write-back" in clock["note"]
    assert clock["virtual_s"] == own["elapsed_s"] >= 60 * minutes > clock["real_s"]
    assert own["recorded"]["waits_given_up"] == 0
    assert pq.read_table(tmp_path / "results" / "clock.parquet").num_rows == clock["jumps"]
    assert own["recorded"]["calls"]["open"] == ranks * sum(made.columns["op"] == Op.OPEN)


def test_each_thread_makes_its_calls_in_the_recorded_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, reader, opened = loaders(2, 8, 100_000), os.pipe(), Player._open

    def noting(self: Player, file: int, fd: int, offset: int, size: int, flags: int) -> int:
        os.write(reader[1], bytes([self._thread, file]))
        return opened(self, file, fd, offset, size, flags)

    monkeypatch.setattr("iotwin.benchmark.emulator.recorded.replay_rank.own_costs_ns", lambda now_ns: [0] * len(Op))  # it opens
    monkeypatch.setattr(Player, "_open", noting)
    run_workload(load(write_twin(tmp_path, made), ["++twin.clock=virtual"]), EmulationOptions())
    os.close(reader[1])
    calls = defaultdict(list)
    noted = os.read(reader[0], 1000)
    for thread, file in zip(noted[::2], noted[1::2], strict=True):
        calls[thread].append(file)
    os.close(reader[0])
    assert calls == {0: [0] * 8, 1: [1] * 4, 2: [1] * 4}
    # Batches are loaded ahead while the rank computes: two are opened before the first step ends.
    assert noted[::2].index(0) >= 2


def test_a_killed_loader_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Player._open

    def killed(self: Player, file: int, fd: int, offset: int, size: int, flags: int) -> int:
        if self._thread == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return opened(self, file, fd, offset, size, flags)

    monkeypatch.setattr("iotwin.benchmark.emulator.recorded.replay_rank.own_costs_ns", lambda now_ns: [0] * len(Op))  # it opens
    monkeypatch.setattr(Player, "_open", killed)
    config = load(write_twin(tmp_path, loaders(2, 8, 9)), ["++twin.clock=virtual"])
    with pytest.raises(IotwinError, match="a process of the replay was killed; the replay is ended"):
        run_workload(config, EmulationOptions())


def test_threads_that_wait_for_one_another_are_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iotwin.benchmark.emulator.recorded.process._STUCK_TICKS", 1)
    made = recording([row(0, Op.PIPE_READ, 0, size=1), row(0, Op.END)], [], pipes=[Pipe()])
    config = load(write_twin(tmp_path, made), ["++twin.clock=virtual"])
    assert run_workload(config, EmulationOptions())["iotwin"]["recorded"]["waits_given_up"] == 1  # type: ignore[index]


def test_a_time_limit_counts_virtual_time(tmp_path: Path) -> None:
    config = load(write_twin(tmp_path, loaders(2, 100, 9)), ["++twin.clock=virtual"])
    own = run_workload(config, EmulationOptions(limit_s=1800))["iotwin"]  # type: ignore[index]
    assert own["stopped_early"] and own["recorded"]["calls"]["open"] < 60  # of 200
