"""Running one of our own commands under the tracer, for the loops that do so as one step of many."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import IotwinError
from common.progress import note
from tracing_tools.trace.manifest import Manifest

if TYPE_CHECKING:
    from tracing_tools.targets.limits import LimitedCgroups

_SAMPLE_EVERY_NS = 200_000_000


def run_traced(
    command: list[str],
    directory: Path,
    workload: str,
    backend: str = "auto",
    page_faults: bool = False,
    limits: "LimitedCgroups | None" = None,
    tells_events: bool = True,
) -> Manifest:
    """Run `command` under the tracer, its trace at `directory`, and return the manifest; with `page_faults` those of maps too.

    The command, not the tracer, is under `limits`. How many events there were is told with `tells_events`, or if some were lost.

    Raises IotwinError with the command's last line when it fails, and KeyboardInterrupt when it was interrupted: the tracer
    passes that on to the command and finishes the trace.
    """
    from tracing_tools.recorder.session import Options, trace_command

    options = Options(backend, _SAMPLE_EVERY_NS, workload, forward_output=False)
    if page_faults:
        options = replace(options, detail=(*options.detail, "mmap"))
    manifest = trace_command(command, directory, options, limits)
    if any(text.startswith("interrupted") for text in manifest.notes):
        raise KeyboardInterrupt
    if manifest.exit_status != 0:
        last = (directory / "logs" / "stderr").read_text(errors="replace").strip().splitlines()[-1:]
        raise IotwinError(f"the run failed with exit status {manifest.exit_status}: {''.join(last)}; see {directory}/logs")
    lost = f", {manifest.lost_events} LOST" if manifest.lost_events else ", none lost"
    if tells_events or manifest.lost_events:
        note(f"      {manifest.events} events by {manifest.backend}{lost}")
    return manifest
