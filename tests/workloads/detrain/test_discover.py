"""Discovery finds the loops, the data call and the update in scripts of many shapes, without running them."""

import json
import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.common.errors import IotwinError
from iotwin.main import main
from iotwin.workloads.detrain.discover import analyse, discover
from iotwin.workloads.detrain.instrumentation import SURE, changed_sources, read_instrumentation
from iotwin.workloads.detrain.source_analysis import inference
from tests.conftest import ROOT
from tests.workloads.detrain.shapes_in_text import SHAPES_IN_TEXT

SHAPES = Path(__file__).with_name("shapes")

# For each script: kind; lines of the epoch loop, the batch loop, the data call and the update; the loader, and whether it lives
# longer than an epoch. A line of another file is written FILE:LINE.
FOR, NEXT, INDEXED, GENERATOR = "FOR_OVER_LOADER", "NEXT_CALL", "INDEXED", "GENERATOR"
TRUTH = {
    "accumulation": (FOR, 12, 14, 14, 18, "loader", True),
    "amp_scaler": (FOR, 11, 12, 12, 16, "dl", True),
    "array_slices": (INDEXED, 11, 13, 15, 20, "images", True),
    "async_loader": (GENERATOR, 24, 25, 25, 17, "batches(3)", False),
    "comprehensions": (FOR, 23, 25, 25, 19, "stored", True),
    "decorated": (FOR, 52, 34, 34, 43, "loader", True),
    "derived_trainer": (
        FOR, "base_trainer.py:22", "base_trainer.py:15", "base_trainer.py:15", "base_trainer.py:19", "self.loader", True,
    ),
    "early_break": (FOR, 12, 13, 13, 19, "loader", True),
    "endless_generator": (GENERATOR, None, 16, 16, 19, "forever(loader)", True),
    "folds": (NEXT, None, 15, 16, 19, "train_loader", True),
    "full_batch": (INDEXED, None, 20, None, 16, None, None),
    "generator_function": (GENERATOR, 19, 20, 20, 24, "batches(features, targets, 8)", False),
    "get_batch": (NEXT, None, 21, 25, 27, "get_batch", True),
    "islice_steps": (FOR, 12, 14, 14, 17, "loader", False),
    "keras_loop": (FOR, 24, 25, 25, 20, "train_dataset", True),
    "lbfgs_closure": (FOR, 10, 11, 11, 19, "loader", True),
    "list_of_optimizers": (FOR, 10, 11, 11, 17, "loader", True),
    "music_transformer": (NEXT, 76, 78, 80, 83, "dataset", True),
    "nested_validation": (FOR, 21, 22, 22, 25, "train_loader", True),
    "next_iter": (NEXT, None, 11, 12, 18, "loader", True),
    "numpy_only": (INDEXED, 19, 20, 21, 23, "inputs", True),
    "other_module": (FOR, 25, "engine.py:9", "engine.py:9", "engine.py:14", "data_loader", True),
    "own_optimizer": (FOR, 37, 39, 39, 28, "train_iter", True),
    "package_run/script": (FOR, "loops.py:5", "loops.py:6", "loops.py:6", "loops.py:9", "loader", True),
    "partial_step": (FOR, 19, 20, 20, 14, "loader", True),
    "scheduler_per_batch": (FOR, 22, 23, 23, 27, "loader", True),
    "set_input": (FOR, 43, 44, 44, 37, "dataset", True),
    "several_loaders": (FOR, 11, 12, 12, 15, "loader", True),
    "step_argument": (FOR, 30, 22, 22, 10, "data", True),
    "trainer_class": (FOR, 27, 19, 19, 23, "self.loader", True),
    "two_optimizers": (FOR, 12, 13, 13, 24, "loader", True),
    "walrus": (NEXT, 10, 12, 12, 16, "loader", True),
    "while_steps": (NEXT, None, 12, 14, 21, "loader", True),
    "worker_process": (FOR, 12, 13, 13, 17, "loader", True),
    "wrapped_loader": (FOR, 17, 18, 18, 31, "train_loader", True),
    "wrapped_step": (NEXT, None, 10, "trainer.py:13", "trainer.py:18", "loader", True),
}  # fmt: skip


def line_of(found, name: str) -> str | int | None:
    """Return a line of the document as the table above writes it."""
    line = getattr(found, name)
    if line is None:
        return None
    file = Path(line.file)
    return line.line if file == Path(found.script) else f"{file.name}:{line.line}"


@pytest.mark.parametrize("name", TRUTH)
def test_shapes(name):
    kind, *lines, loader, persistent = TRUTH[name]
    found = discover(SHAPES / f"{name}.py")
    assert [line_of(found, each) for each in ("epoch", "batch", "data", "update")] == lines
    assert found.kind == kind and found.confidence >= SURE, found.reasons
    assert (found.loader and found.loader.name, found.loader and found.loader.persistent) == (loader, persistent)
    assert not changed_sources(found) and found.confirmed is None and found.iterations == 0
    assert set(found.sources) >= {line.file for line in (found.batch, found.data, found.update) if line}


@pytest.mark.parametrize("name", SHAPES_IN_TEXT)
def test_shapes_in_text(tmp_path, name):
    text = SHAPES_IN_TEXT[name]
    (tmp_path / "train.py").write_text(text)
    keys = {"E": "epoch", "B": "batch", "D": "data", "U": "update"}
    truth = {keys[key]: line for line, code in enumerate(text.splitlines(), 1) for key in re.findall(r"#([EBDU])\b", code)}
    found = discover(tmp_path / "train.py")
    assert {key: line_of(found, key) for key in keys.values() if getattr(found, key)} == truth
    assert found.confidence >= SURE, found.reasons


def test_a_method_that_fetches_and_trains_for_the_loop_of_another_module_is_the_wrapper():
    found = discover(SHAPES / "wrapped_step.py")
    assert found.wrapper and (found.wrapper.module, found.wrapper.function) == ("step_of_other_module.trainer", "Trainer.step")
    assert discover(SHAPES / "trainer_class.py").wrapper is None


def test_the_library_of_a_checkout_is_read_only_if_the_script_has_no_clear_loop(tmp_path):
    library, script = tmp_path / "library" / "__init__.py", tmp_path / "examples" / "train.py"
    for each in (library, script):
        each.parent.mkdir()
    loop = "for batch in loader:\n    model(batch).backward()\n    optimizer.step()\n"
    library.write_text("no Python")
    script.write_text(f"from library import loader, model, optimizer\n{loop}")
    found = discover(script)
    assert (found.batch.line, found.confidence) == (2, 0.95) and set(found.sources) == {str(script)}
    library.write_text(f"def train(loader, model, optimizer):\n{indent(loop, '    ')}")
    script.write_text("import library\nlibrary.train(loader, model, optimizer)\n")
    found = discover(script)
    assert (found.batch.file, found.batch.line) == (str(library), 2) and found.confidence == 0.95


def test_a_run_on_other_data_is_reported_to_be_needless(capfd):
    assert main(["detrain", "discover", str(SHAPES / "while_steps.py"), "--perturb", "2"]) == 0
    out, err = capfd.readouterr()
    assert "NEXT_CALL, confidence" in out and "--perturb is of no effect" in err


def test_functions_that_call_one_another_in_endlessly_many_ways_are_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(inference, "_MOST_INFERRED", 300)
    ways = "".join(f"def f{i}(x):\n    return f{i + 1}(x) or f{i + 1}(x)\n" for i in range(12))
    text = f"def f12(x):\n    return x\n{ways}for batch in f0(loader):\n    model(batch).backward()\n    optimizer.step()\n"
    (tmp_path / "train.py").write_text(text)
    found = discover(tmp_path / "train.py")
    assert found.confidence < 0.6 and "more ways through its functions" in found.reasons[-1]


def test_all_sinks_are_listed():
    assert [(sink.line, sink.call) for sink in discover(SHAPES / "two_optimizers.py").sinks] == [
        (18, "loss_d.backward()"), (19, "opt_d.step()"), (23, "loss_g.backward()"), (24, "opt_g.step()"),
    ]  # fmt: skip


def test_a_framework_that_runs_the_loops():
    found = discover(SHAPES / "keras_fit.py")
    assert (found.kind, found.batch, found.epoch, found.data, line_of(found, "update")) == ("FRAMEWORK", None, None, None, 9)


@pytest.mark.parametrize(
    "call",
    [
        "import lightning as L\ntrainer = L.Trainer(max_epochs=1)\ntrainer.fit(model, loader)",
        "from transformers import Trainer\ntrainer = Trainer(model=model)\ntrainer.train()",
        "from transformers import Trainer\nclass Own(Trainer):\n    pass\nOwn(model=model).train()",
        "import tensorflow as tf\nmodel = tf.keras.models.load_model('m')\nmodel.fit(data)",
        "import keras\nclass Net(keras.Model):\n    def train_step(self, data):\n        pass\nNet().fit(data)",
    ],
)
def test_calls_of_frameworks(tmp_path, call):
    (tmp_path / "train.py").write_text(call)
    found = discover(tmp_path / "train.py")
    assert found.kind == "FRAMEWORK" and found.confidence >= SURE
    assert found.update and found.update.line == call.count("\n") + 1


@pytest.mark.parametrize(
    "text",
    [
        "from sklearn.preprocessing import StandardScaler\nimport keras\nStandardScaler().fit(x)",
        "import keras\nlayer = keras.layers.TextVectorization()\nlayer.fit(x)",
        "import transformers\nmodel = transformers.AutoModel.from_pretrained('m')\nfor b in loader:\n    model.train()",
        "scheduler = torch.optim.lr_scheduler.StepLR(o, 1)\nfor b in loader:\n    scheduler.step()",
        "env = gym.make('x')\nfor b in range(3):\n    env.step(b)",
        "for b in loader:\n    profiler.step()\n    progress_bar.step()",
    ],
)
def test_what_only_looks_like_training_is_none(tmp_path, text):
    (tmp_path / "train.py").write_text(text)
    assert analyse(tmp_path / "train.py").kind == "NONE"
    with pytest.raises(IotwinError, match="no training loop was found"):
        discover(tmp_path / "train.py")


def test_two_trainings_are_ambiguous():
    found = analyse(SHAPES / "two_trainings.py")
    assert found.confidence < SURE and any("11" in reason and "16" in reason for reason in found.reasons)


AMBIGUOUS = {
    "a comprehension": "for e in range(2):\n    [step(b) for b in loader]",
    "two functions with loops": "def a():\n  for b in loader: step(b)\ndef c():\n  for b in loader: step(b)\n(a if x else c)()",
    "a function that nothing calls": "def train():\n    for b in loader: step(b)",
    "two epoch loops": "def t():\n    for b in loader: step(b)\nfor e in range(2): t()\nfor e in range(2): t()",
    "a framework as well": "import keras\nkeras.Model().fit(x)\nfor b in loader: step(b)",
    "one update for all data": "for e in range(2):\n    for b in loader:\n        loss(b).backward()\n    optimizer.step()",
}


@pytest.mark.parametrize("what", AMBIGUOUS)
def test_ambiguous_scripts_are_not_sure(tmp_path, what):
    step = "def step(b):\n    loss = model(b).mean()\n    loss.backward()\n    optimizer.step()\n"
    (tmp_path / "train.py").write_text(step + AMBIGUOUS[what])
    found = analyse(tmp_path / "train.py")
    assert found.kind != "NONE" and found.confidence < SURE, found.reasons


UNFINDABLE = {
    "no sinks": "for epoch in range(3):\n    print(epoch)",
    "an update outside of loops": "loss = model(x).mean()\nloss.backward()\noptimizer.step()",
    "a loop in an installed package": "import pytest_timeout\npytest_timeout.train(model, loader)",
    "executed code": "exec(open('loop.py').read())",
}


@pytest.mark.parametrize("what", UNFINDABLE)
def test_no_loop_is_kind_none(tmp_path, what):
    (tmp_path / "train.py").write_text(UNFINDABLE[what])
    found = analyse(tmp_path / "train.py")
    assert (found.kind, found.confidence, found.batch) == ("NONE", 0.0, None) and found.reasons
    if "package" in what:
        assert found.reasons[1].endswith("train.py:2: pytest_timeout.train(model, loader) may train in an installed package")


def test_executed_code_is_named():
    found = analyse(SHAPES / "executed_text.py")
    assert found.kind == "NONE" and any("exec runs code that is not read" in reason for reason in found.reasons)


def test_the_script_is_not_run_and_no_framework_is_imported():
    program = (
        "import sys; from pathlib import Path; from iotwin.workloads.detrain.discover import discover;"
        f"discover(Path({str(SHAPES / 'music_transformer.py')!r}));"
        "assert not {'torch', 'tensorflow', 'keras'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_installed_packages_are_not_read(tmp_path):
    package = tmp_path / "site-packages" / "engine"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def train(loader):\n    for b in loader:\n        b.backward()\n")
    script = tmp_path / "site-packages" / "train.py"
    script.write_text("import engine\nengine.train(loader)")
    assert analyse(script).kind == "NONE"


@pytest.mark.parametrize(
    "text",
    [
        b"def f(:\n",
        b"x = '\xff'\n",
        b"\0",
        b"(" * 5000 + b")" * 5000,
        b"x = " + b"-" * 100_000 + b"1",
        b"y" + b"+1" * 20_000,
        b"",
    ],
)
def test_what_is_no_script_ends_in_one_line(tmp_path, text):
    (tmp_path / "train.py").write_bytes(text)
    with pytest.raises(IotwinError) as raised:
        discover(tmp_path / "train.py")
    assert "train.py" in str(raised.value) and "\n" not in str(raised.value)


def test_a_local_module_that_is_no_python_is_named(tmp_path):
    (tmp_path / "broken.py").write_text("def step(:")
    (tmp_path / "train.py").write_text(
        "import broken\nfor b in loader:\n    loss = net(b)\n    broken.step()\n    loss.backward()\n    optimizer.step()\n"
    )
    found = discover(tmp_path / "train.py")
    assert found.batch and found.batch.line == 2 and any("broken.py:1" in reason for reason in found.reasons)


# Random scripts

HEADERS = {
    FOR: [
        "for {t} in loader:", "for i, {t} in enumerate(loader):", "for {t} in tqdm(loader, desc='x'):",
        "for {t} in iter(loader):", "for {t} in islice(loader, 3):",
        "for i, {t} in enumerate(tqdm(loader), 1):", "for _, {t} in zip(range(9), loader):",
        "for i, {t} in tqdm(\n{p}    enumerate(\n{p}        loader,\n{p}    ),\n{p}):",
    ],
    NEXT: ["while step < 9:", "for step in range(9):", "while True:"],
}  # fmt: skip
EPOCHS = ["for epoch in range(3):", "while epoch < 3:", "for epoch in trange(\n    1, 3\n):"]
UPDATES = ["optimizer.step()", "scaler.step(optimizer)", "engine.step()", "self.opt_g.step()", "opts['main'].step()"]
LOSSES = ["criterion(model(x), y)", "F.mse_loss(model(x), y)", "compute(model, x, y) * 0.5", "(model(x) - y).pow(2).mean()"]
BLOCKS = ["{p}if debug:\n{p}    print(epoch)", "", "{p}# a comment", "{p}with torch.no_grad():\n{p}    ema.update(model)"]
EVALUATION = "for other in validation:\n{p}    metric = criterion(model(other), y).item()"
RATES = "for group in optimizer.param_groups:\n{p}    group['lr'] *= 0.9\n{p}scheduler.step()"


class RandomScript:
    """A script that is written line by line, with the true lines of its loops, its data call and its update."""

    def __init__(self, draw) -> None:
        self.draw, self.lines, self.truth, self.pad = draw, [], {}, ""

    def add(self, text: str, key: str | None = None) -> None:
        if key:
            self.truth[key] = len(self.lines) + 1
        self.lines += (self.pad + text.format(p=self.pad, t="{t}")).split("\n") if text else [""]
        if key in ("epoch", "batch") or text.startswith("def"):
            self.pad += "    "

    def chosen(self, texts: list[str]) -> str:
        return self.draw(st.sampled_from(texts))

    def perhaps(self, *texts: str) -> None:
        if self.draw(st.booleans()):
            for text in texts:
                self.add(text)

    def noise(self) -> None:
        for block in self.draw(st.lists(st.sampled_from(BLOCKS), max_size=2)):
            self.add(block.removeprefix("{p}"))

    def write(self) -> None:
        kind = self.chosen([FOR, NEXT])
        self.add("import torch\nfrom itertools import islice\nimport torch.nn.functional as F")
        is_function = self.draw(st.booleans())
        if is_function:
            self.add("def main(model, loader, optimizer, criterion):")
        self.add("it, step, opts, scaler = iter(loader), 0, dict(main=optimizer), torch.amp.GradScaler()")
        self.noise()
        if self.draw(st.booleans()):
            self.add(self.chosen(EPOCHS), "epoch")
            self.noise()
        self.batch_loop(kind)
        if is_function:
            self.pad = ""
            self.add("main(make_model(), make_loader(), torch.optim.SGD([], 1), torch.nn.MSELoss())")

    def batch_loop(self, kind: str) -> None:
        target = self.chosen(["(x, y)", "batch"])
        self.add(self.chosen(HEADERS[kind]).replace("{t}", target), "batch")
        if kind == FOR:
            self.truth["data"] = self.truth["batch"]
        else:
            self.noise()
            self.add("batch = next(it)", "data")
        if kind == NEXT or target == "batch":
            self.add("x, y = batch[0].to('cpu'), batch[1]")
        self.noise()
        self.add(f"loss = {self.chosen(LOSSES)}")
        self.perhaps(EVALUATION)
        self.add("loss.backward()")
        self.perhaps(RATES)
        if self.draw(st.booleans()):
            self.add("if step % 4 == 3:")
            self.pad += "    "
        self.add(self.chosen(UPDATES), "update")


@st.composite
def scripts(draw):
    script = RandomScript(draw)
    script.write()
    return "\n".join(script.lines) + "\n", script.truth


@settings(max_examples=150, deadline=None)
@given(scripts())
def test_random_scripts(tmp_path_factory, script):
    text, truth = script
    path = tmp_path_factory.getbasetemp() / "random_script.py"
    path.write_text(text)
    found = discover(path)
    lines = {key: getattr(found, key).line for key in ("epoch", "batch", "data", "update") if getattr(found, key)}
    assert lines == truth and found.confidence >= SURE, (text, found)


# The command


def test_the_command_prints_the_document(capfd, tmp_path):
    script, output = SHAPES / "walrus.py", tmp_path / "inst.json"
    assert main(["detrain", "discover", str(script), "--json", "-o", str(output)]) == 0
    document = json.loads(capfd.readouterr().out)
    assert {key: document[key]["line"] for key in ("epoch", "batch", "data", "update")} == {
        "epoch": 10, "batch": 12, "data": 12, "update": 16,
    }  # fmt: skip
    assert document["data"]["call"] == "next(batches, None)" and document["update"]["call"] == "optimizer.step()"
    assert document["confirmed"] is None and document["reads_in_data_call"] is None and document["wrapper"] is None
    assert document["loader"] == {"name": "loader", "persistent": True}
    assert document["source_sha256"] == document["sources"][document["script"]]
    assert read_instrumentation(output).batch.line == 12


def test_the_command_prints_a_table(capfd):
    assert main(["detrain", "discover", str(SHAPES / "music_transformer.py")]) == 0
    printed = capfd.readouterr().out
    for name, line in (("epoch loop", 76), ("batch loop", 78), ("data call", 80), ("weight update", 83)):
        assert any(name in each and str(line) in each for each in printed.splitlines()), printed
    assert "NEXT_CALL, confidence 0.95" in printed


def test_the_command_without_a_loop(capfd):
    assert main(["detrain", "discover", str(SHAPES / "no_loop.py"), "--json"]) == 1
    document = json.loads(capfd.readouterr().out)
    assert (document["kind"], document["batch"]) == ("NONE", None)
    assert main(["detrain", "discover", str(SHAPES / "no_loop.py")]) == 1
    printed = capfd.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and "no training loop was found" in printed.err


def test_the_command_without_a_script(capfd, tmp_path):
    assert main(["detrain", "discover", str(tmp_path / "none.py")]) == 1
    assert "none.py does not exist" in capfd.readouterr().err


# The jobs of this repository

JOBS = {
    "unet3d": (
        r"for epoch in range\(self.epoch",
        r"for step in range\(done",
        r"batch = next\(fetching\)",
        r"self._optimizer.step\(\)",
    ),
    "dlrm": (
        r"while done < config.steps",
        r"for step, number in zip",
        r"batch = self._training.read",
        r"self._optimizer.step\(\)",
    ),
    "bert": (r"while done < steps", r"for step in range\(first", r"batch = next\(self._batches\)", r"self._optimizer.apply\("),
    "checkfreq": (r"while self.iterator.epoch <", r"while ", r"next\(self.iterator", r"self._scaler.step\("),
}


@pytest.mark.parametrize("job", JOBS)
def test_our_own_jobs(job):
    found = discover(ROOT / "workloads" / job / "__main__.py")
    lines = (ROOT / "workloads" / job / "train.py").read_text().splitlines()
    for name, pattern in zip(("epoch", "batch", "data", "update"), JOBS[job], strict=True):
        line = getattr(found, name)
        assert Path(line.file).name == "train.py" and re.search(pattern, lines[line.line - 1]), (name, lines[line.line - 1])
    assert found.confidence >= SURE
