"""The dimensions of similarity: for each its weight, its score of two trace summaries, and a curve of one summary for plots.

docs/similarity.md gives the formulas and the reasons.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from iotwin.tracesim import measures
from iotwin.tracesim.block import BLOCK_OPS
from iotwin.tracesim.busy_time import BUSY_BINS, ROWS
from iotwin.tracesim.call_sums import ACTIVITY_BINS
from iotwin.tracesim.calls import FILE_KINDS, GROUPS, READ, SYNC, WRITE
from iotwin.tracesim.concurrency import LEVEL_BINS
from iotwin.tracesim.logbins import BINS_PER_OCTAVE, LOWER_EDGES
from iotwin.tracesim.measures import Floats, overlap, ratio, shared_mass, shares, weighted_mean
from iotwin.tracesim.order import STEPS
from iotwin.tracesim.phases import PHASES, TIMED
from iotwin.tracesim.profile import Summary

HALF_WIDTH = 2 * BINS_PER_OCTAVE  # in bins, for `overlap`: values that differ by a factor of 16 have overlap 0
_IS_TIMED = np.isin(np.arange(len(PHASES)), TIMED)
_CHECKPOINT_FILE = FILE_KINDS.index("checkpoint")
_BAR_BLUR = BUSY_BINS // 8  # in bins: busy times a quarter of a phase apart have overlap 0, an eighth apart an overlap of 1/4
# Two orders of files score 1 if they differ by less than this many standard deviations of a random order. Measured: of 1,990
# pairs of shuffles of 8 to 200 files, 98 to 100 % differ by less than two deviations, and 83 to 92 % by less than one.
_CHANCE_DEVIATIONS = 2.0


@dataclass(frozen=True)
class Curve:
    """The curve of a dimension in a plot: `x` and `y` of shape (n,). If there are n `labels`, it is drawn as a bar chart."""

    x: Floats
    y: Floats
    labels: tuple[str, ...] = ()


class Score(NamedTuple):
    """The score of a dimension in [0, 1], and by name the scores in [0, 1] of which it is composed."""

    total: float
    parts: dict[str, float]


@dataclass(frozen=True)
class Definition:
    """One dimension: its weight in the overall score, and the functions that compute its score and its curve.

    `score` returns None if the dimension does not apply to the two traces. `x_unit` and `unit` are the units of x and y of the
    curve. `latency_bound` is True if the score also depends on the speed of the storage.
    """

    name: str
    weight: float
    score: Callable[[Summary, Summary], Score | None]
    curve: Callable[[Summary], Curve]
    x_unit: str
    unit: str
    latency_bound: bool = False


def _mean(parts: dict[str, tuple[float, float]]) -> Score:
    """Return the weighted mean of `parts`, which maps each name to (score, weight)."""
    scores, weights = [s for s, _ in parts.values()], [w for _, w in parts.values()]
    return Score(weighted_mean(scores, weights), {name: score for name, (score, _) in parts.items()})


def _timed_shares(a: Floats, b: Floats) -> Floats:
    """Return each phase's share of an amount, as the mean of the shares in two traces: shape (phases,), 0 for start-up.

    `a` and `b`: the amounts of the two traces by phase.
    """
    return (shares(np.where(_IS_TIMED, a, 0.0)) + shares(np.where(_IS_TIMED, b, 0.0))) / 2


def _byte_weights(a: Summary, b: Summary) -> Floats:
    """Return the weight of each phase in scores about calls: the phase's share of all bytes read and written."""
    return _timed_shares(a.bytes.sum(axis=(1, 2)), b.bytes.sum(axis=(1, 2)))


def _time_weights(a: Summary, b: Summary) -> Floats:
    """Return the weight of each phase in scores about time: the mean of the phase's shares of the time and of the bytes."""
    return (_byte_weights(a, b) + _timed_shares(a.duration_ns, b.duration_ns)) / 2


def _by_phase(weights: Floats, similarity: Callable[[int], float | None]) -> float:
    """Return the weighted mean of `similarity(phase)` over the phases. Phases with weight 0 or similarity None are left out."""
    found = [(similarity(phase), weight) for phase, weight in enumerate(weights.tolist()) if weight > 0]
    known = [(score, weight) for score, weight in found if score is not None]
    return weighted_mean([score for score, _ in known], [weight for _, weight in known])


def _overlap_by_phase(a: Summary, b: Summary, of_a: Floats, of_b: Floats) -> float:
    """Return the mean overlap of the histograms `of_a[phase]` and `of_b[phase]` over all phases that both traces have.

    A phase that only one trace has lowers the scores of volume and timing instead.
    """
    weights = _byte_weights(a, b)
    return _by_phase(weights, lambda p: overlap(of_a[p], of_b[p], HALF_WIDTH) if of_a[p].any() and of_b[p].any() else None)


def _volume(a: Summary, b: Summary) -> Score:
    calls, moved = measures.cell_ratios(a.calls.ravel(), b.calls.ravel()), measures.cell_ratios(a.bytes.ravel(), b.bytes.ravel())
    return _mean({"calls": (calls, 0.5), "bytes": (moved, 0.5)})


def _volume_curve(s: Summary) -> Curve:
    used = [p for p in range(len(PHASES)) if s.occurrences[p]]
    labels = tuple(f"{PHASES[p]} {group}" for p in used for group in GROUPS)
    return Curve(np.arange(len(labels), dtype=float), s.calls.sum(axis=1)[used].ravel(), labels)


def _operation_mix(a: Summary, b: Summary) -> Score:
    total = measures.hellinger(a.calls.sum(axis=(0, 1)), b.calls.sum(axis=(0, 1)))
    return Score(total, {"calls": total})


def _operation_mix_curve(s: Summary) -> Curve:
    return Curve(np.arange(len(GROUPS), dtype=float), shares(s.calls.sum(axis=(0, 1))), GROUPS)


def _sizes_overlap(a: Summary, b: Summary, kinds: slice, group: int) -> float:
    calls = overlap(a.size_calls[kinds, group].sum(axis=0), b.size_calls[kinds, group].sum(axis=0), HALF_WIDTH)
    moved = overlap(a.size_bytes[kinds, group].sum(axis=0), b.size_bytes[kinds, group].sum(axis=0), HALF_WIDTH)
    return (calls + moved) / 2


def _request_size(a: Summary, b: Summary) -> Score:
    weights = np.sqrt((shares(a.size_bytes.sum(axis=(0, 2))) + shares(b.size_bytes.sum(axis=(0, 2)))) / 2)
    every = slice(None)
    return _mean(
        {
            "reads": (_sizes_overlap(a, b, every, READ), float(weights[READ])),
            "writes": (_sizes_overlap(a, b, every, WRITE), float(weights[WRITE])),
        }
    )


def _request_size_curve(s: Summary) -> Curve:
    return Curve(LOWER_EDGES, np.cumsum(shares(s.size_bytes.sum(axis=(0, 1)))))


def _order_similarity(a: Floats, a_variance: Floats, b: Floats, b_variance: Floats, weights: Floats) -> float:
    """Return how similar two traces are in a statistic of file order (order.py), averaged over phases.

    Differences that chance explains are ignored. `a` and `b` hold the statistic of each phase (NaN if unknown), `a_variance` and
    `b_variance` its variance under a random order.
    """
    known = ~(np.isnan(a) | np.isnan(b))
    a, b = a[known], b[known]
    # Only random orders vary by chance: the statistic is 0 for a sorted order and 1 for a random one.
    chance = np.sqrt(a_variance[known] * a + b_variance[known] * b)
    similarity = 1.0 - np.maximum(np.abs(a - b) - _CHANCE_DEVIATIONS * chance, 0.0)
    return weighted_mean(similarity.tolist(), weights[known].tolist())


def _access_order(a: Summary, b: Summary) -> Score:
    weights = _byte_weights(a, b)
    parts = {
        "within_file": (shared_mass(a.step_calls, b.step_calls) + shared_mass(a.step_bytes, b.step_bytes)) / 2,
        "file_order": _order_similarity(a.scatter, a.scatter_variance, b.scatter, b.scatter_variance, weights),
        "file_order_by_epoch": _order_similarity(a.drift, a.drift_variance, b.drift, b.drift_variance, weights),
        "order_in_files": _order_similarity(a.jumps, a.jumps_variance, b.jumps, b.jumps_variance, weights),
        "reuse": overlap(a.rereads, b.rereads, HALF_WIDTH),
    }
    # The three orders of files often change together, so only the worst score of the three is used. It is multiplied with the
    # other parts, because the whole order is wrong if one part is wrong.
    order = min(parts["file_order"], parts["file_order_by_epoch"], parts["order_in_files"])
    total = parts["within_file"] * order * parts["reuse"]
    return Score(total, parts)


def _access_order_curve(s: Summary) -> Curve:
    labels = tuple(f"{group} {step}" for group in GROUPS[: WRITE + 1] for step in STEPS)
    return Curve(np.arange(len(labels), dtype=float), shares(s.step_calls.ravel()), labels)


def _activity(a: Summary, b: Summary, phase: int) -> float | None:
    of_a, of_b = a.activity[phase], b.activity[phase]
    if not of_a.any() or not of_b.any():
        return None
    apart = np.cumsum(shares(of_a)) - np.cumsum(shares(of_b))
    return max(0.0, 1.0 - 2.0 * float(np.abs(apart).mean()))


def _thread_time(s: Summary, phase: int) -> Floats:
    return np.concatenate(([s.busy_ns[phase]], measures.blurred(s.pause_ns[phase], HALF_WIDTH)))


def _pauses(a: Summary, b: Summary, phase: int) -> float | None:
    of_a, of_b = _thread_time(a, phase), _thread_time(b, phase)
    return shared_mass(of_a, of_b) if of_a.any() and of_b.any() else None


def _timing(a: Summary, b: Summary) -> Score:
    weights = _time_weights(a, b)
    duration = _by_phase(weights, lambda p: measures.s_curve(ratio(float(a.duration_ns[p]), float(b.duration_ns[p]))))
    activity = _by_phase(_byte_weights(a, b), lambda p: _activity(a, b, p))
    return _mean({"duration": (duration, 0.7), "activity": (activity, 0.3)})


def _timing_curve(s: Summary) -> Curve:
    seconds = np.repeat(s.duration_ns / 1e9 / ACTIVITY_BINS, ACTIVITY_BINS)
    x, y = np.cumsum(seconds), np.cumsum(s.activity.ravel())
    return Curve(np.concatenate(([0.0], x)), np.concatenate(([0.0], y)))


def _bursts(a: Summary, b: Summary) -> Score:
    return _mean(
        {
            "pauses": (_by_phase(_time_weights(a, b), lambda p: _pauses(a, b, p)), 0.4),
            "bursts": (_overlap_by_phase(a, b, a.burst_bytes, b.burst_bytes), 0.4),
            "inter_arrival": (_overlap_by_phase(a, b, a.gap_ns, b.gap_ns), 0.2),
        }
    )


def _bursts_curve(s: Summary) -> Curve:
    return Curve(LOWER_EDGES / 1e9, np.cumsum(shares(s.pause_ns[list(TIMED)].sum(axis=0))))


def _steps(a: Summary, b: Summary) -> Score | None:
    timed = list(TIMED)
    parts: dict[str, tuple[float, float]] = {}
    if a.wait_ns[timed].any() and b.wait_ns[timed].any():
        weights = _timed_shares(a.duration_ns, b.duration_ns)
        parts["data_wait"] = (_by_phase(weights, lambda p: 1.0 - abs(wait_share(a, p) - wait_share(b, p))), 0.5)
    if a.step_ns[timed].any() and b.step_ns[timed].any():
        weights = _timed_shares(a.step_ns.sum(axis=1), b.step_ns.sum(axis=1))
        parts["step_time"] = (_by_phase(weights, lambda p: overlap(a.step_ns[p], b.step_ns[p], HALF_WIDTH)), 0.5)
    return _mean(parts) if parts else None


def wait_share(s: Summary, phase: int) -> float:
    """Return the share of the phase's time that the main threads of the ranks wait for data, in [0, 1]."""
    return min(float(s.wait_ns[phase] / max(s.duration_ns[phase], 1.0)), 1.0)


def _steps_curve(s: Summary) -> Curve:
    return Curve(np.arange(len(TIMED), dtype=float), np.array([wait_share(s, p) for p in TIMED]), tuple(PHASES[p] for p in TIMED))


def _timeline(a: Summary, b: Summary) -> Score | None:
    weights = _time_weights(a, b)
    traced = [row for row in range(len(ROWS)) if a.row_shares[:, row].any() or b.row_shares[:, row].any()]
    if not a.block_bytes.any() or not b.block_bytes.any():
        traced = [row for row in traced if not ROWS[row].startswith("BIO")]
    if not traced:
        return None
    return _mean({ROWS[row]: (_by_phase(weights, partial(_bars, a, b, row)), _row_weight(a, b, row)) for row in traced})


def _row_weight(a: Summary, b: Summary, row: int) -> float:
    """Return the weight of a timeline row: the square root of its share of all busy time, so that rare rows still have weight."""
    busy = [(s.row_shares * s.duration_ns[:, None, None]).sum(axis=(0, 2)) for s in (a, b)]
    return float(np.sqrt((shares(busy[0])[row] + shares(busy[1])[row]) / 2))


def _bars(a: Summary, b: Summary, row: int, phase: int) -> float | None:
    """Return the overlap of a timeline row's busy times, blurred; None if the row is never busy in this phase in either trace."""
    # The job decides when a row is busy; the storage decides how long. The square root reduces the influence of the storage.
    of_a, of_b = np.sqrt(a.row_shares[phase, row]), np.sqrt(b.row_shares[phase, row])
    return overlap(of_a, of_b, _BAR_BLUR) if of_a.any() or of_b.any() else None


def _timeline_curve(s: Summary) -> Curve:
    seconds = np.repeat(s.duration_ns / 1e9 / BUSY_BINS, BUSY_BINS)
    return Curve(np.cumsum(seconds), s.row_shares[:, ROWS.index("READ")].ravel())


def _block(a: Summary, b: Summary) -> Score | None:
    if not a.block_bytes.any() or not b.block_bytes.any():
        return None
    moved = measures.cell_ratios(a.block_bytes.sum(axis=2).ravel(), b.block_bytes.sum(axis=2).ravel())
    weights = np.sqrt((shares(a.block_bytes.sum(axis=(0, 2))) + shares(b.block_bytes.sum(axis=(0, 2)))) / 2)
    sizes = [overlap(x, y, HALF_WIDTH) for x, y in zip(a.block_bytes.sum(axis=0), b.block_bytes.sum(axis=0), strict=True)]
    return _mean({"bytes": (moved, 0.6), "size": (weighted_mean(sizes, weights.tolist()), 0.4)})


def _block_curve(s: Summary) -> Curve:
    used = [p for p in range(len(PHASES)) if s.occurrences[p]]
    labels = tuple(f"{PHASES[p]} {op}" for p in used for op in BLOCK_OPS)
    return Curve(np.arange(len(labels), dtype=float), s.block_bytes.sum(axis=2)[used].ravel(), labels)


def _readers(a: Summary, b: Summary, phase: int) -> float | None:
    of_a, of_b = float(a.readers[phase]), float(b.readers[phase])
    return ratio(of_a, of_b) if of_a > 0 and of_b > 0 else None


def _concurrency(a: Summary, b: Summary) -> Score:
    return _mean(
        {
            "readers": (_by_phase(_byte_weights(a, b), lambda p: _readers(a, b, p)), 0.5),
            "readers_at_once": (_overlap_by_phase(a, b, a.windows, b.windows), 0.25),
            "calls_in_flight": (_overlap_by_phase(a, b, a.in_flight_ns, b.in_flight_ns), 0.25),
        }
    )


def _concurrency_curve(s: Summary) -> Curve:
    return Curve(LOWER_EDGES[:LEVEL_BINS], np.cumsum(shares(s.in_flight_ns[list(TIMED)].sum(axis=0))))


def _files(a: Summary, b: Summary) -> Score:
    counts_a, counts_b = a.file_sizes.sum(axis=1), b.file_sizes.sum(axis=1)
    weights = np.sqrt((shares(counts_a) + shares(counts_b)) / 2)
    sizes = [overlap(x, y, HALF_WIDTH) for x, y in zip(a.file_sizes, b.file_sizes, strict=True)]
    return _mean(
        {"count": (measures.cell_ratios(counts_a, counts_b), 0.5), "size": (weighted_mean(sizes, weights.tolist()), 0.5)}
    )


def _files_curve(s: Summary) -> Curve:
    return Curve(LOWER_EDGES, np.cumsum(shares(s.file_sizes.sum(axis=0))))


def _checkpoint(a: Summary, b: Summary) -> Score | None:
    if not a.written_files and not b.written_files:
        return None
    moved_a, moved_b = checkpoint_bytes(a), checkpoint_bytes(b)
    syncs = [float(s.calls[:, _CHECKPOINT_FILE, SYNC].sum() / max(s.written_files, 1)) for s in (a, b)]
    sizes = _sizes_overlap(a, b, slice(_CHECKPOINT_FILE, None), WRITE)
    count = ratio(a.written_files, b.written_files)
    sync = ratio(*syncs) if count else 0.0  # `ratio` would score 1 if one trace has no checkpoints and the other no syncs
    several = float(a.between_saves.any() or b.between_saves.any())
    written = _mean(
        {
            "count": (count, 1.0),
            "bytes": (ratio(moved_a, moved_b), 1.0),
            "write_sizes": (sizes, 1.0),
            "syncs": (sync, 1.0),
            "cadence": (overlap(a.between_saves, b.between_saves, HALF_WIDTH), several),
            "beside_reads": (1.0 - abs(a.rate_during_saves - b.rate_during_saves) if count else 0.0, 1.0),
        }
    )
    kept = {
        "at_once": measures.s_curve(ratio(a.saves_at_once, b.saves_at_once)),
        "removed": 1.0 - abs(removed_share(a) - removed_share(b)),
    }
    # The factors are multiplied: more files at once, or files that are never removed, require other storage.
    return Score(written.total * kept["at_once"] * kept["removed"], written.parts | kept)


def removed_share(s: Summary) -> float:
    """Return the share of the checkpoint files written that were removed, in [0, 1]."""
    return min(s.removed_files / max(s.written_files, 1), 1.0)


def checkpoint_bytes(s: Summary) -> float:
    """Return the mean bytes written per checkpoint file; 0 without checkpoints."""
    return float(s.bytes[:, _CHECKPOINT_FILE, WRITE].sum() / max(s.written_files, 1))


def _checkpoint_curve(s: Summary) -> Curve:
    return Curve(LOWER_EDGES, np.cumsum(shares(s.size_bytes[_CHECKPOINT_FILE, WRITE])))


DEFINITIONS = (
    Definition("volume", 0.13, _volume, _volume_curve, "phase and operation", "calls"),
    Definition("operation_mix", 0.04, _operation_mix, _operation_mix_curve, "operation", "share of calls"),
    Definition(
        "request_size", 0.13, _request_size, _request_size_curve, "bytes per call", "share of bytes in calls up to that size"
    ),
    Definition("access_order", 0.13, _access_order, _access_order_curve, "step from call to call in a file", "share of calls"),
    Definition("timing", 0.15, _timing, _timing_curve, "seconds of training, evaluation, checkpoint", "bytes until then", True),
    Definition(
        "bursts", 0.08, _bursts, _bursts_curve, "seconds of a pause", "share of pausing in pauses up to that length", True
    ),
    Definition("steps", 0.06, _steps, _steps_curve, "phase", "share of time waiting for data", True),
    Definition(
        "concurrency", 0.12, _concurrency, _concurrency_curve, "calls in flight", "share of busy time with up to that many", True
    ),
    Definition(
        "timeline", 0.04, _timeline, _timeline_curve, "seconds of training, evaluation, checkpoint", "share of time reading", True
    ),
    Definition("files", 0.04, _files, _files_curve, "bytes per file", "share of files up to that size"),
    Definition("checkpoint", 0.05, _checkpoint, _checkpoint_curve, "bytes per write", "share of bytes in writes up to that size"),
    Definition("block", 0.03, _block, _block_curve, "phase and direction", "bytes", True),
)
