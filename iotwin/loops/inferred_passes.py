"""Traces as pictures want them: with the phases that fit tells from reads and writes, where the job logged none."""

from pathlib import Path

from common.errors import IotwinError
from tracing_tools.trace.reader import Trace

_MOST_EVENTS = 10_000_000  # more are not looked through for the sake of a picture


def open_with_passes(path: Path) -> Trace:
    """Open the trace at `path`; one without phases has those that fit tells, if it tells any. Raises IotwinError as Trace."""
    from benchmark.fit.inferred_phases import inferred_phases

    trace = Trace(path)
    if not trace.phases().empty or trace.manifest.events > _MOST_EVENTS:
        return trace
    try:
        return Trace(path, inferred_phases(trace))
    except IotwinError:
        return trace
