"""Chooses the batch loop and the epoch loop among the loops around the calls that update weights."""

import ast
from dataclasses import dataclass, field

from iotwin.workloads.detrain.source_analysis.batch_sources import BatchFlow, Source, Strength, is_counter
from iotwin.workloads.detrain.source_analysis.call_graph import CallGraph, Sink
from iotwin.workloads.detrain.source_analysis.data_names import is_list_of_losses, is_parameter_list, names_loader
from iotwin.workloads.detrain.source_analysis.data_slice import DataSlice
from iotwin.workloads.detrain.source_analysis.foreign_functions import iterated
from iotwin.workloads.detrain.source_analysis.inference import Inference
from iotwin.workloads.detrain.source_analysis.models import Models
from iotwin.workloads.detrain.source_analysis.scopes import FOR_LOOPS
from iotwin.workloads.detrain.source_analysis.sinks import SinkKind
from iotwin.workloads.detrain.source_analysis.values import (
    ActiveLoop,
    Argument,
    CallFrame,
    Generator,
    LocalInstance,
    Outside,
    Value,
)


@dataclass(eq=False)
class BatchLoop:
    """A batch loop. `source`: where its batches come from; None if that is unknown, or the same data is used in each iteration.

    `guessed`: no data flow from the source to the loss was found. `epochs`: the next outer loops, one for each way to get here.
    """

    loop: ActiveLoop
    source: Source | None
    guessed: bool = False
    split: bool = False  # weights are updated once per pass, after the loop
    deciding: list[Sink] = field(default_factory=list)  # the sinks for which the loop was chosen
    sinks: list[Sink] = field(default_factory=list)  # all sinks within the loop
    epochs: list[ActiveLoop | None] = field(default_factory=list)


class LoopChoice:
    """The batch loops of a script."""

    def __init__(self, graph: CallGraph) -> None:
        self._graph, self.inference = graph, graph.inference
        self._models = Models(graph.inference)
        self._slices: dict[ActiveLoop, DataSlice] = {}

    def batch_loops(self) -> list[BatchLoop]:
        """Return the batch loops of all updates, one for each loop in the source, in the order in which the script gets there."""
        found: dict[ast.AST, BatchLoop] = {}
        for sink in self._deciding():
            chosen = self._chosen(sink)
            if chosen is None:
                continue
            known = found.setdefault(chosen.loop.node, chosen)
            if _is_better(chosen.source, known.source):
                known.source, known.loop, known.guessed = chosen.source, chosen.loop, chosen.guessed
            known.deciding.append(sink)
            epoch = self._epoch(chosen.loop, sink)
            if all((each and each.node) is not (epoch and epoch.node) for each in known.epochs):
                known.epochs.append(epoch)
        for chosen in found.values():
            within = [each for each in self._graph.sinks if chosen.loop.node in {loop.node for loop in each.loops}]
            chosen.sinks = within + [each for each in chosen.deciding if each not in within]
        return list(found.values())

    def slice(self, loop: ActiveLoop) -> DataSlice:
        """Return the data slice of a loop."""
        if loop not in self._slices:
            self._slices[loop] = DataSlice(self.inference, self._models, loop, self._graph.frames)
        return self._slices[loop]

    def _deciding(self) -> list[Sink]:
        """Return the sinks that decide about loops: updates; gradients only if the script updates no weights by a known call."""
        sinks = [each for each in self._graph.sinks if each.kind is not SinkKind.FRAMEWORK and each.loops]
        updates = [each for each in sinks if each.kind is SinkKind.UPDATE and not _is_within_update(each)]
        for kind in (SinkKind.GRADIENT, SinkKind.WEAK):
            updates = updates or [each for each in sinks if each.kind is kind]
        return updates

    def _chosen(self, sink: Sink) -> BatchLoop | None:
        loops = self._within_one_training(sink)
        weak: BatchLoop | None = None
        for depth in reversed(range(len(loops))):
            loop, outer = loops[depth], loops[:depth]
            inputs = self._inputs(loop)
            if not inputs or self._runs_over_parts(loop, outer):
                continue
            flow = BatchFlow()
            for expression, frame in inputs:
                flow.add(self.slice(loop).of(expression, frame))
            source = self._best(flow, loop)
            if source is not None and source.strength > Strength.RANDOM:
                if (
                    isinstance(source.node, FOR_LOOPS)
                    and self._is_loader(source.node.iter, source.frame)
                    and source.node is not loop.node
                ):
                    return BatchLoop(ActiveLoop(source.node, source.frame), source, split=True)
                if not self._is_piece(source, outer):
                    return BatchLoop(loop, source)
            elif weak is None and (source is not None or _counts_epochs(loop)):
                weak = BatchLoop(loop, source)
                if source is None:
                    break
        return weak or self._guess(loops, sink)

    def _guess(self, loops: list[ActiveLoop], sink: Sink) -> BatchLoop | None:
        """Return the innermost loop that computes a loss; else the innermost one that calls `next`; else the innermost one."""
        for loop in reversed(loops):
            if self._inputs(loop) and not self._runs_over_parts(loop, []):
                return BatchLoop(loop, None)
        for loop in reversed(loops):
            for site in loop.frame.scope.sites:
                if loop.node in site.loops and ast.unparse(site.call.func) == "next":
                    return BatchLoop(loop, Source(site.call, loop.frame, Strength.PLAIN), guessed=True)
        return BatchLoop(loops[-1], None, guessed=True) if loops else None

    def _within_one_training(self, sink: Sink) -> list[ActiveLoop]:
        """Return the loops around a sink that repeat steps of one training: those in which the optimizer is not made anew."""
        made = [] if sink.kind is not SinkKind.UPDATE else list(self._made_at(sink))
        loops = list(sink.loops)
        for index in reversed(range(len(loops))):
            if any(loops[index].contains(call, frame) for call, frame in made):
                return loops[index + 1 :] or loops
        return loops

    def _made_at(self, sink: Sink) -> list[tuple[ast.Call, CallFrame]]:
        function = sink.call.func
        owners = [function.value] if isinstance(function, ast.Attribute) else []
        found = []
        for owner in (*owners, *sink.call.args[:1]):
            for value in self.inference.values(owner, sink.frame):
                if isinstance(value, Outside | LocalInstance) and value.call is not None and value.frame is not None:
                    found.append((value.call, value.frame))
        return found

    def _inputs(self, loop: ActiveLoop) -> list[Argument]:
        """Return the losses from which gradients are computed within the loop, and the arguments of updates."""
        found: list[Argument] = []
        steps: list[Argument] = []
        for each in self._graph.sinks:
            if loop.node not in {around.node for around in each.loops} or each.kind is SinkKind.FRAMEWORK:
                continue
            if not _is_around(loop, each):
                continue
            function = each.call.func
            given = [*each.call.args, *(keyword.value for keyword in each.call.keywords)]
            if each.kind is SinkKind.UPDATE:
                is_step = isinstance(function, ast.Attribute) and function.attr == "step"
                (steps if is_step else found).extend((argument, each.frame) for argument in given)
            else:
                owner = [function.value] if isinstance(function, ast.Attribute) else []
                found += [(argument, each.frame) for argument in (*owner, *given)]
        return found or steps  # arguments of `step` count only if no loss was found

    def _runs_over_parts(self, loop: ActiveLoop, outer: list[ActiveLoop]) -> bool:
        """Return whether a `for` iterates over parameters, optimizers, models, or losses of one batch."""
        node = loop.node
        if not isinstance(node, FOR_LOOPS):
            return False
        iterable, _ = self.slice(loop).looked_through(node.iter, (), loop.frame)
        is_loader = iterable is None or names_loader(ast.unparse(iterable))
        if not is_loader and iterable is not None and (is_parameter_list(iterable) or is_list_of_losses(iterable)):
            return True
        if iterable is None or is_counter(iterable, loop.frame, self.inference):
            return False
        return any(self.slice(each).of(node.iter, loop.frame).computed for each in outer)

    def _is_piece(self, source: Source, outer: list[ActiveLoop]) -> bool:
        """Return whether the source delivers a piece of a batch that an outer loop gets from a loader."""
        base = source.node.iter if isinstance(source.node, FOR_LOOPS) else source.node
        if isinstance(base, ast.Subscript):
            base = base.value
        elif isinstance(source.node, FOR_LOOPS):
            iterable, _ = self.slice(ActiveLoop(source.node, source.frame)).looked_through(base, (), source.frame)
            if iterable is None or self._is_loader(iterable, source.frame):
                return False
        else:
            return False
        for loop in outer:
            for each in self.slice(loop).of(base, source.frame).sources:
                if isinstance(each.node, FOR_LOOPS) and self._is_loader(each.node.iter, each.frame):
                    return True
        return False

    def _is_loader(self, iterable: ast.expr, frame: CallFrame) -> bool:
        paths = [each.path for each in self.inference.values(iterable, frame) if isinstance(each, Outside)]
        return any("DataLoader" in path for path in paths) or names_loader(ast.unparse(iterable))

    def _best(self, flow: BatchFlow, loop: ActiveLoop) -> Source | None:
        """Return the best source: the loop itself, else the one with the strongest evidence, else the first in the code."""
        ranked = sorted(
            flow.sources,
            key=lambda each: (each.node is not loop.node, -each.strength, each.frame is not loop.frame, each.node.lineno),
        )
        return ranked[0] if ranked else None

    def _epoch(self, loop: ActiveLoop, sink: Sink) -> ActiveLoop | None:
        loops = self._within_one_training(sink)
        nodes = [each.node for each in loops]
        if loop.node not in nodes:  # the weights are updated after the loop: in the loop around it
            return loops[-1] if loops else None
        depth = nodes.index(loop.node)
        return loops[depth - 1] if depth else None

    def loader_of(self, source: Source) -> Argument:
        """Return the expression of the object that yields the batches, within enumerate, iter, tqdm and the like."""
        node, frame = source.node, source.frame
        if isinstance(node, FOR_LOOPS):
            iterable, _ = self.slice(ActiveLoop(node, frame)).looked_through(node.iter, (), frame)
            expression = _without_zip(iterable or node.iter, frame, self.inference)
            expression = self.slice(ActiveLoop(node, frame)).looked_through(expression, (), frame)[0] or expression
        elif isinstance(node, ast.Subscript):
            return node.value, frame
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "next" and node.args:
            expression = node.args[0]
        elif isinstance(node, ast.Call):
            of_object = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) != "self"
            return (node.func.value if of_object and isinstance(node.func, ast.Attribute) else node.func), frame
        else:
            return node, frame
        for _ in range(5):
            inner = next((each for each in map(_wrapped, self.inference.values(expression, frame)) if each is not None), None)
            if inner is None or isinstance(inner[0], ast.Call):  # a variable is clearer than the call it comes from
                break
            expression, frame = inner
        return expression, frame

    def is_made_within(self, expression: ast.expr, frame: CallFrame, loop: ActiveLoop) -> bool:
        """Return whether the value of an expression is made within an iteration of the loop."""
        if isinstance(expression, ast.Call) and loop.contains(expression, frame):
            return True
        for value in self.inference.values(expression, frame):
            if isinstance(value, Outside | LocalInstance | Generator) and value.call is not None:
                return loop.contains(value.call, value.frame)
        if isinstance(expression, ast.Name):
            home = self.inference.home(expression.id, frame)
            if home is not None:
                if given := home.arguments.get(expression.id):
                    return any(self.is_made_within(*each, loop) for each in given)
                return any(
                    loop.contains(each.node, home) for each in home.scope.bindings[expression.id] if each.kind != "parameter"
                )
        return False


def _without_zip(iterable: ast.expr, frame: CallFrame, inference: Inference) -> ast.expr:
    """Return the first argument of `zip` that does more than count; other iterables as they are."""
    if isinstance(iterable, ast.Call) and ast.unparse(iterable.func) == "zip":
        data = [each for each in iterable.args if not is_counter(each, frame, inference)]
        loaders = [each for each in data if names_loader(ast.unparse(each))]
        return (loaders or data or [iterable])[0]
    return iterable


def _wrapped(value: Value) -> Argument | None:
    """Return the argument whose items a wrapper such as `iter(...)` yields; None if the value is no wrapper."""
    if not isinstance(value, Outside) or value.call is None or value.frame is None or not value.path.endswith("()"):
        return None
    name = value.path.removesuffix("()")
    inner = iterated(name, value.call, ()) if name not in ("builtins.list", "builtins.tuple") else None
    return (inner[0], value.frame) if inner is not None else None


def _is_better(source: Source | None, other: Source | None) -> bool:
    return source is not None and (other is None or source.strength > other.strength)


def _is_within_update(sink: Sink) -> bool:
    within = sink.within
    while within is not None and within.kind is not SinkKind.UPDATE:
        within = within.within
    return within is not None


def _is_around(loop: ActiveLoop, sink: Sink) -> bool:
    return any(each.node is loop.node and each.frame is loop.frame for each in sink.loops)


def _counts_epochs(loop: ActiveLoop) -> bool:
    """Return whether a loop's header mentions epochs, so that each of its iterations is a pass over all data."""
    node = loop.node
    parts = [node.test] if isinstance(node, ast.While) else [node.target, node.iter]
    return any("epoch" in ast.unparse(each).lower() for each in parts)
