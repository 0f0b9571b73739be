"""Traces for pictures, with phases that fit infers from reads and writes if the job logged none."""

from pathlib import Path

from iotwin.common.errors import IotwinError
from iotwin.trace_store.reader import Trace

_MOST_EVENTS = 10_000_000  # above this, inferring phases takes too long for a picture


def open_with_passes(path: Path) -> Trace:
    """Return the trace at `path`, with the phases that fit infers if the job logged none. Raises IotwinError as Trace does."""
    from iotwin.benchmark.fit.inferred_phases import inferred_phases

    trace = Trace(path)
    if not trace.phases().empty or trace.manifest.events > _MOST_EVENTS:
        return trace
    try:
        return Trace(path, inferred_phases(trace))
    except IotwinError:
        return trace
