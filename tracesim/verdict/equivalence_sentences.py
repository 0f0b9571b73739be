"""Sentences about the test of equivalence: how far the twin is from the job, and which faults the test would notice."""

from typing import Any

# Plain words for the names of negative controls (wrong_twins.py).
_CONTROLS = {
    "order shuffled": "files in random order",
    "order sorted": "files in order of name",
    "times shuffled": "calls at random times",
    "sizes by marginals alone": "request sizes drawn at random",
    "computation halved": "half the computation",
}
_LEAST_SHOWN = (
    "time in training",
    "time in training without waits for data",
    "time in the whole run",
    "time in the whole run without waits for data",
    "bytes read from dataset files",
)


def sentences_of_test(test: dict[str, Any], job: str = "A", twin: str = "B") -> list[str]:
    """Return sentences about a `test`, the result of Equivalence.to_document; they call the traces `job` and `twin`."""
    sentences = []
    if test["distance_ratio"] is not None:
        interval = " (95 % interval {:.1f} to {:.1f})".format(*test["interval"]) if test["interval"] else ""
        sentences.append(
            f"{twin} is {test['distance_ratio']:.1f} times as far from {job} as reruns of {job} are from one another{interval}; "
            f"up to {test['margin']:.1f} times counts as alike"
        )
    tried = {
        noticed: [_CONTROLS[name] for name, c in test["controls"].items() if c["noticed"] is noticed] for noticed in (True, False)
    }
    for noticed, outcome in ((True, "would be called different"), (False, "would not be noticed")):
        if tried[noticed]:
            sentences.append(f"faults put into {job} on purpose that {outcome}: {', '.join(tried[noticed])}")
    if test["distance_ratio"] is None and test["controls"]:
        scores = ", ".join(f"{_CONTROLS[name]} {control['overall']:.3f}" for name, control in test["controls"].items())
        sentences.append(f"with a fault put into it on purpose, {job} scores: {scores}")
    least = {name: test["smallest_change_noticed"].get(name) for name in _LEAST_SHOWN}
    shown = [f"{100 * change:.0f} % of {name}" for name, change in least.items() if change is not None]
    if shown:
        sentences.append(f"smallest changes that would be noticed: {', '.join(shown)}")
    return sentences


def lines_of_caveats(caveats: list[str]) -> list[str]:
    """Return the lines that a command prints below a verdict."""
    return [f"caveat: {caveat}" for caveat in caveats]
