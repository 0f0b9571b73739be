"""Run one command under the tracer."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from iotwin.common.errors import IotwinError
from iotwin.common.progress import note
from iotwin.common.units import counted
from iotwin.common.untrusted_files import read_foreign_end
from iotwin.trace_store.manifest import Manifest

if TYPE_CHECKING:
    from iotwin.tracing_tools.targets.storage_limits import LimitedCgroups

_SAMPLE_EVERY_NS = 200_000_000


def run_traced(
    command: list[str],
    directory: Path,
    workload: str,
    backend: str = "auto",
    page_faults: bool = False,
    limits: "LimitedCgroups | None" = None,
    prints_events: bool = True,
) -> Manifest:
    """Run `command` under the tracer, write the trace to `directory`, and return its manifest.

    `page_faults`: also record page faults of mapped files. `limits` apply to the command, not to the tracer.
    `prints_events`: print the number of events, which is always printed if some were lost.
    Raises IotwinError with the command's last line if the command fails. Raises KeyboardInterrupt if it was interrupted, after
    the tracer has interrupted the command and finished the trace.
    """
    from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command

    options = TraceOptions(backend, _SAMPLE_EVERY_NS, workload, forward_output=False)
    if page_faults:
        options = replace(options, detail=(*options.detail, "mmap"))
    manifest = trace_command(command, directory, options, limits)
    if any(text.startswith("interrupted") for text in manifest.notes):
        raise KeyboardInterrupt
    if manifest.exit_status != 0:
        last = read_foreign_end(directory / "logs" / "stderr").strip().splitlines()[-1:]
        raise IotwinError(f"the run failed with exit status {manifest.exit_status}: {''.join(last)}; see {directory}/logs")
    lost = f", {manifest.lost_events} LOST" if manifest.lost_events else ", none lost"
    if prints_events or manifest.lost_events:
        note(f"      {counted(manifest.events, 'event')} by {manifest.backend}{lost}")
    return manifest
