"""The test behind a verdict in a few sentences: how far the twin is from its job, and what the test would have noticed."""

from typing import Any

# Names of the document that are a statistician's, or need to be read twice.
_SAID = {
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
    """Return sentences of a test as JSON has it (Equivalence.to_document), with the names of the job and the twin."""
    said = []
    if test["distance_ratio"] is not None:
        interval = " (95 % interval {:.1f} to {:.1f})".format(*test["interval"]) if test["interval"] else ""
        said.append(
            f"{twin} is {test['distance_ratio']:.1f} times as far from {job} as reruns of {job} are from one another{interval}; "
            f"up to {test['margin']:.1f} times counts as alike"
        )
    tried = {
        noticed: [_SAID[name] for name, c in test["controls"].items() if c["noticed"] is noticed] for noticed in (True, False)
    }
    for noticed, what in ((True, "would be called different"), (False, "would not be noticed")):
        if tried[noticed]:
            said.append(f"faults put into {job} on purpose that {what}: {', '.join(tried[noticed])}")
    if test["distance_ratio"] is None and test["controls"]:
        scores = ", ".join(f"{_SAID[name]} {control['overall']:.3f}" for name, control in test["controls"].items())
        said.append(f"with a fault put into it on purpose, {job} scores: {scores}")
    least = {name: test["smallest_change_noticed"].get(name) for name in _LEAST_SHOWN}
    shown = [f"{100 * change:.0f} % of {name}" for name, change in least.items() if change is not None]
    if shown:
        said.append(f"smallest changes that would be noticed: {', '.join(shown)}")
    return said
