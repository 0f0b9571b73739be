"""The result of a verification: whether reruns and resumed runs equal the first run, and which state resumed runs need."""

import math
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from iotwin.common.progress import progress
from iotwin.workloads.detrain.randomness.determinism import OFF, environment
from iotwin.workloads.detrain.verify.needed_state import needed, parts_of
from iotwin.workloads.detrain.verify.script_runs import ScriptRuns
from iotwin.workloads.detrain.verify.verification import Point, VerifiedScript, Verifier, resume_points

_MOST_POINTS_FOR_PARTS = 2


class Checks(NamedTuple):
    """What to check. `resume_at`: as --resume-at; `workers`: numbers of worker processes, None for the script's own."""

    reruns: int
    resume_at: str
    workers: Sequence[int | None]
    drop: str | None
    minimal: bool


def verified_document(script: VerifiedScript, checks: Checks) -> dict[str, Any]:
    """Run all checks, with progress, and return the document.

    Raises IotwinError if the script fails without any kill or resume, and UsageError if it lacks a batch of `resume_at`.
    """
    reruns, resumes, parts = [], [], None
    with ScriptRuns(environment(script.determinism, script.seed)) as server:
        verifiers = [Verifier(script, server, workers, checks.drop) for workers in checks.workers]
        first = verifiers[0]
        points = resume_points(checks.resume_at, first.run_reference(), script.seed)
        with progress("verification", len(verifiers) * (checks.reruns + len(points)), "runs") as advance:
            for verifier in verifiers:
                for rerun in _reruns(verifier, first, points, checks.reruns):
                    reruns.append(rerun)
                    advance(1)
                for point in points:
                    resumes.append(verifier.resume(point))
                    advance(1)
        if checks.minimal:
            parts = needed_state(script, first, points)
    document = {
        "script": str(script.script), "determinism": script.determinism, "seed": script.seed, "dropped": checks.drop,
        "ranks": script.ranks, "steps": len(first.reference.steps[0]),
        "equal": all(each["equal"] for each in (*reruns, *resumes)),
        "reruns": reruns, "resumes": resumes, "variance": None if checks.drop or checks.minimal else _variance(script, checks),
        "needed_state": parts, "same_with_workers": [each.workers for each in verifiers if each.is_like(first)],
        **{key: first.reference.document[key] for key in ("nondeterministic_ops", "entropy", "manifest")},
    }  # fmt: skip
    builtins: dict[str, Any] = msgspec.to_builtins(document)
    return builtins


def _reruns(verifier: Verifier, first: Verifier, points: Sequence[Point], count: int) -> Iterator[dict[str, Any]]:
    """Yield the results of `count` reruns. Checkpoints at `points` exist afterwards.

    If the number of worker processes does not change the steps, the checkpoints of `first` are used. A run then also resumes with
    another number of workers.
    """
    if verifier is not first:
        verifier.run_reference()
    if verifier is not first and verifier.is_like(first):
        verifier.saved_in = first.saved_in
        yield verifier.rerun()
    else:
        yield verifier.save_at(points)
    for _ in range(1, count):
        yield verifier.rerun()


def _variance(script: VerifiedScript, checks: Checks) -> dict[str, Any] | None:
    """Return the spread of the last loss over runs without determinism; None without two finite losses."""
    with ScriptRuns({}) as server:  # an environment that does not fix the hashes of strings
        verifier = Verifier(script, server, checks.workers[0])
        losses = [loss for _ in range(checks.reruns) if (loss := verifier.last_loss()) is not None]
    spread = relative_spread(losses)
    return None if spread is None else {"determinism": OFF, "relative_spread": spread, "runs": len(losses)}


def relative_spread(losses: Sequence[float]) -> float | None:
    """Return (largest - smallest value) / absolute mean. None for fewer than two values, or if the result is not finite."""
    if len(losses) < 2 or not all(map(math.isfinite, losses)):
        return None
    spread, mean = max(losses) - min(losses), abs(statistics.fmean(losses))
    if mean == 0:
        return None if spread else 0.0
    return spread / mean


def needed_state(script: VerifiedScript, verifier: Verifier, points: Sequence[Point]) -> list[str]:
    """Return the parts of the state that a resumed run needs, found at up to two of the points."""
    found: dict[str, None] = {}
    for point in points[len(points) // 3 :][:_MOST_POINTS_FOR_PARTS]:
        parts = [part for part in parts_of(script, verifier.saved_in, verifier.checkpoint(point)) if part not in found]
        found |= dict.fromkeys(needed(parts, partial(verifier.resumes_without, point)))
    return list(found)
