"""Captions of pictures and lines of tables: names of traces, the machine, hosts of a set, lost events, the cost of tracing."""

from pathlib import Path
from typing import Any

from iotwin.common.units import counted, format_duration, format_size
from iotwin.trace_store.manifest import Host, Manifest


def trace_labels(paths: list[Path]) -> list[str]:
    """Return a short name for each trace: the name of its directory, with as many parents as make the names unique."""
    resolved = [path.resolve() for path in paths]
    distinct = len(set(resolved))
    for depth in range(1, max(len(path.parts) for path in resolved) + 1):
        names = ["/".join(path.parts[-depth:]) for path in resolved]
        if len(set(names)) == distinct:
            break
    return [name if name not in names[:index] else f"{name} (again)" for index, name in enumerate(names)]


def plain(text: str, most: int) -> str:
    """Return `text` shortened to `most` characters by cutting its middle, with '?' for control characters."""
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most - most // 2 - 1) :]}"


def command_line(manifest: Manifest) -> str:
    """Return the traced command. Its program is shown without directories, since these depend on the machine, not on the job."""
    command = manifest.target.command
    return " ".join([Path(command[0]).name, *command[1:]]) if command else ""


def machine_line(manifest: Manifest) -> str:
    """Return the machine and backend of a trace: host, kernel, CPUs, memory, file system, backend."""
    return ", ".join([*machine_words(manifest.host), f"backend {manifest.backend}"])


def host_line(name: str, host: dict[str, Any], error_ns: int | None) -> str:
    """Return a line about a host of a set: status, clock shift and its error, the note, and if known its events and losses."""
    words = [host["status"]]
    if host["status"] != "missing":
        shift = f"{'-' if host['shift_ns'] < 0 else ''}{format_duration(abs(host['shift_ns']))}"
        error = "error unknown" if error_ns is None else f"±{format_duration(error_ns)} by {host['how']}"
        words.append(f"moved by {shift} ({error})")
        if "events" in host:
            words += [counted(host["events"], "event"), f"{host['lost']:,} LOST" if host["lost"] else "none lost"]
    return plain(f"{name}: {', '.join(words)}" + (f"; {host['note']}" if host["note"] else ""), 300)


def machine_words(host: Host) -> list[str]:
    """Return the known properties of a machine: host, kernel, CPUs, memory, file system. Imported traces may have none."""
    words = [
        host.hostname,
        f"Linux {host.kernel}" if host.kernel else "",
        f"{host.cpus} CPUs" if host.cpus else "",
        f"{format_size(host.memory_bytes)} memory" if host.memory_bytes else "",
        host.file_system,
    ]
    return [word for word in words if word]


def failure_line(manifest: Manifest) -> str:
    """Return a sentence if the traced command failed, else an empty string."""
    return f"the command failed with exit status {manifest.exit_status}" if manifest.exit_status else ""


def loss_line(manifest: Manifest) -> str:
    """Return the number of lost events and whether the trace's end is missing; an empty string if the trace is complete."""
    parts = []
    if manifest.lost_events:
        share = manifest.lost_events / (manifest.lost_events + manifest.events)
        sources = ", ".join(f"{count:,} {source}" for source, count in manifest.lost.items() if count)
        parts.append(f"{counted(manifest.lost_events, 'event')} LOST ({share:.2%}: {sources}): rates and busy shares are too low")
    if manifest.status == "recovered":
        parts.append("recovered after the recording was cut off: the end is missing")
    return "; ".join(parts)


def tracing_cost_line(manifest: Manifest) -> str:
    """Return the tracer's CPU time and event rate, or an empty string if they were not measured."""
    cost = manifest.cost
    if not cost.wall_ns:
        return ""
    cpu, wall = format_duration(cost.tracer_cpu_ns), format_duration(cost.wall_ns)
    return f"tracer CPU {cpu} over {wall}, {cost.events_per_s:,.0f} events/s"
