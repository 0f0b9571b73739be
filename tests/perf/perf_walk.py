"""How far a reader follows `emulate(config)` and `fit(trace)`: the modules entered, and the calls that return to one of them.

A walk has one call for each function that a module calls in another one of ours. A return is a call into a module that the walk
has entered before, so returns are calls less modules.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np

from iotwin import workload_yaml as w
from iotwin.benchmark.emulator.run import emulate
from iotwin.benchmark.fit.fit_trace import fit
from tests.benchmark.loader_job import LoaderJob
from tests.conftest import ROOT
from tests.perf.figures import Figure


def measure() -> list[Figure]:
    """Return the figures."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
        folder = Path(name)
        config, trace = _fitted(folder), LoaderJob(evaluated=8).trace(folder / "trace")
        emulated, fitted = _walk(lambda: emulate(config, None)), _walk(lambda: fit(trace))
    return [
        *_figures("emulate(config)", emulated, 25, 31),
        *_figures("fit(trace)", fitted, 12, 20),
    ]


def _walk(run: Callable[[], object]) -> set[tuple[str, str, str]]:
    """Return the calls (calling module, called module, function) from one of our modules into another one."""
    calls: set[tuple[str, str, str]] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        caller = frame.f_back
        while caller is not None and not _module(caller):
            caller = caller.f_back
        if event == "call" and caller is not None and _module(frame) not in ("", _module(caller)):
            calls.add((_module(caller), _module(frame), frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def _figures(what: str, calls: set[tuple[str, str, str]], rooms: int, returns: int) -> list[Figure]:
    modules = {called for _, called, _ in calls}
    print(*sorted(calls), sep="\n", file=sys.stderr)
    return [
        Figure(f"walk of {what}: modules entered", len(modules), rooms, detail=f"{len(calls)} calls"),
        Figure(f"walk of {what}: returns", len(calls) - len(modules), returns),
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
