"""BERT killed at a step and resumed: exactly where its pipeline is deterministic, else with other records, and it says so."""

import importlib.util
import os
import shutil
import signal

import pytest

from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import BertLayout
from iotwin.workloads.bert.__main__ import main
from tests.workloads.bert.test_job import options
from tests.workloads.killed import die_after, end_of, indices, result_of, same, tensorflow_server, until

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")

STEPS, SAMPLES, BATCH = 6, 40, 4


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shards")
    generate(BertLayout(), directory, samples=SAMPLES, seed=3, workers=1)
    return directory


def arguments(data, flags=("--deterministic",), **changes):
    values = {"batch_size": BATCH, "steps": STEPS, "eval_steps": 0, "sequence": 32, **changes}
    return [*options(data, values.pop("output", ""), **values), *flags]


def run(data, tmp_path, output, ranks=1, killed_at=0, **changes):
    """Run a job, all of its ranks killed at a step; return the result and the index log's lines."""
    return result_of(tensorflow_server(), main, arguments(data, **changes), tmp_path, output, ranks, killed_at)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    return run(data, tmp_path_factory.mktemp("whole"), "whole")


@pytest.fixture(scope="module")
def killed(data, tmp_path_factory):
    """A job with a checkpoint after step 2, killed at 3."""
    directory = tmp_path_factory.mktemp("killed")
    return directory, run(data, directory, "out", killed_at=3, checkpoint_steps=2)[1]


def test_killed_at_a_step_and_resumed_it_ends_as_if_nothing_had_been(data, whole, killed):
    directory, before = killed
    shutil.copytree(directory / "out", directory / "exact")
    result, rest = run(data, directory, "exact", resume="auto")
    same(whole, result, until(before, 2), rest)
    assert result["steps"] == STEPS - 2 and result["last_loss"] == whole[0]["last_loss"]
    assert result["resumed_from"] == {"name": "step-2", "step": 2, "epoch": 1, "position": 2 * BATCH}
    assert result["resumed_exactly"] is True and whole[0]["resumed_exactly"] is None
    assert sorted(path.name for path in (directory / "exact").glob("model.ckpt-*.index")) == [
        "model.ckpt-0.index",
        "model.ckpt-6.index",
    ]


def test_the_index_log_names_records_by_shard_and_place(whole):
    taken = indices(whole[1])
    assert sum(taken.values()) == STEPS * BATCH
    known = {(1, shard << 32) for shard in range(SAMPLES)}  # a shard has one record
    assert taken.keys() <= known


def test_without_a_deterministic_pipeline_it_is_resumed_statistically_and_says_so(data, whole, killed):
    directory, _ = killed
    shutil.copytree(directory / "out", directory / "statistical")
    result, log = run(data, directory, "statistical", flags=(), resume="auto")
    said = "bert: resumed statistically: the records after step 2 are others than those of an uninterrupted job"
    assert (directory / "stderr.0").read_text().splitlines()[-1].startswith(said)
    assert result["resumed_exactly"] is False and result["steps"] == STEPS - 2
    assert result["order_sha256"] != whole[0]["order_sha256"]
    assert [line[2] for line in log] == [3, 4, 5, 6]


# Three tests, as starting TensorFlow takes most of their time: none comes near the limit of one.


@pytest.fixture(scope="module")
def whole_of_two(data, tmp_path_factory):
    return run(data, tmp_path_factory.mktemp("whole"), "whole", ranks=2)


@pytest.fixture(scope="module")
def killed_of_two(data, tmp_path_factory):
    directory = tmp_path_factory.mktemp("killed")
    return directory, run(data, directory, "out", ranks=2, killed_at=3, checkpoint_steps=2)[1]


def test_two_ranks_take_records_of_their_own(whole, whole_of_two):
    result, log = whole_of_two
    assert sorted(line[:3] for line in log) == [[rank, 1, step + 1] for rank in (0, 1) for step in range(STEPS)]
    shards = [{index >> 32 for own, _, _, *found in log if own == rank for index in found} for rank in (0, 1)]
    assert shards[0].isdisjoint(shards[1]) and shards[0] | shards[1] <= set(range(SAMPLES))
    assert result["order_sha256"] != whole[0]["order_sha256"]


def test_one_of_two_ranks_goes_on_statistically(data, tmp_path, killed_of_two):
    directory, _ = killed_of_two
    result, _ = run(data, tmp_path, "alone", resume=directory / "out" / "checkpoints")
    assert result["resumed_exactly"] is False and result["resumed_from"]["position"] == 2 * 2 * BATCH


def test_two_ranks_killed_and_resumed_end_as_if_nothing_had_been(data, whole_of_two, killed_of_two):
    directory, before = killed_of_two
    result, rest = run(data, directory, "out", ranks=2, resume="auto")
    same(whole_of_two, result, until(before, 2), rest)
    assert result["resumed_exactly"] is True


def _rank_1_is_killed(arguments):
    if os.environ["RANK"] == "1":
        die_after(3)
    return main(arguments)


def test_a_rank_that_is_gone_is_said_by_the_others(data, tmp_path):
    words = [*map(str, arguments(data, output=tmp_path / "out")), "--index-log", str(tmp_path / "log")]
    ended = end_of(tensorflow_server(), _rank_1_is_killed, words, tmp_path, ranks=2)
    assert [each.status for each in ended] == [1, -signal.SIGKILL], ended
    assert ended[0].err.splitlines()[-1].startswith("bert: another rank cannot be reached (")


def test_what_cannot_be_resumed_is_one_line(data, killed):
    directory, _ = killed
    words = arguments(data, output=directory / "other", resume=directory / "out" / "checkpoints", batch_size=8)
    (done,) = end_of(tensorflow_server(), main, words, directory)
    assert done.status == 1 and "Traceback" not in done.err
    assert "is of batch size 4, this job is of batch size 8" in done.err.splitlines()[-1]


def test_the_variant_sleep_has_no_state(data, tmp_path, capsys):
    assert main(options(data, tmp_path / "out", variant="sleep", sleep=0, stop_after=1)) == 2
    assert "cannot be resumed, stopped or asked for its indices" in capsys.readouterr().err
