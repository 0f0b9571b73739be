"""The document of a verification: are reruns equal, are resumed runs equal, which state do they need."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import msgspec

from iotwin.common.progress import progress
from iotwin.workloads.detrain.verify.needed_state import needed, parts_of
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

    Raises IotwinError if the script fails when it runs on its own, and UsageError if it has no such batch as `resume_at` names.
    """
    with Verifier(script, checks.drop) as verifier:
        steps = verifier.run_reference()
        points = resume_points(checks.resume_at, steps, script.seed)
        reruns, resumes = [verifier.save_at(points)], []
        with progress("verification", checks.reruns - 1 + len(points) * len(checks.workers), "runs") as advance:
            for _ in range(1, checks.reruns):
                reruns.append(verifier.rerun())
                advance(1)
            for point, workers in product(points, checks.workers):
                resumes.append(verifier.resume(point, workers))
                advance(1)
        parts = _needed_state(script, verifier, points) if checks.minimal else None
        variance = verifier.variance(checks.reruns) if checks.drop is None and not checks.minimal else None
        document = {
            "script": str(script.script), "determinism": script.determinism, "seed": script.seed, "dropped": checks.drop,
            "equal": all(each["equal"] for each in (*reruns, *resumes)), "steps": len(steps),
            "reruns": reruns, "resumes": resumes, "variance": variance, "needed_state": parts,
            **{key: verifier.reference.document[key] for key in ("nondeterministic_ops", "entropy", "manifest")},
        }  # fmt: skip
    builtins: dict[str, Any] = msgspec.to_builtins(document)
    return builtins


def _needed_state(script: VerifiedScript, verifier: Verifier, points: Sequence[Point]) -> list[str]:
    """Return the parts of the state that a resumed run needs, at two of the points at most."""
    found: dict[str, None] = {}
    for point in points[len(points) // 3 :][:_MOST_POINTS_FOR_PARTS]:
        parts = [part for part in parts_of(script.script, verifier.saved_in, verifier.checkpoint(point)) if part not in found]
        found |= dict.fromkeys(needed(parts, partial(_resumes_without, verifier, point)))
    return list(found)


def _resumes_without(verifier: Verifier, point: Point, without: Sequence[str]) -> bool:
    return bool(verifier.resume(point, None, without)["equal"])
