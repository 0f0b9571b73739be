"""``python -m iotwin.workloads.detrain.observed_loops``: run a script until its batch loop has iterated five times, and report.

Only the functions with a line of interest are traced. `confirm` starts this program.
"""

import ast
import ctypes
import os
import re
import runpy
import sys
import threading
import types
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.files import struct_json, write_whole
from iotwin.common.foreign_files import read_foreign
from iotwin.workloads.detrain.instrumentation import MOST_SOURCE_BYTES, Instrumentation, SourceLine, read_instrumentation
from iotwin.workloads.detrain.source_analysis.local_modules import parsed
from iotwin.workloads.detrain.source_analysis.scopes import LOOPS

MOST_ITERATIONS = 5
_MOST_INTERRUPTS = 20  # then the process is ended, as the script catches every exception
_GRACE_S = 3.0  # time for the script to end after an interrupt
_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


class LoopReport(msgspec.Struct):
    """What a run of the script showed. `sinks`: calls of each update within the loop; `reads`: system calls in all data calls.

    `persistent`: the loader was the same object in two epochs, None unless two epochs began. `is_generator`: the loader is a
    generator. `ended`: why the run ended. None: unknown.
    """

    iterations: int = 0
    data: int = 0
    sinks: list[int] = []
    reads: int | None = None
    persistent: bool | None = None
    is_generator: bool | None = None
    ended: str = ""


class EnoughIterations(BaseException):
    """Raised in the script to end it. No `except Exception` catches this."""


@dataclass(frozen=True)
class _Span:
    """The lines of a statement or of a loop's body, and the column at which it begins."""

    file: str
    first: int
    last: int
    column: int

    def begins_at(self, code: types.CodeType) -> int | None:
        """Return the offset of the first instruction of these lines in `code`, None if there is none."""
        if _resolved(code.co_filename) != self.file:
            return None
        for index, (line, _, column, _) in enumerate(code.co_positions()):
            if line is not None and self.first <= line <= self.last and (line, column or 0) >= (self.first, self.column):
                return 2 * index
        return None


class LoopObserver:
    """Counts iterations, data calls and updates by tracing."""

    def __init__(self, found: Instrumentation, report: Path) -> None:
        self._found, self._path = found, report
        self.report = LoopReport(sinks=[0] * len(found.sinks))
        lines = {line.file for line in (found.batch, found.epoch, found.data, *found.sinks) if line is not None}
        self._trees = {file: parsed(read_foreign(Path(file), MOST_SOURCE_BYTES), Path(file)) for file in lines}
        self._batch = self._loop(found.batch)
        self._epoch = self._loop(found.epoch)
        is_header = found.data is not None and found.batch is not None and found.data.line == found.batch.line
        self._data = None if found.data is None or is_header else self._statement(found.data)
        self._sinks = [self._statement(each) for each in found.sinks]
        self._epochs, self._loaders = 0, list[tuple[int, object]]()
        self._reads_before: int | None = None
        self._reads_alone = False
        self._reads: list[int | None] = []
        self._interrupts = 0
        self._codes: dict[types.CodeType, _Offsets | None] = {}
        self._enough = False
        self._lock = threading.Lock()

    # Where the lines are

    def _loop(self, line: SourceLine | None) -> tuple[_Span, _Span] | None:
        """Return the header and the body of the loop at a line."""
        if line is None:
            return None
        loops = [each for each in ast.walk(self._trees[line.file]) if isinstance(each, LOOPS) and each.lineno == line.line]
        if not loops:
            raise IotwinError(f"{line.file}:{line.line}: is no loop; discover the script again")
        node = loops[0]
        body = node.body[0]
        header = _Span(line.file, node.lineno, max(node.lineno, body.lineno - 1), node.col_offset)
        return header, _Span(line.file, body.lineno, node.body[-1].end_lineno or body.lineno, body.col_offset)

    def _statement(self, line: SourceLine) -> _Span:
        """Return the lines of the simple statement, or of the header of the compound statement, at a line."""
        found = [each for each in ast.walk(self._trees[line.file]) if isinstance(each, ast.stmt) and each.lineno == line.line]
        node = found[-1] if found else ast.Pass(lineno=line.line, end_lineno=line.line, col_offset=0)
        body = getattr(node, "body", None)
        last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno
        return _Span(line.file, node.lineno, last or node.lineno, node.col_offset)

    # Tracing

    def trace(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        """Trace the functions that contain one of the lines. Called by Python for each new frame."""
        code = frame.f_code
        if code not in self._codes:
            self._codes[code] = self._offsets(code)
        offsets = self._codes[code]
        if offsets is None:
            return None
        if offsets.on_one_line:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False

        def within(frame: types.FrameType, event: str, argument: Any) -> Any:
            if event in ("line", "opcode"):
                self._reached(frame, offsets)
            elif event == "return":
                self._end_data_call()
            return within

        return within

    def _offsets(self, code: types.CodeType) -> "_Offsets | None":
        if _resolved(code.co_filename) not in self._trees:
            return None
        batch = self._batch[1].begins_at(code) if self._batch else None
        epoch = self._epoch[1].begins_at(code) if self._epoch else None
        data = self._data.begins_at(code) if self._data else None
        sinks = [each.begins_at(code) for each in self._sinks]
        if all(each is None for each in (batch, epoch, data, *sinks)):
            return None
        header = self._batch[0] if self._batch and batch is not None else None
        on_one_line = batch is not None and self._batch is not None and self._batch[0].first == self._batch[1].first
        return _Offsets(batch, epoch, data, sinks, header, on_one_line)

    def _reached(self, frame: types.FrameType, offsets: "_Offsets") -> None:
        """Count the iteration, epoch, data call or update that begins at the next instruction."""
        at, line = frame.f_lasti, frame.f_lineno
        if self._enough:
            self._interrupt()
            return
        self._end_data_call()
        header = offsets.header
        if header is not None and header.first <= line <= header.last and at != offsets.batch:
            if self.report.iterations >= MOST_ITERATIONS:
                self._stop("five iterations ran")
                return
            if self._data is None:
                self._begin_data_call()
        if at == offsets.epoch:
            self._epochs += 1
        if at == offsets.batch:
            self._begin_iteration(frame)
        if at == offsets.data:
            self.report.data += 1
            self._note_loader(frame)
            self._begin_data_call()
        for index, offset in enumerate(offsets.sinks):
            if at == offset and (self.report.iterations or self._batch is None):
                self.report.sinks[index] += 1
                if self._batch is None:
                    self._stop("the call was reached")

    def _begin_iteration(self, frame: types.FrameType) -> None:
        if self.report.iterations >= MOST_ITERATIONS:
            self._stop("five iterations ran")
            return
        self.report.iterations += 1
        if self._data is None:
            self.report.data += 1
            self._note_loader(frame)

    def _begin_data_call(self) -> None:
        self._reads_alone = not _has_children()
        self._reads_before = _read_calls()

    def _end_data_call(self) -> None:
        if self._reads_before is not None:
            after = _read_calls()
            known = after is not None and self._reads_alone and not _has_children()
            # Minus 1: reading the count is a read call too.
            self._reads.append(after - self._reads_before - 1 if known and after else None)
            self._reads_before = None

    def _note_loader(self, frame: types.FrameType) -> None:
        loader = self._found.loader
        if loader is None or not _DOTTED.fullmatch(loader.name):
            return
        first, *rest = loader.name.split(".")
        value: Any = frame.f_locals.get(first, frame.f_globals.get(first))
        for name in rest:
            value = getattr(value, name, None)
        if value is not None:
            self._loaders.append((self._epochs, value))  # the reference keeps the address from being used again

    # The end

    def _stop(self, reason: str) -> None:
        self.write(reason)
        self._enough = True
        timer = threading.Timer(_GRACE_S, os._exit, (0,))
        timer.daemon = True
        timer.start()
        self._interrupt()

    def _interrupt(self) -> None:
        """Raise EnoughIterations in this thread at its next instruction. Unlike an exception here, that does not end tracing."""
        self._interrupts += 1
        if self._interrupts > _MOST_INTERRUPTS:
            os._exit(0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), ctypes.py_object(EnoughIterations))

    def write(self, reason: str) -> None:
        """Write the report, unless it has been written."""
        with self._lock:
            if self.report.ended:
                return
            report = self.report
            report.ended = reason
            known = [each for each in self._reads if each is not None]
            report.reads = sum(known) if known and len(known) == len(self._reads) else None
            objects = dict(self._loaders)
            if len(objects) > 1:
                report.persistent = len({id(value) for value in objects.values()}) == 1
            if objects:
                report.is_generator = any(isinstance(value, types.GeneratorType) for value in objects.values())
            write_whole(self._path, struct_json(report))


@dataclass(frozen=True)
class _Offsets:
    """Offsets of the instructions in a function at which an iteration, an epoch, the data call and the sinks begin."""

    batch: int | None
    epoch: int | None
    data: int | None
    sinks: list[int | None]
    header: _Span | None
    on_one_line: bool


@cache
def _resolved(file: str) -> str:
    return str(Path(file).resolve())


def _read_calls() -> int | None:
    """Return the number of read system calls of this process so far, None if it is unknown."""
    try:
        return int(dict(line.split(b": ") for line in _content("/proc/self/io").splitlines())[b"syscr"])
    except (OSError, KeyError, ValueError):
        return None


def _has_children() -> bool:
    """Return whether this process has child processes, which may read for it."""
    try:
        return any(_content(f"/proc/self/task/{thread}/children") for thread in os.listdir("/proc/self/task"))  # noqa: PTH208
    except OSError:
        return True


def _content(file: str) -> bytes:
    """Return the content of a file of /proc, by one read system call."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def main() -> None:
    """Run the script. Words of the command line: inst.json, report to write, limit in seconds, script and its arguments."""
    instructions, report, timeout, script, *arguments = sys.argv[1:]
    try:
        observer = LoopObserver(read_instrumentation(Path(instructions)), Path(report))
    except IotwinError as error:
        write_whole(Path(report), struct_json(LoopReport(ended=str(error))))
        return
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)

    def run_out() -> None:
        observer.write(f"{float(timeout):g} s passed")
        os._exit(0)

    timer = threading.Timer(float(timeout), run_out)
    timer.daemon = True
    timer.start()
    threading.settrace(observer.trace)
    sys.settrace(observer.trace)
    reason = "the script ended"
    try:
        runpy.run_path(script, run_name="__main__")
    except EnoughIterations:
        pass
    except BaseException as error:
        reason = f"the script ended by {type(error).__name__}: {error}".splitlines()[0]
    finally:
        sys.settrace(None)
        threading.settrace(None)
    observer.write(reason)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # skips the script's atexit handlers


if __name__ == "__main__":
    main()
