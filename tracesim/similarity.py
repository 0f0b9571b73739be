"""How alike two traces are: dimensions, overall score, noise floor from repeats, and a verdict in words."""

import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from common.progress import progress
from tracesim.dimensions import DEFINITIONS, Curve
from tracesim.interval import confidence_interval
from tracesim.latency import latency
from tracesim.profile import Profile, has_phases, profiles_of, summarise
from tracesim.scores import overall_of, scores_of
from tracesim.sentences import differences
from tracesim.verdict.equivalence import ALIKE, DIFFERENT, Equivalence, equivalence
from tracesim.verdict.trust import MOST_LOST, common_groups, lost_share, misplaced, warnings_about
from tracing_tools.trace.reader import Trace
from tracing_tools.trace.workers import Workers, workers

ALIKE_OVERALL = 0.90
ALIKE_DIMENSION = 0.75
_LOW_IN_RERUNS = ("timeline", "block")  # phases of milliseconds, and the page cache as it was before
WORTH_PROCESSES = 4_000_000  # events in all, from which processes save more time than their start takes
_SENTENCES_IN_VERDICT = 3  # sentences
_WORTH_WORDS = 0.99  # a dimension that scores this or more is not explained


@dataclass(frozen=True)
class Dimension:
    """One dimension's score in [0, 1], its weight in the overall score, the parts of the score, and what a plot of it needs.

    `unit` is that of the curves' y, `x_unit` that of their x. `differences` are sentences, the weightiest first. `latency_bound`
    dimensions depend on the speed of the storage too.
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
    """How alike trace A and trace B are; see docs/similarity.md for what each figure means.

    `overall` is None (withheld) when a trace lost more than 1 % of its events. `storage_independent` is the score without the
    latency-bound dimensions. `noise_floor` is the lowest overall score among A and its repeats, None without repeats.
    `equivalence` is the test that the verdict rests on, None where the score is withheld.
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
    warnings: tuple[str, ...]
    latency: dict[str, dict[str, Any]]

    def to_document(self) -> dict[str, Any]:
        """Return the document of `iotwin compare --json`; without the curves."""
        interval = self.confidence_interval
        return {
            "a": self.path_a, "b": self.path_b, "overall": self.overall,
            "dimensions": {d.name: d.score for d in self.dimensions},
            "noise_floor": self.noise_floor, "verdict": self.verdict,
            "equivalence": self.equivalence.to_document() if self.equivalence else None,
            "confidence_interval": list(interval) if interval else None, "storage_independent": self.storage_independent,
            "noise_floor_dimensions": self.noise_floor_dimensions, "weights": {d.name: d.weight for d in self.dimensions},
            "parts": {d.name: d.parts for d in self.dimensions}, "differences": list(self.differences),
            "warnings": list(self.warnings), "latency": self.latency,
        }  # fmt: skip


def compare(a: Trace, b: Trace, repeats: Sequence[Trace] = (), each: Workers | None = None) -> Similarity:
    """Return how alike `a` and `b` are; `repeats` are further runs of the job of `a`, which tell how alike reruns of it are.

    `each` reads them in chunks; None chooses this process or several. Raises IotwinError when a trace has nothing to
    compare or is damaged.
    """
    traces = [a, b, *repeats]
    by_phase = all(map(has_phases, traces))
    return _similarity(traces, _profiles(traces, by_phase, common_groups(traces), each))


def compare_all(rows: Sequence[Trace], columns: Sequence[Trace]) -> list[list[Similarity]]:
    """Return how alike each of `rows` is to each of `columns`; every trace is read once.

    What one trace lacks (phases, operations) is left out of all, so that the scores can be held against each other.
    """
    traces = [*rows, *columns]
    profiles = _profiles(traces, all(map(has_phases, traces)), common_groups(traces))
    of_rows, of_columns = profiles[: len(rows)], profiles[len(rows) :]
    return [
        [_similarity([a, b], [of_a, of_b]) for b, of_b in zip(columns, of_columns, strict=True)]
        for a, of_a in zip(rows, of_rows, strict=True)
    ]


def score_all(rows: Sequence[Trace], columns: Sequence[Trace]) -> list[list[float | None]]:
    """Return the overall scores that `compare_all` gives, None where they are withheld: hundreds of pairs in a second.

    Without confidence intervals, which take most of the time of a comparison.
    """
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


def _similarity(traces: Sequence[Trace], profiles: Sequence[Profile]) -> Similarity:
    """Score the second profile against the first; further ones are of repeats of the first."""
    names = ["A", "B", *(f"repeat {number}" for number in range(1, len(traces) - 1))]
    without_phases = [name for trace, name in zip(traces, names, strict=True) if not has_phases(trace)]
    warnings = warnings_about(traces, names, without_phases) + misplaced(profiles, names)
    dimensions = _dimensions(profiles[0], profiles[1])
    overall = overall_of({d.name: d.score for d in dimensions})
    floors = _noise_floors([profiles[0], *profiles[2:]])
    floor = floors.pop("overall", None)
    if floor is not None and floor < ALIKE_OVERALL:
        warnings.append(
            f"the repeats are not like A ({floor:.2f}): are they the same job? The verdict does not use the noise floor"
        )
    lost = max(lost_share(trace) for trace in traces)
    differences = tuple(
        sentence for d in sorted(dimensions, key=lambda d: -d.weight * (1.0 - d.score)) for sentence in d.differences
    )
    withheld = lost > MOST_LOST
    test = None if withheld else equivalence([profiles[0], *profiles[2:]], profiles[1], floor, ALIKE_OVERALL, lost)
    return Similarity(
        path_a=str(traces[0].path), path_b=str(traces[1].path), overall=None if withheld else overall,
        storage_independent=None if withheld else overall_of({d.name: d.score for d in dimensions if not d.latency_bound}),
        dimensions=dimensions, noise_floor=None if withheld else floor, noise_floor_dimensions=floors,
        confidence_interval=None if withheld else _interval(profiles[0], profiles[1], overall, lost),
        verdict=_withheld(lost) if test is None else _verdict(overall - lost, floor, dimensions, differences, test),
        equivalence=test, differences=differences, warnings=tuple(warnings), latency=latency(profiles[0], profiles[1]),
    )  # fmt: skip


def _profiles(traces: Sequence[Trace], by_phase: bool, groups: frozenset[str], each: Workers | None = None) -> list[Profile]:
    events = sum(trace.manifest.events for trace in traces)
    given = nullcontext(each) if each is not None else workers(None, traces, WORTH_PROCESSES)
    with progress("reading traces", events, "events") as advance, given as works:
        return profiles_of(traces, by_phase, groups, works, advance)


def _dimensions(a: Profile, b: Profile) -> tuple[Dimension, ...]:
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


def _noise_floors(runs: Sequence[Profile]) -> dict[str, float]:
    """The lowest score of each dimension, and of "overall", among all pairs of runs; empty for a single run."""
    summaries = [summarise(run) for run in runs]
    floors: dict[str, float] = {}
    for one, other in itertools.combinations(summaries, 2):
        scores = scores_of(one, other)
        for name, score in {**scores, "overall": overall_of(scores)}.items():
            floors[name] = min(score, floors.get(name, 1.0))
    return floors


def _interval(a: Profile, b: Profile, overall: float, lost: float) -> tuple[float, float] | None:
    """The bootstrap interval, widened on either side by the share of events that were lost, which may have been any."""
    interval = confidence_interval(a, b, lambda one, other: overall_of(scores_of(one, other)))
    if interval is None:
        interval = (overall, overall) if lost else None
    return (max(interval[0] - lost, 0.0), min(interval[1] + lost, 1.0)) if interval else None


def _withheld(lost: float) -> str:
    return f"withheld: a trace lost {lost * 100:.2g} % of its events, more than {MOST_LOST * 100:.0f} %; record it again"


def _verdict(
    overall: float, floor: float | None, dimensions: Sequence[Dimension], differences: Sequence[str], test: Equivalence
) -> str:
    if test.result == ALIKE:
        return "indistinguishable from a rerun" if floor is not None and overall >= floor else ALIKE
    if test.result == DIFFERENT:
        return f"{DIFFERENT}: {'; '.join([*test.reason.split('; ')[:1], *differences[: _SENTENCES_IN_VERDICT - 1]])}"
    # What reruns differ by is not known; but there is much that no rerun would differ by.
    worst = min((d for d in dimensions if d.name not in _LOW_IN_RERUNS), key=lambda d: d.score)
    if overall >= ALIKE_OVERALL and worst.score >= ALIKE_DIMENSION:
        return f"{test.result}: {test.reason}"
    return f"{DIFFERENT}: {'; '.join(differences[:_SENTENCES_IN_VERDICT]) or f'{worst.name} scores {worst.score:.2f}'}"
