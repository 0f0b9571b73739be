"""Twins of synthetic jobs that are hard to understand: they account for every byte, and know batches, loaders and epochs."""

import numpy as np
import pytest

from iotwin.benchmark.fit.fit_trace import fit
from iotwin.trace_store.reader import Trace
from tests.benchmark.fit.made_jobs import (
    chunks_and_labels,
    crops,
    delivered_late,
    fed,
    images_opened_three_times,
    read_by_threads,
    sampled_with_replacement,
)
from tests.benchmark.fit.made_training import BATCH, Training
from tests.benchmark.loader_job import LoaderJob
from tests.benchmark.made_trace import Made


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


class Records(Training):
    """Loaders that stay and read records of one file, of which each epoch drops two, as they fill no batch."""

    def __init__(self) -> None:
        super().__init__(1, True)
        self.file, self.opened = self.made.file("/d/records.bin", size=46 * 70_000), set[int]()
        self.made.read_file = self.read_record

    def read_record(self, ms: float, pid: int, record: int) -> float:
        if pid not in self.opened:
            ms = self.made.call(ms, pid, "openat", self.file)
        self.opened.add(pid)
        return self.made.call(ms, pid, "pread64", self.file, record * 70_000, 70_000)

    def trace_of(self, folder):
        rng, now = np.random.default_rng(4), 10.0
        for epoch in range(4):
            now = self.run(self.ranks[0], "train", rng.permutation(46)[:44].tolist(), now)
            now = self.made.write_file(now + 1, self.ranks[0], f"/out/epoch_{epoch}.pt", 3_000_000)
        return self.made.trace(folder / "t")


def used_up(folder) -> Trace:
    """A loader reads a small file and a large one for every other batch, and nothing for the others."""
    made, now = Made(), 10.0
    made.process(1000, 1, "rank")
    made.process(1001, 1000, "loader", 5)
    asked, given = made.file("pipe:[1]", "pipe"), made.file("pipe:[2]", "pipe")
    shards = [made.file(f"/d/{number:03}.tar", size=300_000 if number % 2 else 60_000) for number in range(24)]
    for step in range(24):
        made.call(now, 1000, "write", asked, None, 30)
        now = made.call(now + 0.2, 1001, "read", asked, None, 30)
        if step % 2 == 0:
            now = made.read_file(made.read_file(now, 1001, shards[step]), 1001, shards[step + 1])
        now = made.call(now, 1001, "write", given, None, 3000)
        now = 20 + made.call(now + 1, 1000, "read", given, None, 3000)
    return made.trace(folder / "t")


@pytest.mark.parametrize(
    ("job", "batch", "loaders", "epochs"),
    [
        (chunks_and_labels, 4, 1, 2),
        (lambda folder: chunks_and_labels(folder, opened="once"), 4, 1, 2),
        (lambda folder: chunks_and_labels(folder, thread=True), 4, 1, 2),
        (images_opened_three_times, 1, 0, 3),
        (lambda folder: LoaderJob(mask_bytes=9_000, epochs=3, evaluated=8).trace(folder / "t"), 4, 2, 3),
        (sampled_with_replacement, 1, 0, 1),
        (delivered_late, 2, 1, 1),
        (lambda folder: fed(folder, 20, 20), 1, 1, 1),
        (lambda folder: read_by_threads(folder, 0), 1, 0, 1),
        (lambda folder: crops(folder, drawn=True), 2, 1, 1),
    ],
)
def test_a_twin_knows_batches_loaders_and_epochs(tmp_path, job, batch, loaders, epochs):
    fitted = fit(job(tmp_path))
    reader, train = fitted.config.reader, fitted.config.train
    assert (reader.batch_size, reader.read_threads, train.epochs) == (batch, loaders, epochs)
    assert [fitted.coverage[f"{name}_share"] for name in ("read", "write", "open")] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "job",
    [
        lambda folder: crops(folder, 4),
        lambda folder: read_by_threads(folder, 4),
        lambda folder: read_by_threads(folder, 8),
        used_up,
    ],
)
def test_a_twin_of_an_unclear_job_accounts_for_every_byte(tmp_path, job):
    coverage = fit(job(tmp_path)).coverage
    assert [coverage[f"{name}_share"] for name in ("read", "write", "open")] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_files_that_come_again_within_an_epoch_do_not_end_it(tmp_path, shuffle, ranks):
    fitted = fit(Patches(ranks, True).trace_of(tmp_path, shuffle))
    config, steps = fitted.config, 80 // BATCH // ranks
    passes = fitted.recording.header.batches.passes
    assert [(each.training, each.batches) for each in passes] == [(True, steps)] * 3 * ranks
    assert (config.reader.batch_size, config.reader.read_threads, config.twin.recorded is not None) == (BATCH, 2, True)
    sure = fitted.confidence["train.computation_time"]
    assert (sure["value"], sure["average"]) == (config.train.computation_time, "median")
    assert sure["low"] <= sure["value"] <= sure["high"] and sure["observations"] == 3 * steps


def test_epochs_that_drop_their_last_samples_have_as_many_steps(tmp_path):
    fitted = fit(Records().trace_of(tmp_path))
    assert (fitted.config.train.epochs, fitted.config.reader.batch_size) == (4, BATCH)
    assert {each.depth for each in fitted.recording.header.batches.passes} == {4}
    assert fitted.confidence["train.steps_per_epoch"] == {"value": 11, "agree": 1.0, "observations": 4}


@pytest.mark.parametrize("kept", [False, True])
def test_an_answer_that_a_loader_has_no_more_is_no_batch(tmp_path, kept):
    """Two loaders, new ones in each of three epochs or kept, read a shard for every other batch and answer when they end."""
    made, now = Made(), 10.0
    made.process(1000, 1, "rank")
    asked, given = made.file("pipe:[1]", "pipe"), made.file("pipe:[2]", "pipe")
    shards = [made.file(f"/d/{number:02}.tar", size=60_000) for number in range(12)]
    for epoch in range(3):
        loaders = (1001, 1002) if kept else (1001 + 2 * epoch, 1002 + 2 * epoch)
        for pid in loaders if epoch == 0 or not kept else ():
            made.process(pid, 1000, "loader", now)
        for step in range(26):
            pid, batch = loaders[step % 2], step < 24
            now = made.call(now, 1000, "write", asked, None, 30)
            now = made.call(now + 0.2, pid, "read", asked, None, 30)
            if batch and step % 4 < 2:
                now = made.read_file(now, pid, shards[step // 4 * 2 + step % 2])
            now = made.call(now, pid, "write", given, None, 350 if batch else 100 + step % 2)
            now = made.call(now, 1000, "poll", -1)
            now = made.call(now, 1000, "read", given, None, 350 if batch else 100 + step % 2) + (20 if batch else 0.2)
    fitted = fit(made.trace(tmp_path / "t"))
    passes = fitted.recording.header.batches.passes
    assert sum(each.batches for each in passes) == 72 and fitted.coverage["read_share"] == 1.0
    assert fitted.config.train.computation_time == pytest.approx(0.0205, abs=0.001)
    assert kept or fitted.config.train.epochs == 3
