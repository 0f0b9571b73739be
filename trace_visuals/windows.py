"""Choose the part of each trace that a picture shows, and the time that counts as zero."""

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from iotwin.common.errors import UsageError
from iotwin.common.units import parse_duration
from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.call_columns import span_ns

_SECOND = 1_000_000_000
_PHASE_WORDS = {
    "init": "init",
    "epoch": "epoch",
    "block": "block",
    "eval": "evaluation",
    "evaluation": "evaluation",
    "checkpoint": "checkpoint",
}
_KNOWN = "init, epoch:N, block:N, eval:N, checkpoint:N, a duration such as 30s, last:30s, or FROM..TO in seconds"


@dataclass(frozen=True)
class TimeWindow:
    """The part of one trace that a picture shows: begin and end (monotonic ns), and the time that is shown as zero."""

    begin_ns: int
    end_ns: int
    zero_ns: int

    def seconds(self) -> tuple[float, float]:
        """Return begin and end in seconds from the time that is shown as zero."""
        return (self.begin_ns - self.zero_ns) / _SECOND, (self.end_ns - self.zero_ns) / _SECOND


@dataclass(frozen=True)
class View:
    """The windows of all traces of one picture, and the label of its time axis."""

    windows: list[TimeWindow]
    axis_label: str

    def limits_s(self) -> tuple[float, float]:
        """Return the common axis in seconds: the union of the windows."""
        ends = [window.seconds() for window in self.windows]
        return min(begin for begin, _ in ends), max(end for _, end in ends)


def leading_phases(trace: Trace) -> pd.DataFrame:
    """Return the phases of the lowest rank in order of start. The other ranks go through the same phases."""
    phases = trace.phases()
    ranks = phases["rank"].fillna(0)
    return phases[ranks == ranks.min()].reset_index(drop=True) if len(phases) else phases


def training_start_ns(trace: Trace) -> int | None:
    """Return the time (ns) at which training starts: the end of init, else the first epoch or block; None without such phases."""
    phases = trace.phases()
    init = phases[phases["phase"] == "init"]
    if len(init):
        return int(init["end_ns"].max())
    training = phases[phases["phase"].isin(("epoch", "block"))]
    return int(training["start_ns"].min()) if len(training) else None


def choose_view(traces: list[Trace], zoom: str | None) -> View:
    """Return the windows that `zoom` selects (None: whole traces). If every trace has a start of training, this is their zero.

    Raises UsageError if `zoom` is not valid, or if a trace lacks the phase or time.
    """
    starts = [training_start_ns(trace) for trace in traces]
    zeros = [span_ns(trace)[0] if None in starts or start is None else start for trace, start in zip(traces, starts, strict=True)]
    label = "seconds from the start of " + ("the trace" if None in starts else "training")
    if zoom is None:
        return View([TimeWindow(*span_ns(trace), zero) for trace, zero in zip(traces, zeros, strict=True)], label)
    word, _, number = zoom.partition(":")
    if word in _PHASE_WORDS:
        return _phase_view(traces, word, number)
    if word == "last":
        return _last_view(traces, zeros, label, number)
    begin, end = _seconds(zoom)
    windows = [TimeWindow(zero + begin, zero + end, zero) for zero in zeros]
    for trace, window in zip(traces, windows, strict=True):
        first, last = span_ns(trace)
        if window.end_ns <= first or window.begin_ns >= last:
            extent = f"{(first - window.zero_ns) / _SECOND:.3g} to {(last - window.zero_ns) / _SECOND:.3g} s"
            raise UsageError(f"--zoom {zoom} lies outside {trace.path}, which spans {extent}")
    return View(windows, label)


def _last_view(traces: list[Trace], zeros: list[int], label: str, duration: str) -> View:
    """Return windows on the last `duration` of each trace, or on the whole trace if it is shorter."""
    length_ns = parse_duration(duration)
    if length_ns <= 0:
        raise UsageError(f"--zoom last:{duration} shows nothing; write for example last:30s")
    spans = [span_ns(trace) for trace in traces]
    windows = [TimeWindow(max(begin, end - length_ns), end, zero) for (begin, end), zero in zip(spans, zeros, strict=True)]
    return View(windows, label)


def _phase_view(traces: list[Trace], word: str, number: str) -> View:
    if number and not re.fullmatch(r"[1-9][0-9]{0,8}", number):
        raise UsageError(f"--zoom {word}:{number} needs a whole number from 1; known: {_KNOWN}")
    ordinal = int(number or 1)
    windows = []
    for trace in traces:
        phases = leading_phases(trace)
        chosen = phases[phases["phase"] == _PHASE_WORDS[word]]
        if len(chosen) < ordinal:
            raise UsageError(
                f"{trace.path} has {len(chosen)} {_PHASE_WORDS[word]} phases: nothing to show for --zoom {word}:{ordinal}"
                f"{_unlogged(trace, phases)}"
            )
        begin, end = int(chosen["start_ns"].iloc[ordinal - 1]), int(chosen["end_ns"].iloc[ordinal - 1])
        margin = (end - begin) // 50
        windows.append(TimeWindow(begin - margin, end + margin + 1, begin))
    what = _PHASE_WORDS[word] + ("" if word == "init" else f" {ordinal}")
    return View(windows, f"seconds from the start of {what}")


def _unlogged(trace: Trace, phases: pd.DataFrame) -> str:
    if trace.inferred is not None:
        return "; the job logged none, and these are inferred from its reads"
    return "" if len(phases) else "; the job logged none, and its reads show no training (docs/trace.md#phases)"


def _seconds(zoom: str) -> tuple[int, int]:
    """Return begin and end, in ns from zero, of a zoom such as '30s' or 'FROM..TO'."""
    if ".." not in zoom:
        try:
            return 0, parse_duration(zoom)
        except UsageError:
            raise UsageError(f"--zoom '{zoom}' is not known; known: {_KNOWN}") from None
    try:
        begin, end = (float(part) for part in zoom.split("..", 1))
    except ValueError:
        raise UsageError(f"--zoom '{zoom}' must be two numbers of seconds, for example 1.5..4") from None
    if not (np.isfinite(begin) and np.isfinite(end) and begin < end and max(abs(begin), abs(end)) < 1e9):
        raise UsageError(f"--zoom '{zoom}' must go from a smaller to a larger number of seconds, for example 1.5..4")
    return int(begin * _SECOND), int(end * _SECOND)
