"""Traces what a training job does to storage, builds its I/O twin, runs the twin and measures how alike the two are.

Use from Python and notebooks: `open` reads a trace; `compare`, `advise` and `fit` answer what the commands of these names do (see
docs/python.md). The package also holds the command line (`commands`) and the tasks that combine several other packages (`loops`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from iotwin.benchmark.fit.fitted import Fitted as Twin
    from iotwin.common.errors import IotwinError
    from iotwin.loops.answers.tested_advice import Advice
    from iotwin.opened_trace import OpenedTrace as Trace
    from iotwin.opened_trace import TraceTable as Table
    from iotwin.tracesim.similarity import Similarity as Comparison
    from iotwin.workloads.dtr.live.session import Rematerialize

__version__ = "0.1.0"
__all__ = [
    "Advice", "Comparison", "IotwinError", "Table", "Trace", "Twin", "advise", "compare", "dtr", "dtr_budget", "fit", "open",
]  # fmt: skip

# The types by their public names. They are imported when they are first used, so that `import iotwin` takes no time.
_TYPES = {
    "Advice": ("iotwin.loops.answers.tested_advice", "Advice"),
    "Comparison": ("iotwin.tracesim.similarity", "Similarity"),
    "IotwinError": ("iotwin.common.errors", "IotwinError"),
    "Table": ("iotwin.opened_trace", "TraceTable"),
    "Trace": ("iotwin.opened_trace", "OpenedTrace"),
    "Twin": ("iotwin.benchmark.fit.fitted", "Fitted"),
}


def __getattr__(name: str) -> Any:
    if name not in _TYPES:
        raise AttributeError(f"module 'iotwin' has no attribute '{name}'")
    module, attribute = _TYPES[name]
    return getattr(importlib.import_module(module), attribute)


def open(path: str | os.PathLike[str]) -> Trace:
    """Return the trace at `path`, whose methods read its tables. Raises IotwinError if there is no finished trace."""
    from iotwin.opened_trace import OpenedTrace

    return OpenedTrace(path)


def compare(
    a: Trace | str | os.PathLike[str],
    b: Trace | str | os.PathLike[str],
    repeats: Sequence[Trace | str | os.PathLike[str]] = (),
) -> Comparison:
    """Return how alike two traces are, as `iotwin compare` does. `repeats`: traces of more runs of the job of `a`.

    Raises IotwinError if a trace is damaged or has no call to compare.
    """
    from iotwin.opened_trace import reader_of
    from iotwin.trace_store.parallel_fold import in_this_process
    from iotwin.tracesim import similarity

    # New processes would run the user's script again, unless the script guards its main part.
    return similarity.compare(reader_of(a), reader_of(b), [reader_of(each) for each in repeats], in_this_process)


def advise(
    trace: Trace | str | os.PathLike[str],
    reruns: Sequence[Trace | str | os.PathLike[str]] = (),
    runs: int = 3,
    tested: bool = True,
) -> Advice:
    """Return what limits the traced job and which changes help, as `iotwin advise` does.

    Each change is run `runs` times on the job's twin, unless `tested` is False. `reruns`: traces of the same job, which show its
    noise. Raises IotwinError if the job made no call on storage.
    """
    from iotwin.loops.answers import tested_advice as advising
    from iotwin.opened_trace import reader_of

    return advising.advise(reader_of(trace), [reader_of(each) for each in reruns], runs, tested)


def fit(trace: Trace | str | os.PathLike[str]) -> Twin:
    """Return the twin of the traced job, as `iotwin fit` does; its method `write` writes the files that `iotwin emulate` runs.

    Raises IotwinError if the job made no call on storage.
    """
    from iotwin.benchmark.fit import fit_trace
    from iotwin.opened_trace import reader_of

    return fit_trace.fit(reader_of(trace))


def dtr(
    budget: int | str | None, heuristic: str = "DTREqClass", *, device: str | None = None, sampling: bool = False,
    ignore_small: bool = False, seed: int = 0, offload: str | os.PathLike[str] | None = None,
) -> Rematerialize:  # fmt: skip
    """Return a context manager that limits PyTorch's tensors to `budget` bytes, such as "4GiB", by recomputation (docs/dtr.md).

    Raises UsageError for wrong values, ImportError without PyTorch, and BudgetError within the block if an operation cannot fit.
    """
    from iotwin.workloads.dtr.live.session import Rematerialize

    return Rematerialize(
        budget, heuristic, device=device, sampling=sampling, ignore_small=ignore_small, seed=seed, offload=offload
    )


def dtr_budget(train: Callable[[], object], limit_s: float = 20, **choice: Any) -> tuple[int, int]:
    """Return (bytes below which no budget is possible, bytes that were enough) for a function that trains two steps anew.

    It calls `train` within several budgets, for about `limit_s` seconds. `choice`: options of `dtr`, such as `device`.
    Raises UsageError for options that `dtr` refuses.
    """
    from iotwin.workloads.dtr.live.session import Rematerialize

    return Rematerialize.find_budget(train, limit_s=limit_s, **choice)
