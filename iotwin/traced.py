"""Running one of our own commands under the tracer, for the loops that do so as one step of many."""

from pathlib import Path

from tracing_tools.trace.errors import IotwinError
from tracing_tools.trace.manifest import Manifest
from tracing_tools.trace.progress import note

_SAMPLE_EVERY_NS = 200_000_000


def run_traced(command: list[str], directory: Path, workload: str, backend: str = "auto") -> Manifest:
    """Run `command` under the tracer, its trace at `directory`, and return the manifest.

    Raises IotwinError with the command's last line when it fails, and KeyboardInterrupt when it was interrupted: the tracer
    passes that on to the command and finishes the trace.
    """
    from tracing_tools.capture import Options, trace_command

    options = Options(backend, _SAMPLE_EVERY_NS, workload, forward_output=False)
    manifest = trace_command(command, directory, options)
    if any(text.startswith("interrupted") for text in manifest.notes):
        raise KeyboardInterrupt
    if manifest.exit_status != 0:
        last = (directory / "logs" / "stderr").read_text(errors="replace").strip().splitlines()[-1:]
        raise IotwinError(f"the run failed with exit status {manifest.exit_status}: {''.join(last)}; see {directory}/logs")
    lost = f", {manifest.lost_events} LOST" if manifest.lost_events else ", none lost"
    note(f"      {manifest.events} events by {manifest.backend}{lost}")
    return manifest
