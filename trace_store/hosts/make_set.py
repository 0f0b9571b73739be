"""Make a set of the traces that the hosts of one job recorded: names, ranks, and the shifts between the hosts' clocks."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Literal

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.progress import note
from iotwin.trace_store import schema
from iotwin.trace_store.hosts.set_file import MAX_HOSTS, SetHost, write_set
from iotwin.trace_store.hosts.set_tables import logged_ranks, trace_of_host
from iotwin.trace_store.hosts.shifts import estimate_shifts
from iotwin.trace_store.manifest import MANIFEST_NAME, traces_in
from iotwin.trace_store.parquet_tables import TraceTables


def make_set(directory: Path, traces: Sequence[Path]) -> list[SetHost]:
    """Write `directory`/set.json for `traces`, by default all traces in `directory`, and return its hosts. Nothing is copied.

    Raises UsageError if there are too few or too many traces or `directory` is a trace, IotwinError if no trace can be read.
    """
    if (directory / MANIFEST_NAME).exists():
        raise UsageError(f"{directory} is a trace; choose another directory for the set")
    traces = traces or traces_in(directory)
    if not 0 < len(traces) <= MAX_HOSTS:
        raise UsageError(f"a set has 1 to {MAX_HOSTS} traces, not {len(traces)}; give the traces, or copy them into {directory}")
    hosts = set_of(directory, traces)
    if all(each.status == "missing" for each in hosts):
        raise IotwinError(f"none of the traces can be read: {hosts[0].note}")
    write_set(directory, hosts)
    return hosts


def set_of(directory: Path, traces: Sequence[Path]) -> list[SetHost]:
    """Return the hosts of a set of `traces`, whose paths become relative to `directory` if they are in it, else absolute.

    A trace that is unfinished, damaged, absent, or itself of several hosts counts as missing. A trace that occurs twice in
    `traces` counts as two hosts, with a note.
    """
    folder, paths = directory.resolve(), [path.parent.resolve() / path.name for path in traces]
    real = [path.resolve() for path in paths]
    if repeated := next((path for index, path in enumerate(traces) if real[index] in real[:index]), None):
        note(f"note: {repeated} is the same trace as another one of the set, and counts as another host")
    found: dict[int, TraceTables] = {}
    reasons: dict[int, str] = {}
    for index, path in enumerate(traces):
        try:
            found[index] = trace_of_host(path)
        except IotwinError as error:
            reasons[index] = str(error)
    names = _unique([found[index].manifest.host.hostname if index in found else path.stem for index, path in enumerate(traces)])
    shifts = dict(zip(found, estimate_shifts(list(found.values())), strict=True))
    ranks = dict(zip(found, _ranks(list(found.values())), strict=True))
    hosts = []
    for index, (name, path) in enumerate(zip(names, paths, strict=True)):
        stored = str(path.relative_to(folder) if path.is_relative_to(folder) else path)
        if index in reasons:
            hosts.append(SetHost(name, stored, 0, None, "none", "missing", [], note=reasons[index]))
            continue
        shift, manifest = shifts[index], found[index].manifest
        state: Literal["complete", "recovered"] = "complete" if manifest.status == "complete" else "recovered"
        begin_ns = shift.at(manifest.start_ns)
        hosts.append(SetHost(name, stored, begin_ns, shift.error_ns, shift.how, state, ranks[index], shift.knots, shift.note))
    return hosts


def _unique(names: list[str]) -> list[str]:
    """Return `names`, with a number added to each that occurred before."""
    unique: list[str] = []
    for name in names:
        numbered = (f"{name}-{number}" for number in count(2))
        unique.append(next(each for each in numbered if each not in (*names, *unique)) if name in unique else name)
    return unique


def _ranks(traces: list[TraceTables]) -> list[list[int]]:
    """Return the ranks of each host: those of its launched tasks, else those that it logged.

    If two hosts have the same rank, ranks count from 0 over all hosts instead: each host's rank 0 is another rank of the job.
    """
    logged = [logged_ranks(each) for each in traces]
    tasks = [sorted({task.rank for task in each.manifest.target.tasks}) for each in traces]
    for known in (tasks, logged):
        whole = [rank for own in known for rank in own if rank is not None]
        if all(known) and len(set(whole)) == sum(map(len, known)):
            return [[rank for rank in own if rank is not None] for own in known]
    ranks: list[list[int]] = []
    for own, each in zip(logged, traces, strict=True):
        processes = each.rows("processes", schema.PROCESSES)
        number = max(len(own), 0 if processes is None else processes["role"].to_pylist().count("rank"))
        first = sum(map(len, ranks))
        ranks.append(list(range(first, first + number)))
    return ranks
