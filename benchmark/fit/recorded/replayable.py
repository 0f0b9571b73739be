"""What of a trace can be replayed: its calls on files and pipes, and the processes and threads that made them."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from iotwin.benchmark.fit.recorded.calls import Seen, see
from iotwin.benchmark.fit.recorded.pipes import match_pipes
from iotwin.benchmark.fit.recorded.rows import grow
from iotwin.benchmark.fit.recorded.tree import Tree
from iotwin.trace_store.reader import Trace
from iotwin.workload_yaml.recording import Pipe


class Replayable(NamedTuple):
    """`calls`: as of `see`, with the index of the `thread`, and as `subject` the file_id or the number of the pipe.

    `pipes`: those whose messages could be matched.
    """

    seen: Seen
    calls: pd.DataFrame
    pipes: list[Pipe]
    tree: Tree
    thread_of: dict[int, int]  # index of the thread by tid


def find_replayable(trace: Trace) -> Replayable:
    """Return what of the trace can be replayed. Raises IotwinError if the job made no call on storage."""
    seen = see(trace)
    calls, pipes = match_pipes(seen.calls)
    tree = grow(seen, calls)
    thread_of = {tid: index for index, tid in enumerate(tree.tid)}
    calls = calls.assign(thread=calls["tid"].map(thread_of).astype(np.int64), subject=calls["file"])
    return Replayable(seen, calls, pipes, tree, thread_of)
