"""Estimate how the clocks of a set's hosts relate to the first host's clock, with a bound on the error that is true.

The shift of a host is the time to add to its CLOCK_MONOTONIC to get that of the first host. Each kind of evidence bounds the
shift at some times. Between these, the shift changes slowly, since two clocks' rates differ by at most _MOST_RATE. Evidence:

* sockets: a read does not end before the write of the same bytes begins;
* collectives: two hosts' logged phases of one name, epoch and step overlap, since no host ends a step that another has not begun;
* ntp: adjtimex(2) bounds the error of each host's wall clock;
* one clock: both traces were recorded since the same boot of one machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.trace_store import schema
from iotwin.trace_store.clocks import between_hosts, interpolated, summarise_clock
from iotwin.trace_store.hosts.socket_order import socket_orders
from iotwin.trace_store.manifest import ClockPair, Evidence
from iotwin.trace_store.parquet_tables import TraceTables

# adjtimex(2) changes a clock's rate by at most 500 ppm, so two clocks differ by at most twice that.
_MOST_RATE = 1e-3
_MOST_KNOTS = 256
_UNBOUNDED = 1e18  # ns
_ONE_CLOCK_NS = 1_000_000  # two readings of the difference between one clock and the wall clock differ by less than this
_COLLECTIVES = ("epoch", "block", "step")

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_Limits = tuple[Ints, Ints]  # times and the shifts then
_NONE: _Limits = (np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True)
class ClockShift:
    """The shift of a host's clock: `knots` of (time of the host, shift) in ns, between which the shift changes evenly."""

    knots: list[tuple[int, int]]
    error_ns: int | None
    how: Evidence
    note: str = ""  # which evidence was dropped, since other evidence contradicts it

    def at(self, time_ns: int) -> int:
        """Return the shift at a time of the host."""
        knots = np.array(self.knots, np.int64)
        return int(interpolated(np.array([time_ns], np.int64), knots[:, 0], knots[:, 1])[0])


class ShiftBounds:
    """The least and the most that a host's shift can be at some of its times, all in ns, counted from the shift `base`."""

    def __init__(self, base: int, times: Ints, least: Floats, most: Floats, rate: float = _MOST_RATE) -> None:
        self.base, self.times, self.rate = base, times, rate
        elapsed = (times - times[0]) * rate
        self.least, self.most = -_tightest(-least, elapsed), _tightest(most, elapsed)

    @property
    def is_finite(self) -> bool:
        """True if there is a bound on both sides."""
        return bool(self.width < _UNBOUNDED)

    @property
    def width(self) -> float:
        """The mean difference between the bounds in ns."""
        return float((self.most - self.least).mean())

    def with_limits(self, least: _Limits, most: _Limits) -> "ShiftBounds":
        """Return the bounds with further ones."""
        lower, upper = np.full(len(most[0]), -_UNBOUNDED), np.full(len(least[0]), _UNBOUNDED)
        times = np.concatenate([self.times, least[0], most[0]])
        order = np.argsort(times, kind="stable")
        lows = np.concatenate([self.least, (least[1] - self.base).astype(np.float64), lower])
        highs = np.concatenate([self.most, upper, (most[1] - self.base).astype(np.float64)])
        return ShiftBounds(self.base, times[order], lows[order], highs[order], self.rate)

    def at(self, times: Ints) -> tuple[Ints, Ints]:
        """Return the least and the most shift at `times`, shape (n,)."""
        after = np.clip(np.searchsorted(self.times, times), 1, len(self.times) - 1)
        nearest = after - (times - self.times[after - 1] < self.times[after] - times)
        slack = self.rate * np.abs(times - self.times[nearest])
        least, most = np.floor(self.least[nearest] - slack), np.ceil(self.most[nearest] + slack)
        return self.base + least.astype(np.int64), self.base + most.astype(np.int64)

    def shift(self, how: Evidence, note: str) -> ClockShift:
        """Return a shift between the bounds, which must be finite and not contradict one another: a constant one if there is one.

        Else it is a straight line if one lies between the bounds, else the middle between them. Wall clocks that agree with
        collectives give the shift, since they are usually closer to one another than a step is long.
        """
        middle = (self.least + self.most) / 2
        elapsed = (self.times - self.times[0]).astype(np.float64)
        constant = (self.least.max() + self.most.min()) / 2
        line = np.polynomial.Polynomial.fit(elapsed, middle, 1)
        chosen = np.unique(np.linspace(0, len(middle) - 1, _MOST_KNOTS).astype(np.int64))
        ends = np.array([0, len(middle) - 1])
        tries = [(ends[:1], np.array([constant])), (ends, line(elapsed[ends])), (chosen, middle[chosen])]
        for index, values in [(ends[:1], np.zeros(1)), *tries] if how == "collectives" else tries:
            at, first = np.unique(self.times[index], return_index=True)
            shifts = np.rint(values[first]).astype(np.int64)
            found = interpolated(self.times, at, shifts)
            if (found >= self.least - 1).all() and (found <= self.most + 1).all():
                break
        error = np.maximum(self.most - found, found - self.least)
        between = np.maximum(error[1:], error[:-1]) + np.diff(self.times) * (self.rate / 2)
        knots = [(int(time), self.base + int(each)) for time, each in zip(at, shifts, strict=True)]
        return ClockShift(knots, int(between.max(initial=error.max())) + 2, how, note)


def _tightest(most: Floats, elapsed: Floats) -> Floats:
    """Return the tightest upper bounds that follow from `most`, if the shift changes by at most as much as `elapsed` does."""
    before = np.minimum.accumulate(most - elapsed) + elapsed
    after = np.minimum.accumulate((most + elapsed)[::-1])[::-1] - elapsed
    return np.minimum(before, after)


def estimate_shifts(traces: Sequence[TraceTables]) -> list[ClockShift]:
    """Return the shift of the clock of each trace to the first one's. Its error is None if nothing bounds it.

    Evidence of sockets has priority: evidence of collectives and NTP that contradicts it is dropped. If there is no bound, the
    shift comes from the readings of the wall clocks alone.
    """
    found = []
    for index, (trace, bounds) in enumerate(zip(traces, _by_sockets(traces), strict=True)):
        if index and not _have_one_clock(trace, traces[0]):
            found.append(_combined(trace, traces[0], bounds))
            continue
        error = 0 if not index else sum(summarise_clock(each.manifest.clock).uncertainty_ns or 0 for each in (trace, traces[0]))
        found.append(ClockShift([(trace.manifest.start_ns, 0)], error, "one clock"))
    return found


def _combined(trace: TraceTables, first: TraceTables, bounds: ShiftBounds) -> ClockShift:
    dropped = []
    if (bounds.least > bounds.most).any():
        dropped.append("its sockets contradict one another")
        bounds = ShiftBounds(bounds.base, bounds.times[[0, -1]], np.full(2, -_UNBOUNDED), np.full(2, _UNBOUNDED))
    how: Evidence = "sockets" if bounds.is_finite else "none"
    sources: dict[Evidence, tuple[str, tuple[_Limits, _Limits]]] = {
        "collectives": ("its logged phases contradict", _collective_limits(trace, first)),
        "ntp": ("its wall clock contradicts", _ntp_limits(trace.manifest.clock, first.manifest.clock)),
    }
    for source, (what, limits) in sources.items():
        tried = bounds.with_limits(*limits)
        if (tried.least > tried.most).any():
            dropped.append(f"{what} {how} by {(tried.least - tried.most).max() / 1e6:.3g} ms")
        elif len(limits[0][0]):
            bounds, how = tried, source if how == "none" else how
    if bounds.is_finite:
        return bounds.shift(how, "; ".join(dropped))
    return ClockShift([(trace.manifest.start_ns, bounds.base)], None, "none", "; ".join(dropped))


def _by_sockets(traces: Sequence[TraceTables]) -> list[ShiftBounds]:
    """Return the bounds on each shift by the sockets between hosts. Bounds on a host's shift also bound those of its peers."""
    found: list[ShiftBounds] = []
    for trace in traces:
        span = np.array([trace.manifest.start_ns, max(trace.manifest.end_ns, trace.manifest.start_ns + 1)], np.int64)
        limit, rate = (_UNBOUNDED, _MOST_RATE) if found else (0.0, 0.0)
        found.append(ShiftBounds(_wall_shift(trace, traces[0]), span, np.full(2, -limit), np.full(2, limit), rate))
    orders = socket_orders(traces)
    first = list(found)
    for _ in traces if orders else ():
        least: list[list[_Limits]] = [[_NONE] for _ in found]
        most: list[list[_Limits]] = [[_NONE] for _ in found]
        for (before, after), order in orders.items():
            lows, highs = found[before].at(order.before_ns)[0], found[after].at(order.after_ns)[1]
            least[after].append((order.after_ns, lows + order.before_ns - order.after_ns))
            most[before].append((order.before_ns, highs + order.after_ns - order.before_ns))
        width = sum(each.width for each in found)
        found[1:] = [first[i].with_limits(_joined(least[i]), _joined(most[i])) for i in range(1, len(found))]
        if width - sum(each.width for each in found) < 1:
            break
    return found


def _joined(limits: list[_Limits]) -> _Limits:
    return np.concatenate([times for times, _ in limits]), np.concatenate([shifts for _, shifts in limits])


def _have_one_clock(a: TraceTables, b: TraceTables) -> bool:
    """Return True if both traces were recorded since the same boot of one machine, and not in time namespaces."""
    ours, theirs = a.manifest, b.manifest
    known = ours.host.boot_id and theirs.host.boot_id
    same = ours.host.boot_id == theirs.host.boot_id if known else ours.host.hostname == theirs.host.hostname
    if not same or not ours.clock or not theirs.clock:
        return False
    offsets = [each.realtime_ns - each.monotonic_ns for each in (ours.clock[-1], theirs.clock[-1])]
    return abs(offsets[0] - offsets[1]) < _ONE_CLOCK_NS


def _wall_shift(trace: TraceTables, first: TraceTables) -> int:
    """Return the shift at the start of `trace` by the readings of wall clocks; without any, the traces begin together."""
    start_ns, ours, theirs = trace.manifest.start_ns, trace.manifest.clock, first.manifest.clock
    if not ours or not theirs:
        return first.manifest.start_ns - start_ns
    return int(between_hosts(ours, theirs)(np.array([start_ns], np.int64))[0]) - start_ns


def _ntp_limits(clock: list[ClockPair], reference: list[ClockPair]) -> tuple[_Limits, _Limits]:
    """Return the bounds on a shift by the wall clocks of both hosts, at the times of the host's readings."""
    ours, theirs = _synchronised(clock), _synchronised(reference)
    if not ours or not theirs:
        return _NONE, _NONE
    at = np.array([each.monotonic_ns for each in ours], np.int64)
    there = between_hosts(ours, theirs)(at)
    known = np.array([each.monotonic_ns for each in theirs], np.int64)
    before = np.maximum(np.searchsorted(known, there, side="right") - 1, 0)
    elapsed = np.ceil(np.abs(there - known[before]) * (_MOST_RATE / 2)).astype(np.int64)
    error, own = (np.array([_error_ns(each) for each in clock], np.int64) for clock in (theirs, ours))
    total = error[before] + elapsed + own
    return (at, there - at - total), (at, there - at + total)


def _error_ns(reading: ClockPair) -> int:
    return (reading.max_error_ns or 0) + reading.uncertainty_ns


def _synchronised(clock: list[ClockPair]) -> list[ClockPair]:
    """Return the readings whose error is bounded, from the last time on that somebody set the wall clock."""
    steps = summarise_clock(clock).steps
    since = steps[-1][0] if steps else None
    return [each for each in clock if each.max_error_ns is not None and (since is None or each.monotonic_ns >= since)]


def _collective_limits(trace: TraceTables, first: TraceTables) -> tuple[_Limits, _Limits]:
    """Return the bounds on a shift by the phases that both hosts logged: of equal phases, neither begins after the other ends."""
    logged = _phases(trace)
    both = pd.concat([logged, _phases(first)], axis=1, join="inner") if len(logged) else logged
    if not len(both):
        return _NONE, _NONE
    begin, end, first_begin, first_end = both.to_numpy(np.int64).T
    return (end, first_begin - end), (begin, first_end - begin)


def _phases(trace: TraceTables) -> pd.DataFrame:
    """Return the last begin and the first end of any rank for each phase with a collective, by phase, epoch and step."""
    table = trace.rows("phases", schema.PHASES)
    frame = (schema.PHASES.empty_table() if table is None else table).to_pandas()
    frame = frame[frame["phase"].isin(_COLLECTIVES)].astype({"phase": str}).fillna({"epoch": -1, "step": -1})
    found: pd.DataFrame = frame.groupby(["phase", "epoch", "step"]).agg(begin=("start_ns", "max"), end=("end_ns", "min"))
    return found
