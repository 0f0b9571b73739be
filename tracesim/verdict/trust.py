"""What may be wrong with the traces themselves: losses, different capture, missing phases. Nothing of it passes silently."""

from collections.abc import Sequence

from tracesim.calls import GROUPS
from tracesim.phases import STARTUP
from tracesim.profile import Profile
from tracing_tools.trace.reader import Trace
from tracing_tools.trace.schema import GROUP_OF_OP

_LEAST_IDLE, _LEAST_OTHER = 0.1, 0.25  # shares of a machine's CPUs, for it to count as crowded
MOST_LOST = 0.01  # share of a trace's events; with more than that lost there is no score


def lost_share(trace: Trace) -> float:
    """Return the share of the trace's events that the tracer lost, in [0, 1]."""
    lost = trace.manifest.lost_events
    return lost / (lost + trace.manifest.events) if lost else 0.0


def common_groups(traces: Sequence[Trace]) -> frozenset[str]:
    """Return the operations of calls.GROUPS that every trace was set to capture; one that does not say counts as all."""
    common = frozenset(GROUPS)
    for trace in traces:
        common &= _captured(trace) or common
    return common


def _captured(trace: Trace) -> frozenset[str]:
    """Operations named by the trace's probes, such as read or tracepoint:syscalls:sys_enter_read; empty when it names none."""
    ops = {probe.rpartition("sys_enter_")[2] for probe in trace.manifest.probes}
    return frozenset(GROUP_OF_OP[op] for op in ops if op in GROUP_OF_OP)


def _others_cpus(trace: Trace) -> float:
    """Return how many CPUs' worth of time others than the job took while hardly any was idle; 0 when not so, or not known."""
    samples = trace.samples("cpu")
    cpus = trace.manifest.host.cpus
    if samples is None or samples.empty or samples["job_cpus"].isna().all():
        return 0.0
    idle = float((samples["idle"] + samples["iowait"]).mean())
    others = float(((samples["user"] + samples["system"]) * cpus - samples["job_cpus"]).mean())
    return others if idle < _LEAST_IDLE and others >= _LEAST_OTHER * cpus else 0.0


def warnings_about(traces: Sequence[Trace], names: Sequence[str], without_phases: Sequence[str]) -> list[str]:
    """Return one sentence for each thing that makes the comparison of these traces less sure."""
    found = []
    for trace, name in zip(traces, names, strict=True):
        if share := lost_share(trace):
            found.append(f"{name} lost {trace.manifest.lost_events} events ({share * 100:.2g} % of all)")
        if others := _others_cpus(trace):
            cpus = trace.manifest.host.cpus
            found.append(f"{name}'s machine was crowded (other work took {others:.1f} of {cpus} CPUs), which its times show")
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


def misplaced(profiles: Sequence[Profile], names: Sequence[str]) -> list[str]:
    """Return one sentence for each trace whose phases and calls do not meet, as when two clocks were mixed up."""
    found = []
    for profile, name in zip(profiles, names, strict=True):
        timed = profile.occurrences.phase != STARTUP
        if not profile.each.calls[timed].any():
            found.append(f"{name} has no call on its files in any phase; its log and its events may use different clocks")
    return found
