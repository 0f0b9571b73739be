"""Answer the questions of the report's first screen: what limits the job, what to change, and what it needs of storage."""

from collections.abc import Mapping
from typing import Any

from iotwin.trace_visuals.report.analysis import Analysis
from iotwin.trace_visuals.report.diagnosis import pace, required_rates

# The proposed change for each limit that a verdict names. If the limit is unknown, nothing is proposed.
_CHANGES = {
    "storage": "Let more loaders read at once, or serve the data from faster storage or from memory.",
    "loaders": "Start more loader processes, or reduce their CPU work for each sample. Faster storage would not help.",
    "compute": "Nothing about storage or loaders: the computation sets the pace.",
    "checkpoints": "Write checkpoints concurrently with training, less often, or to faster storage.",
    "start-up": "Shorten what happens before the first step; training itself does not wait for data.",
}


def answers_to(analysis: Analysis, verdict: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return (question, answer) pairs, the most urgent first. A question without an answer is left out.

    `verdict` names what limits the job. It has a `sentence`, `limited_by` and, if one was tested on the twin, a `change`.
    Without a verdict, the share of time in which the job waits answers the first question, and no change is proposed.
    """
    found = [("What limits it?", verdict["sentence"] if verdict else pace(analysis))]
    if analysis.trace.manifest.exit_status:
        found.insert(0, ("Did it work?", f"The command failed with exit status {analysis.trace.manifest.exit_status}."))
    if verdict:
        found.append(("What to change?", verdict.get("change") or _CHANGES.get(verdict["limited_by"], "")))
    found.append(("What does it need?", required_rates(analysis)))
    return [(question, answer) for question, answer in found if answer]
