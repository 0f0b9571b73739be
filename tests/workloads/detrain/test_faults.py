"""Scripts, documents and checkpoints that do not fit: each ends in one clear line, and nothing of theirs is executed."""

import json
import shutil
from pathlib import Path

import pytest

from iotwin.workloads.detrain.discover import discover
from iotwin.workloads.detrain.instrumentation import write_instrumentation
from tests.workloads.detrain.script_server import Ended, ScriptServer

pytestmark = pytest.mark.torch
SHAPES = Path(__file__).parent / "shapes"
SCRIPT = """
import sys

import torch
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index in map(int, sys.argv[1:]):
            raise ValueError(f"sample {index} is damaged")
        return torch.full((2,), float(index))


model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for epoch in range(2):
    for batch in DataLoader(Samples(), 2):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
print("end")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ScriptServer(tmp_path_factory.mktemp("runs")) as server:
        yield server


@pytest.fixture(scope="module")
def saved(server, tmp_path_factory):
    """Return a folder with the script and a run of it that has saved one checkpoint; tests copy it."""
    folder = server.folder = tmp_path_factory.mktemp("saved")
    (folder / "train.py").write_text(SCRIPT)
    assert server.run(["-o", "run", "--at", "0:3", "train.py"]).status == 0
    return folder


@pytest.fixture
def folder(server, saved, tmp_path):
    server.folder = tmp_path / "copy"
    return shutil.copytree(saved, server.folder)


def refused(ended: Ended, message: str, status: int = 1) -> None:
    assert ended.status == status, ended
    assert ended.err.count("\n") == 1 and message in ended.err, ended.err
    assert "end" not in ended.out


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("no_loop", "no training loop was found"),
        ("two_trainings", "it is unsure which lines are its loops"),
        ("executed_text", "executed_text.py:9: exec runs code that is not read"),
        ("../stacks/lightning_fit", "trains by a framework at line"),
    ],
)
def test_scripts_without_one_loop_of_their_own_are_refused(folder, server, shape, message):
    refused(server.run(["-o", "other", SHAPES / f"{shape}.py"]), message)
    assert not (folder / "other").exists()


def test_the_loops_of_a_changed_script_are_searched_again(folder, server):
    write_instrumentation(folder / "inst.json", discover(folder / "train.py"))
    (folder / "train.py").write_text(f"# one line more\n{SCRIPT}")
    ended = server.run(["--inst", "inst.json", "-o", "other", "--at", "1:2", "train.py"])
    assert (ended.status, ended.out) == (0, "end\n") and "has changed since inst.json was written" in ended.err
    assert json.loads((folder / "other" / "run.json").read_text())["checkpoints"] == ["step-6"]


ENDLESS = """
import torch

def batches():
    while True:
        yield torch.randn(4, 2)

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
source = batches()
for step in range(6):
    batch = next(source)
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("shape", "replay"), [("loader", "restore"), ("generator", "replay-data")])
def test_a_loop_over_an_endless_generator_is_replayed_unless_it_passes_on_what_a_loader_gives(folder, server, shape, replay):
    """The fifth batch is of the second pass over the loader."""
    (folder / "endless.py").write_text((SHAPES / "endless_generator.py").read_text() if shape == "loader" else ENDLESS)
    assert server.run(["-o", "other", "--at", "0:4", "--determinism", "seeded", "--steps-log", "whole", "endless.py"]).status == 0
    ended = server.run(["-o", "other", "--determinism", "seeded", "--steps-log", "resumed", "endless.py"])
    assert ended.status == 0 and ("cannot be restored; so earlier batches are read again" in ended.err) == (shape == "generator")
    assert json.loads((folder / "other" / "run.json").read_text())["replay"] == replay
    assert (folder / "resumed").read_text().splitlines() == (folder / "whole").read_text().splitlines()[4:]


def test_a_checkpoint_of_other_threads_is_not_certified(folder, server):
    (folder / "train.py").write_text(SCRIPT.replace("model =", "torch.set_num_threads(3)\nmodel ="))
    ended = server.run(["-o", "run", "train.py"])
    assert ended.status == 0 and "was saved elsewhere" in ended.err and "may differ in their last bits" in ended.err
    assert any("threads" in each for each in json.loads((folder / "run" / "run.json").read_text())["differs_from_saved"])


@pytest.mark.parametrize(("replay", "fails"), [("restore", False), ("replay-data", True), ("full", True)])
def test_an_error_in_a_batch_that_is_skipped(folder, server, replay, fails):
    ended = server.run(["-o", "run", "--replay", replay, "train.py", "2"])
    assert "ValueError: sample 2 is damaged" in ended.err, "the second epoch, or the replay, comes to it"
    replayed = not (folder / "run" / "run.json").exists() or json.loads((folder / "run" / "run.json").read_text())["steps"] < 4
    assert ended.status == 1 and replayed == fails


HOSTILE = '{"script": "__import__(\'os\').system(\'touch executed\')", "version": 1}'


@pytest.mark.parametrize("text", ["", "{", "[]", "null", HOSTILE, "\x00\xff", '{"version": 99}', "[" * 100_000])
def test_a_document_of_loops_that_is_none(folder, server, text):
    (folder / "inst.json").write_text(text)
    refused(server.run(["--inst", "inst.json", "-o", "other", "train.py"]), "inst.json")
    assert not (folder / "executed").exists()


@pytest.mark.parametrize("line", [0, 4, 10_000])
def test_a_document_that_names_another_line_as_loop(folder, server, line):
    write_instrumentation(folder / "inst.json", discover(folder / "train.py"))
    document = json.loads((folder / "inst.json").read_text())
    document["batch"]["line"] = line
    (folder / "inst.json").write_text(json.dumps(document))
    refused(server.run(["--inst", "inst.json", "-o", "other", "train.py"]), "inst.json" if line == 0 else "is no loop")


def checkpoint_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "run" / "checkpoints" / "step-3").iterdir() if path.is_file())


@pytest.mark.parametrize("damage", ["truncate", "empty", "flip", "pickle"])
def test_a_damaged_checkpoint_is_refused(folder, server, damage):
    files = checkpoint_files(folder)
    assert len(files) >= 3
    for path in files:
        content = path.read_bytes()
        damaged = {
            "truncate": content[: len(content) // 2],
            "empty": b"",
            "flip": bytes([*content[:-9], content[-9] ^ 1, *content[-8:]]),
            "pickle": b"cos\nsystem\n(S'touch executed'\ntR.",
        }[damage]
        path.write_bytes(damaged)
        for wanted in ("auto", "step-3"):
            ended = server.run(["-o", "run", "--resume", wanted, "train.py"])
            why, *rest = ended.err.splitlines(keepends=True)
            assert "step-3" in why and len(rest) == (wanted == "auto"), ended.err
            refused(ended._replace(err="".join(rest) or why), "step-3" if wanted != "auto" else "holds no checkpoint that loads")
        path.write_bytes(content)
    assert not (folder / "executed").exists()
    assert server.run(["-o", "run", "train.py"]).status == 0


def test_a_damaged_document_of_the_earlier_run_is_written_anew(folder, server):
    (folder / "run" / "run.json").write_text("{")
    assert server.run(["-o", "run", "train.py"]).status == 0
    assert json.loads((folder / "run" / "run.json").read_text())["resumed_from"] == "step-3"


DRAWN = """
import os
import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
os.urandom(1)
for step in range(5):
    for batch in torch.ones(3, 2).split(1):
        optimizer.zero_grad()
        (model(batch) * os.urandom(1)[0]).sum().backward()
        optimizer.step()
"""


def test_entropy_is_fixed_on_request_in_a_resumed_run_too(folder, server):
    (folder / "drawn.py").write_text(DRAWN)
    options = ("-o", "other", "--determinism", "seeded", "--fix-entropy")
    for log, more in {"whole": ["--at", "2:1"], "again": ["--resume", "never"], "resumed": []}.items():
        assert server.run([*options, "--steps-log", log, *more, "drawn.py"]).status == 0
    whole, again, resumed = ((folder / name).read_text().splitlines() for name in ("whole", "again", "resumed"))
    assert again == whole and resumed == whole[7:] and len({json.loads(step)["loss"][0] for step in whole}) > 10
    free = [*options[:-1], "--resume", "never", "--steps-log", "free", "drawn.py"]
    assert server.run(free).status == 0 and (folder / "free").read_text().splitlines()[0] != whole[0]
