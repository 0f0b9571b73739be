"""Unlogged passes are told by who reads: loaders forked together are one pass, those that read other files evaluate."""

from itertools import pairwise

import numpy as np
import pytest

from iotwin.benchmark.fit import fit
from iotwin.benchmark.fit.look import look
from iotwin.trace_store.reader import Trace
from tests.benchmark.made_trace import Made

COMPUTE_MS, EVALUATION_MS, BATCH = 50.0, 20.0, 4


class Training:
    """Ranks with two loaders each; a step begins when its batch is there, and two batches a loader are asked for ahead."""

    def __init__(self, ranks: int, persistent: bool) -> None:
        self.made, self.persistent, self.ranks = Made(), persistent, [1000 + 100 * rank for rank in range(ranks)]
        for rank in self.ranks:
            self.made.process(rank, 1, "rank")
        self.train = [self.made.file(f"/d/train/{i:03}.jpg", size=90_000 + 100 * i) for i in range(48)]
        self.val = [self.made.file(f"/d/val/{i:03}.jpg", size=80_000 + 100 * i) for i in range(16)]
        self.kept: dict[tuple[int, str], tuple] = {}
        self.pids = 5000
        self.at_once = 4  # batches that are asked for as a pass begins

    def loaders(self, rank: int, name: str, now: float) -> tuple:
        if (rank, name) not in self.kept or not self.persistent:
            pids = [self.made.process(self.pids + i, rank, "loader", now + i) for i in range(2)]
            self.pids += 2
            asked = [self.made.file(f"pipe:[{pid}]", "pipe") for pid in pids]
            self.kept[rank, name] = (pids, asked, self.made.file(f"pipe:[{pids[0]}-]", "pipe"))
        return self.kept[rank, name]

    def run(self, rank: int, name: str, files: list[int], now: float, most: int | None = None) -> float:
        """Make one pass, or `most` steps of it, and return its end."""
        again = self.persistent and (rank, name) in self.kept
        pids, asked, given = self.loaders(rank, name, now)
        call = self.made.call
        for pid, pipe in zip(pids, asked, strict=True) if again else ():  # as torch begins an epoch with the same loaders
            call(now + 1, rank, "write", pipe, None, 90)
            call(now + 2, pid, "read", pipe, None, 90)
            call(now + 3, pid, "write", given, None, 84)
            call(now + 4, rank, "read", given, None, 84)
        now += 5
        batches = [files[i : i + BATCH] for i in range(0, len(files), BATCH)]
        compute = COMPUTE_MS if name == "train" else EVALUATION_MS
        ready: list[float] = []
        taken: list[float] = []
        free, step_end = [now, now], now
        for number, batch in enumerate(batches[: most and most + self.at_once]):
            worker = number % 2
            ask = now if number < self.at_once else taken[number - self.at_once]
            call(ask + 0.01 * number, rank, "write", asked[worker], None, 30, 0.005)
            t = call(max(ask + 0.5, free[worker]), pids[worker], "read", asked[worker], None, 30)
            for file in batch:
                t = self.made.read_file(t, pids[worker], file) + 0.5
            free[worker] = call(t, pids[worker], "write", given, None, 3000)
            ready.append(free[worker])
            if most is not None and number >= most:  # read ahead, and not taken
                continue
            call(step_end, rank, "poll", -1, None, 0, max(ready[-1] - step_end, 0.01))
            begin = call(max(step_end, ready[-1]) + 0.02, rank, "read", given, None, 3000)
            taken.append(begin)
            step_end = begin + compute
        return step_end

    def trace(self, folder, epochs: int = 3, validated: bool = True, slow_epoch: int | None = None, before: int = 0) -> Trace:
        rng, now = np.random.default_rng(1), 10.0
        if before:
            now = self.run(self.ranks[0], "val", self.val, now, before) + 40
        for epoch in range(epochs):
            self.at_once = 2 if epoch == slow_epoch else 4
            order = rng.permutation(self.train).tolist()
            share = len(self.ranks)
            now = max(self.run(rank, "train", order[i::share], now) for i, rank in enumerate(self.ranks))
            if validated:
                now = max(self.run(rank, "val", self.val[i::share], now) for i, rank in enumerate(self.ranks))
            now = self.made.write_file(now + 1, self.ranks[0], f"/out/epoch_{epoch}.pt", 3_000_000)
        return self.made.trace(folder / "t")


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_training_and_validation_from_other_files_are_told_apart(tmp_path, persistent, ranks):
    fitted = fit(Training(ranks, persistent).trace(tmp_path))
    config = fitted.config
    assert (config.twin.ranks, config.train.epochs, config.reader.read_threads, config.reader.batch_size) == (ranks, 3, 2, BATCH)
    assert (config.dataset.num_files_train, config.dataset.num_files_eval, config.reader.batch_size_eval) == (48, 16, BATCH)
    assert (config.evaluation.eval_after_epoch, config.evaluation.epochs_between_evals) == (1, 1)
    assert config.twin.persistent_workers == persistent and config.reader.prefetch_size == 4
    times = config.train.computation_time
    assert np.median(getattr(times, "values", [times])) * 1000 == pytest.approx(COMPUTE_MS, rel=0.05)
    times = config.evaluation.eval_time
    assert np.median(getattr(times, "values", [times])) * 1000 == pytest.approx(EVALUATION_MS, rel=0.1)
    assert (fitted.coverage["read_share"], fitted.coverage["write_share"], fitted.coverage["open_share"]) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("validated", [False, True])
def test_what_kept_loaders_answer_to_a_new_epoch_is_no_batch(tmp_path, validated):
    config = fit(Training(1, True).trace(tmp_path, validated=validated)).config
    assert (config.train.epochs, config.reader.prefetch_size) == (3, 4)
    assert (config.checkpoint.checkpoint_after_epoch, config.checkpoint.epochs_between_checkpoints) == (1, 1)
    assert config.twin.checkpoint.after_steps is None and len(config.twin.checkpoint.files) == 1


def test_a_short_epoch_in_which_the_machine_was_slow_to_ask_does_not_tell_the_depth(tmp_path):
    job = Training(1, False)
    job.train = job.train[: 4 * BATCH]
    config = fit(job.trace(tmp_path, validated=False, slow_epoch=1)).config
    assert (config.train.epochs, config.reader.read_threads, config.reader.prefetch_size) == (3, 2, 4)


@pytest.mark.parametrize("batches", [8, 4])
def test_steps_of_an_evaluation_before_training_are_told_apart(tmp_path, batches):
    """Of eight batches two are evaluated, for which loaders read six; of four batches all are read, and two are taken."""
    job = Training(1, False)
    job.val = [job.made.file(f"/d/looked/{i:03}.jpg", size=80_000) for i in range(batches * BATCH)]
    fitted = fit(job.trace(tmp_path, before=2))
    config = fitted.config
    assert (config.train.epochs, config.twin.evaluation.steps_before, config.reader.prefetch_size) == (3, 2, 4)
    assert (config.evaluation.eval_after_epoch, config.evaluation.epochs_between_evals) == (1, 1)
    assert (config.dataset.num_files_eval, config.reader.batch_size_eval) == (batches * BATCH, BATCH)
    assert (fitted.coverage["read_share"], fitted.coverage["open_share"]) == (1.0, 1.0)


def test_windows_follow_one_another(tmp_path):
    job = look(Training(1, False).trace(tmp_path))
    windows = find_windows(job, find_samples(job), True)
    assert [(window.phase, window.epoch) for window in windows] == [
        (phase, epoch) for epoch in (1, 2, 3) for phase in ("epoch", "evaluation")
    ]
    assert all(first.end_ns < second.start_ns for first, second in pairwise(windows))
