"""Scripts whose loops log phases: what they log, and that nothing else of them changes."""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.common.errors import IotwinError
from iotwin.workloads.detrain.phases import light_session
from iotwin.workloads.detrain.phases.program import labelled_command
from iotwin.workloads.detrain.phases.python_command import python_command

PATIENCE_S = 60
TRAINING = '''"""Trains without a framework."""
from __future__ import annotations

import os
import sys
import time


class Model:
    def __call__(self, x):
        return self

    def backward(self):
        pass

    def train(self):
        pass

    def eval(self):
        pass


class Optimizer:
    def step(self):
        pass


data = [1.0, 2.0]
model, optimizer = Model(), Optimizer()


def train(x):
    loss = model(x)
    loss.backward()
    optimizer.step()
'''
FACTS = """
def facts():
    main = sys.modules["__main__"]
    print(sys.argv, sys.orig_argv, sys.path, __file__, main.__loader__.path, main.__spec__ and main.__spec__.name)
    print(facts.__code__.co_filename, __doc__, __package__, sorted(vars(main)), __debug__, os.listdir("/proc/self/fd"))
"""
EPOCHS = """
for epoch in range(2):
    for x in data:
        train(x)
"""
# Stands in for PyTorch, whose import takes seconds.
TORCH = """
class no_grad:
    def __call__(self, function):
        return function
    def __enter__(self):
        pass
    def __exit__(self, *_):
        pass

inference_mode = no_grad

def save(state, path):
    with open(path, "w") as file:
        file.write(str(state))
"""
EPOCH = [("epoch", 1), ("step", 1), ("step", -1), ("step", 2), ("step", -2), ("epoch", -1)]


def write(folder: Path, body: str, name: str = "train.py") -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(body)
    return folder / name


def run(words: list[str], folder: Path, monkeypatch, **options) -> subprocess.CompletedProcess[str]:
    """Run the command in `folder` with its loops labelled."""
    monkeypatch.chdir(folder)
    made = os.memfd_create("program")
    descriptor = fcntl.fcntl(made, fcntl.F_DUPFD, 200)
    try:
        labelled = labelled_command(words, descriptor)
        os.write(descriptor, labelled.program)
        return subprocess.run(
            labelled.words, cwd=folder, pass_fds=[descriptor], text=True, timeout=PATIENCE_S,
            **{"capture_output": True, **options},
        )  # fmt: skip
    finally:
        os.close(made)
        os.close(descriptor)


def logged(output: str) -> list[tuple[str, int]]:
    """Return the key and the number of each line of a log, of an epoch or step; negative at its end. Other phases have 0, -0."""
    found = []
    for line in output.splitlines():
        if line.startswith(":::MLLOG "):
            event = json.loads(line.removeprefix(":::MLLOG "))
            number = event["metadata"].get("step_num" if event["key"] == "step" else "epoch_num", 0)
            found.append((event["key"], number if event["event_type"] == "INTERVAL_START" else -number))
    return found


def times(output: str, key: str, edge: str) -> list[int]:
    events = [json.loads(line.removeprefix(":::MLLOG ")) for line in output.splitlines() if line.startswith(":::MLLOG ")]
    return [each["time_ns"] for each in events if (each["key"], each["event_type"]) == (key, f"INTERVAL_{edge}")]


def own(output: str) -> str:
    return "".join(line for line in output.splitlines(keepends=True) if not line.startswith(":::MLLOG "))


def training(folder: Path, body: str, monkeypatch) -> list[tuple[str, int]]:
    write(folder, TRAINING + body)
    done = run([sys.executable, "train.py"], folder, monkeypatch)
    assert done.returncode == 0, done.stderr
    return logged(done.stdout)


@pytest.mark.parametrize(
    "words",
    [
        ["train.py"],
        ["./train.py", "--epochs", "3"],
        ["{folder}/train.py"],
        ["link.py", "-c"],
        ["-O", "train.py"],
        ["-OO", "-u", "-X", "utf8", "train.py"],
        ["-P", "-W", "ignore", "train.py"],
        ["-I", "train.py"],
        ["-m", "train", "--epochs"],
        ["-um", "train"],
        ["-m", "package.inner"],
    ],
    ids=" ".join,
)
def test_a_script_sees_what_it_sees_without_labels(tmp_path, monkeypatch, words):
    write(tmp_path, TRAINING + FACTS + EPOCHS + "facts()\n")
    write(tmp_path, TRAINING + FACTS + "from . import other\n" + EPOCHS + "facts()\nprint(other.__name__)\n", "package/inner.py")
    write(tmp_path, "", "package/other.py")
    (tmp_path / "link.py").symlink_to(tmp_path / "train.py")
    command = [sys.executable, "-B", *(word.format(folder=tmp_path) for word in words)]
    bare = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert bare.returncode == 0, bare.stderr
    labelled = run(command, tmp_path, monkeypatch)
    # The last descriptor is the copy of stdout.
    assert own(labelled.stdout).replace(", '200'", "") == bare.stdout and labelled.stderr == bare.stderr
    second = [(key, number * 2 if key == "epoch" else number) for key, number in EPOCH]
    assert logged(labelled.stdout) == [*EPOCH, *second]


def test_an_error_is_reported_as_without_labels(tmp_path, monkeypatch):
    write(tmp_path, TRAINING + EPOCHS.replace("train(x)", "train(x)\n        if x == 2.0:\n            1 / 0"))
    command = [sys.executable, "train.py"]
    bare = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    labelled = run(command, tmp_path, monkeypatch)
    assert (labelled.returncode, labelled.stderr) == (bare.returncode, bare.stderr) and "ZeroDivisionError" in bare.stderr
    assert logged(labelled.stdout) == EPOCH


@pytest.mark.parametrize(
    ("body", "phases"),
    [
        (
            "data = [1.0, 2.0, 3.0]\nfor epoch in range(1):\n    for x in data:\n        train(x)\n        if x == 2.0:\n"
            "            break\n",
            EPOCH,
        ),
        ("for x in data:\n    train(x)\n", [("block", 0), *EPOCH[1:-1], ("block", 0)]),
        (
            "data = iter([1.0, 2.0])\nstep = 0\nwhile step < 2:\n    x = next(data)\n    train(x)\n    step += 1\n",
            [("block", 0), *EPOCH[1:-1], ("block", 0)],
        ),
        (
            "for epoch in range(1):\n    data = iter([1.0, 2.0])\n    i = 0\n    while i < 2:\n        x = next(data)\n"
            "        train(x)\n        i += 1\n",
            EPOCH,
        ),
    ],
    ids=["break", "no epochs", "while", "while in epochs"],
)
def test_the_loops_of_other_shapes(tmp_path, monkeypatch, body, phases):
    assert training(tmp_path, body, monkeypatch) == phases


def test_a_step_begins_when_its_batch_has_been_got(tmp_path, monkeypatch):
    body = """
def now():
    print(time.time_ns())

def get(epoch, i):
    x = (epoch, i)
    now()
    return x

for epoch in range(2):
    for i in range(3):
        x = get(epoch, i)
        now()
        train(x)
        now()
"""
    write(tmp_path, TRAINING + body)
    output = run([sys.executable, "train.py"], tmp_path, monkeypatch).stdout
    got, trains, trained = np.array(own(output).split(), int).reshape(6, 3).T
    begun, ended = np.array(times(output, "step", "START")), np.array(times(output, "step", "END"))
    assert len(begun) == len(ended) == 6
    assert (got < begun).all() and (begun < trains).all() and (trained < ended).all() and (ended[:2] < got[1:3]).all()


def test_loops_of_an_imported_module_are_labelled(tmp_path, monkeypatch):
    write(tmp_path, TRAINING + "def epoch(data):\n    for x in data:\n        train(x)\n    return __file__\n", "lib/engine.py")
    write(tmp_path, "import engine\nfor epoch in range(1):\n    path = engine.epoch([1.0, 2.0])\nprint(path)\n", "lib/train.py")
    (tmp_path / "elsewhere").symlink_to(tmp_path / "lib")
    path = tmp_path / "elsewhere" / "train.py"
    body = f"import sys\nsys.path[0] = {str(path.parent)!r}\n" + path.read_text()
    write(tmp_path, body, "lib/train.py")
    done = run([sys.executable, str(path)], tmp_path, monkeypatch)
    assert logged(done.stdout) == EPOCH, done.stderr
    assert own(done.stdout) == f"{path.parent / 'engine.py'}\n"


def test_evaluations_and_checkpoints(tmp_path, monkeypatch):
    body = """
import threading
import torch

def evaluate(data):
    model.eval()
    total = 0
    with torch.no_grad():
        for x in data:
            total += 1
    return total

@torch.no_grad()
def average():  # in training mode
    for x in [1.0]:
        pass

for epoch in range(1):
    model.train()
    average()
    for x in data:
        train(x)
    print(evaluate(iter([1.0, 2.0, 3.0])))
    thread = threading.Thread(target=torch.save, args=({}, "a"))
    thread.start()
    thread.join()
    background = threading.Thread(target=lambda: torch.save({}, "a"))
    background.start()
    background.join()
    torch.save({}, "b")
    torch.save({}, "c")
torch.save({}, "d")
"""
    write(tmp_path, TORCH, "torch.py")
    phases = training(tmp_path, body, monkeypatch)
    saved = [("checkpoint", 1), ("checkpoint", -1)]  # b and c at once, and d after the last epoch
    assert phases == [*EPOCH, ("evaluation", 1), ("evaluation", -1), *saved, *saved]
    assert sorted(path.name for path in tmp_path.iterdir() if not path.suffix) == ["__pycache__", "a", "b", "c", "d"]


def test_an_evaluation_within_training_is_part_of_a_step(tmp_path, monkeypatch):
    body = """
import torch

@torch.inference_mode()
def evaluate():
    model.eval()
    for part in range(2):
        for x in data:
            pass
    model.train()

for epoch in range(1):
    for x in data:
        train(x)
        if x == 2.0:
            evaluate()
"""
    write(tmp_path, TORCH, "torch.py")
    expected = [*EPOCH[:4], ("evaluation", 1), ("evaluation", -1), *EPOCH[4:]]
    assert training(tmp_path, body, monkeypatch) == expected


def test_phases_do_not_go_where_the_script_sends_its_output(tmp_path, monkeypatch):
    body = """
os.dup2(os.open("own.log", os.O_WRONLY | os.O_CREAT), 1)
for epoch in range(1):
    for x in data:
        train(x)
        os.write(1, b"mine")
"""
    assert training(tmp_path, body, monkeypatch) == EPOCH
    assert (tmp_path / "own.log").read_bytes() == b"minemine"


def test_a_forked_process_logs_nothing(tmp_path, monkeypatch):
    body = "def work():\n    for epoch in range(1):\n        for x in data:\n            train(x)\n\n"
    body += "for child in range(2):\n    if os.fork() == 0:\n        work()\n        sys.exit()\n    os.wait()\n"
    assert training(tmp_path, body, monkeypatch) == []


def test_ranks_are_those_of_torch_or_of_the_environment(tmp_path, monkeypatch):
    body = """
import types
distributed = types.ModuleType("torch.distributed")
distributed.is_available = distributed.is_initialized = lambda: True
distributed.get_rank = lambda: 5

if os.fork():
    os.wait()
else:
    sys.modules["torch.distributed"] = distributed
for epoch in range(1):
    for x in [1.0]:
        train(x)
"""
    write(tmp_path, TRAINING + body)
    monkeypatch.setenv("RANK", "3")
    output = run([sys.executable, "train.py"], tmp_path, monkeypatch).stdout
    ranks = [json.loads(line.removeprefix(":::MLLOG "))["metadata"]["rank"] for line in output.splitlines()]
    assert ranks == [5] * 4 + [3] * 4


@pytest.mark.parametrize("closes", ["os.close(1)", "os.closerange(3, 300)"])
def test_a_job_without_a_stdout_runs_on(tmp_path, monkeypatch, closes):
    write(
        tmp_path,
        TRAINING + EPOCHS.replace("train(x)", f"train(x)\n        {closes} if epoch + x == 1.0 else None") + "sys.exit(7)\n",
    )
    ours, theirs = os.pipe()
    os.close(ours)  # nobody reads
    try:
        assert run([sys.executable, "train.py"], tmp_path, monkeypatch, capture_output=False, stdout=theirs).returncode == 7
    finally:
        os.close(theirs)


def test_a_file_that_a_loop_leaves_early_remains_open(tmp_path, monkeypatch):
    body = (
        "file = open('lines')\nfor epoch in range(1):\n    for x in file:\n        train(x)\n        break\nprint(file.read())\n"
    )
    write(tmp_path, "1\n2\n", "lines")
    write(tmp_path, TRAINING + body)
    done = run([sys.executable, "train.py"], tmp_path, monkeypatch)
    assert own(done.stdout) == "2\n\n", done.stderr


def test_no_file_changes(tmp_path, monkeypatch):
    write(tmp_path, TRAINING + EPOCHS)
    before = {path: hashlib.sha256(path.read_bytes()).digest() for path in tmp_path.rglob("*")}
    assert run([sys.executable, "train.py"], tmp_path, monkeypatch).returncode == 0
    assert {path: hashlib.sha256(path.read_bytes()).digest() for path in tmp_path.rglob("*")} == before


REFUSED = [
    (["sh", "train.sh"], "sh is not Python"),
    (["{python}"], "names no script"),
    (["{python}", "-"], "names no script"),
    (["{python}", "-c", "pass"], "given by -c"),
    (["{python}", "-x", "train.py"], "-x"),
    (["{python}", "missing.py"], "does not exist"),
    (["{python}", "-m", "nowhere"], "is in no file"),
    (["{python}", "none.py"], "no training loop"),
    (["{python}", "two.py"], "several loops train"),
    (["{python}", "logs.py"], "logs phases itself"),
    (["{python}", "-Z", "train.py"], "cannot be asked"),
    (["./python3", "train.py"], "is pypy-9"),
]


@pytest.mark.parametrize(("words", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_is_not_labelled(tmp_path, monkeypatch, words, reason):
    write(tmp_path, TRAINING + EPOCHS)
    write(tmp_path, "print('no loop')\n", "none.py")
    write(tmp_path, TRAINING + EPOCHS + EPOCHS, "two.py")
    write(tmp_path, TRAINING + "# as MLLOG\n" + EPOCHS, "logs.py")
    write(tmp_path, "#!/bin/sh\necho aabb0d0a pypy-9 0 0 0\n", "python3").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(IotwinError, match=reason):
        labelled_command([word.format(python=sys.executable) for word in words], 200)


OPTIONS = st.sampled_from([["-u"], ["-OB"], ["-W", "error"], ["-Werror"], ["-X", "dev"], ["-uX", "dev"],
                           ["--check-hash-based-pycs", "never"]])  # fmt: skip


@given(st.lists(OPTIONS), st.booleans(), st.lists(st.sampled_from(["-c", "-m", "--", "x", "-x"])))
def test_command_lines_are_read_as_python_reads_them(options, by_module, arguments):
    flat = [word for option in options for word in option]
    named = ["-m", "package.train"] if by_module else ["train.py"]
    found = python_command(["python3.11", *flat, *named, *arguments])
    assert (found.program, found.options, found.arguments) == ("python3.11", flat, arguments)
    assert (found.script, found.module) == ((None, "package.train") if by_module else ("train.py", None))


# Stands in for Keras, whose import takes seconds.
KERAS = """
import sys
from types import SimpleNamespace

class LambdaCallback:
    def __init__(self, **methods):
        vars(self).update(methods)

class CallbackList:
    def __init__(self, callbacks):
        self.callbacks = callbacks
    def append(self, callback):
        self.callbacks.append(callback)

class Model:
    def fit(self, x, y=None, batch_size=None, epochs=1, verbose="auto", callbacks=None, validation_data=None):
        own = getattr(callbacks, "callbacks", callbacks)
        print(len(own), type(callbacks).__name__)
        tell = own[-1]
        for epoch in range(epochs):
            tell.on_epoch_begin(epoch, logs=None)
            for batch in x:
                tell.on_train_batch_begin(batch, logs=None)
                tell.on_train_batch_end(batch, logs={})
            if validation_data:
                tell.on_test_begin(logs=None)
                tell.on_test_end(logs={})
            tell.on_epoch_end(epoch, logs={})
        return self

callbacks = SimpleNamespace(LambdaCallback=LambdaCallback, CallbackList=CallbackList)
"""


def stand_in_for_keras(folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(write(folder, KERAS, "site-packages/keras.py").parent))


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        ("[1, 2], epochs=1", "1 list"),
        ("[1, 2], callbacks=None", "1 list"),
        ("[1, 2], callbacks=own", "2 list"),
        ("[1, 2], None, 8, 1, 0, own", "2 list"),
        ("[1, 2], callbacks=own[0]", "2 list"),
        ("[1, 2], None, 8, 1, 0, keras.callbacks.CallbackList([*own])", "2 CallbackList"),
    ],
)
def test_the_epochs_and_steps_of_keras_fit(tmp_path, monkeypatch, arguments, printed):
    stand_in_for_keras(tmp_path, monkeypatch)
    write(tmp_path, f"import keras\nown = [object()]\nmodel = keras.Model()\nmodel.fit({arguments})\nprint(len(own))\n")
    done = run([sys.executable, "train.py"], tmp_path, monkeypatch)
    assert own(done.stdout).splitlines() == [printed, "1"] and logged(done.stdout) == EPOCH, done.stderr


def test_several_calls_of_fit_and_evaluations(tmp_path, monkeypatch):
    stand_in_for_keras(tmp_path, monkeypatch)
    other = "class Scaler:\n    def fit(self, x):\n        return x\nScaler().fit([1])\n"
    fits = "model.fit([1], callbacks=listed, validation_data=[1])\nmodel.fit([1], callbacks=listed, epochs=2)\n"
    write(tmp_path, f"import keras\n{other}model, listed = keras.Model(), keras.callbacks.CallbackList([])\n{fits}")
    done = run([sys.executable, "train.py"], tmp_path, monkeypatch)
    first, *others = ([("epoch", n), ("step", 1), ("step", -1), ("epoch", -n)] for n in (1, 2, 3))
    found = [*first[:-1], ("evaluation", 1), ("evaluation", -1), first[-1], *others[0], *others[1]]
    assert logged(done.stdout) == found, done.stderr
    assert own(done.stdout).splitlines() == ["1 CallbackList"] * 2  # the callback of the first call is gone
    command = labelled_command([sys.executable, str(tmp_path / "train.py")], 200)
    assert command.note.endswith(f"epochs and steps by {tmp_path}/train.py:7 and {tmp_path}/train.py:8"), command.note


@pytest.mark.parametrize("module", ["keras.own", None, 3])
def test_objects_that_only_look_like_models_of_keras_have_no_callbacks(monkeypatch, module):
    """A job may have a module keras of its own, and a class may have any value as its `__module__`."""
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace())
    assert light_session._callbacks_of(type("Own", (), {"__module__": module, "fit": lambda self: None})().fit) is None


@pytest.mark.torch
def test_a_script_of_pytorch_with_loaders(tmp_path, monkeypatch):
    script = str(Path(__file__).with_name("zoo") / "cnn.py")
    words = [sys.executable, script, "--epochs", "2", "--workers", "2", "--batch-size", "44", "--save-model", "model.pt"]
    done = run(words, tmp_path, monkeypatch)
    second = [(key, number * 2 if key == "epoch" else number) for key, number in EPOCH]
    evaluations = [[("evaluation", epoch), ("evaluation", -epoch)] for epoch in (1, 2)]
    saved = [("checkpoint", 2), ("checkpoint", -2)]
    assert logged(done.stdout) == [*EPOCH, *evaluations[0], *second, *evaluations[1], *saved], done.stderr
    assert own(done.stdout).count("Train Epoch") == 2
