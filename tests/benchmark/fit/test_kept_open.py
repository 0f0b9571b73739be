"""Opens of data files that stay open, foretold: against the orders that the emulator goes by, and against its own calls."""

import os
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin import workload_yaml as c
from iotwin.benchmark.emulator.data.order import evaluation_batches, training_batches
from iotwin.benchmark.emulator.ranks import run_local
from iotwin.benchmark.emulator.readers import access
from iotwin.benchmark.emulator.run import emulate
from iotwin.benchmark.fit.plan import plan
from iotwin.benchmark.fit.samples.kept_open import Dealt, Shuffled, openings
from iotwin.benchmark.fit.twin_parts import Fitted

SHUFFLES: dict[Shuffled, dict[str, str]] = {
    "": {},
    "samples": {"sample_shuffle": "seed"},
    "files": {"file_shuffle": "seed"},
    "batches": {},
}


def twin(files: int, each: int, batch: int, shuffled: Shuffled, seed: int = 1, anew: bool = True) -> c.Config:
    """A workload over equal files of records."""
    return c.Config(
        dataset=c.Dataset(num_files_train=files, num_samples_per_file=each),
        reader=c.Reader(batch_size=batch, batch_size_eval=batch, **SHUFFLES[shuffled]),  # type: ignore[arg-type]
        train=c.Train(seed=seed, seed_change_epoch=anew),
        twin=c.Twin(reader=c.TwinReader(random_batches=shuffled == "batches")),
    )


def met(config: c.Config, ranks: int, workers: int, epochs: Sequence[int], files_of: Callable[[int], set[int]]) -> int:
    """Pairs of a loader and a file that it meets by the emulator's own order; epoch 0 is an evaluation."""
    samples = config.dataset.num_files_train * config.dataset.num_samples_per_file
    found = set()
    for epoch, rank in product(epochs, range(ranks)):
        batches = training_batches(config, samples, epoch, rank, ranks)
        if epoch == 0:
            batches = evaluation_batches(config, samples, rank, ranks)
        for number in range(len(batches)):
            found |= {(rank, number % workers, file) for sample in batches[number] for file in files_of(int(sample))}
    return len(found)


small = st.integers(1, 5)


@given(small, st.integers(1, 9), small, st.integers(1, 3), small, st.sampled_from(["", "files"]), st.booleans())
def test_samples_in_order_meet_the_loaders_that_the_order_says(files, each, batch, ranks, workers, shuffled, evaluates):
    config = twin(files, each, batch, shuffled if each > 1 else "")
    steps = files * each // (batch * ranks)
    if evaluates:
        shuffled, steps = "", -(-files * each // (batch * ranks))
    dealt = Dealt(steps, batch, ranks, workers, files, each, shuffled=shuffled if each > 1 else "")
    seen = met(config, ranks, workers, [int(not evaluates)], lambda sample: {sample // each})
    assert openings(dealt, 1, anew=True) == pytest.approx(seen)
    own = met(config, ranks, workers, [int(not evaluates)], lambda sample: {sample % 3, 7})
    listed = [{place % 3, 7} for place in range(files * each)]
    if shuffled != "files":
        assert openings(Dealt(steps, batch, ranks, workers, 8, 1, listed), 3, anew=True) == own


@pytest.mark.parametrize(
    ("files", "each", "batch", "ranks", "workers", "epochs", "shuffled", "anew"),
    [
        (40, 1, 2, 1, 3, 1, "samples", True),
        (40, 1, 2, 1, 3, 4, "samples", True),
        (40, 1, 2, 1, 3, 4, "samples", False),
        (12, 5, 2, 1, 3, 1, "samples", True),
        (12, 5, 2, 2, 2, 3, "samples", True),
        (12, 5, 7, 1, 4, 2, "samples", True),
        (20, 4, 8, 1, 4, 3, "files", True),
        (10, 12, 3, 1, 5, 2, "files", True),
        (1, 64, 8, 2, 3, 2, "batches", True),
    ],
)
def test_samples_in_random_order_meet_as_many_loaders_as_expected(files, each, batch, ranks, workers, epochs, shuffled, anew):
    dealt = Dealt(files * each // (batch * ranks), batch, ranks, workers, files, each, shuffled=shuffled)
    seeds = [
        met(twin(files, each, batch, shuffled, seed, anew), ranks, workers, range(1, epochs + 1), lambda sample: {sample // each})
        for seed in range(150)
    ]
    expected, error = openings(dealt, epochs, anew), np.std(seeds) / len(seeds) ** 0.5
    assert abs(np.mean(seeds) - expected) <= max(4 * error, 0.02 * expected if shuffled == "files" else 1e-9)


def test_a_few_samples_of_very_many_are_no_trouble():
    dealt = Dealt(1 << 20, 1 << 10, 4, 8, 2, 1 << 31, shuffled="samples")
    assert openings(dealt, 1, anew=True) == 2 * 32
    assert openings(Dealt(5, 1 << 10, 4, 8, 1, 1 << 32, shuffled="batches"), 1, anew=True) == pytest.approx(4 * 5, rel=0.01)


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """What returns how many data files all processes of the emulator have opened since the last call."""
    log = os.open(tmp_path / "opened", os.O_CREAT | os.O_RDWR | os.O_APPEND)
    begin = access.Buffered.__init__

    def counted(self: access.Buffered, path: str, transfer_bytes: int | None = None) -> None:
        os.write(log, b".")
        begin(self, path, transfer_bytes)

    def count() -> int:
        found = os.fstat(log).st_size
        os.ftruncate(log, 0)
        return found

    monkeypatch.setattr(access.Buffered, "__init__", counted)
    return count


@pytest.mark.parametrize("by", ["by_loaders", "once", "each_pass"])
@pytest.mark.parametrize(
    ("threads", "evaluated_by", "ranks", "epochs", "each", "persistent", "shuffled", "tolerance"),
    [
        (0, None, 1, 2, 4, False, "samples", 0),
        (0, None, 2, 2, 4, False, "", 0),
        (0, 1, 1, 3, 4, False, "", 0),
        (2, 0, 1, 3, 4, False, "", 0),
        (2, None, 1, 3, 4, False, "", 0),
        (3, None, 1, 2, 4, True, "", 0),
        (2, None, 2, 2, 4, True, "", 0),
        (3, None, 1, 3, 4, True, "samples", 0.15),
        (3, None, 1, 3, 4, False, "samples", 0.15),
        (2, 1, 1, 3, 1, True, "samples", 0.15),
        (2, None, 1, 2, 8, True, "files", 0.15),
    ],
)
def test_the_emulator_opens_as_many_files(
    tmp_path, opened, threads, evaluated_by, ranks, epochs, each, persistent, shuffled, tolerance, by
):
    names = [f"{number:02d}.bin" for number in range(12)]
    for name in names:
        (tmp_path / name).write_bytes(bytes(each * 100))
    config = twin(9, each, 2, shuffled)
    config.workflow = c.Workflow(evaluation=True)
    config.dataset.data_folder, config.dataset.num_files_eval, config.dataset.format = str(tmp_path), 3, "bin"
    config.dataset.record_length_bytes = 100
    config.reader.read_threads, config.train.epochs = threads, epochs
    config.twin.ranks, config.twin.persistent_workers, config.twin.reader.keep_open = ranks, persistent, True
    config.twin.evaluation.read_threads, config.twin.reader.opened = evaluated_by, by
    config.twin.train_files, config.twin.eval_files = names[:9], names[9:]
    measured = run_local(ranks, lambda rank: emulate(config, None, rank))
    found = plan(Fitted(config, {}, [(name, each * 100) for name in names]))
    assert found.steps == sum(len(one.steps.rows()) for one in measured)
    assert found.bytes_or_opens["open", "dataset"] == pytest.approx(opened(), rel=tolerance if by == "by_loaders" else 0)
