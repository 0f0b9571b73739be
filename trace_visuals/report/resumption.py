"""Describe how a run resumed from a checkpoint, as iotwin detrain run --log-phases logs it."""

import numpy as np

from iotwin.common.units import counted, format_duration
from iotwin.trace_store.logs.job_log import read_values
from iotwin.trace_visuals.moments import KILLED, RESTORE_PART, moments
from iotwin.trace_visuals.report.analysis import Analysis

_SECOND = 1e9
_LOAD_PART, _REPLAY_PART = "load", "replay"


def resumption(analysis: Analysis) -> tuple[str, str]:
    """Return the topic and sentences on kills and on the resumption; empty texts if the trace has none of these."""
    sentences = []
    killed = [each.time_ns for each in moments(analysis.trace) if each.what == KILLED]
    if killed:
        times = ", ".join(f"{(time_ns - analysis.zero_ns) / _SECOND:.3g} s" for time_ns in killed)
        sentences.append(f"A process was killed (SIGKILL) at {times}.")
    parts = analysis.trace.step_parts()
    names = np.array([]) if parts is None else parts["name"].astype(str).to_numpy()
    if parts is not None and RESTORE_PART in names:
        leading = (parts["rank"].fillna(0) == parts["rank"].fillna(0).min()).to_numpy()
        spent = {
            name: format_duration(int(parts["duration_ns"].to_numpy()[leading & (names == name)].sum()))
            for name in (_LOAD_PART, _REPLAY_PART, RESTORE_PART)
        }
        logged = read_values(sorted((analysis.trace.path / "logs").glob("*")))
        how = f" by {logged['resumed_by']}" if "resumed_by" in logged else ""
        text = f"The run resumed from a checkpoint{how}: reading it took {spent[_LOAD_PART]}, putting the state back"
        text += f" {spent[RESTORE_PART]}."
        if _REPLAY_PART in names:
            replayed = logged.get("replayed_batches", 0)
            text += f" {counted(int(replayed), 'earlier step')} read their batches again, in {spent[_REPLAY_PART]}."
        elif "skipped_batches" in logged:
            text += f" It skipped {counted(int(logged['skipped_batches']), 'earlier step')} without reading their batches."
        sentences.append(text)
    return ("Resumption", " ".join(sentences)) if sentences else ("", "")
