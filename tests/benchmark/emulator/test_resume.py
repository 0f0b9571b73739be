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
STEPS = FILES // BATCH


def workload(folder: Path, threads: int = 0, ranks: int = 1, **resume: Any) -> c.Config:
    """Files of as many bytes as their number and a hundred, so that its size shows what was read."""
    (folder / "data").mkdir(exist_ok=True)
    names = [f"{number:02d}.bin" for number in range(FILES)]
    for number, name in enumerate(names):
        (folder / "data" / name).write_bytes(bytes(100 + number))
    (folder / "state").write_bytes(bytes(1000))
    return c.Config(
        workflow=c.Workflow(checkpoint=True),
        dataset=c.Dataset(data_folder=str(folder / "data"), format="bin", num_files_train=FILES),
        reader=c.Reader(batch_size=BATCH, read_threads=threads, sample_shuffle="seed"),
        train=c.Train(epochs=EPOCHS, computation_time=c.Uniform(0.0, 1e-6)),
        checkpoint=c.Checkpoint(checkpoint_folder=str(folder / "saved"), steps_between_checkpoints=5),
        twin=c.Twin(
            train_files=names,
            ranks=ranks,
            startup_files=[str(folder / "state")],
            startup_reads=["0:0+700", "0:700+300"],
            startup_ranks=[0, 1],
            resume=c.TwinResume(**resume) if resume else None,
            checkpoint=c.TwinCheckpoint(files=[c.CheckpointFile(name="{epoch}-{step}", write_sizes=[(10, 1)])]),
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
    assert sum(one.resumed.checkpoint_bytes_read for one in resumed if one.resumed) == 1000
    assert [one.resumed and one.resumed.checkpoint_bytes_read for one in resumed] == ([700, 300] if ranks == 2 else [1000])


@pytest.mark.parametrize(
    ("mode", "skipped", "replayed", "state", "trained"),
    [
        ("restore", 6, 0, 1000, 9),
        ("skip_reads", 6, 0, 0, 9),
        ("replay_data", 0, 6, 1000, 9),
        ("full", 0, 6, 1000, 12),
        ("replay_all", 0, 54, 1000, 9),
    ],
)
def test_modes(tmp_path, monkeypatch, mode, skipped, replayed, state, trained):
    from iotwin.benchmark.emulator.readers.access import Buffered

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


def test_without_recorded_reads_the_newest_checkpoint_is_read(tmp_path):
    config = workload(tmp_path)
    config.twin.startup_files, config.twin.startup_reads, config.twin.startup_ranks = [], [], []
    run(config)
    config.twin.resume = c.TwinResume(epoch=2)
    (measured,) = run(config)
    assert [file.name for file in measured.loaded] == [f"{EPOCHS}-{EPOCHS * STEPS // 5 * 5}"]
    assert measured.resumed is not None and measured.resumed.checkpoint_bytes_read == 10
    config.workflow.checkpoint = False
    with pytest.raises(UsageError, match="there is no checkpoint to read"):
        run(config)


@pytest.mark.parametrize(("looked_at", "here"), [("read", True), ("opened", False), (None, False)])
def test_what_later_checkpoints_read_too_is_one_file_for_both(tmp_path, monkeypatch, looked_at, here):
    """Else the twin would use more files of checkpoints than its job."""
    from iotwin.benchmark.emulator.readers.listed import BufferedToEnd

    config = workload(tmp_path, ranks=2, epoch=2, step=3)
    config.twin.startup_files = [f"found/{number}/{name}" for number in (3, 6) for name in ("manifest", "state")]
    for name in config.twin.startup_files:
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(bytes(20))
    config.twin.startup_reads, config.twin.startup_ranks = ["0:0+20 0:20+0", "1:0+20", "2:0+20", "3:0+20"], [0, 1, 1, 0]
    config.twin.checkpoint.files = [
        c.CheckpointFile(name="{step}/manifest", write_sizes=[(10, 1)], looked_at=looked_at),
        c.CheckpointFile(name="{step}/state", write_sizes=[(10, 1)], looked_at="opened"),
    ]
    config.twin.checkpoint.before, config.twin.checkpoint.keep = [(1, 3), (1, 6)], 2
    opened = tmp_path / "opened"
    open_it = BufferedToEnd.__init__

    def watched(self: BufferedToEnd, path: str) -> None:
        with opened.open("a") as file:  # by every rank
            print(Path(path).relative_to(tmp_path), file=file)
        open_it(self, path)

    monkeypatch.setattr(BufferedToEnd, "__init__", watched)
    measured = run(config)
    assert sum(one.resumed.checkpoint_bytes_read for one in measured if one.resumed) == 80
    names = set(opened.read_text().splitlines())
    manifests = {f"{'saved' if here else 'data/found'}/{number}/manifest" for number in (3, 6)}
    assert {name for name in names if name.endswith(("/3/manifest", "/6/manifest"))} == manifests
    assert {f"data/found/{number}/state" for number in (3, 6)} <= names
    assert not list((tmp_path / "saved").glob("[36]/*"))


def test_a_step_after_the_epoch_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"twin.resume.step: 13 is after the last of the 12 steps"):
        run(workload(tmp_path, epoch=2, step=13))
