"""The result of fit: the twin, the origin of each value, and how much of the job the twin accounts for."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iotwin import workload_yaml as c
from iotwin.benchmark.fit.coverage import describe_coverage
from iotwin.common.html_card import html_card
from iotwin.common.units import counted
from iotwin.trace_store.manifest import Manifest
from iotwin.workload_yaml.recording import SUFFIX, TwinRecording, write_recording


@dataclass
class Fitted:
    """A twin, and the origin of each important value."""

    config: c.Config
    evidence: dict[str, str]
    files: list[tuple[str, int]]  # data-set files whose size was seen: name within their folder, bytes
    confidence: dict[str, dict[str, Any]] = field(default_factory=dict)  # by key of the YAML; see iotwin.benchmark.fit.confidence
    coverage: dict[str, Any] = field(default_factory=dict)  # see iotwin.benchmark.fit.coverage
    recording: TwinRecording | None = None  # goes into a file next to the YAML; None: the YAML needs none

    def write(self, path: str | os.PathLike[str], force: bool = False) -> None:
        """Write the twin's YAML to `path`, and its recording next to it, with another suffix.

        Raises UsageError if somebody edited the YAML that is there, unless `force` is True.
        """
        path = Path(path)
        if not force:
            c.check_unedited(path)
        if self.recording is not None and self.config.twin.recorded is not None:
            recording = path.with_suffix(SUFFIX)
            write_recording(self.recording, recording)
            self.config.twin.recorded.file = recording.name
        c.dump(self.config, path)

    def to_document(self) -> dict[str, Any]:
        """Return the twin as `iotwin fit --json` prints it, without its path."""
        return {
            "evidence": self.evidence, "confidence": self.confidence, "coverage": self.coverage,
            "assumptions": self.config.twin.assumptions,
        }  # fmt: skip

    def _covers(self) -> list[str]:
        return [describe_coverage(self.coverage)] if self.coverage else []

    def __repr__(self) -> str:
        edits = self.evidence.get("edits")
        return f"Twin({'; '.join([*([f'edits: {edits}'] if edits else []), *self._covers()])})"

    def _repr_html_(self) -> str:
        assumed = [f"assumed: {text}" for text in self.config.twin.assumptions]
        return html_card("Twin", [*self._covers(), *assumed], ("value", "in the trace"), self.evidence.items())


def failure(manifest: Manifest) -> str | None:
    """Return how the traced command failed, in words; None if it did not fail, or if this is unknown."""
    return f"the traced command ended with status {manifest.exit_status}" if manifest.exit_status else None


def loss_notes(manifest: Manifest) -> list[str]:
    """Return assumptions about what the trace lacks: the rest of a job that failed, and calls that were lost."""
    failed = failure(manifest)
    notes = [f"{failed}, so the twin is one of what it did until then"] if failed else []
    if manifest.lost_events:
        lost = ", ".join(f"{count} in {source}" for source, count in manifest.lost.items())
        notes.append(f"the trace lost {counted(manifest.lost_events, 'event')} ({lost}); counts may be too low")
    return notes
