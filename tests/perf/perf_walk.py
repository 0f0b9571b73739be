"""How far a reader follows `emulate(config)`: the modules that a tiny run enters, and the calls that return to one of them.

A walk has one call for each function that a module calls in another one of ours. A return is a call into a module that the walk
has entered before, so returns are calls less modules.
"""

import sys
import tempfile
from pathlib import Path
from types import FrameType

import numpy as np

from iotwin import workload_yaml as w
from iotwin.benchmark.emulator.run import emulate
from tests.conftest import ROOT
from tests.perf.figures import Figure


def measure() -> list[Figure]:
    """Return the figures."""
    calls: set[tuple[str, str, str]] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        caller = frame.f_back
        while caller is not None and not _module(caller):
            caller = caller.f_back
        if event == "call" and caller is not None and _module(frame) not in ("", _module(caller)):
            calls.add((_module(caller), _module(frame), frame.f_code.co_qualname))

    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
        config = _fitted(Path(name))
        sys.setprofile(note)
        emulate(config, None)
        sys.setprofile(None)
    modules = {called for _, called, _ in calls}
    print(*sorted(calls), sep="\n", file=sys.stderr)
    return [
        Figure("walk of emulate(config): modules entered", len(modules), 25, detail=f"{len(calls)} calls"),
        Figure("walk of emulate(config): returns", len(calls) - len(modules), 31),
    ]


def _fitted(folder: Path) -> w.Config:
    """Return a twin as fit writes it: it trains on shuffled files, evaluates and writes a checkpoint after each of two epochs."""
    names = [f"sample_{number}.npy" for number in range(6)]
    for name in names:
        np.save(folder / name, np.zeros(8))
    files = [w.CheckpointFile(name="epoch_{epoch}.pt", write_sizes=[(1280, 2)], rename=True)]
    return w.Config(
        workflow=w.Workflow(evaluation=True, checkpoint=True),
        dataset=w.Dataset(data_folder=str(folder), format="npy"),
        reader=w.Reader(batch_size=2, read_threads=0, sample_shuffle="seed"),
        train=w.Train(epochs=2, computation_time=0.001),
        checkpoint=w.Checkpoint(checkpoint_folder=str(folder / "checkpoints")),
        twin=w.Twin(train_files=names[:4], eval_files=names[4:], checkpoint=w.TwinCheckpoint(files=files)),
    )


def _module(frame: FrameType) -> str:
    """Return our module that the code of `frame` is from, without the root; '' if it is from another package."""
    return frame.f_code.co_filename.removeprefix(f"{ROOT}/iotwin/") if "/iotwin/" in frame.f_code.co_filename else ""


if __name__ == "__main__":
    for figure in measure():
        print(figure.line())
