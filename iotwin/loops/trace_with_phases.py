"""Open traces for pictures. If the job logged no phases, fit infers them from its reads and writes."""

from pathlib import Path

from iotwin.common.errors import IotwinError
from iotwin.trace_store.reader import Trace

_MOST_EVENTS = 10_000_000  # from more events, inferring phases would take too long for a picture


def open_with_phases(path: Path) -> Trace:
    """Return the trace at `path`, with inferred phases if the job logged none. Raises IotwinError if there is no trace."""
    from iotwin.benchmark.fit.inferred_phases import inferred_phases

    trace = Trace(path)
    if not trace.phases().empty or trace.manifest.events > _MOST_EVENTS or not trace.fits_in_memory:
        return trace
    try:
        return Trace(path, inferred_phases(trace))
    except IotwinError:
        return trace
