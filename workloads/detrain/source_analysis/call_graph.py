"""Follows the calls of a script from its first line to the calls that update weights, with the loops around each."""

import ast
from dataclasses import dataclass
from typing import NamedTuple

from iotwin.workloads.detrain.source_analysis.arguments import Keywords, arguments_of
from iotwin.workloads.detrain.source_analysis.inference import MOST_DEPTH, Inference
from iotwin.workloads.detrain.source_analysis.reaching_names import ReachingNames
from iotwin.workloads.detrain.source_analysis.scopes import FUNCTIONS
from iotwin.workloads.detrain.source_analysis.sinks import SinkKind, sink_of
from iotwin.workloads.detrain.source_analysis.values import (
    ActiveLoop,
    Argument,
    CallFrame,
    LocalClass,
    LocalFunction,
    LocalInstance,
    Outside,
    Value,
)

_MOST_FRAMES = 4000
_RUNNERS = ("start", "run", "__call__")  # methods of packages' base classes that call `run` of the subclass


@dataclass(frozen=True, eq=False)
class Sink:
    """A call that updates weights or computes gradients. `loops`: all loops around it, outermost first.

    `repeated`: a comprehension repeats the call. `within`: the sink whose called function contains this one, None if none does.
    """

    kind: SinkKind
    call: ast.Call
    frame: CallFrame
    loops: tuple[ActiveLoop, ...]
    repeated: bool
    within: "Sink | None" = None

    @property
    def line(self) -> int:
        """First line of the statement."""
        return self.frame.scope.module.statement(self.call).lineno


class _Around(NamedTuple):
    """The context of a call: all loops around it, outermost first; `repeated` and `within` as in Sink."""

    loops: tuple[ActiveLoop, ...] = ()
    repeated: bool = False
    within: Sink | None = None


class CallGraph:
    """All sinks that the script reaches. `dynamic`: lines at which it runs code that cannot be analysed."""

    def __init__(self, inference: Inference) -> None:
        self.inference = inference
        self.sinks: list[Sink] = []
        self.dynamic: list[str] = []
        self.frames: list[CallFrame] = []
        self.truncated = False
        self.unreached = False  # sinks were found only in functions without a known caller
        self._reaching = ReachingNames(inference.modules)
        self._active: list[object] = []
        self._done: set[CallFrame] = set()

    def follow(self) -> None:
        """Find the sinks. If the script's first line leads to none, start from every function of the script."""
        entry = self.inference.module_frame(self.inference.modules.entry)
        for module in self._reaching.run_at_import():
            self._walk(self.inference.module_frame(module), _Around())
        self._walk(entry, _Around())
        if not self.sinks:
            self._walk_all_functions(entry)

    def _walk_all_functions(self, entry: CallFrame) -> None:
        nodes = [each for each in entry.scope.module.nodes if isinstance(each, FUNCTIONS)]
        called = {name for node in entry.scope.module.nodes if isinstance(node, ast.Call) for name in _names(node.func)}
        for node in nodes:
            if isinstance(node, ast.Lambda) or node.name in called or not self._reaching.reached_by(node, entry.scope.module):
                continue
            function = self.inference.function(node, entry.scope.module, None)
            if function.scope.parent is entry.scope:
                self._walk(self.inference.frame_of(function, None, None, ([], [])), _Around())
        self.unreached = bool(self.sinks)

    def _walk(self, frame: CallFrame, around: _Around) -> None:
        if frame in self._done:
            return
        if len(self._done) >= _MOST_FRAMES or frame.depth > MOST_DEPTH:
            self.truncated = True
            return
        self._done.add(frame)
        self.frames.append(frame)
        self._active.append(frame.scope)
        for site in frame.scope.sites:
            loops = (*around.loops, *(ActiveLoop(each, frame) for each in site.loops))
            self._site(site.call, frame, _Around(loops, around.repeated or site.repeated, around.within))
        self._active.pop()

    def _site(self, call: ast.Call, frame: CallFrame, around: _Around) -> None:
        kind = sink_of(call, frame, self.inference)
        called = self.inference.called(call, frame)
        if kind is not None:
            sink = Sink(kind, call, frame, *around)
            self.sinks.append(sink)
            before = len(self.sinks)
            self._follow_calls(call, frame, called, around._replace(within=sink))
            if kind is SinkKind.GRADIENT and len(self.sinks) > before and any(isinstance(each, LocalFunction) for each in called):
                self.sinks.remove(sink)  # a local function of this name, whose own calls count
            return
        self._note_dynamic(call, called, frame)
        self._follow_calls(call, frame, called, around)

    def _follow_calls(self, call: ast.Call, frame: CallFrame, called: list[Value], around: _Around) -> None:
        for value in called:
            if isinstance(value, LocalFunction):
                self._enter(value, call, frame, arguments_of(call, frame), around)
            elif isinstance(value, LocalClass):
                instance = LocalInstance(value, call, frame)
                for method in self.inference.methods(instance, "__init__"):
                    self._enter(method, call, frame, arguments_of(call, frame), around)
        if not any(isinstance(each, LocalFunction | LocalClass) for each in called):
            self._follow_callbacks(call, frame, called, around)

    def _enter(
        self, function: LocalFunction, call: ast.Call, frame: CallFrame, given: tuple[list[Argument], Keywords], around: _Around
    ) -> None:
        if function.scope in self._active or not self._reaching.reached_by(function.scope.node, function.scope.module):
            return
        self._walk(self.inference.frame_of(function, call, frame, given), around)

    def _follow_callbacks(self, call: ast.Call, frame: CallFrame, called: list[Value], around: _Around) -> None:
        """Follow functions that are passed to a package's function, and the `run` of a thread or process that is started."""
        if any(isinstance(each, Outside) and each.path in ("builtins.map", "builtins.filter") for each in called):
            around = around._replace(repeated=True)
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        for position, argument in enumerate(given):
            if isinstance(argument, ast.Constant):
                continue
            for value in self.inference.values(argument, frame):
                if isinstance(value, LocalFunction):
                    self._enter(value, call, frame, _callback_arguments(call, position, frame), around)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _RUNNERS:
            for value in self.inference.values(call.func.value, frame):
                if isinstance(value, LocalInstance):
                    for method in self.inference.methods(value, "run"):
                        self._enter(method, call, frame, ([], []), around)

    def _note_dynamic(self, call: ast.Call, called: list[Value], frame: CallFrame) -> None:
        paths = {each.path for each in called if isinstance(each, Outside)}
        found = paths & {"builtins.exec", "runpy.run_path", "runpy.run_module"}
        if found and not (call.args and isinstance(call.args[0], ast.Constant) and not call.args[0].value):
            where = f"{frame.scope.module.path}:{call.lineno}"
            reason = f"{where}: {sorted(found)[0].removeprefix('builtins.')} runs code that is not read"
            self.dynamic += [reason] if reason not in self.dynamic else []


def _callback_arguments(call: ast.Call, position: int, frame: CallFrame) -> tuple[list[Argument], Keywords]:
    """Return the arguments that a package's function probably passes to a callback: `args=`, else those after the callback.

    `torch.multiprocessing.spawn` passes the rank first.
    """
    keywords = {each.arg: each.value for each in call.keywords}
    packed = keywords.get("args")
    follow = call.args[position + 1 :]
    if packed is None and len(follow) == 1 and isinstance(follow[0], ast.Tuple):
        packed = follow[0]
    if isinstance(packed, ast.Tuple | ast.List):
        rank: list[Argument] = [(ast.Constant(0), frame)] if ast.unparse(call.func).endswith("spawn") else []
        return [*rank, *((each, frame) for each in packed.elts)], []
    return [(each, frame) for each in follow if not isinstance(each, ast.Starred)], []


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} | {
        each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)
    }
