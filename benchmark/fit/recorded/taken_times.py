"""When a rank took each batch of a pass, and how long it computed on the batch."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.logged_phases import NEVER_NS
from iotwin.workload_yaml.recorded_structure import is_requested_at_once
from iotwin.workload_yaml.recording import Op

_Ints = NDArray[np.int64]
_AT_ONCE_NS = 2_000_000  # if a rank takes a batch within this time after its delivery, it has waited for the batch
_FEWEST = 3  # least number of steps that show the typical computation
_PLAUSIBLE = 1.5  # a computation is plausible up to this ratio to the typical one, and down to its inverse
_LONG = 0.95  # a computation is also plausible up to this quantile of the known steps
_SOON = 0.1  # a wait within this share of a step after a request shows that ranks request at the ends of steps


def with_computation(part: pd.DataFrame, rows: pd.DataFrame, main: int, next_ns: int, takes_first: bool = False) -> pd.DataFrame:
    """Return the batches of a pass with `depth`, `taken_ns` and `computed_ns`.

    `rows`: rows of the rank's process. `next_ns`: when the rank's next pass begins, or when the log ends this pass; else
    NEVER_NS.
    `takes_first`: True if the rank is known to request a batch after it has taken one, and before it computes.
    """
    if "key" in part:
        begins, delivered = part["requested_ns"].to_numpy(np.int64), part["delivered_ns"].to_numpy(np.int64)
        ends = np.append(begins[1:], _next_call(rows, int(delivered[-1]), next_ns))
        return part.assign(depth=0, taken_ns=delivered, computed_ns=np.maximum(ends, delivered))
    requested, delivered = (part[name].to_numpy(np.int64) for name in ("requested_ns", "delivered_ns"))
    read = part["read_ns"].fillna(0).to_numpy(np.int64)
    depth = min(depth_of(requested, np.maximum(delivered, read)), len(part))  # quick loaders deliver before all are requested
    ready = np.maximum.accumulate(delivered)
    if is_requested_at_once(depth, len(part), part["loader"].nunique()):
        taken, computed = _even_steps(ready, _next_call(rows[rows["thread"] == main], int(ready[-1]), next_ns))
        return part.assign(depth=depth, taken_ns=taken, computed_ns=computed)
    waits = rows[(rows["thread"] == main) & rows["op"].isin([Op.POLL, Op.PIPE_READ])]
    clock = _BusyClock(waits)
    at_end = not takes_first and _requests_at_end(requested[depth:], read, waits)
    known = len(part) - depth + at_end  # batches whose taking is seen, since a request follows or precedes it
    taken = np.maximum(np.append(requested[len(part) - known :], ready[known:]), np.maximum(ready, read * at_end))
    taken = np.maximum.accumulate(taken)
    usual = np.diff(clock.busy(taken[:known]))
    waited = taken[1:known] - ready[1:known] < _AT_ONCE_NS
    typical = float(np.median(usual[~waited])) if (~waited).sum() >= _FEWEST else float(np.median(usual)) if len(usual) else 0.0
    # No request follows the last batches. If the rank read a batch later than all before it, it took it then. Others are
    # interpolated.
    read = np.where(read > 0, read + _unpacking_ns(taken[:known], read[:known]), 0)
    last = max(known - 1, 0)
    seen = np.flatnonzero((read == np.maximum.accumulate(read)) & (read > ready) & (np.arange(len(part)) > last))
    anchors, times = np.append(last, seen), np.append(taken[last], np.maximum.accumulate(np.maximum(read[seen], taken[last])))
    ended_ns = _end_of_loop(rows, requested, next_ns)
    end_ns = ended_ns or max(_next_call(rows, int(max(requested[-1], times[-1])), next_ns), int(ready[-1]))
    left = len(part) - int(anchors[-1])
    each = np.diff(clock.busy(np.array([times[-1], end_ns])))[0] / left
    shortest, longest = (usual.min(), np.quantile(usual, _LONG)) if len(usual) else (typical, typical)
    if typical and not min(typical / _PLAUSIBLE, shortest) <= each <= max(typical * _PLAUSIBLE, longest):
        each = typical
    ends = clock.busy(times[-1:])[0] + each * left
    at = np.interp(np.arange(last, len(part) + 1), [*anchors, len(part)], [*clock.busy(times), ends])
    tail = clock.time(at)
    tail[anchors - last] = times
    taken[last:] = np.maximum(tail[:-1], np.append(taken[last], ready[last + 1 :]))
    wanted = np.clip(clock.begun(ready[1:]), taken[:-1], taken[1:])  # the next batch
    wanted = np.where(ready[1:] > taken[:-1], wanted, taken[1:])  # else the wait under way was for the batch before
    begun = _result_waits(waits, part["read_ns"].fillna(0).to_numpy(np.int64), taken)
    wanted = np.where((begun >= taken[:-1]) & (begun <= taken[1:]), begun, wanted)
    computed = np.append(wanted, max(ended_ns or int(tail[-1]), int(taken[-1])))
    if not clock.waits and len(usual):  # a thread of the rank takes batches for it, so that its waits are not seen
        hidden = np.flatnonzero(waited)
        computed[hidden] = np.minimum(computed[hidden], taken[hidden] + int(typical))
    return part.assign(depth=depth, taken_ns=taken, computed_ns=computed)


def _unpacking_ns(taken: _Ints, read: _Ints) -> int:
    """Return how long (ns) a rank typically unpacks a batch between reading and taking it. `read`: 0 if unknown.

    A batch that was read before the previous one was taken is ignored, because the rank had to put it aside.
    """
    at_once = (read[1:] > taken[:-1]) & (read[1:] <= taken[1:])
    return int(np.median((taken[1:] - read[1:])[at_once])) if at_once.any() else 0


def _requests_at_end(requested: _Ints, read: _Ints, waits: pd.DataFrame) -> bool:
    """Return True if a rank requests another batch at the end of a step, and then waits for its next batch at once.

    Otherwise, it requests a batch after it has taken one, before the step. `requested`: for each batch, the first request for
    which it must have been taken; the last batches have none. `read`: when the rank had read each batch, 0 if unknown.
    """
    begun = _result_waits(waits, read, read)[: len(requested)]
    own = np.flatnonzero((read[: len(begun)] > 0) & (begun < NEVER_NS))
    until, since = requested[own] - read[own], np.abs(begun[own] - requested[own])
    return len(own) >= _FEWEST and bool(np.median(since) < _SOON * np.median(until))


def _result_waits(waits: pd.DataFrame, read: _Ints, taken: _Ints) -> _Ints:
    """Return when a rank began to wait for or read each batch after the first; NEVER_NS if no call shows it.

    `waits`: waits of the rank's main thread. `read`: when that thread had read each batch (0: unknown). If the batch had already
    been delivered, this wait is short, but the computation ends with it. The time from then until `taken` is unpacking.
    """
    read = read[1:]
    reads = waits[waits["op"] == Op.PIPE_READ]
    last = np.searchsorted(reads["at"].to_numpy(np.int64), read) - 1  # a message's first read, of its length, may be the only row
    pipes = np.unique(reads["subject"].to_numpy()[last[last >= 0]])
    begins = waits.loc[waits["subject"].isin(pipes), "at"].to_numpy(np.int64)
    first = np.append(begins, NEVER_NS)[np.searchsorted(begins, taken[:-1])]
    found: _Ints = np.where(first <= read, first, NEVER_NS)
    return found


def _even_steps(ready: _Ints, end_ns: int) -> tuple[_Ints, _Ints]:
    """Return when the rank took each batch, and when its computation on the batch ended, if all its steps take equally long.

    `ready`: when each batch and all before it had been delivered. The rank takes a batch then or, if later, after its step on the
    previous batch. Its last step ends at `end_ns`, which is the latest of `ready[k] + (n - k) * step`, for k of n batches.
    """
    left = np.arange(len(ready), 0, -1)
    step = max(int(((end_ns - ready) / left).min()), 0)
    done = np.arange(1, len(ready) + 1) * step
    computed = np.maximum.accumulate(ready - done + step) + done
    return computed - step, computed


def _end_of_loop(rows: pd.DataFrame, requested: _Ints, next_ns: int) -> int:
    """Return when the rank stopped its loaders, after its last step; 0 if they continued, or stopped in a later pass.

    Loaders that have served an earlier pass continue after the loop: the rank stops them when it ends.
    """
    sent = rows[rows["op"] == Op.PIPE_WRITE]
    pipes = sent.loc[sent["at"].isin(requested), "subject"].unique()
    sent = sent[sent["subject"].isin(pipes)]
    later = sent[sent["at"] > requested[-1]]
    served = (sent["at"] < requested.min()).any()
    stopped = len(later) and later["subject"].is_unique and later["at"].min() < next_ns and not served
    return int(later["at"].min()) if stopped else 0


def _next_call(rows: pd.DataFrame, after_ns: int, next_ns: int) -> int:
    """Return when the process made its first call after `after_ns` that is no wait for a batch, or `next_ns` if that is earlier.

    If it made none and `next_ns` is NEVER_NS, return `after_ns`.
    """
    later = rows.loc[(rows["at"] > after_ns) & ~rows["op"].isin([Op.POLL, Op.PIPE_READ, Op.WAIT, Op.POST]), "at"]
    first_ns = min(int(later.min()) if len(later) else NEVER_NS, next_ns)
    return first_ns if first_ns < NEVER_NS else after_ns


class _BusyClock:
    """A clock that stops while a thread waits. `waits`: begin and end (ns) of its waits, in order."""

    def __init__(self, waits: pd.DataFrame) -> None:
        self._begins = waits["at"].to_numpy(np.int64)
        self._ends = np.maximum.accumulate(waits["end"].to_numpy(np.int64)) if len(waits) else self._begins
        self._waited = np.append(0, np.cumsum(self._ends - self._begins))
        self.waits = len(waits)

    def busy(self, times: _Ints) -> _Ints:
        """Return the clock's reading at `times`, ns."""
        index = np.searchsorted(self._begins, times, side="right")
        still = np.where(index > 0, np.maximum(np.append(0, self._ends)[index] - times, 0), 0)
        found: _Ints = times - self._waited[index] + still
        return found

    def begun(self, times: _Ints) -> _Ints:
        """Return, for each of `times`, when the wait that was under way began; NEVER_NS if there was none. Times are in ns."""
        index = np.searchsorted(self._begins, times, side="right")
        waits = (index > 0) & (np.append(0, self._ends)[index] > times)
        found: _Ints = np.where(waits, np.append(0, self._begins)[index], NEVER_NS)
        return found

    def time(self, readings: NDArray[np.float64]) -> _Ints:
        """Return the latest times at which the clock shows `readings`, ns."""
        index = np.searchsorted(self._begins - self._waited[:-1], readings, side="right")
        found: _Ints = (readings + self._waited[index]).astype(np.int64)
        return found


def depth_of(requested: _Ints, done: _Ints) -> int:
    """Return the most batches that were requested and not yet taken. `done`: when each was delivered, or read by the rank.

    A rank takes batches in order, and requests another one for each. So the depth is the least n for which each batch is
    requested only after the n-th batch before it was done.
    """
    latest = np.maximum.accumulate(done)
    return int((np.arange(len(requested)) - np.searchsorted(latest, requested, side="right")).max()) + 1
