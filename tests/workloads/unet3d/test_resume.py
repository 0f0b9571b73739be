"""unet3d killed at a step and resumed: the same weights and the same samples; on another number of ranks the same samples."""

from collections import Counter

import pytest

from iotwin.workloads.unet3d.__main__ import main
from tests.workloads import killed
from tests.workloads.killed import indices, same, until
from tests.workloads.unet3d.conftest import names, options

pytestmark = pytest.mark.torch
SMALL = {"epochs": 2, "batch_size": 2, "eval_every": 0, "checkpoint_every": 0, "crop": "8", "base_channels": 2, "depth": 1}
STEPS = 16


def run(data, tmp_path, output, ranks=1, killed_at=0, **changes):
    arguments = options(data, tmp_path / output, **{**SMALL, **changes})
    return killed.run(main, arguments, tmp_path, output, ranks, killed_at)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    return run(data, tmp_path_factory.mktemp("whole"), "whole")


def test_an_uninterrupted_job_takes_each_sample_once_an_epoch(whole):
    result, log = whole
    assert result["resumed_from"] is None and result["stopped"] is False and result["steps"] == STEPS
    assert indices(log) == Counter((epoch, index) for epoch in (1, 2) for index in range(16))
    assert [line[:3] for line in log] == [[0, 1 + step // 8, step + 1] for step in range(STEPS)]


@pytest.mark.parametrize(("killed_at", "every", "workers"), [(1, 1, 0), (6, 3, 2), (8, 8, 0), (9, 1, 0), (15, 4, 0)])
def test_killed_at_a_step_and_resumed_it_ends_as_if_nothing_had_been(data, tmp_path, whole, killed_at, every, workers):
    changes = {"checkpoint_steps": every, "keep": 2, "workers": workers}
    _, before = run(data, tmp_path, "out", killed_at=killed_at, **changes)
    result, rest = run(data, tmp_path, "out", resume="auto", **changes)
    step = (killed_at - 1) // every * every
    if step == 0:
        assert result["resumed_from"] is None
    else:
        assert result["resumed_from"] == {
            "name": f"step-{step}",
            "step": step,
            "epoch": 1 + (step - 1) // 8,
            "position": 2 * (1 + (step - 1) % 8),
        }
    assert result["steps"] == STEPS - step
    assert result["train_loss"] == whole[0]["train_loss"][-len(result["train_loss"]) :]
    same(whole, result, until(before, step), rest)
    assert len([name for name in names(tmp_path / "out" / "checkpoints") if name.startswith("step-")]) == 2


def test_two_ranks_killed_and_resumed_and_then_one(data, tmp_path):
    uninterrupted = run(data, tmp_path, "whole", ranks=2)
    _, before = run(data, tmp_path, "out", ranks=2, killed_at=6, checkpoint_steps=1, epochs=2)
    result, rest = run(data, tmp_path, "out", ranks=2, resume=tmp_path / "out" / "checkpoints" / "step-5")
    same(uninterrupted, result, until(before, 5), rest)
    assert result["resumed_from"]["name"] == "step-5" and result["resumed_from"]["position"] == 4
    # On another number of ranks the same samples, in the same order.
    for ranks in (1, 3):
        result, rest = run(data, tmp_path, f"on {ranks}", ranks=ranks, resume=tmp_path / "out" / "checkpoints" / "step-5")
        assert result["order_sha256"] == uninterrupted[0]["order_sha256"]
        assert indices(until(before, 5), rest) == indices(uninterrupted[1])


def test_stop_and_go_on_a_step_at_a_time(data, tmp_path, whole):
    logs = []
    for stopped in range(5):
        result, log = run(data, tmp_path, "out", stop_after=3, checkpoint_seconds=1000, resume="auto", keep=1)
        assert result["stopped"] is True and result["steps"] == 3
        assert names(tmp_path / "out" / "checkpoints") == ["LATEST", f"step-{3 * stopped + 3}", "store.lock"]
        logs.append(log)
    result, log = run(data, tmp_path, "out", resume="auto")
    same(whole, result, *logs, log)
    assert result["stopped"] is False


def test_evaluations_and_the_best_come_out_the_same(data, tmp_path):
    changes = {"epochs": 4, "eval_every": 1, "checkpoint_every": 4}
    uninterrupted = run(data, tmp_path, "whole", **changes)
    run(data, tmp_path, "out", stop_after=19, checkpoint_seconds=1000, **changes)
    result, _ = run(data, tmp_path, "out", resume="auto", **changes)
    assert result["evaluations"] == uninterrupted[0]["evaluations"][2:]
    best = [(tmp_path / output / "checkpoint_best.pt").stat().st_size for output in ("whole", "out")]
    assert best[0] == best[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 2}, "step-3 is of seed 1, this job is of seed 2"),
        ({"base_channels": 4}, "this job is of network {'base_channels': 4"),
        ({"epochs": 0}, "--epochs 0 must be at least 1"),
        ({"resume": "nowhere"}, "nowhere: No such file or directory; name a directory that holds checkpoints"),
        ({"checkpoint_seconds": -1}, "--checkpoint-seconds -1.0 must be at least 0"),
        ({"stop_after": -1}, "--stop-after -1 must be at least 0"),
        ({"checkpoint_steps": 1, "variant": "sleep", "sleep": 0}, "there is no state for --checkpoint-steps"),
    ],
)
def test_what_cannot_be_resumed_is_one_line(data, tmp_path, stopped, capsys, changes, message):
    arguments = options(data, tmp_path / "out", **{**SMALL, "resume": stopped / "out" / "checkpoints", **changes})
    assert main(arguments) in (1, 2)
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1, error


@pytest.fixture(scope="module")
def stopped(data, tmp_path_factory):
    directory = tmp_path_factory.mktemp("stopped")
    run(data, directory, "out", stop_after=3, checkpoint_seconds=1000)
    return directory


def test_a_store_of_another_data_set_or_of_a_later_epoch_is_refused(data, tmp_path, stopped, capsys):
    from iotwin.datagen.generate import generate
    from iotwin.datagen.layouts import Unet3dLayout

    generate(Unet3dLayout(scale=0.1), tmp_path / "data", samples=10, seed=3, workers=1)
    store = stopped / "out" / "checkpoints"
    assert main(options(tmp_path / "data", tmp_path / "out", **{**SMALL, "resume": store})) == 1
    assert "the checkpoint is of 16 training samples, the data set has 8" in capsys.readouterr().err
