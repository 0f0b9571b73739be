"""CheckFreq's library: what jobs lose that are killed in a checkpoint, and whether each sample is taken once over stops."""

import os
import random
import tempfile
from pathlib import Path

from iotwin.workloads.checkfreq.crash import crash
from tests.perf.figures import Figure
from tests.workloads.checkfreq.test_deciding import once

_ORDERS, _KILLS = 100_000, 1000


def measure() -> list[Figure]:
    """Return the figures."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-", dir=os.environ.get("TMPDIR")) as name:
        return [_orders(), *_kills(Path(name))]


def _orders() -> Figure:
    rng = random.Random(1)
    failed = 0
    for _ in range(_ORDERS):
        stops = [(rng.randrange(20), rng.randint(1, 4)) for _ in range(rng.randrange(3))]
        try:
            once(rng.randint(1, 60), rng.randint(1, 5), rng.randint(1, 4), rng.randrange(1000), stops)
        except AssertionError:
            failed += 1
    return Figure(
        "CheckFreq: epochs with stops and changes of ranks in which a sample is not taken exactly once",
        failed,
        0,
        detail=f"of {_ORDERS}",
    )


def _kills(base: Path) -> list[Figure]:
    found = crash(base / "crash", _KILLS, 1, ("overwrite", "no-fsync"))
    points = ", ".join(f"{name} {count}" for name, count in found["points"].items())
    return [
        Figure(
            "CheckFreq: jobs killed in a checkpoint: checkpoints lost", found["lost"], 0, detail=f"{_KILLS} kills at {points}"
        ),
        Figure("... most steps to be done again", found["most_steps_lost"], found["bound_steps"], detail="interval 3"),
        *[
            Figure(
                f"... states of {name} in which nothing loads",
                judged["unloadable"],
                1,
                at_most=False,
                detail=f"of {judged['states']}; a control, which must find some",
            )
            for name, judged in found["unsafe"].items()
        ],
    ]
