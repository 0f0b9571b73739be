"""The verdict on a job: what limits its training, by how much, and when."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from iotwin.common.errors import IotwinError
from iotwin.common.units import format_duration
from iotwin.loops.answers.checkpoint_times import saving_share
from iotwin.loops.answers.training_view import TrainingView, training_view
from iotwin.trace_store.reader import Trace

# A job that waits for less is limited by its computation: two runs of one job differ by as much.
HARDLY = 0.05
_MOSTLY_STORAGE = 0.5  # share of the waits with a call on the data set under way, from which on storage is the cause
_MOSTLY_START_UP = 0.5  # share of the run before the first step, from which on start-up is what the run consists of
MOST_EVENTS = 5_000_000  # of a trace whose twin is fitted for a verdict, since fit holds all events in memory


@dataclass(frozen=True)
class Verdict:
    """`limited_by`: storage, loaders, compute, checkpoints, start-up or unknown. The window is in seconds of the trace."""

    limited_by: str
    sentence: str
    waiting_share: float | None = None
    begin_s: float | None = None
    end_s: float | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the verdict as a JSON document."""
        window = None if self.begin_s is None else {"phase": "training", "begin_s": self.begin_s, "end_s": self.end_s}
        return {
            "limited_by": self.limited_by, "waiting_share": self.waiting_share, "window": window, "sentence": self.sentence,
        }  # fmt: skip


def verdict_of(trace: Trace) -> Verdict:
    """Return the verdict on the traced job."""
    from iotwin.benchmark.fit import quiet_fit

    if trace.manifest.events > MOST_EVENTS:
        return Verdict("unknown", f"What limits the job is unknown: the trace has more than {MOST_EVENTS:,} events.")
    try:
        view = training_view(trace, quiet_fit(trace))
    except IotwinError as error:
        return Verdict("unknown", f"What limits the job is unknown: {str(error).removeprefix(f'{trace.path}: ')}.")
    return verdict_on(view)


def verdict_on(view: TrainingView | None) -> Verdict:
    """Return the verdict on the training in `view`; None stands for a trace that does not show the job's batches."""
    if view is None:
        return Verdict("unknown", "What limits the job is unknown: the trace does not show when a rank took which batch.")
    start_ns = view.trace.manifest.start_ns
    limited_by, reason = _cause(view)
    window = f"training, {format_duration(view.span_ns)} from second {(view.begin_ns - start_ns) / 1e9:.1f} on"
    sentence = f"Limited by {limited_by}: {reason} ({window})."
    return Verdict(limited_by, sentence, view.waiting_share, (view.begin_ns - start_ns) / 1e9, (view.end_ns - start_ns) / 1e9)


def _cause(view: TrainingView) -> tuple[str, str]:
    waiting, saving = view.waiting_share, saving_share(view)
    start_up = start_up_share(view)
    if saving > HARDLY and saving > waiting:
        return (
            "checkpoints",
            f"ranks spend {saving:.0%} of their time on writing checkpoints, and wait for data for {waiting:.0%}",
        )
    if waiting > HARDLY and view.storage_share >= _MOSTLY_STORAGE:
        return (
            "storage",
            f"ranks wait for data for {waiting:.0%} of their time, and storage is busy for {view.storage_share:.0%} of that",
        )
    if waiting > HARDLY:
        idle = f"storage is busy for only {view.storage_share:.0%} of that"
        return "loaders", f"ranks wait for data for {waiting:.0%} of their time, and {idle}"
    if start_up > _MOSTLY_START_UP:
        return "start-up", f"{start_up:.0%} of the run passed before the first step had its data"
    return "compute", f"ranks wait for data for {waiting:.1%} of their time, so faster storage would not help"


def start_up_share(view: TrainingView) -> float:
    """Return the share (0 to 1) of the run before a rank took its first batch."""
    manifest = view.trace.manifest
    whole = (manifest.end_ns or view.end_ns) - manifest.start_ns
    first = min(int(each.taken[0]) for each in view.training)
    return float(np.clip((first - manifest.start_ns) / max(whole, 1), 0, 1))
