"""The words under and over a picture: which trace, which machine, what was lost."""

from pathlib import Path

from iotwin.common.units import format_duration, format_size
from iotwin.trace_store.manifest import Host, Manifest


def trace_labels(paths: list[Path]) -> list[str]:
    """Return one short name per trace: the directory's, with as many parents as make the names unique."""
    resolved = [path.resolve() for path in paths]
    distinct = len(set(resolved))
    for depth in range(1, max(len(path.parts) for path in resolved) + 1):
        names = ["/".join(path.parts[-depth:]) for path in resolved]
        if len(set(names)) == distinct:
            break
    return [name if name not in names[:index] else f"{name} (again)" for index, name in enumerate(names)]


def counted(number: int, thing: str) -> str:
    """Return '1 call', '2,000 calls'."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def plain(text: str, most: int) -> str:
    """Return `text` for one line of a picture: at most `most` characters, the middle cut, control characters shown as '?'."""
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most - most // 2 - 1) :]}"


def command_line(manifest: Manifest) -> str:
    """Return the traced command, its program without directories, since directories describe the machine rather than the job."""
    command = manifest.target.command
    return " ".join([Path(command[0]).name, *command[1:]]) if command else ""


def machine_line(manifest: Manifest) -> str:
    """Return where and how the trace was taken: host, kernel, CPUs, memory, file system, backend."""
    return ", ".join([*machine_words(manifest.host), f"backend {manifest.backend}"])


def machine_words(host: Host) -> list[str]:
    """Return what is known of a machine: host, kernel, CPUs, memory, file system. Recordings of other tools may name none."""
    words = [
        host.hostname,
        f"Linux {host.kernel}" if host.kernel else "",
        f"{host.cpus} CPUs" if host.cpus else "",
        f"{format_size(host.memory_bytes)} memory" if host.memory_bytes else "",
        host.file_system,
    ]
    return [word for word in words if word]


def failure_line(manifest: Manifest) -> str:
    """Return that the traced command failed, or an empty string when it did not or had not ended."""
    return f"the command failed with exit status {manifest.exit_status}" if manifest.exit_status else ""


def loss_line(manifest: Manifest) -> str:
    """Return what is missing from the trace, or an empty string when nothing is known to be."""
    parts = []
    if manifest.lost_events:
        share = manifest.lost_events / (manifest.lost_events + manifest.events)
        sources = ", ".join(f"{count:,} {source}" for source, count in manifest.lost.items() if count)
        parts.append(f"{counted(manifest.lost_events, 'event')} LOST ({share:.2%}: {sources}): rates and busy shares are too low")
    if manifest.status == "recovered":
        parts.append("recovered after the recording was cut off: the end is missing")
    return "; ".join(parts)


def tracing_cost_line(manifest: Manifest) -> str:
    """Return what tracing cost, or an empty string when it was not measured."""
    cost = manifest.cost
    if not cost.wall_ns:
        return ""
    cpu, wall = format_duration(cost.tracer_cpu_ns), format_duration(cost.wall_ns)
    return f"tracer CPU {cpu} over {wall}, {cost.events_per_s:,.0f} events/s"
