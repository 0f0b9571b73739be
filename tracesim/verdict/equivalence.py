"""Tests whether a twin differs from its job by no more than reruns of the job differ among themselves.

Aspects are the times and amounts of aspects.py, and one minus the score of each dimension. The reruns set a margin for each
aspect. A run's distance to others is its largest difference in any aspect, as a multiple of that aspect's margin. A run whose
distance is above 1 is different. docs/similarity.md has the formulas and the measured error rates.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iotwin.tracesim.interval import weights_at
from iotwin.tracesim.profile import Summary, TraceProfile, summarise
from iotwin.tracesim.scores import overall_of, scores_of
from iotwin.tracesim.verdict.aspects import AspectKind, aspects_of
from iotwin.tracesim.verdict.wrong_twins import CONTROLS, DECISIVE

Floats = NDArray[np.float64]
ALIKE, DIFFERENT, INCONCLUSIVE = "alike", "different", "inconclusive"
# If the test is inconclusive (for example without reruns), a lower overall score still shows that two traces differ.
ALIKE_OVERALL = 0.90
ALIKE_DIMENSION = 0.75
# Scores of these dimensions may be low even in reruns, since they depend on milliseconds, or on the page cache before the run.
_LOW_IN_RERUNS = ("timeline", "block")
# With these values, the test was right for 40 of 40 reruns and 40 of 40 wrong twins (docs/similarity.md: error rates).
_LEVEL = 0.02  # chance that the test calls a rerun different for its times; the same chance for its amounts
_PRIOR_RUNS = 4.0  # the usual spread of reruns weighs as much as this many given reruns
_TOLERANCE = 0.05  # how far the score of a dimension may be below 1 in any twin
_STORAGE_TOLERANCE = 0.10  # how far the score of a dimension that depends on the storage may be below 1
_OVERALL_TOLERANCE = 0.02  # how far the overall score may be below 1
_RERUNS_DISTANCES = 2.0  # in addition, a twin's score may be below 1 by this many mean distances between reruns
_DRAWS = 60  # bootstrap samples for the confidence interval
_MOST_KEPT = 20  # bootstrap samples whose scores are kept
_SEED = 20_261_122
_LATENCY_BOUND = ("timing", "bursts", "steps", "concurrency", "timeline")
_NOT_THE_JOBS = "block"  # dimension that is left out, since block requests depend on the page cache before the run


@dataclass(frozen=True)
class AspectDifference:
    """How much a twin differs from the job in one aspect, and by how much it may differ (`margin`).

    Both values are differences of logarithms or, if `is_score`, of scores.
    """

    name: str
    is_score: bool
    difference: float
    margin: float

    @property
    def distance(self) -> float:
        """The absolute difference as a multiple of the margin."""
        return abs(self.difference) / self.margin

    def sentence(self) -> str:
        """Return the difference and the margin in words."""
        if self.is_score:
            return f"{self.name.replace('_', ' ')} scores {1 - self.difference:.2f}, a rerun {1 - self.margin:.2f} or more"
        return f"{_change(self.difference)} {self.name} (a rerun may differ by {100 * np.expm1(self.margin):.0f} %)"


@dataclass(frozen=True)
class Control:
    """A negative control (wrong_twins.py): its overall score, its distance to the job, and whether the test notices it."""

    name: str
    overall: float
    distance: float | None
    noticed: bool | None


@dataclass(frozen=True)
class Equivalence:
    """The outcome of the test of equivalence.

    `distance_ratio` is the twin's distance to the job, divided by the mean distance among the reruns. `interval` is its 95 %
    confidence interval. `margin` is the largest `distance_ratio` of a twin that counts as alike. All three are None if there are
    no reruns, or if the reruns are equal.
    """

    result: str
    reason: str
    distance_ratio: float | None
    interval: tuple[float, float] | None
    margin: float | None
    differences: tuple[AspectDifference, ...]
    controls: tuple[Control, ...]

    def to_document(self) -> dict[str, Any]:
        """Return the outcome for JSON, with differences of times and amounts as ratios less one."""
        return {
            "result": self.result,
            "reason": self.reason,
            "distance_ratio": self.distance_ratio,
            "interval": list(self.interval) if self.interval else None,
            "margin": self.margin,
            "aspects": {
                d.name: {"difference": _as_share(d, d.difference), "margin": _as_share(d, d.margin)} for d in self.differences
            },
            "controls": {c.name: {"overall": c.overall, "distance": c.distance, "noticed": c.noticed} for c in self.controls},
            "smallest_change_noticed": {d.name: _as_share(d, d.margin) for d in self.differences},
        }


def equivalence(
    job: Sequence[TraceProfile], twin: TraceProfile, floor: float | None, least_floor: float, lost: float
) -> Equivalence:
    """Test whether `twin` could be a further run of the job whose runs are `job`. The twin was made from the first run.

    `floor` is the lowest overall score among the runs of the job; None for a single run. If it is below `least_floor`, the test
    is inconclusive. `lost` is the largest share of events that any trace lost. The test counts it as lost score of the twin.
    """
    runs = [summarise(run) for run in job]
    wrong = [(name, summarise(made)) for name, make in CONTROLS.items() if (made := make(job[0])) is not None]
    if floor is None or floor < least_floor:
        controls = tuple(Control(name, overall_of(scores_of(runs[0], made)), None, None) for name, made in wrong)
        why = "no reruns of the job are given" if floor is None else f"the reruns are not alike ({floor:.2f})"
        return Equivalence(INCONCLUSIVE, why, None, None, None, (), controls)
    test = _Test(_Runs(runs))
    differences = test.differences_of_last(_Runs([*runs, summarise(twin)]))
    distance = differences[0].distance + lost / _OVERALL_TOLERANCE
    controls = tuple(test.control(name, _Runs([*runs, made])) for name, made in wrong)
    among = test.among(_Runs(runs), range(len(runs)))
    ratios = _bootstrap(test, job, twin)
    result, reason = _outcome(distance, differences, controls)
    interval = (float(np.quantile(ratios, 0.025)), float(np.quantile(ratios, 0.975))) if len(ratios) else None
    return Equivalence(
        result, reason, distance / among if among else None, interval, 1 / among if among else None, differences, controls
    )


def _outcome(distance: float, differences: Sequence[AspectDifference], controls: Sequence[Control]) -> tuple[str, str]:
    if distance > 1:
        beyond = [difference.sentence() for difference in differences if difference.distance > 1]
        return DIFFERENT, "; ".join(beyond) or "more events were lost than reruns differ by"
    if any(control.name == DECISIVE and control.noticed is False for control in controls):
        return INCONCLUSIVE, f"reruns differ so much that {DECISIVE} would not be noticed"
    return ALIKE, "within what reruns differ by among themselves"


def unlike_dimension(overall: float, scores: Mapping[str, float]) -> str | None:
    """Return the dimension with the lowest score if the scores alone show that two traces differ; None otherwise.

    `overall` and `scores`, by dimension, are in [0, 1].
    """
    worst = min((name for name in scores if name not in _LOW_IN_RERUNS), key=scores.__getitem__)
    return None if overall >= ALIKE_OVERALL and scores[worst] >= ALIKE_DIMENSION else worst


class _Runs:
    """The aspects of several runs, and the scores of every two of them. A score is computed when it is first used."""

    def __init__(self, summaries: Sequence[Summary]) -> None:
        self._summaries = summaries
        self._pairs: dict[tuple[int, int], dict[str, float]] = {}
        found = [{aspect.name: aspect for aspect in aspects_of(summary)} for summary in summaries]
        everywhere = [name for name in found[0] if all(name in each for each in found)]
        common = [found[0][name] for name in everywhere if any(each[name].amount for each in found)]
        self.kinds = {aspect.name: aspect.kind for aspect in common}
        self.logs = {name: np.array([each[name].log for each in found]) for name in self.kinds}  # each of shape (runs,)
        self.number = len(summaries)

    def apart(self, one: int, other: int) -> dict[str, float]:
        """Return one minus the score between two runs, by dimension and "overall", without the dimension _NOT_THE_JOBS."""
        pair = (min(one, other), max(one, other))
        if pair not in self._pairs:
            scores = scores_of(self._summaries[pair[0]], self._summaries[pair[1]])
            scores.pop(_NOT_THE_JOBS, None)
            self._pairs[pair] = {name: 1 - score for name, score in {**scores, "overall": overall_of(scores)}.items()}
        return self._pairs[pair]

    def overall(self, one: int, other: int) -> float:
        """Return the overall score of two runs, including the block requests."""
        return overall_of(scores_of(self._summaries[one], self._summaries[other]))


class _Test:
    """Derives margins from the runs of a job, and measures distances as multiples of them."""

    def __init__(self, runs: _Runs) -> None:
        pairs = [runs.apart(*pair) for pair in itertools.combinations(range(runs.number), 2)]
        self._score_margins = {
            name: _tolerance(name) + _RERUNS_DISTANCES * float(np.mean([pair[name] for pair in pairs if name in pair]))
            for name in sorted(set().union(*pairs))
        }
        kinds = list(runs.kinds.values())
        self._margins = {name: _margin(kind, runs.logs[name], kinds.count(kind)) for name, kind in runs.kinds.items()}
        still = np.zeros(runs.number)
        self._least_margins = {name: _margin(kind, still, kinds.count(kind)) for name, kind in runs.kinds.items()} | {
            name: _tolerance(name) for name in self._score_margins
        }

    def differences(self, runs: _Runs, run: int, others: Sequence[int]) -> tuple[AspectDifference, ...]:
        """Return how much the run at index `run` differs from the mean of `others` in each aspect, largest distance first."""
        found = [
            AspectDifference(name, False, float(runs.logs[name][run] - runs.logs[name][list(others)].mean()), margin)
            for name, margin in self._margins.items()
            if name in runs.logs
        ]
        apart = [runs.apart(run, other) for other in others]
        for name, margin in self._score_margins.items():
            known = [distances[name] for distances in apart if name in distances]
            if known:
                found.append(AspectDifference(name, True, float(np.mean(known)), margin))
        return tuple(sorted(found, key=lambda difference: -difference.distance))

    def differences_of_last(self, runs: _Runs) -> tuple[AspectDifference, ...]:
        """Return how much the last of `runs` differs from the mean of all others in each aspect, largest distance first."""
        return self.differences(runs, runs.number - 1, range(runs.number - 1))

    def among(self, runs: _Runs, chosen: Sequence[int]) -> float:
        """Return the mean, over the `chosen` runs, of a run's distance to the others. `chosen`: indices into `runs`."""
        return float(np.mean([self.differences(runs, run, [o for o in chosen if o != run])[0].distance for run in chosen]))

    def control(self, name: str, runs: _Runs) -> Control:
        """Test the last of `runs`, a negative control.

        `noticed` is None if the test would miss it even if all reruns were equal.
        """
        differences = self.differences_of_last(runs)
        can_be_noticed = any(abs(each.difference) > self._least_margins[each.name] for each in differences)
        distance = differences[0].distance
        return Control(name, runs.overall(0, runs.number - 1), distance, distance > 1 if can_be_noticed else None)


def _tolerance(name: str) -> float:
    return _OVERALL_TOLERANCE if name == "overall" else _STORAGE_TOLERANCE if name in _LATENCY_BOUND else _TOLERANCE


def _margin(kind: AspectKind, logs: Floats, aspects: int) -> float:
    """Return by how much the logarithm of a further run may differ from the mean of `logs`, the logarithms of the reruns.

    This is the tolerance plus half a prediction interval of Student's t. Two or three runs do not determine the spread, so it is
    averaged with the usual spread (Smyth 2004, formula 4). The level is divided by the number of `aspects` (Bonferroni).
    """
    freedom = len(logs) - 1
    variance = (_PRIOR_RUNS * kind.usual**2 + freedom * float(logs.var(ddof=1))) / (_PRIOR_RUNS + freedom)
    t = _student(1 - _LEVEL / (2 * aspects), _PRIOR_RUNS + freedom)
    return kind.tolerance + t * float(np.sqrt(variance * (1 + 1 / len(logs))))


def _student(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t at `probability`. The error is below 2 % from 5 degrees of `freedom` on.

    Source: Abramowitz and Stegun 26.7.5.
    """
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))


def _bootstrap(test: _Test, job: Sequence[TraceProfile], twin: TraceProfile) -> Floats:
    """Return the distance ratio in each of _DRAWS bootstrap samples; empty if a run has a single epoch and the job has fewer than
    3 runs.

    Samples draw runs of the job. If every run has several epochs, samples also draw phase occurrences, the same in all runs
    (interval.py).
    """
    every = [*job, twin]
    by_phase = min(run.trainings for run in every) >= 2
    if not by_phase and len(job) < 3:
        return np.empty(0)
    generator = np.random.default_rng(_SEED)
    longest = max(run.occurrences.number for run in every)
    drawn = _Runs([summarise(run) for run in every])
    known: dict[bytes, _Runs] = {}  # few occurrences have few samples, which are drawn repeatedly
    ratios = []
    for _ in range(_DRAWS):
        if by_phase:
            positions = generator.random(longest)
            weights = [weights_at(run, positions) for run in every]
            sample = b"".join(each.tobytes() for each in weights)
            drawn = known.get(sample) or _Runs([summarise(run, each) for run, each in zip(every, weights, strict=True)])
            if len(known) < _MOST_KEPT:
                known[sample] = drawn
        chosen = _two_or_more(generator, len(job))
        among = test.among(drawn, sorted(set(chosen)))
        if among:
            ratios.append(test.differences(drawn, len(job), chosen)[0].distance / among)
    return np.array(ratios)


def _two_or_more(generator: np.random.Generator, number: int) -> list[int]:
    """Return `number` indices of runs, drawn with replacement until at least two of them differ."""
    while True:
        chosen: list[int] = generator.integers(number, size=number).tolist()
        if len(set(chosen)) > 1:
            return chosen


def _as_share(aspect: AspectDifference, difference: float) -> float:
    return difference if aspect.is_score else float(np.expm1(difference))


def _change(difference: float) -> str:
    """Return a difference of logarithms in words, such as "14 % more" or "2.1 times less"."""
    word = "more" if difference > 0 else "less"
    factor = float(np.exp(abs(difference)))
    return f"{factor:.3g} times {word}" if factor >= 2 else f"{100 * abs(np.expm1(difference)):.0f} % {word}"
