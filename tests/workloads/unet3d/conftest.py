import json
import signal

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed (pip install iotwin[torch])")

import torch

from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import Unet3dLayout
from iotwin.workloads.unet3d.__main__ import main
from iotwin.workloads.unet3d.config import Unet3dConfig

CASES = 20  # 16 to train, 4 to evaluate


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A tiny generated data set."""
    directory = tmp_path_factory.mktemp("cases")
    generate(Unet3dLayout(scale=0.1), directory, samples=CASES, seed=3, workers=1)
    return directory


@pytest.fixture(autouse=True)
def _process_as_before():
    threads, handler = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    yield
    torch.set_num_threads(threads)
    signal.signal(signal.SIGTERM, handler)


def options(data, output, **changes):
    """The command line of a job of a second; `changes` by option name with underscores."""
    values = {
        "data": data, "output": output, "epochs": 2, "batch_size": 2, "workers": 0, "eval_every": 1, "checkpoint_every": 1,
        "base_channels": 4, "depth": 2, "crop": "16", "overlap": 0, "threads": 1, "seed": 1, **changes,
    }  # fmt: skip
    return [text for name, value in values.items() for text in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture
def job(data, tmp_path, capsys):
    """Runs a job; gives its result.json and MLLOG entries."""

    def run(**changes):
        output = changes.pop("output", tmp_path / "out")
        status = main(options(changes.pop("data", data), output, **changes))
        captured = capsys.readouterr()
        assert status == 0, captured.err
        log = [json.loads(line.removeprefix(":::MLLOG ")) for line in captured.out.splitlines() if line.startswith(":::MLLOG ")]
        return json.loads((output / "result.json").read_text()), log

    return run


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def config(data, output, **changes):
    from argparse import ArgumentParser

    from iotwin.workloads.unet3d.config import parse_config, prepare_parser

    parser = ArgumentParser()
    prepare_parser(parser)
    parsed: Unet3dConfig = parse_config(parser.parse_args(options(data, output, **changes)))
    return parsed
