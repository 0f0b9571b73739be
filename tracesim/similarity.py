"""Compares traces: scores by dimension and overall, the noise floor from repeats of the job, and a verdict in words."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from iotwin.common.html_card import html_card
from iotwin.common.progress import progress
from iotwin.common.terminal import clean
from iotwin.trace_store.parallel_fold import Workers, workers
from iotwin.trace_store.reader import Trace
from iotwin.tracesim.difference_sentences import differences
from iotwin.tracesim.dimensions import DEFINITIONS, Curve
from iotwin.tracesim.interval import confidence_interval
from iotwin.tracesim.latency import latency
from iotwin.tracesim.profile import TraceProfile, has_phases, profiles_of, summarise
from iotwin.tracesim.scores import overall_of, scores_of
from iotwin.tracesim.verdict.caveats import LEAST_FLOOR, caveats_of, caveats_of_floor
from iotwin.tracesim.verdict.equivalence import Equivalence, equivalence
from iotwin.tracesim.verdict.losses import MOST_LOST, lost_share
from iotwin.tracesim.verdict.noise_floor import noise_floors
from iotwin.tracesim.verdict.trace_warnings import common_groups, misplaced, warnings_about
from iotwin.tracesim.verdict.verdict_words import verdict, withheld_for

WORTH_PROCESSES = 4_000_000  # from this many events on, several processes read the traces faster than one
_WORTH_WORDS = 0.99  # a dimension's differences are described only if its score is below this


@dataclass(frozen=True)
class Dimension:
    """The score of one dimension in [0, 1], its weight in the overall score, the scores of its parts and both traces' curves.

    `x_unit` and `unit` are the units of the curves' x and y. `differences` are sentences, the weightiest first. `latency_bound`:
    True if the score also depends on the speed of the storage.
    """

    name: str
    score: float
    weight: float
    parts: dict[str, float]
    curve_a: Curve
    curve_b: Curve
    x_unit: str
    unit: str
    latency_bound: bool
    differences: tuple[str, ...]


@dataclass(frozen=True)
class Similarity:
    """The similarity of trace A and trace B; docs/similarity.md explains each figure.

    `overall` is None (withheld) if a trace lost more than 1 % of its events. `storage_independent` is the score without the
    latency-bound dimensions. `noise_floor` is the lowest overall score among A and its repeats; None without repeats.
    `equivalence` is the test behind the verdict; None if the score is withheld. `caveats` are those of the `warnings` that weaken
    the verdict (verdict/caveats.py).
    """

    path_a: str
    path_b: str
    overall: float | None
    storage_independent: float | None
    dimensions: tuple[Dimension, ...]
    noise_floor: float | None
    noise_floor_dimensions: dict[str, float]
    confidence_interval: tuple[float, float] | None
    verdict: str
    equivalence: Equivalence | None
    differences: tuple[str, ...]
    caveats: tuple[str, ...]
    warnings: tuple[str, ...]
    latency: dict[str, dict[str, Any]]

    def to_document(self) -> dict[str, Any]:
        """Return the document of `iotwin compare --json`, without the curves."""
        interval = self.confidence_interval
        return {
            "a": self.path_a, "b": self.path_b, "overall": self.overall,
            "dimensions": {d.name: d.score for d in self.dimensions},
            "noise_floor": self.noise_floor, "verdict": self.verdict, "caveats": list(self.caveats),
            "equivalence": self.equivalence.to_document() if self.equivalence else None,
            "confidence_interval": list(interval) if interval else None, "storage_independent": self.storage_independent,
            "noise_floor_dimensions": self.noise_floor_dimensions, "weights": {d.name: d.weight for d in self.dimensions},
            "parts": {d.name: d.parts for d in self.dimensions}, "differences": list(self.differences),
            "warnings": list(self.warnings), "latency": self.latency,
        }  # fmt: skip

    def __repr__(self) -> str:
        overall = "withheld" if self.overall is None else f"{self.overall:.3f}"
        return clean(f"Comparison({self.path_a!r}, {self.path_b!r}: overall {overall}; {self.verdict})")

    def _repr_html_(self) -> str:
        scores = [(each.name.replace("_", " "), each.score, each.weight) for each in self.dimensions]
        rows = [*scores, ("overall", "withheld" if self.overall is None else self.overall, None)]
        title = f"{self.path_a} compared with {self.path_b}"
        return html_card(title, [self.verdict, *self.caveats], ("dimension", "score", "weight"), rows)


def compare(a: Trace, b: Trace, repeats: Sequence[Trace] = (), each: Workers | None = None) -> Similarity:
    """Return the similarity of `a` and `b`. `repeats` are further runs of the job of `a`, which show how much reruns differ.

    `each` maps a function over the stretches of the traces. Default: this process, or several processes if traces are large.
    Raises IotwinError if a trace is damaged or has no call to compare.
    """
    traces = [a, b, *repeats]
    by_phase = all(map(has_phases, traces))
    caveats = [caveat for trace, name in zip(traces, _names(traces), strict=True) for caveat in caveats_of(trace, name)]
    return _similarity(traces, _profiles(traces, by_phase, common_groups(traces), each), caveats)


def compare_all(rows: Sequence[Trace], columns: Sequence[Trace]) -> list[list[Similarity]]:
    """Return the similarity of each of `rows` to each of `columns`, as a matrix. Each trace is read once.

    To make all scores comparable, an operation that one trace did not capture is ignored in all traces. If one trace has no
    phases, phases are ignored in all traces.
    """
    traces = [*rows, *columns]
    profiles = _profiles(traces, all(map(has_phases, traces)), common_groups(traces))
    of_rows = [(a, profile, caveats_of(a, "A")) for a, profile in zip(rows, profiles, strict=False)]
    of_columns = [(b, profile, caveats_of(b, "B")) for b, profile in zip(columns, profiles[len(rows) :], strict=True)]
    return [
        [_similarity([a, b], [of_a, of_b], caveats_a + caveats_b) for b, of_b, caveats_b in of_columns]
        for a, of_a, caveats_a in of_rows
    ]


def score_all(rows: Sequence[Trace], columns: Sequence[Trace]) -> list[list[float | None]]:
    """Return the matrix of overall scores of `compare_all`, None where withheld. This takes a fraction of the time."""
    traces = [*rows, *columns]
    profiles = _profiles(traces, all(map(has_phases, traces)), common_groups(traces))
    known = [lost_share(trace) <= MOST_LOST for trace in traces]
    summaries = [summarise(profile) for profile in profiles]
    return [
        [
            overall_of(scores_of(summaries[row], summaries[column])) if known[row] and known[column] else None
            for column in range(len(rows), len(traces))
        ]
        for row in range(len(rows))
    ]


def _names(traces: Sequence[Trace]) -> list[str]:
    return ["A", "B", *(f"repeat {number}" for number in range(1, len(traces) - 1))]


def _similarity(traces: Sequence[Trace], profiles: Sequence[TraceProfile], caveats: Sequence[str]) -> Similarity:
    """Compare the second profile with the first. Any further profiles are of reruns of the first one's job.

    `caveats`: sentences about all traces.
    """
    names = _names(traces)
    without_phases = [name for trace, name in zip(traces, names, strict=True) if not has_phases(trace)]
    warnings = warnings_about(traces, names, without_phases) + misplaced(profiles, names)
    dimensions = _dimensions(profiles[0], profiles[1])
    overall = overall_of({d.name: d.score for d in dimensions})
    floors = noise_floors([profiles[0], *profiles[2:]])
    floor = floors.pop("overall", None)
    caveats = [*caveats, *caveats_of_floor(floor)]
    lost = max(lost_share(trace) for trace in traces)
    differences = tuple(
        sentence for d in sorted(dimensions, key=lambda d: -d.weight * (1.0 - d.score)) for sentence in d.differences
    )
    withheld = lost > MOST_LOST
    test = None if withheld else equivalence([profiles[0], *profiles[2:]], profiles[1], floor, LEAST_FLOOR, lost)
    return Similarity(
        path_a=str(traces[0].path), path_b=str(traces[1].path), overall=None if withheld else overall,
        storage_independent=None if withheld else overall_of({d.name: d.score for d in dimensions if not d.latency_bound}),
        dimensions=dimensions, noise_floor=None if withheld else floor, noise_floor_dimensions=floors,
        confidence_interval=None if withheld else _interval(profiles[0], profiles[1], overall, lost),
        verdict=(
            withheld_for(lost) if test is None
            else verdict(overall - lost, floor, {d.name: d.score for d in dimensions}, differences, test)
        ),
        equivalence=test, differences=differences, caveats=tuple(caveats), warnings=(*warnings, *caveats),
        latency=latency(profiles[0], profiles[1]),
    )  # fmt: skip


def _profiles(traces: Sequence[Trace], by_phase: bool, groups: frozenset[str], each: Workers | None = None) -> list[TraceProfile]:
    events = sum(trace.manifest.events for trace in traces)
    given = nullcontext(each) if each is not None else workers(None, traces, WORTH_PROCESSES)
    with progress("reading traces", events, "events") as advance, given as works:
        return profiles_of(traces, by_phase, groups, works, advance)


def _dimensions(a: TraceProfile, b: TraceProfile) -> tuple[Dimension, ...]:
    of_a, of_b = summarise(a), summarise(b)
    scored = [(definition, definition.score(of_a, of_b)) for definition in DEFINITIONS]
    return tuple(
        Dimension(
            definition.name, score.total, definition.weight, score.parts, definition.curve(of_a), definition.curve(of_b),
            definition.x_unit, definition.unit, definition.latency_bound,
            differences(definition.name, of_a, of_b) if score.total < _WORTH_WORDS else (),
        )
        for definition, score in scored if score is not None
    )  # fmt: skip


def _interval(a: TraceProfile, b: TraceProfile, overall: float, lost: float) -> tuple[float, float] | None:
    """Return the confidence interval of the overall score, widened on both sides by the share of lost events."""
    interval = confidence_interval(a, b, lambda one, other: overall_of(scores_of(one, other)))
    if interval is None:
        interval = (overall, overall) if lost else None
    return (max(interval[0] - lost, 0.0), min(interval[1] + lost, 1.0)) if interval else None
