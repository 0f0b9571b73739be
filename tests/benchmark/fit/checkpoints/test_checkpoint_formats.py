"""The format of a checkpoint, inferred from the calls that wrote it, if they leave no doubt."""

import sys
from pathlib import Path
from typing import Any

import pytest

from iotwin.benchmark.fit.checkpoints.checkpoint_files import format_of
from iotwin.benchmark.fit.parameters.parameters import fit_parameters
from iotwin.trace_store.reader import Trace
from iotwin.workload_yaml import dump, load
from tests.benchmark.strace import needs_strace, strace
from tests.synthetic import Job, write_job

REAL = """
import sys, torch
legacy, path, tensors = sys.argv[1:]
state = {f"layer{number}.weight": torch.zeros(3000 + number) for number in range(int(tensors))}
torch.save(state, path, _use_new_zipfile_serialization=legacy == "zip")
"""


@pytest.mark.torch
@needs_strace
@pytest.mark.parametrize(("form", "tensors"), [("zip", 3), ("zip", 200), ("legacy", 200)])
def test_what_torch_saved_is_recognised(tmp_path: Path, form: str, tensors: int) -> None:
    path = tmp_path / "m.pt"
    processes = strace([sys.executable, "-c", REAL, form, str(path), str(tensors)], "write,writev", tmp_path)
    own = [call for calls in processes for call in calls if str(path) in call.paths]
    assert format_of("m.pt", [call.name for call in own], [call.result or 0 for call in own]) == form


@pytest.mark.parametrize(
    ("name", "ops", "sizes", "expected"),
    [
        ("m.pt", ["writev"] * 2 + ["write"], [5000, 9000, 300], "zip"),
        ("m.pt", ["writev"] * 2 + ["write"], [5000, 9000, 98], "zip"),
        ("m.pt", ["writev"] * 2 + ["write"], [5000, 9000, 150], None),  # too short for a list of two tensors
        ("m.txt", ["write"] * 3, [5000, 9000, 300], None),
        ("m.pt", ["writev"] * 3, [5000, 9000, 300], None),
        ("m.pt", ["write"] * 5, [700, 8, 9000, 8, 5000], "legacy"),
        ("m.pt", ["write"] * 7, [137, 9000, 700, 8, 9000, 8, 5000], "legacy"),
        ("m.pt", ["write"] * 5, [700, 9, 9000, 8, 5000], None),
        ("m.pt", ["write"], [700], None),
        ("__3_0.distcp", ["write"], [700], "dcp"),
        (".metadata", ["write"], [700], "dcp"),
        ("x__3_0.distcp", ["write"], [700], None),
    ],
)
def test_what_leaves_a_doubt_has_no_format(name: str, ops: list[str], sizes: list[int], expected: Any) -> None:
    assert format_of(name, ops, sizes) == expected


def test_parameters_name_the_format_and_list_the_writes_of_the_job(tmp_path: Path) -> None:
    writes = (700, 8, 4096, 8, 1 << 20)
    config = fit_parameters(Trace(write_job(tmp_path / "legacy", Job(pipes=True, checkpoint_writes=writes)))).config
    (file,) = config.twin.checkpoint.files
    assert (file.format, config.twin.checkpoint.format) == ("legacy", None)
    assert [size for size, _ in file.write_sizes] == list(writes)
    dump(config, tmp_path / "twin.yaml")
    assert load(tmp_path / "twin.yaml").twin.checkpoint.files == [file]
    other = fit_parameters(Trace(write_job(tmp_path / "other", Job(pipes=True)))).config
    assert other.twin.checkpoint.files[0].format is None
