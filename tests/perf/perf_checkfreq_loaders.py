"""Jobs with ordinary loaders, each killed at ten of its steps and resumed: are samples and weights those of the whole job?

python -m tests.perf.perf_checkfreq_loaders [NAME ...]: only the loaders of these names (tests/workloads/checkfreq/stranger.py).
"""

import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch._dynamo  # what the first optimizer imports, here once for all jobs that are forked

from tests.perf.figures import Figure
from tests.perf.records import record_figures
from tests.workloads.checkfreq.stranger import EPOCHS, LOADERS, ONCE, ONCE_EACH, REFUSED, STEPS, killed_and_resumed, often, run

_KILLS = 10


def measure(names: Sequence[str] = ()) -> Iterator[Figure]:
    """Yield the figures of the loaders called `names`, by default all."""
    torch.set_num_threads(1)  # a forked job would wait for threads that it does not have
    for name in names or LOADERS:
        if name in LOADERS:
            yield _resumed(name)
    for name in names or REFUSED:
        if name in REFUSED:
            yield _refused(name)


def _steps(name: str) -> list[int]:
    """Return the steps at which a job is killed, one in each stretch of the job."""
    draw = random.Random(name)
    share = EPOCHS * STEPS / _KILLS
    return [round(share * number) + draw.randrange(1, round(share) + 1) for number in range(_KILLS)]


def _resumed(name: str) -> Figure:
    equal, steps = 0, _steps(name)
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-", dir=os.environ.get("TMPDIR")) as folder:
        whole, weights, _ = run(Path(folder), name, LOADERS[name], store="whole")
        once = name not in ONCE or often(whole) == ONCE_EACH
        for step in steps:
            lines, resumed_weights, _ = killed_and_resumed(Path(folder), name, LOADERS[name], step, f"killed-{step}")
            equal += once and lines == whole and resumed_weights == weights
    what = "each sample once an epoch, " if name in ONCE else ""
    return Figure(
        f"CheckFreq, {name}: of {_KILLS} killed jobs, those resumed to the samples and weights of the whole one",
        equal,
        _KILLS,
        False,
        f"{what}killed at steps {', '.join(map(str, steps))} of {EPOCHS * STEPS}",
    )


def _refused(name: str) -> Figure:
    """Those that are not refused begin anew or at the end of an epoch, where nothing can be taken twice."""
    make_loader, reason = REFUSED[name]
    refused, once = 0, 0
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-", dir=os.environ.get("TMPDIR")) as folder:
        for step in _steps(name):
            lines, _, said = killed_and_resumed(Path(folder), name, make_loader, step, f"killed-{step}")
            told = reason in (said.splitlines() or [""])[-1]
            refused += told
            once += not told and often(lines) == ONCE_EACH
    return Figure(
        f"CheckFreq, {name}: of {_KILLS} killed jobs, those refused in one line or with each sample once an epoch",
        refused + once,
        _KILLS,
        False,
        f"{refused} refused",
    )


if __name__ == "__main__":
    record_figures("checkfreq_loaders", measure(sys.argv[1:]))
