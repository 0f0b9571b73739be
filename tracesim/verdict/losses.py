"""The share of events that a tracer lost, and the share from which the score of a comparison is withheld."""

from iotwin.trace_store.reader import Trace

MOST_LOST = 0.01  # if a trace lost a larger share of its events, the score is withheld


def lost_share(trace: Trace) -> float:
    """Return the share of events that the tracer lost, in [0, 1]."""
    lost = trace.manifest.lost_events
    return lost / (lost + trace.manifest.events) if lost else 0.0
