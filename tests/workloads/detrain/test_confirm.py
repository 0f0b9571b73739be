"""A short run of a script confirms the loops that discovery has found, or refutes them."""

import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from iotwin.common.errors import IotwinError
from iotwin.main import main
from iotwin.workloads.detrain import observed_loops
from iotwin.workloads.detrain.confirm import confirm, judged
from iotwin.workloads.detrain.discover import analyse, discover
from iotwin.workloads.detrain.instrumentation import SURE, Instrumentation, SourceLine, write_instrumentation
from iotwin.workloads.detrain.observed_loops import MOST_ITERATIONS, LoopReport
from tests.workloads.detrain.test_discover import SHAPES, TRUTH

pytest.importorskip("torch")

IN_TORCH = [name for name in TRUTH if not name.startswith(("keras", "package_run"))]  # a package's script runs with -m


@pytest.fixture(scope="module", autouse=True)
def _imported():
    """What every script imports, once for all that are forked."""
    import torch._dynamo  # noqa: F401 - the first optimizer imports it


def _main(words: list[str], folder: Path) -> None:
    import torch

    torch.set_num_threads(1)  # the threads of the test process do not exist in this one: waiting for them would never end
    os.chdir(folder)
    sys.argv = ["observed_loops", *words]
    with (folder / "output").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        observed_loops.main()


def observed(script: Path, folder: Path, *arguments: str) -> Instrumentation:
    """Confirm a script as `confirm` does, but in a process that has PyTorch already."""
    folder.mkdir(exist_ok=True)
    found = discover(script)
    write_instrumentation(folder / "inst.json", found)
    words = [str(folder / "inst.json"), str(folder / "report.json"), "60", str(script), *arguments]
    process = multiprocessing.get_context("fork").Process(target=_main, args=(words, folder))
    process.start()
    process.join()
    assert (folder / "report.json").exists(), (folder / "output").read_text()
    return judged(found, msgspec.json.decode((folder / "report.json").read_bytes(), type=LoopReport))


@pytest.mark.parametrize("name", IN_TORCH)
def test_the_truth_about_every_shape_is_confirmed_by_running_it(name, tmp_path):
    """The script trains, and the lines of the table above run as often as the batch loop iterates."""
    found, result = discover(SHAPES / f"{name}.py"), observed(SHAPES / f"{name}.py", tmp_path)
    assert result.confirmed, (result.reasons, (tmp_path / "output").read_text())
    assert result.iterations == 5 and result.confidence >= 0.95
    assert (result.kind, result.update) == (found.kind, found.update)
    assert result.loader is None or found.loader is None or result.loader.name == found.loader.name


def digests(folder: Path) -> dict[Path, str]:
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*.py")}


def test_no_file_of_a_script_changes(tmp_path):
    """The script runs in the current directory, and gets its arguments."""
    before = digests(SHAPES)
    found = observed(SHAPES / "music_transformer.py", tmp_path, "--epochs", "1", "--save_path", ".")
    assert (found.confirmed, found.iterations) == (True, MOST_ITERATIONS)
    assert digests(SHAPES) == before
    assert (tmp_path / "mt.pt").exists()


READING = """
import torch
from torch.utils.data import DataLoader, Dataset
class Files(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        with open(__file__, "rb", buffering=0) as file:
            for _ in range({reads}):
                file.read(3)
        return torch.ones(2) * index
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for batch in DataLoader(Files(), batch_size=2, num_workers={workers}):
    open(__file__).read()
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""


def test_reads_in_the_data_call(tmp_path):
    """Two samples a batch, five batches; the loop's body reads too, and the first batch lets Python read modules."""
    reads = []
    for count in (0, 3):
        script = tmp_path / f"train{count}.py"
        script.write_text(READING.format(workers=0, reads=count))
        found = observed(script, tmp_path / f"run{count}")
        assert found.iterations == 5
        reads.append(found.reads_in_data_call)
    assert reads[0] < 10 and reads[1] - reads[0] == 5 * 2 * 3


def test_reads_of_loader_processes_are_unknown(tmp_path):
    (tmp_path / "train.py").write_text(READING.format(workers=2, reads=1))
    found = observed(tmp_path / "train.py", tmp_path / "run")
    assert (found.confirmed, found.reads_in_data_call) == (True, None)


PLAIN = """import time, sys
class Optimizer:
    def step(self): pass
class Loss:
    def backward(self): pass
model, optimizer, loader = (lambda x: Loss()), Optimizer(), list(range({batches}))
"""


def plain(folder: Path, text: str, batches: int = 9):
    """Write a script that trains nothing, without PyTorch; return what discovery finds."""
    (folder / "train.py").write_text(PLAIN.format(batches=batches) + text)
    return analyse(folder / "train.py")


def test_the_processes_of_a_script_end(tmp_path):
    workers = "import multiprocessing\nmultiprocessing.Process(target=time.sleep, args=(600,)).start()\n"
    found = confirm(plain(tmp_path, workers + "for b in loader:\n    model(b).backward()\n    optimizer.step()\n"))
    assert (found.confirmed, found.reads_in_data_call) == (True, None) and found.seconds > 0
    shown = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True, check=True).stdout
    assert not [line for line in shown.splitlines() if str(tmp_path / "train.py") in line and not line.startswith("Z")]


def test_a_loop_that_never_begins_is_refuted(tmp_path):
    found = confirm(plain(tmp_path, "for b in loader:\n    model(b).backward()\n    optimizer.step()\n", batches=0))
    assert (found.confirmed, found.iterations) == (False, 0) and found.confidence < SURE
    assert "the batch loop did not begin (the script ended)" in found.reasons


def test_a_script_that_fails_first_is_refuted(tmp_path):
    found = confirm(
        plain(tmp_path, "raise KeyError('no data')\nfor b in loader:\n    model(b).backward()\n    optimizer.step()\n")
    )
    assert found.confirmed is False and any("KeyError" in reason for reason in found.reasons)


def test_an_update_that_never_runs_is_refuted(tmp_path):
    text = "for b in loader:\n    if b < 0:\n        model(b).backward()\n        optimizer.step()\n"
    found = confirm(plain(tmp_path, text))
    assert (found.confirmed, found.iterations) == (False, 5) and "no weights were updated in them" in found.reasons


def test_accumulated_gradients(tmp_path):
    text = "for i, b in enumerate(loader):\n    model(b).backward()\n    if i % {k} == {k} - 1:\n        optimizer.step()\n"
    found = confirm(plain(tmp_path, text.replace("{k}", "2")))
    assert found.confirmed and "the weights were updated 2 times" in found.reasons
    found = confirm(plain(tmp_path, text.replace("{k}", "8")))
    assert found.confirmed and "gradients are accumulated over more iterations than these" in found.reasons


def test_of_two_updates_the_one_that_runs_is_named(tmp_path):
    text = "opt = optimizer\nfor b in loader:\n    model(b).backward()\n    if b < 0:\n        optimizer.step()\n"
    text += "    else:\n        opt.step()\n"
    assert confirm(plain(tmp_path, text)).update.call == "opt.step()"
    text = text.replace("b < 0", "b >= 0")
    assert confirm(plain(tmp_path, text)).update.call == "optimizer.step()"


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("it = iter(loader)\nwhile True:\n    b = next(it)\n    model(b).backward()\n    optimizer.step()\n", 9),
        ("for b in loader: model(b).backward(); optimizer.step()\n", 7),
        ("def f():\n    for b in (\n        loader\n    ):\n        try:\n            model(b).backward()\n"
         "        finally:\n            optimizer.step()\nf()\n", 8),
        ("it = iter(loader)\nwhile (b := next(it, None)) is not None:\n    model(b).backward()\n    optimizer.step()\n", 8),
        ("for e in range(9):\n    for b in loader[:2]:\n        model(b).backward()\n        optimizer.step()\n", 8),
    ],
)  # fmt: skip
def test_loops_of_all_forms_are_left_after_five_iterations(tmp_path, text, data):
    found = confirm(plain(tmp_path, f"{text}print('the end')\n"))
    assert (found.confirmed, found.iterations, found.data.line) == (True, 5, data)


def test_a_script_that_catches_everything_ends_all_the_same(tmp_path):
    text = "for b in loader:\n    try:\n        model(b).backward()\n        optimizer.step()\n    except:\n        pass\n"
    found = confirm(plain(tmp_path, text + "time.sleep(600)\n", batches=10**9 // 10**6))
    assert (found.confirmed, found.iterations) == (True, 5)


def test_a_script_without_end_is_ended_by_the_timeout(tmp_path):
    begin = time.monotonic()
    found = confirm(
        plain(tmp_path, "time.sleep(600)\nfor b in loader:\n    model(b).backward()\n    optimizer.step()\n"), timeout_s=1
    )
    assert found.confirmed is False and "the batch loop did not begin (1 s passed)" in found.reasons
    assert time.monotonic() - begin < 300


def test_the_loader_of_each_epoch(tmp_path):
    """Whether the loader lives on is observed, and whether it is a generator."""
    text = "for e in range(3):\n{make}    for b in part:\n        model(b).backward()\n        optimizer.step()\n"
    anew = confirm(plain(tmp_path, text.replace("{make}", "    part = list(loader[:2])\n")))
    assert anew.loader.persistent is False and anew.kind == "FOR_OVER_LOADER"
    kept = confirm(plain(tmp_path, "part = loader[:2]\n" + text.replace("{make}", "")))
    assert kept.loader.persistent is True
    drawn = confirm(plain(tmp_path, text.replace("{make}", "    part = getattr(sys, 'x', (b for b in loader[:2]))\n")))
    assert drawn.kind == "GENERATOR"


def test_two_trainings_remain_ambiguous(tmp_path):
    text = "for b in loader:\n    model(b).backward()\n    optimizer.step()\n"
    found = confirm(plain(tmp_path, text + text))
    assert found.confirmed and found.confidence < SURE


def test_a_framework_is_left_at_its_call(tmp_path):
    (tmp_path / "keras.py").write_text("class Model:\n    pass\n")
    text = "class Trainer:\n    pass\ntrainer = Trainer()\nimport lightning\ntrainer = lightning.Trainer()\ntrainer.fit(1)\n"
    (tmp_path / "train.py").write_text(text.replace("class Trainer:\n    pass\ntrainer = Trainer()\n", ""))
    found = discover(tmp_path / "train.py")
    assert found.kind == "FRAMEWORK"
    (tmp_path / "lightning.py").write_text("raise SystemExit(3)\n")
    refuted = confirm(found)
    assert refuted.confirmed is False and any("SystemExit" in reason for reason in refuted.reasons)
    (tmp_path / "lightning.py").write_text("class Trainer:\n    def fit(self, model):\n        raise SystemExit(4)\n")
    reached = confirm(found)
    assert reached.confirmed is True and reached.iterations == 0


def test_a_script_that_has_changed_is_refused(tmp_path):
    found = plain(tmp_path, "for b in loader:\n    model(b).backward()\n    optimizer.step()\n")
    moved = confirm(msgspec.structs.replace(found, batch=SourceLine(found.script, 1)))
    assert moved.confirmed is False and any("is no loop; discover the script again" in reason for reason in moved.reasons)
    (tmp_path / "train.py").write_text("")
    with pytest.raises(IotwinError, match="has changed since its loops were found"):
        confirm(found)


def test_the_command(tmp_path, capfd):
    text = "assert sys.argv[1:] == ['--epochs', '2']\nfor b in loader:\n    print('output')\n    model(b).backward()\n"
    text += "    optimizer.step()\n"
    plain(tmp_path, text)
    words = ["detrain", "discover", str(tmp_path / "train.py"), "--confirm", "--json", "--", "--epochs", "2"]
    assert main(words) == 0
    printed = capfd.readouterr()
    document = json.loads(printed.out)
    assert (document["confirmed"], document["iterations"], document["reads_in_data_call"]) == (True, 5, 0)
    assert printed.err.count("output") == 5
    assert main([*words[:4], "--", "--epochs", "2"]) == 0
    assert "confirmed in 5 iterations" in capfd.readouterr().out
