"""Findings about a job's loaders: too few, too slow, or requested too late; evaluations; uneven ranks; start-up."""

import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from iotwin.loops.answers.finding import JobChange, JobFinding
from iotwin.loops.answers.training_view import HARDLY, TrainingView

_BUSY = 0.8  # if loaders have a request for a larger share of their time, earlier requests do not help
_SATURATED = 0.85  # if the job uses at least this share of the processors, more loaders have no processor to run on
_QUICK = 0.25  # share of the steps that had a processor at once, although loaders use nearly all
_MOSTLY_DECODING = 0.5  # decoding is slow if it takes at least this share of the service time, calls on the data set excluded
_MOST_LOADERS = 16
_SPARE = 1.25  # factor for the number of loaders needed, since the time of a batch varies
_DEEPER = 4  # factor for the prefetch depth
_LONG_START = 0.3  # share of the run before the first step has its data
_LONG_EVALUATION = 0.2  # share of the time of all passes
_MOSTLY_WAITING = 0.5  # evaluations wait, rather than compute, if waits take at least this share of their time
_UNEVEN = 0.15  # difference of the ranks' shares of waiting

_REQUESTS_SQL = "select pid, count(*) as calls, sum(duration_ns) / 1e9 as seconds from events group by pid order by seconds desc"


def loader_findings(view: TrainingView) -> Iterator[JobFinding]:
    """Yield the findings about loaders.

    If the loaders of one rank deliver in time and those of another do not, the ranks' difference is the finding.
    """
    uneven = list(_uneven(view))
    yield from uneven
    if view.waiting_share > HARDLY and not any(min(each.evidence["waiting_shares"]) < HARDLY for each in uneven):
        yield from _waiting(view)
    yield from _evaluation(view)
    if (share := start_up_share(view)) > _LONG_START:
        yield JobFinding(
            "start_up", f"{share:.0%} of the run passed before the first step had its data", {"start_up_share": share},
            "select comm, start_ns, exit_ns from processes order by start_ns",
            JobChange("start-up", f"{share:.0%} of the run", "less", "imports, listing of the data set, start of loaders"),
        )  # fmt: skip


def decoding_share(view: TrainingView) -> float:
    """Return the share (0 to 1) of the loaders' service time outside of calls on the data set and of making these."""
    service_ns = view.service_s * 1e9 * sum(len(each.taken) for each in view.training)
    in_calls = float(view.data_calls["duration_ns"].sum()) + view.call_gaps_ns
    return float(np.clip(1 - in_calls / service_ns, 0, 1)) if service_ns else 0.0


def _waiting(view: TrainingView) -> Iterator[JobFinding]:
    structure = view.structure
    floor = _used_processors(view)
    evidence: dict[str, Any] = {
        "waiting_share": view.waiting_share, "loaders": structure.loaders, "loaders_busy_share": view.busy_share,
        "service_s": view.service_s, "computation_s": view.computation_s, "job_cpus": view.job_cpus, "cpus": _cpus(view),
    }  # fmt: skip
    waits = f"ranks wait for data for {view.waiting_share:.0%} of their time"
    are_busy = view.busy_share >= _BUSY or not structure.loaders
    if not are_busy:
        sentence = f"{waits}, while loaders have no request for {1 - view.busy_share:.0%} of theirs"
        yield JobFinding("shallow_prefetch", sentence, evidence, _REQUESTS_SQL, _deeper(view), floor)
    if are_busy and floor < _SATURATED:
        loaders = f"its loaders ({structure.loaders}) are busy for {view.busy_share:.0%} of theirs"
        sentence = f"{waits}, and {loaders if structure.loaders else 'it has no loaders'}"
        yield JobFinding("few_loaders", sentence, evidence, _REQUESTS_SQL, _more_loaders(view), floor)
    share = decoding_share(view)
    if are_busy and share > _MOSTLY_DECODING:
        sentence = f"{waits}; {share:.0%} of the time of reading a batch is no storage call"
        finding = JobFinding(
            "slow_decode", sentence, evidence | {"decoding_share": share}, _REQUESTS_SQL, _no_decoding(view, share, floor)
        )
        if floor >= _SATURATED:
            finding.notes.append(
                "loaders use all processors; without decoding, steps are assumed to compute as the quickest quarter"
            )
        yield finding


def _no_decoding(view: TrainingView, share: float, floor: float) -> JobChange:
    """Return the change to samples that are decoded in advance. `floor`: share of the processors that the job uses.

    `share`: decoding as a share of the service time. The time in which loaders make calls remains.
    If the job uses nearly all processors, the computation of steps includes waits for a processor. Without decoding, it does
    not.
    """
    decoding_ns = view.service_s * share * 1e9 * sum(len(each.taken) for each in view.training)
    making = view.call_gaps_ns / max(view.call_gaps_ns + decoding_ns, 1)
    overrides = [f"++workload.twin.recorded.decode_scale={making:.4f}"]
    if floor >= _SATURATED:
        computed = np.concatenate([each.computed - each.taken for each in view.training])
        scale = float(np.quantile(computed, _QUICK) / max(computed.mean(), 1))
        overrides.append(f"++workload.train.computation_scale={min(scale, 1.0):.4f}")
    where = "store decoded samples, decode less, or decode on the accelerator"
    return JobChange("decoding", f"{view.service_s * share * 1e3:.3g} ms a batch", "in advance", where, tuple(overrides))


def _deeper(view: TrainingView) -> JobChange:
    loaders = view.structure.loaders
    depth = max(round((view.structure.prefetch or 2 * loaders) / loaders), 1)
    setting = _named(view, "prefetch_factor", "batches that a loader reads ahead")
    overrides = (f"++workload.reader.prefetch_size={loaders * depth * _DEEPER}",)
    return JobChange(setting, depth, depth * _DEEPER, "DataLoader", overrides)


def _more_loaders(view: TrainingView) -> JobChange:
    """Return the change to as many loaders as deliver a batch in the time of a step's computation."""
    before = view.structure.loaders
    needed = math.ceil(_SPARE * view.service_s / max(view.computation_s, view.service_s / _MOST_LOADERS))
    after = min(max(needed, before + 1), max(_MOST_LOADERS, before + 1))
    setting = _named(view, "num_workers", "loader processes")
    return JobChange(setting, before, after, "DataLoader", (f"++workload.reader.read_threads={after}",))


def _cpus(view: TrainingView) -> int:
    return view.trace.manifest.host.cpus or os.cpu_count() or 1


def _used_processors(view: TrainingView) -> float:
    """Return the share (0 to 1) of the processors that the job uses.

    A change that leaves the same work cannot make a step take less than this share of its time.
    """
    return (view.job_cpus or 0.0) / _cpus(view)


def start_up_share(view: TrainingView) -> float:
    """Return the share (0 to 1) of the run before a rank took its first batch."""
    manifest = view.trace.manifest
    whole = (manifest.end_ns or view.end_ns) - manifest.start_ns
    first = min(int(each.taken[0]) for each in view.training)
    return float(np.clip((first - manifest.start_ns) / max(whole, 1), 0, 1))


def _evaluation(view: TrainingView) -> Iterator[JobFinding]:
    held = [each for each in view.passes if not each.training and len(each.taken) > 1]
    spent, every = (sum(each.duration_ns for each in some) for some in (held, view.passes))
    waited = sum(int(np.diff(each.waits, axis=1).sum()) for each in held)
    if spent > _LONG_EVALUATION * every and waited > _MOSTLY_WAITING * spent:
        sentence = f"evaluations take {spent / every:.0%} of the time, and wait for data for {waited / spent:.0%} of theirs"
        evidence = {"evaluation_share": spent / every, "waiting_share": waited / spent}
        before = max(len(set(each.loader.tolist()) - {each.process}) for each in held)
        after = view.structure.loaders if view.structure.loaders > before else max(2 * before, 1)
        overrides = (f"++workload.twin.evaluation.read_threads={after}",)
        change = JobChange(
            _named(view, "num_workers", "loader processes"), before, after, "DataLoader of the evaluation", overrides
        )
        yield JobFinding("evaluation_stall", sentence, evidence, _REQUESTS_SQL, change, _used_processors(view), of_run=True)


def _uneven(view: TrainingView) -> Iterator[JobFinding]:
    ranks = sorted({each.process for each in view.training})
    shares = []
    for rank in ranks:
        own = [each for each in view.training if each.process == rank]
        waited = sum(int(np.diff(each.waits, axis=1).sum()) for each in own)
        shares.append(waited / max(sum(each.counted_ns for each in own), 1))
    if max(shares) - min(shares) > _UNEVEN:
        slow = int(np.argmax(shares))
        sentence = f"rank {slow} waits for data for {shares[slow]:.0%} of its time, another for {min(shares):.0%}"
        change = _as_other_ranks(view, ranks, slow)
        yield JobFinding(
            "uneven_ranks", sentence, {"waiting_shares": shares, "rank": slow}, _REQUESTS_SQL, change, _used_processors(view)
        )


def _as_other_ranks(view: TrainingView, ranks: list[int], slow: int) -> JobChange:
    """Return the change that gives the rank at index `slow` as many loaders, or as few samples, as the others have."""
    own = [[each for each in view.training if each.process == rank] for rank in ranks]
    loaders = [max(len(set(each.loader.tolist())) for each in passes) for passes in own]
    batches = [sum(len(each.taken) for each in passes) for passes in own]
    setting, before, after = "loading of a sample", "slower", "as the others"
    if loaders[slow] < (most := int(np.median(np.delete(loaders, slow)))):
        setting, before, after = _named(view, "num_workers", "loader processes"), str(loaders[slow]), str(most)
    elif batches[slow] > (least := int(np.median(np.delete(batches, slow)))):
        setting, before, after = "batches of a rank", str(batches[slow]), str(least)
    overrides = ("++workload.twin.recorded.balanced_ranks=true",)
    return JobChange(setting, before, after, f"rank {slow}", overrides)


def _named(view: TrainingView, setting: str, otherwise: str) -> str:
    """Return PyTorch's name of a setting if the job uses PyTorch, else plain words."""
    is_torch = view.files["path"].str.contains("/torch/", regex=False).any()
    return setting if is_torch else otherwise
