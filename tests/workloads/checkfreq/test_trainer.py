"""The job as its command line starts it: it learns, is resumed bit for bit, and says what its checkpoints took."""

import csv
import itertools
import json
import multiprocessing
import os
import signal
from collections import Counter

import pytest
import torch

from iotwin.common.checkpoints import checkpoints, newest
from iotwin.common.ranks import claimed_ports
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import ImagenetLayout
from iotwin.workloads.checkfreq import profile
from iotwin.workloads.checkfreq.__main__ import main
from iotwin.workloads.common.torch_ranks import TorchRanks
from tests.workloads import killed
from tests.workloads.mllog import entries, parts

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("images")
    generate(ImagenetLayout(classes=4, scale=0.1), directory, samples=256, seed=1, workers=1)
    return directory


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    directory = tmp_path_factory.mktemp("few")
    generate(ImagenetLayout(classes=2, scale=0.1), directory, samples=64, seed=1, workers=1)
    return directory


@pytest.fixture(autouse=True)
def _own_profile(monkeypatch):
    monkeypatch.setattr(profile, "DECIDED", 9)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def options(data, output, **changes):
    """Options of the job; True stands for a bare flag."""
    chosen = {
        "data": data, "output": output, "preset": "tiny", "batch_size": 16, "workers": 0, "threads": 1, "print_freq": 0,
        "profile_cache": output / "profiles", **changes,
    }  # fmt: skip
    words = []
    for name, value in chosen.items():
        spelled = name if name in ("steps_per_run", "sync_bn", "chk_mode_baseline") else name.replace("_", "-")
        words += [f"--{spelled}"] if value is True else [f"--{spelled}", str(value)]
    return words


def run(data, output, status=0, **changes):
    assert main(options(data, output, **changes)) == status
    return json.loads((output / "result.json").read_text()) if not status else None


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_it_learns_and_says_what_its_checkpoints_took(data, tmp_path, capsys):
    result = run(data, tmp_path, epochs=5, lr=0.4, variant="instrumented")
    assert result["train_loss"][-1] < 2 / 3 * result["train_loss"][0]
    assert [each["epoch"] for each in result["evaluations"]] == list(range(1, 6))
    told = result["checkpoints"]
    assert told["policy"] == "auto" and told["interval"] >= 1 and told["intervals"][0][0] == 9 - 1
    assert told["count"] == len(told["stall_s"]) - 4 == len(told["persist_s"])  # the profile takes four that are not written
    assert told["size_bytes"] > 4 * result["parameters"] and told["worker"] in ("thread", "process")
    assert {"Ti_s", "Tw_s", "Tc_s", "Tg_s", "Ts_s", "m_bytes"} <= told["profile"].keys()
    steps = rows(tmp_path / "time-split0.csv")
    assert len(steps) == 80 == result["steps"] and list(steps[0]) == [
        "epoch", "iter", "total", "data", "compute", "stall", "checkpoint", "interval", "loss",
    ]  # fmt: skip
    assert all(float(row["total"]) >= float(row["data"]) for row in steps)
    progress = rows(tmp_path / "acc-progress-0.csv")
    assert [float(row["loss"]) for row in progress] == pytest.approx(result["train_loss"], rel=1e-4)
    logged = entries(capsys.readouterr().out)
    assert {"snapshot", "persist", "stall"} <= parts(logged).keys()
    assert newest(tmp_path / "checkpoints", print).manifest.step == 80


def test_without_a_learning_rate_it_learns_nothing(data, tmp_path):
    result = run(data, tmp_path, epochs=2, lr=0, chk_policy="none", chk_freq=4, noeval=True)
    assert result["train_loss"][-1] > 2 / 3 * result["train_loss"][0]
    assert result["checkpoints"] == {"policy": "none", "interval": None, "intervals": [], "count": 0}
    assert {row["interval"] for row in rows(tmp_path / "time-split0.csv")} == {"0"}
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(("policy", "expected"), [("sync", [5, 10, 15, 16, 21, 26, 31, 32]), ("epoch", [16, 32])])
def test_policies_that_wait(data, tmp_path, policy, expected):
    result = run(data, tmp_path, epochs=2, chk_policy=policy, chk_freq=5, keep_all=True, noeval=True)
    assert sorted(found.manifest.step for found in checkpoints(tmp_path / "checkpoints")) == expected
    told = result["checkpoints"]
    assert told["count"] == len(expected) and told["worker"] is None and told["snapshot"] is None
    assert all(stall >= persist for stall, persist in zip(told["stall_s"], told["persist_s"], strict=True))


def test_waiting_at_the_interval_that_was_measured_before(data, tmp_path):
    cache = tmp_path / "cache"
    first = run(data, tmp_path / "auto", epochs=1, profile_cache=cache, noeval=True)
    second = run(data, tmp_path / "sync", epochs=1, profile_cache=cache, noeval=True, chk_policy="sync", chk_freq="cached")
    assert second["checkpoints"]["profile"]["from_cache"] is True
    assert second["checkpoints"]["interval"] == first["checkpoints"]["intervals"][0][1]
    third = run(data, tmp_path / "anew", epochs=1, profile_cache=cache, noeval=True, reprofile=True)
    assert third["checkpoints"]["profile"]["from_cache"] is False


@pytest.mark.parametrize("stopped", [8, 11])
def test_a_run_that_vanishes_and_is_resumed_ends_as_if_nothing_had_been(few, tmp_path, stopped):
    changes = {"epochs": 2, "noeval": True, "chk_freq": 3, "batch_size": 8}
    whole = run(few, tmp_path / "whole", index_log=tmp_path / "whole.log", **changes)
    first = run(few, tmp_path / "out", steps_per_run=stopped, index_log=tmp_path / "first.log", **changes)
    assert first["stopped"] is True and first["steps"] == stopped
    result = run(few, tmp_path / "out", resume=True, workers=1, index_log=tmp_path / "second.log", **changes)
    step = result["resumed_from"]["step"]
    assert stopped - 6 < step <= stopped and result["configuration"]["resume"] is True
    for key in ("weights_sha256", "order_sha256", "train_loss"):
        assert result[key] == whole[key], key
    logs = [(tmp_path / f"{name}.log").read_text().splitlines() for name in ("whole", "first", "second")]
    assert logs[1][:step] + logs[2] == logs[0]
    taken = Counter(index for line in logs[0][:8] for index in line.split()[3:])
    assert len(taken) == 64 and set(taken.values()) == {1}


def test_two_ranks_that_vanish_go_on(data, tmp_path):
    def ranks(output, **changes):
        words = options(data, tmp_path / output, epochs=1, noeval=True, chk_freq=2, **changes)
        return killed.run(main, words, tmp_path, output, 2)[0]

    whole = ranks("whole")
    assert whole["world_size"] == 2 and whole["steps"] == 8
    ranks("out", steps_per_run=5)
    result = ranks("out", resume=True)
    assert result["resumed_from"]["step"] == 4
    for key in ("weights_sha256", "order_sha256", "train_loss"):
        assert result[key] == whole[key], key


def _rank_of_two(words, environment, report, dies):
    os.environ |= environment
    os.dup2(os.open(report, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if dies:
        together, calls = TorchRanks.sum, itertools.count()

        def then_die(self, *values):
            if values == (0,) and next(calls) == 4:  # the barrier of the fifth step, in which the other one waits
                os.kill(os.getpid(), signal.SIGKILL)
            return together(self, *values)

        TorchRanks.sum = then_die
    os._exit(main(words))


def test_a_rank_that_dies_in_the_barrier_leaves_checkpoints_from_which_both_go_on(data, tmp_path):
    words = options(data, tmp_path / "out", epochs=1, noeval=True, chk_freq=2, barrier=True)
    fork = multiprocessing.get_context("fork")
    with claimed_ports(1) as port:
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        said = [tmp_path / f"stderr.{rank}" for rank in (0, 1)]
        ranks = [
            fork.Process(target=_rank_of_two, args=(words, environment | {"RANK": str(rank)}, said[rank], rank == 1))
            for rank in (0, 1)
        ]
        for rank in ranks:
            rank.start()
        ranks[1].join()
    assert ranks[1].exitcode == -signal.SIGKILL
    ranks[0].join(20)
    if ranks[0].exitcode is None:  # gloo can wait for ever for a peer that is gone
        ranks[0].kill()
    ranks[0].join()
    assert ranks[0].exitcode != 0
    resumed, _ = killed.run(main, [*words[:2], *words[4:], "--resume"], tmp_path, "out", 2)
    assert resumed["resumed_from"]["step"] in (2, 4) and resumed["steps"] == 8 - resumed["resumed_from"]["step"]
    whole_words = options(data, tmp_path / "whole", epochs=1, noeval=True, chk_freq=2, barrier=True)
    whole, _ = killed.run(main, [*whole_words[:2], *whole_words[4:]], tmp_path, "whole", 2)
    assert all(resumed[key] == whole[key] for key in ("weights_sha256", "order_sha256", "train_loss"))


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"arch": "resnet19"}, 2, "--arch 'resnet19' is unknown (did you mean 'resnet18'?)"),
        ({"chk_policy": "never"}, 2, "--chk-policy 'never' is unknown"),
        ({"chk_freq": "often"}, 2, "--chk-freq 'often' must be a number of steps, 0, or cached"),
        ({"max_overhead": 0}, 2, "--max-overhead 0.0 must be above 0"),
        ({"in_flight": 0}, 2, "--in-flight 0 must be at least 1"),
        ({"mtbf": -1}, 2, "--mtbf -1.0 must be above 0"),
        ({"batch_size": 1000}, 1, "has 256 training images, too few for one batch of 1000"),
        ({"data": "nowhere"}, 1, "nowhere/train: No such file or directory; make a data set with"),
    ],
)
def test_bad_input_is_one_line(data, tmp_path, capsys, changes, status, message):
    changes = dict(changes)
    assert main(options(changes.pop("data", data), tmp_path / "out", **changes)) == status
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1, error


def test_flags_without_effect_are_read_and_said(data, tmp_path, capsys):
    words = [*options(data, tmp_path, epochs=1, iters=2, noeval=True, chk_mode_baseline=True), "--dali", "--tic-tac-len", "3"]
    assert main(words) == 0
    error = capsys.readouterr().err
    assert "--dali is of no effect" in error and "--tic-tac-len is of no effect" in error
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["steps"] == 2 and result["checkpoints"]["policy"] == "epoch"


def test_an_image_that_is_none_is_named(data, tmp_path, capsys):
    broken = tmp_path / "images" / "train" / "cat"
    broken.mkdir(parents=True)
    (broken / "a.JPEG").write_bytes(b"no image")
    assert main(options(tmp_path / "images", tmp_path / "out", batch_size=1, noeval=True)) == 1
    assert "a.JPEG is no image that can be decoded" in capsys.readouterr().err
