"""BERT pretraining on little data. TensorFlow runs in processes of its own: its threads do not survive a fork of this one."""

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from iotwin.common.errors import IotwinError
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import BertLayout
from iotwin.workloads.bert.__main__ import main
from iotwin.workloads.bert.shards import find_shards
from tests.conftest import ROOT
from tests.workloads.killed import end_of, tensorflow_server
from tests.workloads.mllog import entries, intervals, parts

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")

SAMPLES = 400


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shards")
    generate(BertLayout(), directory, samples=SAMPLES, seed=3, workers=1)
    return directory


def options(data, output, **changes):
    values = {
        "data": data, "output": output, "batch_size": 4, "steps": 60, "eval_steps": 2, "layers": 1, "hidden": 32, "heads": 2,
        "sequence": 128, "learning_rate": 0.02, "threads": 1, "seed": 1, **changes,
    }  # fmt: skip
    return [text for name, value in values.items() for text in (f"--{name.replace('_', '-')}", str(value))]


def run(data, output, **changes):
    with tempfile.TemporaryDirectory() as folder:
        return end_of(tensorflow_server(), main, options(data, output, **changes), Path(folder))[0]


@pytest.fixture(scope="session")
def trained(data, tmp_path_factory):
    """The original job, once."""
    output = tmp_path_factory.mktemp("original")
    done = run(data, output)
    assert done.status == 0, done.err
    return output, json.loads((output / "result.json").read_text()), entries(done.out)


def test_the_loss_falls(trained):
    """By 0.15 nats, as workloads/bert/README.md states; 0.9 is what the tokens' frequencies alone allow."""
    _, result, _ = trained
    assert result["last_loss"] < result["first_loss"] - 0.15
    assert 0 < result["evaluation"]["masked_word_loss"] < 10.33  # ln of the vocabulary: what a guess scores


def test_checkpoints_and_log(trained):
    output, result, log = trained
    files = [f"model.ckpt-{step}.{part}" for step in (0, 60) for part in ("data-00000-of-00001", "index")]
    assert sorted(path.name for path in output.iterdir()) == sorted([*files, "result.json"])
    data_bytes = (output / files[0]).stat().st_size
    assert data_bytes > 3 * 4 * result["parameters"]  # weights and two moments
    assert [key for key, edge in intervals(log) if edge == "START"] == [
        "init",
        "run",
        "checkpoint",
        "block",
        "checkpoint",
        "eval",
    ]
    assert parts(log) == {}


def test_two_ranks_instrumented(data, tmp_path):
    """Each rank logs the parts of its steps, which fill the time of computing; rank 0 alone says the rest, and evaluates."""
    changes = {"variant": "instrumented", "steps": 3, "eval_steps": 2, "batch_size": 2}
    words = [sys.executable, "-m", "iotwin.workloads.launch", "2", "iotwin.workloads.bert", *options(data, tmp_path, **changes)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "result.json").read_text())["world_size"] == 2
    log = entries(done.stdout)
    inner = ["model_forward_pass", "loss_tensor_calc", "model_backward_pass", "model_optim_step", "cum_loss_fn_calc"]
    every_step = ["load_batch_mem", "load_batch_gpu", *inner, "all_compute", "step_end"]
    of_evaluation = {"eval_load_batch_mem": 2, "eval_compute": 2, "eval_step_end": 2}
    assert {key: len(values) for key, values in parts(log).items()} == dict.fromkeys(every_step, 6) | of_evaluation
    for rank in (0, 1):
        own = parts([entry for entry in log if entry["metadata"].get("rank") == rank])
        for computing, *durations in zip(own["all_compute"], *(own[key] for key in inner), strict=True):
            assert min(durations) > 0 and sum(durations) <= computing
    assert sorted(e["metadata"]["rank"] for e in log if e["key"] == "step_end") == [0, 0, 0, 1, 1, 1]
    assert len([line for line in done.stdout.splitlines() if not line.startswith(":::MLLOG")]) == 1


def test_profiler_writes_a_timeline_of_the_chosen_steps(data, tmp_path):
    done = run(data, tmp_path, variant="profiler", steps=7, profile_every=3, eval_steps=0)
    assert done.status == 0, done.err
    assert sorted(path.name for path in tmp_path.glob("timeline-*")) == ["timeline-3.json", "timeline-6.json"]
    events = json.loads((tmp_path / "timeline-6.json").read_text())["traceEvents"]
    timed = [event for event in events if event["ph"] == "X"]
    assert len(timed) > 50 and all(event["dur"] >= 0 for event in timed)
    assert {event["pid"] for event in timed} <= {event["pid"] for event in events if event["name"] == "process_name"}


def print_number_of_records(data):
    import tensorflow as tf

    from iotwin.workloads.bert.data import parsed_batches

    names = [str(path) for path in [*find_shards(data, 1), data / "eval_10k"]]
    print(sum(len(batch["input_ids"]) for batch in parsed_batches(tf.data.TFRecordDataset(names), 20)))
    return 0


def test_every_record_is_read_and_parsed(data, tmp_path):
    """A CRC error or a record that does not parse would end the program."""
    (done,) = end_of(tensorflow_server(), print_number_of_records, data, tmp_path)
    assert done.out.split()[-1] == str(SAMPLES + BertLayout().evaluation_samples(SAMPLES)), done.err


def test_a_damaged_shard_is_said(data, tmp_path):
    copy = shutil.copytree(data, tmp_path / "copy")
    for shard in copy.glob("part-*"):
        content = bytearray(shard.read_bytes())
        content[200] ^= 1
        shard.write_bytes(content)
    done = run(copy, tmp_path / "out", variant="sleep", sleep=0, steps=50)
    assert done.status == 1
    assert "bert: a shard is damaged" in done.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"heads": 3}, 2, "--hidden 32 must be a multiple of --heads 3"),
        ({"sequence": 513}, 2, "more than the 512 tokens"),
        ({"steps": 0}, 2, "--steps 0 must be at least 1"),
    ],
)
def test_bad_requests(data, tmp_path, capsys, changes, status, message):
    assert main(options(data, tmp_path / "out", **changes)) == status
    error = capsys.readouterr().err
    assert message in error and error.startswith("bert: ") and error.count("\n") == 1


def test_missing_shards(data, tmp_path):
    with pytest.raises(IotwinError, match="iotwin generate bert"):
        find_shards(tmp_path, 1)
    shutil.copy(data / "part-00000-of-00400", tmp_path)
    with pytest.raises(IotwinError, match="holds 1 of 400 shards"):
        find_shards(tmp_path, 1)
    with pytest.raises(IotwinError, match="too few for 401 ranks"):
        find_shards(data, 401)
