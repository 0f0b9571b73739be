"""Warnings about the traces of a comparison: lost events, calls that only one trace captured, missing phases."""

from collections.abc import Sequence

from iotwin.common.units import counted
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.schema import GROUP_OF_OP
from iotwin.tracesim.calls import GROUPS
from iotwin.tracesim.phases import STARTUP
from iotwin.tracesim.profile import TraceProfile
from iotwin.tracesim.verdict.losses import lost_share


def common_groups(traces: Sequence[Trace]) -> frozenset[str]:
    """Return the operations (calls.GROUPS) that all traces captured. A trace that lists no probes captured all."""
    common = frozenset(GROUPS)
    for trace in traces:
        common &= _captured(trace) or common
    return common


def _captured(trace: Trace) -> frozenset[str]:
    """Return the operations of a trace's probes, which are listed as "read" or "tracepoint:syscalls:sys_enter_read"."""
    ops = {probe.rpartition("sys_enter_")[2] for probe in trace.manifest.probes}
    return frozenset(GROUP_OF_OP[op] for op in ops if op in GROUP_OF_OP)


def warnings_about(traces: Sequence[Trace], names: Sequence[str], without_phases: Sequence[str]) -> list[str]:
    """Return a sentence for each reason to doubt a comparison of these traces; caveats.py has further reasons.

    `without_phases` names the traces that have no training phases.
    """
    found = []
    for trace, name in zip(traces, names, strict=True):
        if share := lost_share(trace):
            found.append(f"{name} lost {counted(trace.manifest.lost_events, 'event')} ({share * 100:.2g} % of all)")
        if trace.manifest.status == "recovered":
            found.append(f"{name} was recovered from a recording that was cut off; its end may be missing")
    missing = sorted(frozenset(GROUPS) - common_groups(traces))
    if missing:
        found.append(f"not every trace captured {', '.join(missing)} calls; they are left out of all")
    if len({trace.manifest.backend for trace in traces}) > 1:
        backends = ", ".join(f"{name} {trace.manifest.backend}" for trace, name in zip(traces, names, strict=True))
        found.append(f"captured by different backends ({backends})")
    if without_phases:
        found.append(f"{', '.join(without_phases)} did not log phases; the runs are compared as one phase each")
    return found


def misplaced(profiles: Sequence[TraceProfile], names: Sequence[str]) -> list[str]:
    """Return a sentence for each trace whose calls are all outside its phases, perhaps because calls and log use different
    clocks.
    """
    found = []
    for profile, name in zip(profiles, names, strict=True):
        timed = profile.occurrences.phase != STARTUP
        if not profile.each.calls[timed].any():
            found.append(f"{name} has no call on its files in any phase; its log and its events may use different clocks")
    return found
