"""The manifest of a set of hosts: sums over the hosts, and a row for each of them."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from iotwin.trace_store.hosts.set_file import SetHost
from iotwin.trace_store.manifest import Cost, Host, Manifest, MergedHost

_UNKNOWN = Host("", "", 0, 0, "")


def set_manifest(
    entries: Sequence[SetHost], found: Mapping[str, Manifest], spans: NDArray[np.int64], left_out: Mapping[str, str]
) -> Manifest:
    """Return the manifest of a set with the hosts `entries`. Target, machine and clock are those of the first host that is read.

    `found`: manifests by host. `spans`: start and end of each of these traces in ns on the set's clock, shape (n, 2).
    `left_out`: by host, why the others are not read.
    """
    manifests = list(found.values())
    first = manifests[0]
    labels = {m.workload for m in manifests}
    statuses = [m.exit_status for m in manifests if m.exit_status is not None]
    merged = Manifest(
        status="complete" if all(m.status == "complete" for m in manifests) else "recovered",
        backend="+".join(dict.fromkeys(m.backend for m in manifests)), host=first.host,
        target=first.target, tool_version=first.tool_version,
        probes=list(dict.fromkeys(probe for m in manifests for probe in m.probes)),
        notes=[*(f"{name} is left out: {reason}" for name, reason in left_out.items()), *_differences(found),
               *(f"{name}: {text}" for name, m in found.items() for text in m.notes)],
        clock=first.clock, start_ns=int(spans[:, 0].min()), end_ns=int(spans[:, 1].max()),
        events=sum(m.events for m in manifests), counts=_sum([m.counts for m in manifests]),
        lost=_sum([m.lost for m in manifests]), exit_status=next((s for s in statuses if s), 0 if statuses else None),
        workload=first.workload if len(labels) == 1 else None, parameters=first.parameters,
        hosts=[_host(each, found.get(each.host), left_out.get(each.host, "")) for each in entries],
    )  # fmt: skip
    seen = [m.seen for m in manifests if m.seen is not None]
    merged.seen = sum(seen) if len(seen) == len(manifests) else None
    wall_ns = merged.end_ns - merged.start_ns
    job_cpu = [m.cost.job_cpu_ns for m in manifests if m.cost.job_cpu_ns is not None]
    merged.cost = Cost(
        wall_ns,
        sum(m.cost.tracer_cpu_ns for m in manifests),
        sum(job_cpu) if len(job_cpu) == len(manifests) else None,
        round(merged.events / max(wall_ns, 1) * 1e9, 1),
    )
    return merged


def _differences(found: Mapping[str, Manifest]) -> list[str]:
    """Return a note for each fact that should be equal on all hosts of a job, but differs."""
    facts = {
        "kernels": [m.host.kernel for m in found.values()],
        "versions of the trace schema": [str(m.schema_version) for m in found.values()],
        "versions of iotwin": [m.tool_version for m in found.values()],
        "backends": [m.backend for m in found.values()],
    }
    notes = []
    for fact, values in facts.items():
        first_with: dict[str, str] = {}
        for value, host in zip(values, found, strict=True):
            first_with.setdefault(value, host)
        if len(first_with) > 1:
            each = ", ".join(f"{value or 'unknown'} ({host})" for value, host in first_with.items())
            notes.append(f"the hosts have different {fact}: {each}")
    return notes


def _host(entry: SetHost, manifest: Manifest | None, reason: str) -> MergedHost:
    if manifest is None:
        return MergedHost(entry.host, entry.trace, _UNKNOWN, 0, None, 0, 0, "none", "missing", [], reason)
    return MergedHost(
        entry.host, entry.trace, manifest.host, entry.shift_ns, entry.error_ns, manifest.events, manifest.lost_events,
        entry.how, entry.status, entry.ranks, entry.note,
    )  # fmt: skip


def _sum(counts: list[dict[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for each in counts:
        total.update(each)
    return dict(total)
