"""Find the least storage with which a twin's training keeps a target, by running the twin under limits."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import scratch_folder
from iotwin.common.result_folder import MadeFolder
from iotwin.common.units import counted
from iotwin.loops.size.limit_search import FoundLimit, MeasuredPoint, MeasuredRun, SizeTarget, measure_near, tightest
from iotwin.loops.size.limited_runs import LimitedTwin, SizedRun, StorageLimits
from iotwin.loops.size.twin_data import open_twin
from iotwin.trace_store.figures.demand import Demand, demand_of
from iotwin.trace_store.reader import Trace
from iotwin.tracesim.verdict.caveats import caveats_of
from iotwin.tracing_tools.targets.storage_limits import MEMORY, READS, reason_against

KIND = "storage size"
_UNITS = {"bandwidth": "bytes/s", "requests": "requests/s", "latency": "s", "cache": "bytes"}
_LOOSER = 1.1  # factor by which limits that fail together are relaxed
_MOST_RELAXED = 12
_LEAST_CACHE_BYTES = 4 << 20  # with a smaller cache, the kernel cannot hold the pages in use
_SURELY_LONGER = 2.0  # a run ends early if it takes this many times as long as one that just keeps the target
_LATENCY_S = (1e-4, 1e-2)  # the first latencies tried


@dataclass(frozen=True)
class SizeQuestion:
    """What `size` searches: the target, the ranks to scale to (None: the twin's), states of the cache, axes, runs and clock.

    `clock`: real or virtual; None: virtual, unless the twin keeps processors busy.
    """

    target: SizeTarget
    ranks: int | None
    caches: Sequence[str]
    axes: Sequence[str]
    runs: int
    clock: str | None


def size(twin: Path, question: SizeQuestion, output: Path, force: bool) -> dict[str, Any]:
    """Return the document of the storage that `twin` needs, and write it to the folder `output` as JSON, CSV, LaTeX and PDF.

    Raises UsageError if the target is out of reach even without limits, IotwinError if no axis can be limited here.
    """
    from iotwin.loops.answers.recipe import Recipe
    from iotwin.loops.size.size_files import write_results
    from iotwin.workload_yaml import load

    with scratch_folder() as scratch, open_twin(twin, scratch) as (workload, data, twin_ranks):
        recipe = Recipe(twin if twin.is_file() else workload)
        ranks = question.ranks or twin_ranks
        run_ranks = max(twin_ranks, min(ranks, os.cpu_count() or 1))
        limited = LimitedTwin(workload, data, scratch, run_ranks if run_ranks != twin_ranks else None, question.clock)
        question = replace(question, clock=limited.clock)
        axes, cannot = _possible(question.axes, limited)
        folder = MadeFolder.claim(output, KIND, force)
        document = _sized(limited, question, axes, ranks / run_ranks)
        document["recipe"] = recipe.document({None: (load(workload), [])})
    document |= {
        "twin": str(twin),
        "target": str(question.target),
        "ranks": ranks,
        "ranks_run": run_ranks,
        "clock": question.clock,
    }
    document["assumptions"] = [*cannot, *_assumptions(question, ranks, run_ranks, document["needs"])]
    write_results(folder, document)
    return document


def _possible(axes: Sequence[str], limited: LimitedTwin) -> tuple[list[str], list[str]]:
    """Return the axes that this machine can limit, and a sentence on each of the others."""
    possible, cannot = [], []
    for axis in axes:
        reason = None if axis == "latency" else reason_against(MEMORY if axis == "cache" else READS)
        if reason is None and axis in ("bandwidth", "requests"):
            try:
                limited.devices()
            except IotwinError as error:
                reason = str(error)
        if reason is None and axis == "latency" and not limited.is_recorded:
            reason = "only twins with a recording add latency; make one with iotwin twin or iotwin fit"
        if reason is None:
            possible.append(axis)
        else:
            cannot.append(f"{axis} was not run: {reason}")
    if not possible:
        raise IotwinError(f"no axis can be run here: {'; '.join(cannot)}")
    return possible, cannot


def _sized(limited: LimitedTwin, question: SizeQuestion, axes: Sequence[str], scale: float) -> dict[str, Any]:
    needs, together, baselines, demand, caveats = [], [], {}, None, []
    for cache in question.caches:
        baseline = limited.run(StorageLimits(), is_cold=cache == "cold")
        if question.clock == "virtual" and demand is None:  # rates are those of real time
            demand = demand_of(Trace(limited.run(StorageLimits(), is_cold=True, clock="real").trace))
        trace = Trace(baseline.trace)
        demand = demand or demand_of(trace)
        caveats += caveats_of(trace, "the unlimited run")
        _check_target(question.target, baseline)
        baselines[cache] = baseline
        found = {}
        for axis in axes:
            found[axis] = _least(limited, question, axis, cache, baseline, demand)
            needs.append(_need(axis, cache, found[axis], scale))
        together.append(_together(limited, question, cache, baseline, found, scale))
    first = baselines[question.caches[0]]
    return {
        "baseline": {"au": first.au, "epoch_s": first.epoch_s},
        "baselines": {cache: {"au": run.au, "epoch_s": run.epoch_s} for cache, run in baselines.items()},
        "demand": None if demand is None else demand.to_document(),
        "needs": needs,
        "together": together[0],
        "together_by_cache": together,
        "caveats": list(dict.fromkeys([*caveats, *limited.caveats])),
        "runs": limited.runs,
    }


def _check_target(target: SizeTarget, baseline: SizedRun) -> None:
    if target.figure != "au":
        return
    if baseline.au is None:
        raise UsageError("the twin's utilisation is unknown, since its passes have one step; use --target epoch_time=1.05")
    if not target.holds(baseline.au):
        raise UsageError(
            f"without any limit of storage the AU is {baseline.au:.3f}, below the target {target.value:g}; "
            f"choose a lower target, or epoch_time=1.05, which is relative to the unlimited run"
        )


def _measure(
    limited: LimitedTwin, target: SizeTarget, baseline: SizedRun, is_cold: bool
) -> Callable[[StorageLimits], MeasuredRun]:
    longest = target.longest(baseline.au)  # longest run that keeps the target, relative to the unlimited run

    def measure(limits: StorageLimits) -> MeasuredRun:
        run = limited.run(limits, is_cold, limit_s=_SURELY_LONGER * longest * baseline.elapsed_s)
        longer = run.elapsed_s / baseline.elapsed_s
        if target.figure == "au":
            au = min(run.au or 0.0, (baseline.au or 0.0) / longer) if run.stopped_early else run.au or 0.0
            return MeasuredRun(au, au)
        return MeasuredRun(longer if run.stopped_early else run.epoch_s / baseline.epoch_s, run.au)

    return measure


def _least(
    limited: LimitedTwin, question: SizeQuestion, axis: str, cache: str, baseline: SizedRun, demand: Demand | None
) -> FoundLimit:
    """Return the tightest limit of `axis` that keeps the target; the first limits tried follow from the demand."""
    # Pages that were cached before the run belong to iotwin and are not limited, so the cache is always limited from cold.
    measure = _measure(limited, question.target, baseline, cache == "cold" or axis == "cache")
    if axis == "latency":
        loose, tight, floor = *_LATENCY_S, 0.0
    elif axis == "cache":
        loose, tight, floor = max(limited.data_bytes() * 1.5, 4 * _LEAST_CACHE_BYTES), _LEAST_CACHE_BYTES, _LEAST_CACHE_BYTES
    else:
        kind = "bytes" if axis == "bandwidth" else "requests"
        mean = 1.0 if demand is None else getattr(demand, f"mean_{kind}_per_s")
        loose, tight, floor = max(mean * 4, 4.0), max(mean / 2, 1.0), 1.0
    return tightest(lambda limit: measure(StorageLimits(**{axis: limit})), question.target, loose, tight, question.runs, floor)


def _need(axis: str, cache: str, found: FoundLimit, scale: float) -> dict[str, Any]:
    """Return the row of one axis. Bandwidth and requests are multiplied by `scale`, the ranks per rank that was run."""
    factor = scale if axis in ("bandwidth", "requests") else 1.0
    return {
        "axis": axis, "cache": cache, "unit": _UNITS[axis], "edge": found.edge,
        "least": None if found.point is None else found.point.limit * factor,
        "au_there": None if found.point is None else found.point.au,
        "figure_there": None if found.point is None else found.point.figure,
        "low": found.low * factor, "high": found.high * factor,
        "scaled_by": factor,
        "points": [{"limit": point.limit, "figures": point.figures} for point in found.points],
    }  # fmt: skip


def _together(
    limited: LimitedTwin, question: SizeQuestion, cache: str, baseline: SizedRun, found: dict[str, FoundLimit], scale: float
) -> dict[str, Any]:
    """Return limits that keep the target when all hold at once: the found ones, relaxed step by step by a tenth."""
    measure = _measure(limited, question.target, baseline, cache == "cold" or "cache" in found)
    limits = StorageLimits(**{axis: each.point.limit for axis, each in found.items() if each.point is not None})
    for turn in range(_MOST_RELAXED):
        limits = _relaxed(limits) if turn else limits
        point = MeasuredPoint(0.0, measure_near(partial(measure, limits), question.target, question.runs))
        if holds := question.target.holds(point.figure):
            break
    rates = {axis: None if (rate := getattr(limits, axis)) is None else rate * scale for axis in ("bandwidth", "requests")}
    row = {**rates, "latency": limits.latency, "cache_bytes": limits.cache, "cache": cache}
    return {**row, "au": point.au, "figure": point.figure, "holds": holds}


def _relaxed(limits: StorageLimits) -> StorageLimits:
    looser = {axis: value * _LOOSER for axis in ("bandwidth", "requests", "cache") if (value := getattr(limits, axis))}
    return replace(limits, **looser, latency=limits.latency and limits.latency / _LOOSER)


def _assumptions(question: SizeQuestion, ranks: int, run_ranks: int, needs: list[dict[str, Any]]) -> list[str]:
    found = [
        "bandwidth and requests are the reads of the twin's process group from its disks; writes are not limited",
        "latency is added to each read call whose bytes the page cache does not hold whole; mapped files are not delayed",
        "the page cache of one host is shared by its ranks, so its size does not grow with them",
    ]
    if any(need["axis"] == "cache" for need in needs):
        found.append(
            "the cache is limited from a cold start, on this machine's disk; the twin's own memory is added to the limit"
        )
    if ranks > run_ranks:
        found.append(
            f"{counted(run_ranks, 'rank')} of {ranks} ran; storage that all share needs {ranks / run_ranks:g} times the "
            "bandwidth and requests, and the same latency"
        )
    if question.clock == "real" and any(need["axis"] in ("bandwidth", "requests") for need in needs):
        found.append(
            "after each pause in which the job computes, limits of bandwidth and requests let a burst of reads pass; a device "
            "that permits no bursts may need several times as much: see --clock virtual"
        )
    if question.clock == "virtual":
        found.append(
            "computing was not waited for, so limits of bandwidth and requests let no burst follow a pause; a volume with "
            "bursts may need less: see --clock real; what storage does in idle time, such as write-back, is not included"
        )
    return found
