"""``python -m iotwin.workloads.detrain.observed_loops``: run a script until its batch loop has iterated five times, and report.

The loops, the data call and the updates call an observer. `confirm` starts this program.
"""

import ast
import os
import re
import sys
import threading
import types
from pathlib import Path
from typing import Any

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.files import struct_json, write_whole
from iotwin.workloads.detrain.instrumentation import Instrumentation, read_instrumentation, shown_source
from iotwin.workloads.detrain.rewrite import session_call
from iotwin.workloads.detrain.script_program import ScriptProgram
from iotwin.workloads.detrain.source_analysis.local_modules import parsed
from iotwin.workloads.detrain.source_analysis.scopes import LOOPS

MOST_ITERATIONS = 5
_MOST_INTERRUPTS = 20  # after so many, the process is ended: the script catches every exception
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


class LoopObserver:
    """The session that an observed script calls: it counts iterations, data calls and updates."""

    def __init__(self, found: Instrumentation, report: Path) -> None:
        self._found, self._path = found, report
        self.report = LoopReport(sinks=[0] * len(found.sinks))
        self._epochs, self._loaders = 0, list[tuple[int, object]]()
        self._reads_before: int | None = None
        self._reads_alone = False
        self._reads: list[int | None] = []
        self._calls_after_end = 0
        self._lock = threading.Lock()

    # What the script calls

    def each(self, values: Any) -> "_ObservedIterator":
        """Return an iterator for a batch loop over `values`."""
        return _ObservedIterator(self, values)

    def turn(self) -> bool:
        """End the script if enough iterations ran, before the next batch is fetched. Returns True, for a condition of `while`."""
        if self.report.iterations >= MOST_ITERATIONS:
            self._stop("five iterations ran")
        return True

    def epoch(self) -> None:
        """Count an epoch."""
        self._epochs += 1

    def iteration(self) -> None:
        """Count an iteration of the batch loop."""
        self.turn()
        self.report.iterations += 1

    def fetching(self) -> None:
        """Begin a data call, and note the object that the loader's name means in the calling function."""
        loader, frame = self._found.loader, sys._getframe(1)
        if loader is not None and _DOTTED.fullmatch(loader.name):
            first, *rest = loader.name.split(".")
            value: Any = frame.f_locals.get(first, frame.f_globals.get(first))
            for name in rest:
                value = getattr(value, name, None)
            if value is not None:
                self._loaders.append((self._epochs, value))  # the reference keeps the address from being used again
        self.begin_reads()

    def begin_reads(self) -> None:
        """Begin to count read calls."""
        self._reads_alone = not _has_children()
        self._reads_before = _read_calls()

    def fetched(self, _: None, value: Any) -> Any:
        """End a data call that returned `value`, and return `value`."""
        after = _read_calls()
        known = after is not None and self._reads_before is not None and self._reads_alone and not _has_children()
        # Minus 1: reading the count is a read call too.
        self._reads.append(after - self._reads_before - 1 if known and after and self._reads_before else None)
        self.report.data += 1
        return value

    def updating(self, index: int, function: Any) -> Any:
        """Count a call of the sink `index`, and return the `function` that it calls."""
        if self._found.batch is None:
            self.report.sinks[index] += 1
            self._stop("the call was reached")
        self.report.sinks[index] += self.report.iterations > 0
        return function

    # The end

    def _stop(self, reason: str) -> None:
        """Write the report and end the script, which may catch the exception and come here again."""
        self._calls_after_end += 1
        if self._calls_after_end == 1:
            self.write(reason)
            timer = threading.Timer(_GRACE_S, os._exit, (0,))
            timer.daemon = True
            timer.start()
        if self._calls_after_end > _MOST_INTERRUPTS:
            os._exit(0)
        raise EnoughIterations

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


class _ObservedIterator:
    """Reports each batch of a `for` or `async for` to the observer."""

    def __init__(self, observer: LoopObserver, values: Any) -> None:
        self._observer = observer
        self._values: Any = aiter(values) if hasattr(values, "__aiter__") else iter(values)

    def __iter__(self) -> "_ObservedIterator":
        return self

    __aiter__ = __iter__

    def __next__(self) -> Any:
        self._observer.turn()
        self._observer.begin_reads()
        return self._observer.fetched(None, next(self._values))

    async def __anext__(self) -> Any:
        self._observer.turn()
        self._observer.begin_reads()
        return self._observer.fetched(None, await anext(self._values))


class _ObservedLines(ast.NodeTransformer):
    """Lets the loops, the data call and the sinks of one file call the observer.

    `for x in LOADER:` becomes `for x in observer.each(LOADER):`, a data call `observer.fetched(observer.fetching(), CALL)`, and
    the function of a sink `observer.updating(INDEX, FUNCTION)`.
    """

    def __init__(self, found: Instrumentation, path: Path) -> None:
        self._statement_line = 0
        self._loops = set[int]()
        self._batch, self._epoch = (line if line and line.file == str(path) else None for line in (found.batch, found.epoch))
        self._data = found.data if found.data and found.data.file == str(path) else None
        self._sinks = [(index, sink) for index, sink in enumerate(found.sinks) if sink.file == str(path)]
        self._lines = {line.line for line in (self._data, *(sink for _, sink in self._sinks)) if line is not None}

    def observed(self, tree: ast.Module) -> ast.Module:
        """Return the module with the calls. Raises IotwinError if a line no longer holds a loop."""
        self.visit(tree)
        for line in (self._batch, self._epoch):
            if line is not None and line.line not in self._loops:
                raise IotwinError(f"{line.file}:{line.line}: is no loop; discover the script again")
        return ast.fix_missing_locations(tree)

    def visit(self, node: ast.AST) -> Any:
        """Rewrite a node and all that it contains."""
        outer = self._statement_line
        line = self._statement_line = node.lineno if isinstance(node, ast.stmt) else outer
        is_data, calls = False, list[int]()
        if isinstance(node, ast.expr) and line in self._lines:
            here = line, shown_source(node)  # before the node is rewritten
            is_data = self._data is not None and here == (self._data.line, self._data.call)
            calls = [index for index, sink in self._sinks if here == (sink.line, sink.call)]
        self.generic_visit(node)
        self._statement_line = outer
        if isinstance(node, ast.Call):
            for index in calls:
                node.func = session_call("updating", ast.Constant(index), node.func)
        if isinstance(node, LOOPS):
            self._loop(node)
        return session_call("fetched", session_call("fetching"), node) if is_data and isinstance(node, ast.expr) else node

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        for line, method in ((self._batch, "iteration"), (self._epoch, "epoch")):
            if line is not None and node.lineno == line.line:
                self._loops.add(node.lineno)
                node.body.insert(0, ast.copy_location(ast.Expr(session_call(method)), node.body[0]))
        if self._batch is None or node.lineno != self._batch.line:
            return
        if isinstance(node, ast.While):
            node.test = ast.copy_location(ast.BoolOp(ast.And(), [session_call("turn"), node.test]), node.test)
        elif self._data is not None and self._data.line == node.lineno:
            node.iter = ast.copy_location(session_call("each", node.iter), node.iter)


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
        found = read_instrumentation(Path(instructions))
    except IotwinError as error:
        write_whole(Path(report), struct_json(LoopReport(ended=str(error))))
        return
    observer = LoopObserver(found, Path(report))
    files = {line.file for line in (found.batch, found.epoch, found.data, *found.sinks) if line is not None}
    program = ScriptProgram(files, lambda source, path: _ObservedLines(found, path).observed(parsed(source, path)), observer)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)

    def run_out() -> None:
        observer.write(f"{float(timeout):g} s passed")
        os._exit(0)

    timer = threading.Timer(float(timeout), run_out)
    timer.daemon = True
    timer.start()
    reason = "the script ended"
    try:
        program.execute(Path(script).resolve())
    except EnoughIterations:
        pass
    except BaseException as error:
        reason = f"the script ended by {type(error).__name__}: {error}".splitlines()[0]
    observer.write(reason)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # skips the script's atexit handlers


if __name__ == "__main__":
    main()
