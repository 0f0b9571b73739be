"""From a trace to its twin: what the job did to storage, found in the events, as a workload YAML that the emulator runs.

Phases that the job logged sharpen the answer but are not needed for training itself. What the trace cannot tell, the YAML lists
under ``twin.assumptions``.
"""

from benchmark.fit_stream import find_stream
from benchmark.twin_of_samples import fit_samples
from benchmark.twin_of_stream import fit_stream
from benchmark.twin_parts import Fitted
from tracing_tools.trace.reader import Trace


def fit(trace: Trace) -> Fitted:
    """Return the twin of the traced job; IotwinError, saying why, when the trace shows no training that can be emulated."""
    stream = find_stream(trace)
    return fit_samples(trace) if stream is None else fit_stream(trace, stream)
