"""Is a twin's distance to its job within what reruns of the job differ by among themselves? docs/similarity.md has the formulas.

Every aspect (the times and amounts of aspects.py, and one minus the score of each dimension) has a margin, taken from the reruns.
A run's distance to others is its largest difference in any aspect, in margins: beyond 1 it is none of them.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracesim.interval import weights_at
from tracesim.profile import Profile, Summary, summarise
from tracesim.scores import overall_of, scores_of
from tracesim.verdict.aspects import Kind, aspects_of
from tracesim.verdict.controls import CONTROLS, DECISIVE

Floats = NDArray[np.float64]
ALIKE, DIFFERENT, CANNOT_BE_TOLD = "alike", "different", "cannot be told"
_LEVEL = 0.02  # chance that a rerun is called different for its times, and again for its amounts
_PRIOR_RUNS = 4.0  # the usual spread counts as that of so many runs beside the reruns' own
_DRAWS = 60
_SEED = 20_261_122
# One minus the score of a dimension: what any twin may differ by, and how many times the reruns' own mean distance.
_TOLERANCE, _STORAGE_TOLERANCE, _OVERALL_TOLERANCE = 0.05, 0.10, 0.02
_RERUNS_DISTANCES = 2.0
_LATENCY_BOUND = ("timing", "bursts", "steps", "concurrency", "timeline")
_NOT_THE_JOBS = "block"  # what reaches the device depends on the page cache as it was before


@dataclass(frozen=True)
class Finding:
    """How a twin differs from the job in one aspect: signed `difference` and `margin`, both of logarithms or of scores."""

    name: str
    is_score: bool
    difference: float
    margin: float

    @property
    def distance(self) -> float:
        """The difference in margins."""
        return abs(self.difference) / self.margin

    def sentence(self) -> str:
        """Say the difference, and what a rerun may differ by."""
        if self.is_score:
            return f"{self.name.replace('_', ' ')} scores {1 - self.difference:.2f}, a rerun {1 - self.margin:.2f} or more"
        return f"{_change(self.difference)} {self.name} (a rerun may differ by {100 * np.expm1(self.margin):.0f} %)"


@dataclass(frozen=True)
class Control:
    """A twin made wrong on purpose: its overall score, its distance in margins and whether the test would have noticed."""

    name: str
    overall: float
    distance: float | None
    noticed: bool | None


@dataclass(frozen=True)
class Equivalence:
    """The outcome of the test.

    `distance_ratio` is the twin's distance to the job over the reruns' to each other, `interval` its 95 % interval and
    `margin` the ratio up to which a twin is alike; None where the reruns do not tell.
    """

    result: str
    reason: str
    distance_ratio: float | None
    interval: tuple[float, float] | None
    margin: float | None
    findings: tuple[Finding, ...]
    controls: tuple[Control, ...]

    def to_document(self) -> dict[str, Any]:
        """Return the outcome as JSON has it; differences of times and amounts as factors less one."""
        return {
            "result": self.result,
            "reason": self.reason,
            "distance_ratio": self.distance_ratio,
            "interval": list(self.interval) if self.interval else None,
            "margin": self.margin,
            "aspects": {
                f.name: {"difference": _as_share(f, f.difference), "margin": _as_share(f, f.margin)} for f in self.findings
            },
            "controls": {c.name: {"overall": c.overall, "distance": c.distance, "noticed": c.noticed} for c in self.controls},
            "smallest_change_noticed": {f.name: _as_share(f, f.margin) for f in self.findings},
        }


def equivalence(job: Sequence[Profile], twin: Profile, floor: float | None, least_floor: float, lost: float) -> Equivalence:
    """Test whether `twin` is as a further run of `job`, whose first profile is the run that it was made from.

    `floor` is the lowest overall score among the runs of the job, None for a single one; below `least_floor` they are not
    runs of one job. `lost` is the largest share of events lost by a trace, which may have been any.
    """
    runs = [summarise(run) for run in job]
    wrong = [(name, summarise(made)) for name, make in CONTROLS.items() if (made := make(job[0])) is not None]
    if floor is None or floor < least_floor:
        controls = tuple(Control(name, overall_of(scores_of(runs[0], made)), None, None) for name, made in wrong)
        why = "no reruns of the job are given" if floor is None else f"the reruns are not alike ({floor:.2f})"
        return Equivalence(CANNOT_BE_TOLD, why, None, None, None, (), controls)
    test = _Test(_Runs(runs))
    findings = test.findings_of_last(_Runs([*runs, summarise(twin)]))
    distance = findings[0].distance + lost / _OVERALL_TOLERANCE
    controls = tuple(test.control(name, _Runs([*runs, made])) for name, made in wrong)
    among = test.among(_Runs(runs), range(len(runs)))
    ratios = _bootstrap(test, job, twin)
    result, reason = _outcome(distance, findings, controls)
    interval = (float(np.quantile(ratios, 0.025)), float(np.quantile(ratios, 0.975))) if len(ratios) else None
    return Equivalence(
        result, reason, distance / among if among else None, interval, 1 / among if among else None, findings, controls
    )


def _outcome(distance: float, findings: Sequence[Finding], controls: Sequence[Control]) -> tuple[str, str]:
    if distance > 1:
        beyond = [finding.sentence() for finding in findings if finding.distance > 1]
        return DIFFERENT, "; ".join(beyond) or "more events were lost than reruns differ by"
    if any(control.name == DECISIVE and control.noticed is False for control in controls):
        return CANNOT_BE_TOLD, f"reruns differ so much that {DECISIVE} would not be noticed"
    return ALIKE, "within what reruns differ by among themselves"


class _Runs:
    """Aspects of some runs, and the distances between their scores, each worked out when it is first asked for."""

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
        """Return one minus the score of each dimension and overall; block requests depend on the page cache as it was before."""
        pair = (min(one, other), max(one, other))
        if pair not in self._pairs:
            scores = scores_of(self._summaries[pair[0]], self._summaries[pair[1]])
            scores.pop(_NOT_THE_JOBS, None)
            self._pairs[pair] = {name: 1 - score for name, score in {**scores, "overall": overall_of(scores)}.items()}
        return self._pairs[pair]

    def overall(self, one: int, other: int) -> float:
        """Return the overall score of two runs, with the block requests."""
        return overall_of(scores_of(self._summaries[one], self._summaries[other]))


class _Test:
    """The margins that runs of a job give, and distances in them."""

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

    def findings(self, runs: _Runs, run: int, others: Sequence[int]) -> tuple[Finding, ...]:
        """Return how a run differs from the mean of others in every aspect, the largest difference in margins first."""
        found = [
            Finding(name, False, float(runs.logs[name][run] - runs.logs[name][list(others)].mean()), margin)
            for name, margin in self._margins.items()
            if name in runs.logs
        ]
        apart = [runs.apart(run, other) for other in others]
        for name, margin in self._score_margins.items():
            known = [distances[name] for distances in apart if name in distances]
            if known:
                found.append(Finding(name, True, float(np.mean(known)), margin))
        return tuple(sorted(found, key=lambda finding: -finding.distance))

    def findings_of_last(self, runs: _Runs) -> tuple[Finding, ...]:
        """Return how the last run differs from all others."""
        return self.findings(runs, runs.number - 1, range(runs.number - 1))

    def among(self, runs: _Runs, chosen: Sequence[int]) -> float:
        """Return the mean distance of each chosen run to the other chosen ones, as if it were the twin."""
        return float(np.mean([self.findings(runs, run, [o for o in chosen if o != run])[0].distance for run in chosen]))

    def control(self, name: str, runs: _Runs) -> Control:
        """Say whether a wrong twin, the last run, is noticed; None if it would not be even if reruns did not differ at all."""
        findings = self.findings_of_last(runs)
        can_be_noticed = any(abs(finding.difference) > self._least_margins[finding.name] for finding in findings)
        distance = findings[0].distance
        return Control(name, runs.overall(0, runs.number - 1), distance, distance > 1 if can_be_noticed else None)


def _tolerance(name: str) -> float:
    return _OVERALL_TOLERANCE if name == "overall" else _STORAGE_TOLERANCE if name in _LATENCY_BOUND else _TOLERANCE


def _margin(kind: Kind, logs: Floats, aspects: int) -> float:
    """Return how far a further run may be from the mean of `logs`: a prediction interval of Student's t.

    Two or three runs tell little of their spread, so that it is moderated by the usual one (Smyth 2004); so many `aspects` share
    the level (Bonferroni).
    """
    freedom = len(logs) - 1
    variance = (_PRIOR_RUNS * kind.usual**2 + freedom * float(logs.var(ddof=1))) / (_PRIOR_RUNS + freedom)
    t = _student(1 - _LEVEL / (2 * aspects), _PRIOR_RUNS + freedom)
    return kind.tolerance + t * float(np.sqrt(variance * (1 + 1 / len(logs))))


def _student(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t to some per cent from 5 degrees of freedom on (Abramowitz and Stegun 26.7.5)."""
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))


def _bootstrap(test: _Test, job: Sequence[Profile], twin: Profile) -> Floats:
    """Return the distance ratio in draws of runs and of occurrences of phases; empty when neither can vary.

    The places of a draw are the same in all runs, as for the interval of a score (interval.py).
    """
    every = [*job, twin]
    by_phase = min(run.trainings for run in every) >= 2
    if not by_phase and len(job) < 3:
        return np.empty(0)
    generator = np.random.default_rng(_SEED)
    longest = max(run.occurrences.number for run in every)
    drawn = _Runs([summarise(run) for run in every])
    ratios = []
    for _ in range(_DRAWS):
        if by_phase:
            positions = generator.random(longest)
            drawn = _Runs([summarise(run, weights_at(run, positions)) for run in every])
        chosen = _two_or_more(generator, len(job))
        among = test.among(drawn, sorted(set(chosen)))
        if among:
            ratios.append(test.findings(drawn, len(job), chosen)[0].distance / among)
    return np.array(ratios)


def _two_or_more(generator: np.random.Generator, number: int) -> list[int]:
    """Return `number` runs drawn with replacement, at least two of them different."""
    while True:
        chosen: list[int] = generator.integers(number, size=number).tolist()
        if len(set(chosen)) > 1:
            return chosen


def _as_share(finding: Finding, difference: float) -> float:
    return difference if finding.is_score else float(np.expm1(difference))


def _change(difference: float) -> str:
    """Return for example 14 % more, or 2.1 times less."""
    word = "more" if difference > 0 else "less"
    factor = float(np.exp(abs(difference)))
    return f"{factor:.3g} times {word}" if factor >= 2 else f"{100 * abs(np.expm1(difference)):.0f} % {word}"
