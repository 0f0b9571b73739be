"""Two sets of samples that one process reads in turns: which is the smaller one, told by orders of reading alone."""

from collections.abc import Sequence

import numpy as np
import pytest

from iotwin.benchmark.fit import fit
from iotwin.benchmark.fit.inferred_phases import inferred_phases
from iotwin.benchmark.fit.samples.sets import evaluation_samples
from iotwin.trace_store.reader import Trace
from tests.benchmark.made_trace import Made

TRAIN, TEST = list(range(100, 140)), list(range(200, 212))
EARLY = TEST[:4]  # of a look at the test set before training
COMPUTE_MS, EVALUATION_MS = 50.0, 20.0


def read(turns: str) -> list[list[int]]:
    """The sets in turns: A is the training set shuffled anew, a part of it; B and b the test set in order, and shuffled."""
    rng = np.random.default_rng(3)
    of = {"A": lambda: rng.permutation(TRAIN), "a": lambda: rng.permutation(TRAIN)[:15], "B": lambda: TEST, "e": lambda: EARLY}
    return [list(map(int, of.get(turn, lambda: rng.permutation(TEST))())) for turn in turns]


@pytest.mark.parametrize("turns", ["ABAB", "AbAb", "BABA", "AABAAB", "AAB", "eABAB", "ABABa", "aBABAB"])
def test_the_smaller_of_two_sets_in_turns(turns):
    assert evaluation_samples(np.concatenate(read(turns))).tolist() == TEST


@pytest.mark.parametrize("turns", ["A", "AA", "AAA", "AAa", "Aa", "AB", "BBB", "ABa"])
def test_one_set_or_one_turn_of_each_tells_of_none(turns):
    """In ABa nothing says that the samples of B are not merely those that came last of one set."""
    assert len(evaluation_samples(np.concatenate(read(turns)))) == 0


def test_a_set_in_the_same_order_each_time_is_one():
    assert len(evaluation_samples(np.array((TRAIN + TEST) * 3))) == 0


def test_sets_side_by_side_are_one():
    """Two loaders whose batches come in turns: samples of each come before some of the other."""
    both = [np.random.default_rng(seed).permutation(TRAIN + TEST) for seed in range(3)]
    assert len(evaluation_samples(np.concatenate(both))) == 0


def test_a_few_that_come_last_twice_by_chance_are_no_set():
    """Three of ten come last in both passes: one of 120 shuffles has them so."""
    few = np.array([4, 1, 6, 0, 5, 2, 3, 7, 8, 9, 2, 5, 0, 3, 1, 6, 4, 9, 7, 8])
    assert len(evaluation_samples(few)) == 0
    assert evaluation_samples(np.append(few, [3, 1, 4, 6, 0, 2, 5, 8, 9, 7] * 2)).tolist() == [7, 8, 9]


def job(folder, turns: Sequence[tuple[str, list[int]]]) -> Trace:
    """A process that reads batches of 4 files and computes; it saves after each training set."""
    made = Made()
    rank, now = made.process(1000, 1, "rank"), 10.0
    files = {number: made.file(f"/d/{name}/{number}.jpg", size=90_000) for name, own in SETS.items() for number in own}
    for index, (name, own) in enumerate(turns):
        for begin in range(0, len(own), 4):
            for number in own[begin : begin + 4]:
                now = made.read_file(now, rank, files[number]) + 0.3
            now += COMPUTE_MS if name == "train" else EVALUATION_MS
        if name == "train":
            now = made.write_file(now, rank, f"/out/epoch_{index}.pt", 300_000)
    return made.trace(folder / "t")


SETS = {"train": TRAIN, "test": TEST}


def named(turns: str) -> list[tuple[str, list[int]]]:
    return [("train" if turn in "Aa" else "test", own) for turn, own in zip(turns, read(turns), strict=True)]


def test_the_test_set_of_a_job_without_loaders_is_evaluated(tmp_path):
    fitted = fit(job(tmp_path, named("ABABAB")))
    config = fitted.config
    assert (config.train.epochs, config.reader.batch_size, config.dataset.num_files_train) == (3, 4, len(TRAIN))
    assert (config.workflow.evaluation, config.dataset.num_files_eval, config.reader.batch_size_eval) == (True, len(TEST), 4)
    assert (config.evaluation.eval_after_epoch, config.evaluation.epochs_between_evals) == (1, 1)
    times = (config.train.computation_time, config.evaluation.eval_time)
    middle_ms = [1000 * np.median(getattr(each, "values", [each])) for each in times]
    assert middle_ms == pytest.approx([COMPUTE_MS, EVALUATION_MS], rel=0.05)
    assert (fitted.coverage["read_share"], fitted.coverage["open_share"]) == (1.0, 1.0)


def test_a_look_at_the_test_set_before_training_is_no_evaluation(tmp_path):
    fitted = fit(job(tmp_path, named("eABABAB")))
    config = fitted.config
    assert (config.train.epochs, config.twin.evaluation.steps_before) == (3, 1)
    assert (config.evaluation.eval_after_epoch, config.evaluation.epochs_between_evals) == (1, 1)
    assert config.twin.startup_files == []
    assert config.twin.init_time == pytest.approx(0.01, abs=0.001)
    assert (fitted.coverage["read_share"], fitted.coverage["open_share"]) == (1.0, 1.0)
    assert fitted.evidence["evaluation"] == "3 evaluations, and 1 steps of one before training"


def test_a_test_set_read_every_second_epoch(tmp_path):
    trace = job(tmp_path, named("AABAAB"))
    config = fit(trace).config
    assert (config.train.epochs, config.evaluation.eval_after_epoch, config.evaluation.epochs_between_evals) == (4, 2, 2)
    phases = inferred_phases(trace)
    passes = phases.loc[phases["phase"].isin(["epoch", "evaluation"]), ["phase", "epoch"]]
    assert list(passes.itertuples(index=False, name=None)) == [
        ("epoch", 1), ("epoch", 2), ("evaluation", 2), ("epoch", 3), ("epoch", 4), ("evaluation", 4),
    ]  # fmt: skip
