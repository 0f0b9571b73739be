"""The process that shows the live view, publishes metrics and watches for stalls.

It reads names and log lines that the job chose and that may be hostile, so it runs without root's rights, as the user who called
sudo.

It reads the files of the recording, whose file descriptors the recorder passes to it. So a slow, stopped or dead display does not
affect the recording.
"""

import contextlib
import io
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, cast

import numpy as np
from numpy.typing import NDArray

from iotwin.common.processes.process_settings import die_with_parent, name_process
from iotwin.common.progress import note
from iotwin.common.untrusted_files import decode_foreign
from iotwin.trace_store.raw.record_files import EVENTS_FILE, JOURNAL_FILE, NAMES_FILE, RAW
from iotwin.trace_store.raw.records import EVENT, whole_names
from iotwin.tracing_tools.recorder.live_phases import Lines
from iotwin.tracing_tools.recorder.live_tally import LiveTally
from iotwin.tracing_tools.recorder.live_view import LiveView, warm_up
from iotwin.tracing_tools.recorder.openmetrics import MetricsOutput, MetricsPage
from iotwin.tracing_tools.recorder.stall_watch import StallWatch
from iotwin.tracing_tools.recorder.unprivileged_process import fork_apart, leave_root
from iotwin.tracing_tools.targets.user import User

_EVENTS, _NAMES, _JOURNAL = f"{RAW}/{EVENTS_FILE}", f"{RAW}/{NAMES_FILE}", f"{RAW}/{JOURNAL_FILE}"
_LOGS = ("logs/stdout", "logs/stderr")
_FILES = (_EVENTS, _NAMES, _JOURNAL, *_LOGS)
_NOTE = b"\n"  # first byte of a message that is a note; other messages are names of files, each with a descriptor
_MESSAGE_BYTES = 1 << 16
_PIECE_ROWS = 1 << 18
_POLITENESS = 10  # nice(2) of a process that shows nothing
_END_S, _LAST_METRICS_S = 1.0, 10.0  # seconds that the display may take to end: without and with last metrics to publish
_STALLED = b"!"  # what the display sends if ranks stall
_SHOW_CURSOR = "\x1b[?25h\n"


@dataclass(frozen=True)
class LiveOutputs:
    """What to do with a growing recording: show it, publish it as metrics, watch it for stalls, or several of these."""

    is_shown: bool = False
    metrics: MetricsOutput | None = None
    stall: StallWatch | None = None


class LiveDisplay:
    """The recorder's side of the display: starts it, sends it the trace's files, and ends it, by the end of a `with` block."""

    def __init__(self, title: str, user: User | None, outputs: LiveOutputs) -> None:
        """Start the display process. Call this before eBPF maps exist, since the process would inherit them."""
        if outputs.is_shown:
            warm_up()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self._pid = fork_apart(lambda: _show(title, theirs, user, parent, outputs))
        theirs.close()
        if outputs.metrics is not None and outputs.metrics.listener is not None:
            outputs.metrics.listener.close()
        self._control.setblocking(False)
        # While the display is slow, it keeps all files open that it has not read, even those that a ring has removed.
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_BYTES // 4)
        self._end_s = _END_S if outputs.metrics is None else _LAST_METRICS_S
        self.is_shown, self._is_stalled = outputs.is_shown, False
        self._missing, self._folder = set(_FILES), RAW
        self._stderr = sys.stderr

    def __enter__(self) -> "LiveDisplay":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def watch(self, directory: Path, folder: str) -> None:
        """Send descriptors of the files that exist in the trace `directory`. From then on, notes appear above the tables.

        `folder`: the folder of the records within `directory`. If the last call had another `folder`, the files of this one
        continue the files of that one.
        """
        if folder != self._folder:
            self._missing, self._folder = self._missing | {_EVENTS, _NAMES, _JOURNAL}, folder
        if self.is_shown and sys.stderr is self._stderr and sys.stderr.isatty():
            sys.stderr = cast(TextIO, _NotesThroughDisplay(self._stderr, self._control))
        for name in sorted(self._missing, reverse=True):  # names come before the calls that need them
            with contextlib.suppress(OSError):  # the file does not exist yet, or the display has ended
                path = directory / (folder + name.removeprefix(RAW) if name.startswith(RAW) else name)
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    socket.send_fds(self._control, [name.encode()], [descriptor])
                    self._missing.remove(name)
                finally:
                    os.close(descriptor)

    def is_stalled(self) -> bool:
        """Return True if the display found that ranks stall."""
        with contextlib.suppress(OSError):
            self._is_stalled = self._is_stalled or self._control.recv(1) == _STALLED
        return self._is_stalled

    def end(self) -> int:
        """End the display. Return the CPU time in nanoseconds that it used, 0 if it had ended already."""
        if not self._pid:
            return 0
        sys.stderr = self._stderr
        is_stuck = False
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
            self._control.settimeout(self._end_s)
            try:
                while self._control.recv(1):  # until the display has closed its side
                    pass
            except TimeoutError:
                is_stuck = True
        if is_stuck:
            os.kill(self._pid, signal.SIGKILL)
        _, status, used = os.wait4(self._pid, 0)
        self._pid = 0
        self._control.close()
        if status:
            if sys.stderr.isatty():
                print(_SHOW_CURSOR, end="", file=getattr(sys.stderr, "behind", sys.stderr), flush=True)
            note("the live display ended early; the trace does not depend on it")
        return round((used.ru_utime + used.ru_stime) * 1e9)


class _NotesThroughDisplay:
    """Replaces sys.stderr while the display draws on the terminal. Notes go to the display, which prints them above tables."""

    def __init__(self, behind: TextIO, control: socket.socket) -> None:
        self.behind, self._control = behind, control

    def write(self, text: str) -> int:
        try:
            self._control.send(_NOTE + text.encode(errors="replace"))
        except OSError:
            self.behind.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)


def _show(title: str, control: socket.socket, user: User | None, parent: int, outputs: LiveOutputs) -> None:
    """Run in the display's process: become `user`, and show the content of the files until the recorder ends the display."""
    listener = outputs.metrics.listener if outputs.metrics else None
    kept = {control.fileno()} if listener is None else {control.fileno(), listener.fileno()}
    leave_root(user, kept, signal.SIG_IGN)  # the recorder reacts to Ctrl-C and SIGTERM
    if not outputs.is_shown:
        os.nice(_POLITENESS)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    name_process("iotwin-live")
    die_with_parent(parent, signal.SIGKILL)
    _Display(title, control, outputs).run()


class _Display:
    def __init__(self, title: str, control: socket.socket, outputs: LiveOutputs) -> None:
        self._control, self._stall = control, outputs.stall
        self._begun = select.poll()
        self._begun.register(control, select.POLLIN)
        self._begun.poll()  # wait until the first file arrives
        self._tally = LiveTally()
        self._view = LiveView(title, self._tally, outputs.is_shown)
        self._page = MetricsPage(outputs.metrics) if outputs.metrics else None
        self._lost: dict[str, int] = {}
        self._torn = b""  # the beginning of an incomplete name record
        self._readers: dict[str, _Growth] = {}
        self._takers: dict[str, tuple[np.dtype[Any], Callable[[NDArray[Any]], None]]] = {
            _EVENTS: (EVENT, self._tally.add_events),
            _NAMES: (np.dtype(np.uint8), self._add_names),
            _JOURNAL: (np.dtype(np.uint8), _line_taker(self._add_journal)),
            **{log: (np.dtype(np.uint8), _line_taker(self._view.phases.add_line)) for log in _LOGS},
        }

    def run(self) -> None:
        try:
            while self._heed():
                if self._view.due_s() <= 0:
                    self._read()
                    self._view.refresh(self._lost)
                    self._publish()
            if self._page is not None:
                self._read()
                self._publish()
        finally:
            self._view.close()

    def _publish(self) -> None:
        if self._page is not None:
            self._page.update(self._tally, self._lost)
        if self._stall is not None and self._stall.is_stalled(self._tally, time.monotonic_ns()):
            self._stall = None
            with contextlib.suppress(OSError):
                self._control.send(_STALLED)

    def _heed(self) -> bool:
        if not self._begun.poll(max(0.0, self._view.due_s()) * 1000):
            return True
        message, descriptors, _, _ = socket.recv_fds(self._control, _MESSAGE_BYTES, 1)
        if message.startswith(_NOTE):
            self._view.print_note(message[len(_NOTE) :].decode().rstrip("\n"))
        elif message:
            name = message.decode()
            if name in self._readers:  # a ring began a new segment, so the old one is complete
                self._read(*self._readers)
            self._readers[name] = _Growth(descriptors[0], self._takers[name][0])
        return bool(message)

    def _read(self, *names: str) -> None:
        """Read what was appended to the files. The names of files and processes come before the calls that need them."""
        sizes = {name: self._readers[name].rows() for name in sorted(names or self._readers)}  # the rows of events first
        for name in reversed(sizes):
            for piece in self._readers[name].pieces(sizes[name]):
                self._takers[name][1](piece)

    def _add_names(self, content: NDArray[Any]) -> None:
        names = self._torn + content.tobytes()
        whole = whole_names(names)
        self._tally.add_names(names[:whole])
        self._torn = names[whole:]

    def _add_journal(self, line: str) -> None:
        entry = decode_foreign(line.encode(), dict[str, Any], "the journal")
        if entry["kind"] == "ledger":
            self._lost = entry["lost"]


def _line_taker(take: Callable[[str], None]) -> Callable[[NDArray[Any]], None]:
    lines = Lines(take)
    return lambda content: lines.write(content.tobytes())


class _Growth:
    """Reads a growing file by memory maps. Read calls would appear in a trace of the whole machine."""

    def __init__(self, descriptor: int, dtype: np.dtype[Any]) -> None:
        self._file, self._dtype, self._rows = io.FileIO(descriptor), dtype, 0

    def rows(self) -> int:
        """Return the number of rows in the file."""
        return os.fstat(self._file.fileno()).st_size // self._dtype.itemsize

    def pieces(self, rows: int) -> Iterator[NDArray[Any]]:
        """Yield, in pieces, the rows up to the number `rows` that no earlier call yielded."""
        while self._rows < rows:
            count = min(rows - self._rows, _PIECE_ROWS)
            yield np.memmap(cast(Any, self._file), self._dtype, "r", self._rows * self._dtype.itemsize, (count,))
            self._rows += count
