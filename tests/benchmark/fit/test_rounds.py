"""When loaders that stay begin anew: where all that was asked for had been taken, and what is asked for was read before."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from iotwin.benchmark.fit import fit
from iotwin.benchmark.fit.plan import plan
from iotwin.benchmark.fit.samples.rounds import begin_anew_ns
from tests.benchmark.fit.test_fit_windows import BATCH, Training
from tests.perf.edited import scale_batch

_RANK, _LOADER, _ASKED, _GIVEN = 1, 7, 3, 4
_PASS_NS = 1000


def begins(batches: list[list[int]], ahead: int, messages: int = 1, untold: int = 0) -> list[int]:
    """What is found of a rank whose loader reads these batches, each pass from a multiple of _PASS_NS on.

    A batch comes in so many `messages`, each after its length; `untold` of those that were asked for first were not seen.
    """
    handed: list[tuple[int, int, str, int, int]] = []
    read: list[tuple[int, int]] = []
    for index, samples in enumerate(batches):
        start_ns = index * _PASS_NS
        for number, sample in enumerate(samples):
            asked_ns = start_ns + 1 if number < ahead else start_ns + 10 * (number - ahead) + 6
            handed.append((asked_ns, _RANK, "write", _ASKED, 30))
            handed.append((start_ns + 10 * number + 2, _LOADER, "read", _ASKED, 30))
            read.append((sample, start_ns + 10 * number + 3))
            for op, pid, at_ns in (("write", _LOADER, 4), ("read", _RANK, 5)):
                handed += [(start_ns + 10 * number + at_ns, pid, op, _GIVEN, size) for size in [4, 3000] * messages]
    calls = pd.DataFrame(handed, columns=["start_ns", "pid", "op", "file_id", "result"]).sort_values("start_ns", kind="stable")
    calls = calls.assign(end_ns=calls["start_ns"]).iloc[untold:]
    accesses = pd.DataFrame(read, columns=["sample", "start_ns"]).assign(pid=_LOADER)
    processes = pd.DataFrame({"pid": [_LOADER], "ppid": [_RANK], "role": ["loader"]})
    job: Any = SimpleNamespace(calls_on=lambda files, ops: calls, file_ids=lambda kind: [_ASKED, _GIVEN], processes=processes)
    return begin_anew_ns(job, (_LOADER,), accesses)


def test_a_pass_begins_just_before_the_first_batch_asked_for_when_none_was_left():
    drawn = [[0, 1, 1, 2, 3, 2], [3, 1, 0, 2, 1, 2], [2, 2, 1, 0]]
    assert begins(drawn, ahead=2) == [_PASS_NS, 2 * _PASS_NS]
    assert begins(drawn[:1], ahead=2) == []


def test_what_was_not_read_before_begins_no_pass():
    """A rank that asks for all of a batch at once, and for the next when it has it: three samples of new ones each time."""
    assert begins([[0, 1, 2], [3, 4, 5], [6, 7, 8]], ahead=3) == []
    assert begins([[0, 1, 2, 3], [0, 1, 8, 9]], ahead=2) == [_PASS_NS]  # half of them, of a larger set
    assert begins([[0, 1, 2, 3], [0, 7, 8, 9]], ahead=2) == []


@pytest.mark.parametrize("unbalanced", [{"messages": 2}, {"untold": 2}])
def test_hand_overs_that_do_not_balance_tell_nothing(unbalanced):
    assert begins([[0, 1, 2, 3], [1, 0, 3, 2]], ahead=2, **unbalanced) == []


class Patches(Training):
    """Loaders that stay; a sample is two neighbouring files, so that files come again within an epoch."""

    def trace_of(self, folder, shuffle: bool):
        rng, now = np.random.default_rng(3), 10.0
        places = rng.integers(0, len(self.train) - 1, 40)
        for epoch in range(3):
            drawn = rng.permutation(places) if shuffle else places
            files = [self.train[place + part] for place in drawn for part in (0, 1)]
            share = len(self.ranks)
            chosen = [np.reshape(files, (-1, 2))[i::share].ravel().tolist() for i in range(share)]
            now = max(self.run(rank, "train", own, now) for rank, own in zip(self.ranks, chosen, strict=True))
            now = self.made.write_file(now + 1, self.ranks[0], f"/out/epoch_{epoch}.pt", 3_000_000)
        return self.made.trace(folder / "t")


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_epochs_of_loaders_that_stay_are_told_though_files_come_again_within_them(tmp_path, shuffle, ranks):
    fitted = fit(Patches(ranks, True).trace_of(tmp_path, shuffle))
    config, steps = fitted.config, 80 // BATCH // ranks
    assert (config.train.epochs, config.train.total_training_steps, config.reader.batch_size) == (3, steps, BATCH)
    assert (config.twin.ranks, config.reader.read_threads, config.twin.persistent_workers) == (ranks, 2, True)
    assert (config.checkpoint.checkpoint_after_epoch, config.checkpoint.epochs_between_checkpoints) == (1, 1)
    assert config.reader.sample_shuffle == "off" and len(config.twin.train_reads) == 80  # neighbours stay together
    assert fitted.coverage["read_share"] == pytest.approx(1.0, abs=0.01)
    whole = plan(fitted)
    scale_batch(config, 2)
    doubled = plan(fitted)
    assert (doubled.steps * 2, doubled.checkpoints, doubled.data_reads) == (whole.steps, 3, whole.data_reads)


class Records(Training):
    """Loaders that stay and read records of one file, of which each epoch drops two, as they fill no batch."""

    def __init__(self) -> None:
        super().__init__(1, True)
        self.file, self.opened = self.made.file("/d/records.bin", size=46 * 50_000), set[int]()
        self.made.read_file = self.read_record

    def read_record(self, ms: float, pid: int, record: int) -> float:
        if pid not in self.opened:
            ms = self.made.call(ms, pid, "openat", self.file)
        self.opened.add(pid)
        return self.made.call(ms, pid, "pread64", self.file, record * 50_000, 50_000)

    def trace_of(self, folder):
        rng, now = np.random.default_rng(4), 10.0
        for epoch in range(4):
            now = self.run(self.ranks[0], "train", rng.permutation(46)[:44].tolist(), now)
            now = self.made.write_file(now + 1, self.ranks[0], f"/out/epoch_{epoch}.pt", 3_000_000)
        return self.made.trace(folder / "t")


def test_epochs_that_drop_their_last_samples_are_told_of_records_of_one_file(tmp_path):
    fitted = fit(Records().trace_of(tmp_path))
    config = fitted.config
    assert (config.train.epochs, config.train.total_training_steps, config.reader.batch_size) == (4, 11, BATCH)
    assert (config.reader.read_threads, config.reader.prefetch_size, config.reader.sample_shuffle) == (2, 4, "seed")
    assert (config.checkpoint.checkpoint_after_epoch, config.checkpoint.epochs_between_checkpoints) == (1, 1)
    assert fitted.confidence["train.steps_per_epoch"]["agree"] == 1.0
