"""Cadences of checkpoints that the emulator's log lists, found again by fit."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iotwin import workload_yaml as c
from iotwin.benchmark.emulator.run import emulate
from iotwin.benchmark.fit.checkpoints.cadences import explains, find_cadence, find_intervals, find_seconds, steady
from iotwin.benchmark.fit.checkpoints.checkpoint_files import SeenFile
from iotwin.benchmark.fit.checkpoints.find_checkpoints import SeenCheckpoint, SeenCheckpoints
from iotwin.benchmark.fit.parameters.checkpoint_keys import set_checkpoints
from iotwin.workloads.policies.cadence import Cadence

FILES = 6
few = st.integers(1, 9)


def workload(folder: Path, epochs: int) -> c.Config:
    """Steps of one small file each."""
    (folder / "data").mkdir(exist_ok=True)
    for number in range(FILES):
        (folder / "data" / f"{number}.bin").write_bytes(b"1")
    file = c.CheckpointFile(name="{epoch}_{step}", write_sizes=[(1, 1)])
    return c.Config(
        workflow=c.Workflow(checkpoint=True),
        dataset=c.Dataset(data_folder=str(folder / "data"), format="bin", num_files_train=FILES),
        reader=c.Reader(read_threads=0),
        train=c.Train(epochs=epochs),
        checkpoint=c.Checkpoint(checkpoint_folder=str(folder / "saved")),
        twin=c.Twin(checkpoint=c.TwinCheckpoint(files=[file])),
    )


def written(config: c.Config) -> list[tuple[int, int]]:
    """(epoch, step) of each checkpoint that the emulator says it wrote, in order."""
    saved = [file.name.split("_") for file in emulate(config, None).saved]
    return [(int(epoch), int(step)) for epoch, step in saved]


def found_again(config: c.Config, seen: list[tuple[int, int]], by_epochs: bool) -> c.Config:
    """The same workload with the cadence that a fit makes of these checkpoints."""
    each = [SeenCheckpoint(epoch, step, False, list[SeenFile]()) for epoch, step in seen]
    again = c.Config(
        workflow=config.workflow,
        dataset=config.dataset,
        reader=config.reader,
        train=config.train,
        twin=c.Twin(checkpoint=c.TwinCheckpoint(files=config.twin.checkpoint.files)),
    )
    set_checkpoints(
        again,
        SeenCheckpoints("", each, by_epochs, None, None),
        config.train.epochs,  # type: ignore[arg-type]
        config.train.epochs * FILES,
        [],
    )
    again.checkpoint.checkpoint_folder = config.checkpoint.checkpoint_folder
    return again


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(epochs=st.integers(1, 4), first=few, every=few, by_epochs=st.booleans(), also=st.sampled_from(["", "before", "1", "last"]))
def test_a_fit_finds_the_cadence_again(tmp_path, epochs, first, every, by_epochs, also):
    config, last = workload(tmp_path, epochs), epochs if by_epochs else epochs * FILES
    extra = {"": -1, "before": 0, "1": 1, "last": last}[also]
    if by_epochs:
        config.checkpoint.checkpoint_after_epoch, config.checkpoint.epochs_between_checkpoints = first, every
        if extra > 0:
            config.twin.checkpoint.after = sorted({extra, *range(first, last + 1, every)})
        config.checkpoint.checkpoint_after_step = min(extra, 0)
    else:
        config.checkpoint.steps_between_checkpoints = every
        config.twin.checkpoint.after = None if first == every else list(range(first, last + 1, every))
        config.checkpoint.checkpoint_after_step = extra
    seen = written(config)
    if not seen:
        return
    again = written(found_again(config, seen, by_epochs))
    assert len(again) == len(seen)
    apart = [abs(one - other) for (_, one), (_, other) in zip(again, seen, strict=True)]
    assert sum(apart) == 0 if by_epochs else sum(apart) <= len(seen) * every / 4  # by steps they may have come late


@pytest.mark.parametrize(
    ("seen", "until", "cadence"),
    [
        ([10, 21, 31, 40], 40, (10, 10, -1)),  # a little late: written beside training
        ([10, 20, 31], 33, (10, 10, -1)),
        ([9, 19, 29], 29, (9, 10, -1)),  # in phase there would be two
        ([3, 13, 23, 33], 40, (3, 10, -1)),
        ([3, 10, 20, 30], 33, (10, 10, 3)),
        ([10, 20, 30, 33], 33, (10, 10, 33)),  # the last one at the end
        ([5], 40, (5, 40, -1)),  # once, not every five steps
        ([], 40, (41, 41, -1)),
    ],
)
def test_cadences(seen, until, cadence):
    assert find_cadence(seen, until, exact=False) == Cadence(*cadence)


def saved_by_clock(seconds: float, step_s: list[float]) -> tuple[list[int], list[int]]:
    """(steps done, nanoseconds) of each checkpoint of a job that writes one after the first step that ends when it is due."""
    now, due, steps, begun_ns = 0.0, seconds, [], []
    for number, length_s in enumerate(step_s, start=1):
        now += length_s
        if now >= due:
            steps.append(number)
            begun_ns.append(round(now * 1e9))
            due = now + seconds
    return steps, begun_ns


def test_a_clock_is_told_from_a_count():
    step_s = np.random.default_rng(5).choice([0.1, 0.3], 400, p=[0.7, 0.3]).tolist()
    steps, begun_ns = saved_by_clock(2.0, step_s)
    assert find_seconds(steps, np.array(begun_ns)) == pytest.approx(2.0, rel=0.05)
    # The same job counting: every 12 steps, one of them seen a step late.
    ends_ns = (np.cumsum(step_s) * 1e9).astype(np.int64)
    counted = np.arange(12, 400, 12)
    counted[5] += 1
    assert find_seconds(counted.tolist(), ends_ns[counted - 1]) is None
    # An interval that a policy moves is no clock's: the seconds between vary as the steps do.
    moved = np.cumsum([4, 4, 6, 8, 12, 16, 16])
    assert find_seconds(moved.tolist(), ends_ns[moved - 1]) is None
    assert find_seconds(steps[:4], np.array(begun_ns[:4])) is None


@pytest.mark.parametrize(
    ("seen", "intervals"),
    [
        ([7, 14, 21, 28, 35], [(0, 7)]),
        ([7, 15, 21, 28, 35], [(0, 7)]),  # one late
        ([10, 20, 30, 33, 36, 39], [(0, 10), (30, 3)]),
        ([8, 16, 24, 32, 40, 48], [(0, 8)]),  # ends of epochs in the row
        ([7, 14, 21, 28, 32, 35, 42, 49, 56, 63, 64, 70, 84, 96, 98, 112], [(0, 7), (70, 14)]),  # and beside it
        ([5, 5, 5, 10, 15], [(0, 5)]),  # several at one step
        ([32, 64, 96], [(0, 32)]),
        ([], []),
    ],
)
def test_intervals_that_change(seen, intervals):
    assert find_intervals(seen, 32) == intervals


@pytest.mark.parametrize(
    ("seen", "every"),
    [
        ([25, 50, 75, 100], 25),
        ([27, 51, 75, 100, 128], 25),  # what is written beside training may be late
        ([25, 54, 75], None),
        ([24, 50, 75, 100, 125], None),  # and never early
        ([10, 20, 30, 33, 36, 39], None),
        ([25, 50], None),  # too few to tell
        ([25, 50, 75], 25),
        ([], None),
    ],
)
def test_late_checkpoints_are_no_change_of_their_number(seen, every):
    assert steady(seen) == every


def test_checkpoints_that_no_cadence_explains_are_listed(tmp_path):
    moved = [6, 8, 10, 12, 13, 14, 18, 22, 24, 30, 36]  # every 2, 1, 4 and 6 steps, and at ends of epochs
    config = workload(tmp_path, epochs=6)
    again = found_again(config, [((step - 1) // FILES + 1, step) for step in moved], by_epochs=False)
    assert again.twin.checkpoint.after == moved
    assert [step for _, step in written(again)] == moved
    assert not explains(Cadence(4, 4), moved, 36, exact=False) and explains(Cadence(4, 4), [4, 8, 12, 16], 19, exact=False)
