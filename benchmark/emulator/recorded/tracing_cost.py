"""Remove from a recording the time for which its calls were traced, unless the calls of the replay are traced, too."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np

from iotwin.workload_yaml.recording import CALLS, Op, TwinRecording

_TRANSFERS = (Op.READ, Op.WRITE, Op.COPY, Op.PIPE_WRITE, Op.PIPE_READ)
_UNCOUNTED = (Op.TOUCH, Op.COPY_TO)  # no call, and the second row of one
_TRIALS = 101
_NO_DESCRIPTOR = (1 << 31) - 1


def without_tracing(recording: TwinRecording) -> TwinRecording:
    """Return the recording as it would be without tracing: the time between calls is reduced by the cost of tracing a call.

    If the present process is traced in the same way, its calls take longer themselves, so nothing is removed.
    """
    header, columns = recording.header, recording.columns
    if not header.transfer_ns or is_traced(header.transfer_ns):
        return recording
    op = columns["op"]
    cost_ns = np.where(np.isin(op, _TRANSFERS), header.transfer_ns, header.call_ns)
    cost_ns[(op >= CALLS) | np.isin(op, _UNCOUNTED)] = 0
    thinks = np.maximum(columns["think_ns"] - cost_ns, 0)
    return replace(recording, columns={**columns, "think_ns": thinks.astype(columns["think_ns"].dtype)})


def is_traced(cost_ns: int) -> bool:
    """Return True if closing a file takes at least `cost_ns` / 2 longer than a call that is never traced.

    `cost_ns`: the cost of tracing a read.
    """
    return _median_ns(os.close) - _median_ns(os.fchdir) > cost_ns / 2


def _median_ns(call: Callable[[int], None]) -> int:
    """Return the median time in ns of a call that fails at once."""
    took = []
    for _ in range(_TRIALS):
        begun = time.perf_counter_ns()
        with suppress(OSError):
            call(_NO_DESCRIPTOR)
        took.append(time.perf_counter_ns() - begun)
    return sorted(took)[_TRIALS // 2]
