"""Loader processes: who reads which batch, how far ahead, and what happens when reading fails."""

import os
import select
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from iotwin.benchmark.emulator.data.dataset import SampleSet
from iotwin.benchmark.emulator.data.order import Batch
from iotwin.benchmark.emulator.loaders.base import Fetched, Fetcher
from iotwin.benchmark.emulator.loaders.open_loader import make_loader
from iotwin.common.errors import IotwinError
from iotwin.common.numbers.draws import DrawnTime
from iotwin.common.numbers.keyed import Purpose
from iotwin.workload_yaml import Normal
from tests.conftest import PATIENCE_S
from tests.processes import children, wait_for

NO_TIME = DrawnTime(0.0, 1, Purpose.TRAIN_SAMPLE)


class Recorder(Fetcher):
    """Appends `pid epoch first-sample` to a file for every batch it is given, and reads nothing."""

    def __init__(self, path: Path) -> None:
        super().__init__(SampleSet([]), NO_TIME)
        self._path = path

    def fetch(self, epoch: int, batch: Batch) -> Fetched:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{os.getpid()} {epoch} {batch[0]}\n".encode())
        os.close(descriptor)
        return Fetched(len(batch), int(batch[0]), 0, 0)


def records(path: Path) -> list[tuple[int, int, int]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [tuple(map(int, line.split())) for line in lines]  # type: ignore[misc]


def batches(count: int) -> list[Batch]:
    return [np.array([number], dtype=np.int64) for number in range(count)]


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


@pytest.mark.parametrize("persistent", [False, True])
def test_worker_k_reads_every_wth_batch_and_batches_arrive_in_order(tmp_path: Path, persistent: bool) -> None:
    workers, count = 3, 11
    with make_loader(Recorder(tmp_path / "log"), workers, 2, persistent) as loader:
        for epoch in (1, 2):
            assert [fetched.size_bytes for fetched in loader.epoch(epoch, batches(count))] == list(range(count))
    seen = records(tmp_path / "log")
    pids: list[dict[int, list[int]]] = [{}, {}]
    for pid, epoch, number in seen:
        pids[epoch - 1].setdefault(pid, []).append(number)
    for by_pid in pids:
        assert sorted(by_pid.values()) == [list(range(worker, count, workers)) for worker in range(workers)]
    assert (set(pids[0]) == set(pids[1])) is persistent
    assert persistent or not set(pids[0]) & set(pids[1])
    assert os.getpid() not in {pid for pid, _, _ in seen}


def test_without_workers_the_main_process_reads_when_asked(tmp_path: Path) -> None:
    with make_loader(Recorder(tmp_path / "log"), 0, 2, False) as loader:
        fetched = loader.epoch(1, batches(4))
        next(fetched)
        assert records(tmp_path / "log") == [(os.getpid(), 1, 0)]
        assert len(list(fetched)) == 3


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (2, 2), (3, 1)])
def test_workers_read_ahead_as_far_as_prefetch_and_no_farther(tmp_path: Path, workers: int, prefetch: int) -> None:
    log = tmp_path / "log"
    with make_loader(Recorder(log), workers, prefetch, False) as loader:
        fetched = loader.epoch(1, batches(40))
        for taken in range(1, 5):
            next(fetched)
            # A batch that was taken makes room for one more at once, not only when the next is asked for.
            expected = taken + workers * prefetch
            wait_for(lambda: len(records(log)) >= expected, "the batches ahead")  # noqa: B023
            time.sleep(0.05)
            assert len(records(log)) == expected


def test_the_main_process_waits_once_for_each_batch_however_many_are_there(tmp_path: Path, monkeypatch) -> None:
    """As torch's does: the waits of its trace tell its steps apart."""
    log, found = tmp_path / "log", []

    class Poller:
        def __init__(self) -> None:
            self._own = poll()
            self.register = self._own.register

        def poll(self) -> list[tuple[int, int]]:
            found.append(len(self._own.poll()))
            return self._own.poll()

    poll = select.poll
    monkeypatch.setattr(select, "poll", Poller)
    before = children()
    with make_loader(Recorder(log), 3, 2, False) as loader:
        for taken, _ in enumerate(loader.epoch(1, batches(9)), 1):
            sent = min(6 + taken, 9)
            wait_for(lambda: len(records(log)) == sent and all(map(_is_asleep, children() - before)), "all handed over")  # noqa: B023
    assert len(found) == 9 and max(found) == 3


def _is_asleep(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_an_epoch_shorter_than_the_workers_and_one_without_batches(tmp_path: Path) -> None:
    with make_loader(Recorder(tmp_path / "log"), 4, 2, False) as loader:
        assert len(list(loader.epoch(1, batches(2)))) == 2
        assert list(loader.epoch(2, [])) == []


def test_preprocessing_is_spent_per_sample_and_drawn_alike_whoever_reads(cases: Path) -> None:
    files = [(str(path),) for path in sorted(cases.glob("*_x.npy"))]
    samples = SampleSet(files)
    preprocess = DrawnTime(Normal(mean=0.002, stdev=0.001), 3, Purpose.TRAIN_SAMPLE)
    order: Sequence[Batch] = [np.array([5, 2]), np.array([0, 7]), np.array([1])]

    def epoch(workers: int) -> list[tuple[int, int, int]]:
        with make_loader(Fetcher(samples, preprocess), workers, 2, False) as loader:
            return [(batch.samples, batch.size_bytes, batch.preprocess_ns) for batch in loader.epoch(1, order)]

    assert epoch(0) == epoch(1) == epoch(3)
    assert [count for count, _, _ in epoch(2)] == [2, 2, 1]
    assert epoch(0)[0][2] == int(preprocess.seconds(0, 1, 5) * 1e9) + int(preprocess.seconds(0, 1, 2) * 1e9)


def damaged(path: Path, how: str) -> None:
    content = path.read_bytes()
    match how:
        case "missing":
            path.unlink()
        case "short":
            path.write_bytes(content[:-100])
        case "header only":
            path.write_bytes(content[:128])
        case "torn header":
            path.write_bytes(content[:20])
        case "foreign":
            path.write_bytes(b"not numpy at all" * 100)
        case "pickled":
            np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
        case "archive":
            with path.open("wb") as file:
                np.savez(file, a=np.zeros(3))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["missing", "short", "header only", "torn header", "foreign", "pickled", "archive"])
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, workers: int, how: str) -> None:
    files = [(str(tmp_path / f"{number}.npy"),) for number in range(8)]
    for (path,) in files:
        np.save(path, np.zeros((10, 1000), np.float32))
    damaged(Path(files[5][0]), how)
    samples = SampleSet(files)
    with pytest.raises(IotwinError) as error, make_loader(Fetcher(samples, NO_TIME), workers, 2, False) as loader:
        list(loader.epoch(1, batches(8)))
    assert str(error.value).startswith(f"{files[5][0]}: ")
    assert "\n" not in str(error.value)


def test_a_killed_worker_ends_the_epoch_with_one_line(tmp_path: Path) -> None:
    class Stuck(Recorder):
        def fetch(self, epoch: int, batch: Batch) -> Fetched:
            if batch[0] == 3:
                time.sleep(2 * PATIENCE_S)
            return super().fetch(epoch, batch)

    before = children()  # other tests may have left multiprocessing's resource tracker
    with pytest.raises(IotwinError) as error, make_loader(Stuck(tmp_path / "log"), 2, 2, False) as loader:
        fetched = loader.epoch(1, batches(8))
        next(fetched)
        time.sleep(0.05)  # batch 1, of the worker to be killed, is away
        _, second = sorted(children() - before)
        os.kill(second, signal.SIGKILL)
        list(fetched)
    assert f"(process {second}) was killed by SIGKILL in epoch 1" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_caller_that_gives_up_midway_leaves_no_process(tmp_path: Path) -> None:
    with make_loader(Recorder(tmp_path / "log"), 3, 2, True) as loader:
        next(loader.epoch(1, batches(30)))
        assert len(children()) >= 3


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_that_was_given_up_leaves_nothing_to_the_next(tmp_path: Path, persistent: bool) -> None:
    with make_loader(Recorder(tmp_path / "log"), 2, 2, persistent) as loader:
        given_up = loader.epoch(0, batches(9))
        assert [next(given_up).size_bytes for _ in range(2)] == [0, 1]
        assert [fetched.size_bytes for fetched in loader.epoch(1, batches(5))] == list(range(5))
    seen = records(tmp_path / "log")
    assert sorted(number for _, epoch, number in seen if epoch == 0) == list(range(6))  # four are read ahead of the two
    early, later = ({pid for pid, epoch, _ in seen if epoch == number} for number in (0, 1))
    assert (early == later) is persistent and persistent is not early.isdisjoint(later)
