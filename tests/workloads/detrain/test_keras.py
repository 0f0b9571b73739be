"""Scripts that train by Keras's fit resume equal at any batch, with their callbacks, validation and order of samples.

Scripts with loops of their own do, too, although Keras makes their variables in the first step.
"""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from tests.workloads.detrain.script_server import Ended, ScriptServer

ZOO = Path(__file__).with_name("zoo")
SCRIPTS = {
    # The first step makes the model's variables. The callback draws what the dropout's seeds do not.
    "arrays": """
import keras
import numpy as np

class Draws(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.drawn = []

    def on_train_batch_end(self, batch, logs=None):
        self.drawn.append((batch, float(np.random.random())))

keras.utils.set_random_seed(1)
x, y = np.random.normal(size=(13, 6)).astype("float32"), np.random.randint(0, 3, 13)
model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(3, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
draws = Draws()
history = model.fit(x, y, batch_size=5, epochs=3, verbose=0, callbacks=[draws])
print(draws.drawn, history.history, history.epoch)
""",
    # Training ends in the fourth epoch, and the weights go back to the second's.
    "pipeline": """
import keras
import numpy as np
import tensorflow as tf

def main():
    keras.utils.set_random_seed(1)
    x, y = np.random.normal(size=(13, 6)).astype("float32"), np.random.normal(size=(13, 1))
    model = keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", jit_compile=False)
    train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(13).batch(5)
    validation = tf.data.Dataset.from_tensor_slices((x, -y)).shuffle(13).batch(3)
    ended = 0

    def count(epoch, logs):
        nonlocal ended
        ended += 1

    history = model.fit(train, epochs=9, verbose=0, validation_data=validation, shuffle=False, callbacks=[
        keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=1), keras.callbacks.LambdaCallback(on_epoch_end=count)])
    print(ended, history.history, history.epoch, model.evaluate(x, y, verbose=0))

main()
""",
    # Items draw from the global generator, and the data set shuffles itself with its own.
    "items": """
import keras
import numpy as np

class Data(keras.utils.PyDataset):
    def __init__(self):
        super().__init__(workers=2)
        self.rng, self.at = np.random.default_rng(0), np.arange(13)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        at = self.at[index * 5 : index * 5 + 5, None]
        return np.sin(at * np.arange(6.0)) + np.random.normal(size=(len(at), 6)), at

    def on_epoch_end(self):
        self.rng.shuffle(self.at)

keras.utils.set_random_seed(3)
inputs = keras.Input((6,))
model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.GaussianNoise(0.1)(inputs)))
rate = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.9)
model.compile(keras.optimizers.Adam(rate), "mae", jit_compile=False)
print(model.fit(Data(), epochs=3, verbose=0).history)
""",
    "generator": """
import keras
import numpy as np

def batches():
    while True:
        x = np.random.normal(size=(4, 6))
        yield x, x.sum(1, keepdims=True)

keras.utils.set_random_seed(3)
model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
model.compile("rmsprop", "mse")
print(model.fit(batches(), steps_per_epoch=3, epochs=3, verbose=0).history)
""",
}
FIT = "model.fit(x, y, batch_size=5, epochs=3, verbose=0, callbacks=[draws])"


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ScriptServer]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CUDA_VISIBLE_DEVICES", "")
        environment.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
        with ScriptServer(tmp_path_factory.mktemp("keras"), ["tensorflow", "keras"]) as started:
            yield started


def run(server: ScriptServer, name: str, text: str, *options: str, **variables: str) -> tuple[Ended, list[dict]]:
    script, log = server.folder / f"{name}.py", server.folder / "steps.jsonl"
    script.write_text(text)
    log.unlink(missing_ok=True)
    ended = server.run(["-o", server.folder / name, "--steps-log", log, *options, script], **variables)
    return ended, [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def replay_of(server: ScriptServer, name: str) -> str:
    return json.loads((server.folder / name / "run.json").read_text())["replay"]


# At the first batch of the run, in the middle of an epoch, at its last batch, and at an epoch's border; step N is batch N % 3.
@pytest.mark.parametrize(
    ("name", "points", "replay"),
    [
        ("arrays", (0, 5, 6), "restore"),
        ("pipeline", (2, 3, 10), "restore"),
        ("items", (2, 4), "restore"),
        ("generator", (4,), "replay-data"),
    ],
)
def test_a_run_resumes_equal(server, name, points, replay):
    at = ",".join(f"{step // 3}:{step % 3}" for step in points)
    whole, steps = run(server, name, SCRIPTS[name], "--at", at)
    assert whole.status == 0, whole.err
    assert len({step["parameters_sha256"] for step in steps}) == len(steps) == (12 if name == "pipeline" else 9)
    for step in points:
        resumed, later = run(server, name, SCRIPTS[name], "--resume", f"step-{step}")
        assert resumed.status == 0, resumed.err
        assert later == steps[step:]
        assert resumed.out == whole.out
        assert replay_of(server, name) == replay


def test_a_killed_run_goes_on_where_it_was(server):
    whole, steps = run(server, "killed", SCRIPTS["arrays"])
    kill = "random())))\n        import os; len(self.drawn) == 5 and 'KILL' in os.environ and os.kill(os.getpid(), 9)\n"
    text = SCRIPTS["arrays"].replace("random())))\n", kill)
    killed, before = run(server, "killed", text, "--every", "2batches", KILL="")
    assert (killed.status, before) == (-signal.SIGKILL, steps[:4])
    resumed, later = run(server, "killed", text)
    assert (resumed.status, later, resumed.out) == (0, steps[4:], whole.out)


def test_no_batch_is_counted_where_an_epoch_of_unknown_length_ends(server):
    text = SCRIPTS["pipeline"].replace(".batch(5)", ".filter(lambda x, y: True).batch(5)")
    whole, steps = run(server, "unknown", text, "--at", "1:1")
    assert [step["batch"] for step in steps[:4]] == [0, 1, 2, 0]
    resumed, later = run(server, "unknown", text, "--resume", "step-4")
    assert (resumed.status, later, resumed.out) == (0, steps[4:], whole.out)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (FIT, f"{FIT}\n{FIT}", "it is unsure which lines are its loops (2 calls train"),
        (FIT, f"[{FIT} for fold in range(2)]", "the call is in a loop"),
        ("keras.utils.set_random_seed(1)", "", "the samples' order cannot be put back; add --determinism seeded"),
        ("[draws]", "[keras.callbacks.BackupAndRestore('backup')]", "resumes by its own BackupAndRestore"),
        ("model.fit(", "0 and model.fit(", "has not called fit of a Keras model"),
    ],
)
def test_what_cannot_be_resumed_is_refused_in_a_line(server, old, new, message):
    text = SCRIPTS["arrays"].replace(old, new).replace("print(", "0 and print(")
    ended, steps = run(server, "refused", text, "--at", "0:1")
    assert ended.status == 1 and not steps
    assert message in ended.err.splitlines()[-1]


def test_a_second_call_is_refused_where_it_is_made(server):
    ended, steps = run(server, "second", SCRIPTS["arrays"].replace(FIT, f"{FIT}; {FIT}"), "--force", "--at", "0:1")
    assert (ended.status, len(steps)) == (1, 9)
    assert "calls fit more than once" in ended.err.splitlines()[-1]


def test_data_that_depend_on_steps_are_refused(server):
    text = SCRIPTS["generator"].replace("x = np", "x = float(model.optimizer.iterations) + np")
    assert run(server, "depends", text, "--at", "1:1")[0].status == 0
    ended, _ = run(server, "depends", text)
    assert ended.status == 1
    assert ended.err.splitlines()[-1].endswith("its draws depend on steps; resume with --replay full")


@pytest.mark.parametrize(
    ("name", "replay", "profile"), [("tf_music", "restore", "strict"), ("tf_pipeline", "replay-data", "off")]
)
def test_later_steps_of_a_resumed_loop_are_equal(server, name, replay, profile):
    text = (ZOO / f"{name}.py").read_text()
    whole, steps = run(server, name, text, "--determinism", profile, "--at", "1:2")
    resumed, later = run(server, name, text, "--determinism", profile)
    assert (whole.status, resumed.status) == (0, 0), whole.err + resumed.err
    assert later == steps[-len(later) :]
    assert (later[0]["epoch"], later[0]["batch"]) == (1, 2)
    assert len({step["parameters_sha256"] for step in steps}) == len(steps)
    assert replay_of(server, name) == replay
