"""Every script of the zoo runs by itself and trains: more epochs give a lower loss than fewer."""

import contextlib
import multiprocessing
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.workloads.killed import tensorflow_server

ZOO = Path(__file__).with_name("zoo")
TORCH = (
    "cnn",
    "vit",
    "lstm",
    "gpt",
    "gnn",
    "detection",
    "recommender",
    "amp",
    "gan",
    "dropout_mlp",
    "iterable_text",
    "augmented",
)
TENSORFLOW = ("tf_music", "tf_pipeline")
READ_FILES = {"gnn", "recommender", "iterable_text"}  # their data are files in the folder --data
EPOCHS = 4
_FORK = multiprocessing.get_context("fork")
_LOSS = re.compile(r"(?:loss|error|train|loss_d)\W{0,3}([0-9.]+)", re.IGNORECASE)
# How far the loss of the last epoch must fall below that of the first. The losses of a GAN need not fall at all.
_SHARE = {"gan": None, "lstm": 0.99, "dropout_mlp": None}


def command(name: str, folder: Path, *options: str) -> list[str]:
    """Return the path and the arguments of a script of the zoo, whose data, if any, go into `folder`."""
    data = ["--data", str(folder / f"{name}_data")] if name in READ_FILES else []
    return [str(ZOO / f"{name}.py"), *data, *options]


def _run(words: list[str], output: Path) -> None:
    sys.argv = words
    with output.open("w") as file, contextlib.redirect_stdout(file), contextlib.suppress(SystemExit):
        runpy.run_path(words[0], run_name="__main__")


def _lines(words: list[str], output: Path, context: Any = _FORK) -> list[str]:
    """Run a script in a process of `context`, which has PyTorch or TensorFlow already; return the lines that it prints."""
    process = context.Process(target=_run, args=(words, output))
    process.start()
    process.join()
    assert process.exitcode == 0
    return output.read_text().splitlines()


def _assert_trains(name: str, lines: list[str]) -> None:
    assert len(lines) == EPOCHS, lines  # a line an epoch
    losses = [float(_LOSS.search(line).group(1)) for line in lines]
    share = _SHARE.get(name, 0.9)
    assert len(set(losses)) == EPOCHS
    assert share is None or losses[-1] < share * losses[0], (name, losses)


@pytest.fixture(scope="module")
def _imported():
    """What every script imports, once for all that are forked."""
    pytest.importorskip("torch._dynamo")  # the first optimizer imports it


@pytest.mark.torch
@pytest.mark.parametrize("name", TORCH)
def test_trains(name, _imported, tmp_path):
    _assert_trains(name, _lines(command(name, tmp_path, "--epochs", str(EPOCHS)), tmp_path / "output"))


@pytest.mark.parametrize("name", TENSORFLOW)
def test_trains_in_tensorflow(name, tmp_path):
    pytest.importorskip("tensorflow")
    words = command(name, tmp_path, "--epochs", str(EPOCHS))
    _assert_trains(name, _lines(words, tmp_path / "output", tensorflow_server()))


@pytest.mark.torch
def test_workers_and_batch_size_are_options(_imported, tmp_path):
    words = command("iterable_text", tmp_path, "--epochs", "1", "--workers", "2", "--batch-size", "9")
    lines = _lines(words, tmp_path / "output")
    assert "step=8" in lines[0]  # 72 lines of text, 36 for each of two workers


def test_the_zoo_is_complete():
    assert {path.stem for path in ZOO.glob("[a-z]*.py")} == {*TORCH, *TENSORFLOW}
