"""The conditions that end a recording before its target has ended: a duration, a signal, the job's failure."""

import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Literal

from iotwin.common.errors import UsageError
from iotwin.common.units import format_duration, parse_duration
from iotwin.trace_store.manifest import Manifest
from iotwin.tracing_tools.targets.target import TraceTarget

END_SIGNAL = signal.SIGUSR1
_STALL = re.compile(r"stall\s*>\s*(?P<share>\d*\.?\d+)\s*(?P<percent>%?)(?:\s+for\s+(?P<window>\S+))?")
_WINDOW = "10s"
_EXAMPLES = "write signal, failure or 'stall>0.3 for 10s'"


@dataclass(frozen=True)
class Until:
    """The condition of ``--until``. For `stall`: ranks wait for data for more than `share` of the last `window_ns`."""

    kind: Literal["signal", "failure", "stall"]
    share: float = 0.0
    window_ns: int = 0


def parse_until(text: str) -> Until:
    """Return the condition `text`: signal, failure, or stall>SHARE for TIME. Raises UsageError for any other text."""
    words = text.strip()
    if words in ("signal", "failure"):
        return Until("signal" if words == "signal" else "failure")
    found = _STALL.fullmatch(words)
    if found is None:
        raise UsageError(f"--until '{text}' is no condition; {_EXAMPLES}")
    share = float(found["share"]) / (100 if found["percent"] else 1)
    if not 0 <= share < 1:
        raise UsageError(f"--until '{text}': no job waits for more than all of the time; {_EXAMPLES}")
    window_ns = parse_duration(found["window"] or _WINDOW)
    if window_ns < 1_000_000_000:
        raise UsageError(f"--until '{text}': the time must be at least 1s; {_EXAMPLES}")
    return Until("stall", share, window_ns)


class RecordingEnd:
    """Decides whether a recording ends now, although its target goes on. SIGUSR1 counts within the `with` block."""

    def __init__(
        self, duration_ns: int | None, until: Until | None, target: TraceTarget, is_stalled: Callable[[], bool] | None = None
    ) -> None:
        self._duration_ns, self._until, self._target = duration_ns, until, target
        self._is_stalled = is_stalled if until is not None and until.kind == "stall" else None
        self._is_signalled = self._is_reached = False
        self._handler: Any = None
        if until is not None and until.kind == "failure" and not target.is_ours:
            raise UsageError("--until failure requires a command or a container that iotwin starts, whose exit status it learns")

    def __enter__(self) -> None:
        if self._until is not None and self._until.kind == "signal":
            self._handler = signal.signal(END_SIGNAL, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._is_signalled = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._handler is not None:
            signal.signal(END_SIGNAL, self._handler)

    def is_reached(self, manifest: Manifest) -> bool:
        """Return True if the recording ends now. The first time, a note in `manifest` gives the reason."""
        if not self._is_reached and (reason := self._reason(manifest)):
            self._is_reached = True
            manifest.notes.append(reason)
        return self._is_reached

    def _reason(self, manifest: Manifest) -> str | None:
        if self._duration_ns is not None and time.monotonic_ns() >= manifest.start_ns + self._duration_ns:
            return "the trace ended after the requested duration; its target continues"
        if self._is_signalled:
            return f"the trace ended at a {END_SIGNAL.name} (--until signal); its target continues"
        if self._is_stalled is not None and self._is_stalled():
            return f"the trace ended at a stall (--until '{self._text()}'); its target continues"
        is_awaited = self._until is not None and self._until.kind == "failure"
        if is_awaited and (status := self._target.failed_status()):
            return f"the trace ended at the command's failure, with exit status {status} (--until failure)"
        return None

    def missed(self) -> list[str]:
        """Return a note if the target ended, but the condition of --until never held."""
        if self._until is None or self._is_reached:
            return []
        return [f"the condition of --until ({self._text()}) never held: the trace ends with its target"]

    def _text(self) -> str:
        until = self._until
        if until is None or until.kind != "stall":
            return until.kind if until else ""
        return f"stall>{until.share:g} for {format_duration(until.window_ns)}"
