"""What a twin will do, told without running it, against the same counted by hand and by the cadence that the emulator goes by."""

import sys
from typing import Any

import numpy as np
import pytest

from iotwin import workload_yaml as c
from iotwin.benchmark.fit.plan import plan
from iotwin.benchmark.fit.twin_parts import Fitted
from tests.benchmark.strace import calls_of, needs_strace, strace

TRAINING, EVALUATION = [f"train_{i}" for i in range(8)], [f"eval_{i}" for i in range(4)]
FILES = [(name, 100) for name in TRAINING] + [(name, 50) for name in EVALUATION]


def twin(files: list[tuple[str, int]] | None = None, **sections: Any) -> Fitted:
    """Eight training files of 100 bytes by twos, four of 50 bytes to evaluate one by one, three epochs."""
    given: dict[str, Any] = {
        "dataset": c.Dataset(data_folder="data", num_files_train=8, num_files_eval=4),
        "reader": c.Reader(batch_size=2),
        "train": c.Train(epochs=3),
        "workflow": c.Workflow(evaluation=True),
        "twin": c.Twin(train_files=TRAINING, eval_files=EVALUATION),
    }
    return Fitted(c.Config(**(given | sections)), {}, FILES if files is None else files)


def counts(fitted: Fitted) -> tuple[int, float, float]:
    """Steps, bytes read and opens of the data set."""
    found = plan(fitted)
    return found.steps, found.bytes_or_opens["read", "dataset"], found.bytes_or_opens["open", "dataset"]


def test_every_epoch_reads_all_and_is_followed_by_an_evaluation():
    assert counts(twin()) == (3 * (4 + 4), 3 * (800 + 200), 3 * (8 + 4))


@needs_strace
@pytest.mark.parametrize("count", [10, 3900, 4096, 9216, 300_000])
def test_numpy_reads_its_header_and_first_buffer_twice(tmp_path, count):
    """Against numpy itself."""
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(count, np.uint8))
    if path.stat().st_blksize != 4096:
        pytest.skip("Python reads files here by buffers of another size than 4096 bytes")
    calls = strace([sys.executable, "-c", f"import numpy; numpy.load({str(path)!r})"], "read", tmp_path)
    read_bytes = sum(call.result or 0 for process in calls for call in calls_of(process, "a.npy"))
    dataset = c.Dataset(data_folder="data", format="npy", num_files_train=1)
    reader, one = c.Reader(batch_size=1), c.Twin(layout="npy", train_files=["a.npy"])
    given = twin([("a.npy", path.stat().st_size)], dataset=dataset, reader=reader, twin=one, workflow=c.Workflow())
    assert counts(given) == (3, 3 * path.stat().st_size, 3)
    given.by_numpy = True
    assert counts(given) == (3, 3 * read_bytes, 3)


def test_ranks_share_the_samples_of_a_step():
    shared = c.Twin(train_files=TRAINING, eval_files=EVALUATION, ranks=2)
    assert counts(twin(twin=shared)) == (3 * (2 + 2) * 2, 3 * (800 + 200), 3 * (8 + 4))
    uneven = c.Twin(train_files=TRAINING, eval_files=EVALUATION, ranks=3)
    # Training leaves out what fills no batch on every rank, evaluation nothing.
    assert counts(twin(twin=uneven)) == (3 * (1 + 2) * 3, 3 * (6 * 100 + 4 * 50), 3 * (6 + 4))


@pytest.mark.parametrize(
    ("section", "evaluations"),
    [
        (c.Evaluation(), 3),
        (c.Evaluation(eval_after_epoch=2), 2),
        (c.Evaluation(epochs_between_evals=2), 2),
        (c.Evaluation(eval_after_epoch=3, epochs_between_evals=5), 1),
        (c.Evaluation(steps_between_evals=5), 2),  # after steps 5 and 10 of 12
        (c.Evaluation(steps_between_evals=6), 2),
        (c.Evaluation(steps_between_evals=5, eval_after_step=2), 3),  # 2, 7 and 12
        (c.Evaluation(steps_between_evals=13), 0),
    ],
)
def test_evaluations_are_counted_as_they_are_due(section, evaluations):
    assert counts(twin(evaluation=section))[0] == 12 + 4 * evaluations
    assert counts(twin(evaluation=section, workflow=c.Workflow()))[0] == 12


def test_limits_of_steps():
    limited = {"train": c.Train(epochs=1, total_training_steps=3), "evaluation": c.Evaluation(total_eval_steps=1)}
    assert counts(twin(**limited)) == (3 + 1, 600 + 50, 6 + 1)
    assert counts(twin(train=c.Train(epochs=1, total_training_steps=9)))[0] == 4 + 4


@pytest.mark.parametrize(
    ("section", "checkpoints"),
    [
        (c.Checkpoint(), 3),
        (c.Checkpoint(checkpoint_after_epoch=2), 2),
        (c.Checkpoint(epochs_between_checkpoints=2), 2),
        (c.Checkpoint(checkpoint_after_step=0), 1 + 3),
        (c.Checkpoint(checkpoint_after_step=12), 1 + 3),
        (c.Checkpoint(checkpoint_after_step=13), 3),
        (c.Checkpoint(steps_between_checkpoints=5), 2),
        (c.Checkpoint(steps_between_checkpoints=4), 3),
        (c.Checkpoint(steps_between_checkpoints=5, checkpoint_after_step=3), 3),
        (c.Checkpoint(steps_between_checkpoints=5, checkpoint_after_step=0), 1 + 2),
        (c.Checkpoint(steps_between_checkpoints=5, checkpoint_after_step=5), 2),
    ],
)
def test_checkpoints_are_counted_as_they_are_due(section, checkpoints):
    assert plan(twin(checkpoint=section, workflow=c.Workflow(checkpoint=True))).checkpoints == checkpoints
    assert plan(twin(checkpoint=section, workflow=c.Workflow())).checkpoints == 0


def test_files_of_checkpoints_are_written_opened_and_read_back():
    files = [
        c.CheckpointFile(name="model.pt", write_sizes=[(10, 3), (7, 1)], read_back=[(0, 5), (5, 6)]),
        c.CheckpointFile(name="best.pt", write_sizes=[(100, 2)], epochs=[2], made_first=True),
    ]
    section = c.Twin(train_files=TRAINING, eval_files=EVALUATION, checkpoint=c.TwinCheckpoint(files=files))
    amounts = plan(twin(twin=section, workflow=c.Workflow(checkpoint=True))).bytes_or_opens
    assert amounts["write", "checkpoint"] == 3 * 37 + 200
    assert amounts["open", "checkpoint"] == 3 * 2 + 2
    assert amounts["read", "checkpoint"] == 3 * 11


@pytest.mark.parametrize(("keep", "looks"), [(None, 0 + 1 + 2), (1, 0 + 1 + 1)])
def test_checkpoints_that_are_there_are_looked_at_before_each_other_one(keep, looks):
    files = [
        c.CheckpointFile(name="{epoch}/state", write_sizes=[(100, 1)], read_back=[(0, 60), (60, 0), (0, 60)], looked_at="opened"),
        c.CheckpointFile(name="{epoch}/manifest", write_sizes=[(7, 1)], looked_at="read"),
    ]
    section = c.Twin(train_files=TRAINING, eval_files=EVALUATION, checkpoint=c.TwinCheckpoint(files=files, keep=keep))
    amounts = plan(twin(twin=section, workflow=c.Workflow(checkpoint=True))).bytes_or_opens
    assert amounts["open", "checkpoint"] == 3 * (1 + 2) + 3 + 2 * looks
    assert amounts["read", "checkpoint"] == 3 * 120 + 7 * looks
    section.checkpoint.before = [(1, 0), (2, 0)]
    amounts = plan(twin(twin=section, workflow=c.Workflow(checkpoint=True))).bytes_or_opens
    assert amounts["read", "checkpoint"] == 3 * 120 + 7 * (3 * keep if keep else looks + 3 * 2)


@pytest.mark.parametrize(
    ("changes", "threads", "epochs", "opens"),
    [
        ({}, 0, 3, 36),
        ({"keep_open": True}, 0, 3, 12),
        ({"keep_open": True}, 2, 3, 36),  # new workers in every epoch
        ({"keep_open": True}, 2, 1, 12),  # each file by the one worker that reads it
        ({"keep_open": True, "ranks": 2}, 0, 1, 24),  # what a rank reads for itself it opens beforehand, all of it
        ({"keep_open": True, "persistent_workers": True}, 1, 3, 12),
    ],
)
def test_files_that_stay_open_are_opened_once_by_each_process(changes, threads, epochs, opens):
    reader = c.TwinReader(keep_open=changes.get("keep_open", False))
    others = {name: value for name, value in changes.items() if name != "keep_open"}
    section = c.Twin(train_files=TRAINING, eval_files=EVALUATION, reader=reader, **others)
    given = {"reader": c.Reader(batch_size=1, read_threads=threads), "train": c.Train(epochs=epochs)}
    assert counts(twin(twin=section, **given))[2] == opens


def test_pairs_are_two_files_a_sample():
    files = [(f"{name}_{half}.npy", size) for name in ("a", "b") for half, size in (("x", 90), ("y", 10))]
    section = c.Twin(layout="unet3d", train_files=["a", "b"])
    data = c.Dataset(data_folder="data", num_files_train=2)
    found = counts(twin(files, dataset=data, twin=section, train=c.Train(epochs=1), workflow=c.Workflow()))
    assert found == (1, 200, 4)


def test_a_stream_reads_ahead_of_its_steps():
    """Beside the steps' records a shuffle buffer and two batches are taken, of files in turn, which are read by buffers."""
    section = c.Twin(reader=c.TwinReader(streamed=True, interleave_files=4))
    data = c.Dataset(data_folder="data", num_files_train=12, num_samples_per_file=5, record_length_bytes=20)
    reader = c.Reader(batch_size=2, read_threads=0, transfer_size=64, sample_shuffle="seed", shuffle_size=7)
    train = c.Train(epochs=1, total_training_steps=10)
    files = [(f"f{i}", 100) for i in range(12)]

    def read(**changes: Any) -> tuple[float, float]:
        given = {"dataset": data, "reader": reader, "train": train, "workflow": c.Workflow(), "twin": section} | changes
        return counts(twin(files, **given))[1:]

    # 31 records of 20 bytes are 4 files and 55 bytes of each of the next 4, all within a first buffer of 64.
    assert read() == (4 * 100 + 4 * 64, 8)
    later = c.Train(epochs=1, total_training_steps=12)
    assert read(train=later) == (8 * 100, 8)  # 35 records: 75 bytes of each of the next 4, so both of their buffers
    threaded = c.Reader(batch_size=2, read_threads=3, transfer_size=64, sample_shuffle="off", shuffle_size=7)
    assert read(reader=threaded) == (4 * 100 + 4 * 64 + 8 * 64, 16)  # 24 records: 20 of each of the next 4, and 8 opened ahead
    assert read(train=c.Train(epochs=1))[0] == 12 * 100  # to the end of its files, nothing is read that no step uses
