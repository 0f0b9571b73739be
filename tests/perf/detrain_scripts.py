"""Scripts for the measurements of DETrain: some whole, the others those of the zoo with a part of their text replaced."""

from pathlib import Path
from textwrap import indent

# 10 epochs of batches that do nothing. A line an epoch: microseconds per batch.
EMPTY_BODY = """
import time

import torch

weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], 0.1)
batches = [0] * 20000


def main():
    for epoch in range(10):
        begin = time.perf_counter()
        for batch in batches:
            if batch:
                (weight * batch).sum().backward()
                optimizer.step()
        print((time.perf_counter() - begin) / len(batches) * 1e6, flush=True)


main()
"""

# As EMPTY_BODY, with batches of 16 samples that a DataLoader of this process reads.
LOADED_BODY = EMPTY_BODY.replace(
    "batches = [0] * 20000",
    "samples = torch.utils.data.TensorDataset(torch.zeros(16 * 500, 8), torch.zeros(16 * 500))\n"
    "batches = torch.utils.data.DataLoader(samples, batch_size=16, shuffle=True)",
).replace("if batch:", "if not len(batch):")

# A million additions to few elements, by several threads: without determinism their order is that of the threads.
RACING_ADDS = """
import torch

torch.manual_seed(0)
torch.set_num_threads(2)
weight = torch.nn.Parameter(torch.randn(1 << 20))
index = torch.randint(0, 64, (1 << 20,))
optimizer = torch.optim.SGD([weight], 0.1)
for step in range(4):
    sums = torch.zeros(64).index_put((index,), weight, accumulate=True)
    loss = (sums.sin() / (1 + sums.square())).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

# Runs a script as `python -m iotwin.workloads.detrain` does. Its last line on stderr has processor seconds of its main thread,
# as JSON: `read` the checkpoint; `put` it into models and optimizers, as a script that resumes by itself does; `epoch`, from the
# epoch's begin to the first batch that is trained on, with `put` but without `read`.
RESTORE_TIMER = """
import json
import sys
import time

from iotwin.workloads.detrain import session
from iotwin.workloads.detrain.__main__ import main
from iotwin.workloads.detrain.saving import saved_state
from iotwin.workloads.detrain.saving.script_store import ScriptStore

seconds = {"read": 0.0, "put": 0.0}
begin_batch, begin_epoch = session.Session.begin_batch, session.Session.begin_epoch


def batch_begins(self, frame):
    taken = begin_batch(self, frame)
    if "epoch" not in seconds and self.resume is None:
        seconds["epoch"] = time.thread_time() - epoch_begin
    return taken


def epoch_begins(self, frame):
    global epoch_begin
    epoch_begin = time.thread_time()
    return begin_epoch(self, frame)


def timed(name, function):
    def runs(*arguments):
        begin = time.thread_time()
        found = function(*arguments)
        seconds[name] += time.thread_time() - begin
        return found

    return runs


session.Session.begin_batch, session.Session.begin_epoch = batch_begins, epoch_begins
ScriptStore.read, saved_state._load = timed("read", ScriptStore.read), timed("put", saved_state._load)
epoch_begin = time.thread_time()
main()
print(json.dumps(seconds), file=sys.stderr)
"""

# Saves as most scripts do, and prints the seconds. `of`: "" or "self.".
SAVE = """
begin = __import__("time").perf_counter()
torch.save([{of}model.state_dict(), {of}optimizer.state_dict()], __file__ + ".pt")
print("saved", __import__("time").perf_counter() - begin)
"""


def indented(text: str, line: str) -> str:
    """Return a text with the indent of a line."""
    return indent(text, line[: len(line) - len(line.lstrip())])


def replaced(script: Path, old: str, new: str, folder: Path) -> Path:
    """Write a copy of a script, with `new` for each `old`, into a new folder; return its path."""
    text = script.read_text()
    assert old in text, (script, old)
    folder.mkdir(parents=True)
    (copy := folder / script.name).write_text(text.replace(old, new))
    return copy
