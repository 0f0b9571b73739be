"""Runs that go on where one was stopped: at the same batches, after reading what their mode says."""

from pathlib import Path
from typing import Any

import pytest

from iotwin import workload_yaml as c
from iotwin.benchmark.emulator.data.order import training_batches
from iotwin.benchmark.emulator.journal import Measured
from iotwin.benchmark.emulator.ranks import run_local
from iotwin.benchmark.emulator.run import emulate
from iotwin.common.errors import UsageError

FILES, BATCH, EPOCHS = 24, 2, 3
STATE_BYTES = 1000  # size of a checkpoint
STEPS = FILES // BATCH


def workload(folder: Path, threads: int = 0, ranks: int = 1, **resume: Any) -> c.Config:
    """Files of as many bytes as their number and a hundred, so that its size shows what was read."""
    (folder / "data").mkdir(exist_ok=True)
    names = [f"{number:02d}.bin" for number in range(FILES)]
    for number, name in enumerate(names):
        (folder / "data" / name).write_bytes(bytes(100 + number))
    return c.Config(
        workflow=c.Workflow(checkpoint=True),
        dataset=c.Dataset(data_folder=str(folder / "data"), format="bin", num_files_train=FILES),
        reader=c.Reader(batch_size=BATCH, read_threads=threads, sample_shuffle="seed"),
        train=c.Train(epochs=EPOCHS, computation_time=c.Uniform(0.0, 1e-6)),
        checkpoint=c.Checkpoint(checkpoint_folder=str(folder / "saved"), steps_between_checkpoints=5),
        twin=c.Twin(
            train_files=names,
            ranks=ranks,
            resume=c.TwinResume(**resume) if resume else None,
            checkpoint=c.TwinCheckpoint(files=[c.CheckpointFile(name="{epoch}-{step}", write_sizes=[(STATE_BYTES, 1)])]),
        ),
    )


def run(config: c.Config) -> list[Measured]:
    return run_local(config.twin.ranks, lambda rank: emulate(config, None, rank))


def batches_read(measured: Measured) -> list[tuple[int, int, int]]:
    """(epoch, step, bytes) of each training step."""
    return [(int(row[1]), int(row[3]), int(row[11])) for row in measured.steps.rows()]


@pytest.mark.parametrize(("threads", "ranks"), [(0, 1), (2, 1), (1, 2)])
def test_a_resumed_run_reads_and_writes_what_the_whole_one_does_after_that_step(tmp_path, threads, ranks):
    whole = run(workload(tmp_path, threads, ranks))
    resumed = run(workload(tmp_path, threads, ranks, epoch=2, step=3))
    for one, other in zip(whole, resumed, strict=True):
        assert batches_read(other) == [row for row in batches_read(one) if row[:2] > (2, 3)]
        done = STEPS // ranks + 3
        assert [file.name for file in other.saved] == [file.name for file in one.saved if int(file.name.split("-")[1]) > done]
        assert other.resumed is not None and other.resumed.samples_skipped == 3 * BATCH
    assert [one.resumed and one.resumed.checkpoint_bytes_read for one in resumed] == [STATE_BYTES] * ranks


@pytest.mark.parametrize(
    ("mode", "skipped", "replayed", "state", "trained"),
    [
        ("restore", 6, 0, STATE_BYTES, 9),
        ("skip_reads", 6, 0, 0, 9),
        ("replay_data", 0, 6, STATE_BYTES, 9),
        ("full", 0, 6, STATE_BYTES, 12),
        ("replay_all", 0, 54, STATE_BYTES, 9),
    ],
)
def test_modes(tmp_path, monkeypatch, mode, skipped, replayed, state, trained):
    from iotwin.benchmark.emulator.readers.access import Buffered

    run(workload(tmp_path))
    read: list[int] = []
    take = Buffered.read
    monkeypatch.setattr(Buffered, "read", lambda self, offset, size: (read.append(size), take(self, offset, size))[1])
    config = workload(tmp_path, epoch=3, step=3, mode=mode)
    (measured,) = run(config)
    resumed = measured.resumed
    assert resumed is not None
    assert (resumed.samples_skipped, resumed.samples_replayed, resumed.checkpoint_bytes_read) == (skipped, replayed, state)
    assert len(batches_read(measured)) == trained
    order = [int(sample) for batch in training_batches(config, FILES, 3) for sample in batch]
    earlier = 2 * sum(100 + number for number in range(FILES)) if mode == "replay_all" else 0
    assert sum(read) == state + earlier + sum(100 + sample for sample in order[skipped:])


def test_the_newest_checkpoint_is_read(tmp_path):
    config = workload(tmp_path)
    run(config)
    config.twin.resume = c.TwinResume(epoch=2)
    (measured,) = run(config)
    assert [file.name for file in measured.loaded] == [f"{EPOCHS}-{EPOCHS * STEPS // 5 * 5}"]
    assert measured.resumed is not None and measured.resumed.checkpoint_bytes_read == STATE_BYTES
    config.workflow.checkpoint = False
    with pytest.raises(UsageError, match="there is no checkpoint to read"):
        run(config)


def test_a_step_after_the_epoch_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"twin.resume.step: 13 is after the last of the 12 steps"):
        run(workload(tmp_path, epoch=2, step=13, mode="skip_reads"))
