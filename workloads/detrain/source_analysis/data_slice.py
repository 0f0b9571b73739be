"""Follows the data of a loss backward to the place where each iteration of a loop gets it (a backward slice)."""

import ast
from collections.abc import Iterable, Iterator

from iotwin.workloads.detrain.source_analysis.arguments import default_of
from iotwin.workloads.detrain.source_analysis.batch_sources import BatchFlow, Source, Strength, called_source, is_counter
from iotwin.workloads.detrain.source_analysis.data_names import chooses_data, gets_data, is_parameter_list, names_loader
from iotwin.workloads.detrain.source_analysis.foreign_functions import ENUMERATE, iterated
from iotwin.workloads.detrain.source_analysis.inference import Inference
from iotwin.workloads.detrain.source_analysis.models import Models
from iotwin.workloads.detrain.source_analysis.reaching_bindings import dominates, reaching
from iotwin.workloads.detrain.source_analysis.scopes import COMPREHENSIONS, FOR_LOOPS, Binding
from iotwin.workloads.detrain.source_analysis.values import ActiveLoop, CallFrame, LocalFunction, LocalInstance, Outside

_MOST_STEPS = 20_000
_MOST_NESTED = 80


class DataSlice:
    """The slice of one loop."""

    def __init__(self, inference: Inference, models: Models, loop: ActiveLoop, frames: list[CallFrame]) -> None:
        """`frames`: all frames of the script, in which calls of methods are searched."""
        self._inference, self._models, self._loop = inference, models, loop
        self._frames = [each for each in frames if each is loop.frame or each.reached_from(loop.frame) is not None]
        self._open: set[tuple[int, int]] = set()
        self._known: dict[tuple[int, int], BatchFlow] = {}
        self._partial: dict[tuple[int, int], BatchFlow] = {}
        self._pinned: list[object] = []
        self._steps = self._cut = 0

    # The slice

    def of(self, expression: ast.expr, frame: CallFrame) -> BatchFlow:
        """Return what flows into an expression in each iteration."""
        key = (id(expression), id(frame))
        if key in self._known or key in self._partial:
            return self._known.get(key) or self._partial[key]
        if key in self._open:
            self._cut += 1
            return BatchFlow(counted=True)  # depends on its own value in the last iteration
        self._steps += 1
        if self._steps > _MOST_STEPS or len(self._open) > _MOST_NESTED:
            self._cut += 1
            return BatchFlow()
        self._open.add(key)
        self._pinned.append(expression)
        cut = self._cut
        found = self._of(expression, frame)
        self._open.discard(key)
        # A result that was cut off at an expression which is still being followed is valid only until that expression is done.
        (self._known if cut == self._cut or not self._open else self._partial)[key] = found
        if not self._open:
            self._partial.clear()
        return found

    def of_all(self, expressions: Iterable[ast.expr], frame: CallFrame) -> BatchFlow:
        """Return what flows into several expressions."""
        found = BatchFlow()
        for each in expressions:
            found.add(self.of(each, frame))
        return found

    def _of(self, node: ast.expr, frame: CallFrame) -> BatchFlow:
        match node:
            case ast.Name():
                return self._name(node, frame)
            case ast.Attribute():
                return self._attribute(node, frame)
            case ast.Subscript():
                return self._subscript(node, frame)
            case ast.Call():
                return self._call(node, frame)
            case ast.Constant() | ast.Lambda():
                return BatchFlow()
            case ast.NamedExpr() | ast.Await() | ast.Starred():
                return self.of(node.value, frame)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return self.of(node.elt, frame).add(self._pieces(node.generators[0].iter, frame))
        return self.of_all((each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)), frame)

    def _pieces(self, iterable: ast.expr, frame: CallFrame) -> BatchFlow:
        """Return what flows into the items of an iterable, without the counters."""
        flow = self.of(iterable, frame)
        return BatchFlow(flow.sources, False, flow.computed)

    # Names

    def _name(self, node: ast.Name, frame: CallFrame) -> BatchFlow:
        home = self._inference.home(node.id, frame)
        if home is None:
            return BatchFlow()
        bindings = home.scope.bindings[node.id]
        if bindings[0].kind == "parameter" and len(bindings) == 1:
            return self._parameter(node.id, home)
        inside = [each for each in bindings if each.kind != "parameter" and self._loop.contains(each.node, home)]
        if not inside:
            return self._parameter(node.id, home) if bindings[0].kind == "parameter" else BatchFlow()
        found = BatchFlow()
        chosen = reaching(node, inside, home.scope.module) if home is frame else inside
        for each in chosen:
            found.add(self._binding(each, home))
        if bindings[0].kind == "parameter" and not any(dominates(each, node, home.scope.module) for each in chosen):
            found.add(self._parameter(node.id, home))
        return found

    def _binding(self, binding: Binding, frame: CallFrame) -> BatchFlow:
        if binding.value is None:
            return BatchFlow()
        if binding.kind in ("for", "comprehension"):
            return self._target(binding, frame)
        value, path = binding.value, binding.path
        while path and isinstance(value, ast.Tuple | ast.List) and path[0] < len(value.elts):
            value, path = value.elts[path[0]], path[1:]
        flow = self.of(value, frame)
        return BatchFlow(flow.sources, True, flow.computed) if binding.kind == "augment" else flow

    def _target(self, binding: Binding, frame: CallFrame) -> BatchFlow:
        """Return what flows into the target of a loop or comprehension."""
        node = binding.node
        iterable, _ = self.looked_through(binding.value, binding.path, frame)  # type: ignore[arg-type]
        if iterable is None or is_counter(iterable, frame, self._inference):
            return BatchFlow(counted=True)
        if is_parameter_list(iterable):
            return BatchFlow()
        if node is self._loop.node and frame is self._loop.frame:
            return BatchFlow([Source(self._loop.node, frame, Strength.CLEAR)])  # type: ignore[arg-type]
        flow = self._pieces(iterable, frame)
        if flow.sources or isinstance(node, COMPREHENSIONS):
            return flow if flow.sources else BatchFlow(counted=True, computed=flow.computed)
        if self._loop.contains(node, frame) and isinstance(node, FOR_LOOPS):
            return BatchFlow([Source(node, frame, Strength.CLEAR if names_loader(ast.unparse(iterable)) else Strength.PLAIN)])
        return BatchFlow()

    def looked_through(
        self, iterable: ast.expr, path: tuple[int, ...], frame: CallFrame
    ) -> tuple[ast.expr | None, tuple[int, ...]]:
        """Return the iterable within enumerate, zip, tqdm and the like that yields the item at `path`; None for a counter."""
        for _ in range(10):
            if not isinstance(iterable, ast.Call) or not iterable.args:
                break
            names = [each.path for each in self._inference.called(iterable, frame) if isinstance(each, Outside)]
            name = names[0] if names else ast.unparse(iterable.func)  # a local progress bar is recognised by its name
            if name == ENUMERATE and path[:1] == (0,):
                return None, ()
            inner = iterated(name, iterable, path)
            if inner is None:
                break
            iterable, path = inner
        return iterable, path

    def _parameter(self, name: str, frame: CallFrame) -> BatchFlow:
        found = BatchFlow()
        for expression, caller in frame.arguments.get(name, []):
            found.add(self.of(expression, caller))
        if name not in frame.arguments:
            if frame.scope.owner is not None and frame.scope.parameters[:1] == [name]:
                return found
            if default_of(frame.scope, name) is None and isinstance(frame.call, ast.Call) and frame.caller is not None:
                return self.of_all([*frame.call.args, *(each.value for each in frame.call.keywords)], frame.caller)
        return found

    # Attributes

    def _attribute(self, node: ast.Attribute, frame: CallFrame) -> BatchFlow:
        found = self.of(node.value, frame)
        for value in self._inference.values(node.value, frame):
            if isinstance(value, LocalInstance):
                for binding, method in self._inference.assignments(value, node.attr):
                    for actual in self._frames_of(method):
                        if self._loop.contains(binding.node, actual) and not self._is_own_value(binding, node):
                            flow = self._binding(binding, actual)
                            # A buffer may have received results of the model before, but what it returns counts as data.
                            computed = flow.computed and binding.kind != "change"
                            found.add(BatchFlow(flow.sources, flow.counted, computed))
        return found

    def _is_own_value(self, binding: Binding, node: ast.Attribute) -> bool:
        return any(each is node for each in ast.walk(binding.value)) if binding.value is not None else False

    def _frames_of(self, method: CallFrame) -> list[CallFrame]:
        """Return the frames in which the loop runs a method: those that were followed, else one for each call of its name."""
        own = [each for each in self._frames if each.scope is method.scope]
        if own or method.call is not None:
            return own or [method]
        name = getattr(method.scope.node, "name", "")
        found = []
        for frame in self._frames:
            for site in frame.scope.sites:
                function = site.call.func
                if not isinstance(function, ast.Attribute) or function.attr != name or not self._loop.contains(site.call, frame):
                    continue
                for value in self._inference.called(site.call, frame):
                    if isinstance(value, LocalFunction) and value.scope is method.scope:
                        found.append(self._inference.call_frame(value, site.call, frame))
        return found

    # Subscripts and calls

    def _subscript(self, node: ast.Subscript, frame: CallFrame) -> BatchFlow:
        base = self.of(node.value, frame)
        if base.sources or base.computed:
            return base
        index = self.of(node.slice, frame)
        if not index.counted and not index.sources:
            return base.add(index)
        if is_parameter_list(node.value) or self._models.is_model(node.value, frame):
            return BatchFlow()
        if base.counted and isinstance(node.slice, ast.Constant):
            return base
        return BatchFlow([Source(node, frame, Strength.CLEAR, True)], False, index.computed)

    def _call(self, node: ast.Call, frame: CallFrame) -> BatchFlow:
        called = self._inference.called(node, frame)
        paths = [each.path for each in called if isinstance(each, Outside)]
        if "builtins.next" in paths and node.args:
            return self._next(node, frame)
        arguments = self.of_all([*node.args, *(each.value for each in node.keywords)], frame)
        if isinstance(node.func, ast.Attribute) and not self._is_fixed_owner(node.func, frame):
            arguments.add(self.of(node.func.value, frame))
        functions = [each for each in called if isinstance(each, LocalFunction)]
        callbacks = self._callbacks(node, frame)
        computes = self._models.computes(node, frame, paths)
        if arguments.clear and not self._is_lookup(node, frame, arguments):
            return arguments.add(BatchFlow(computed=computes))
        if computes or arguments.computed:
            return BatchFlow(arguments.sources, False, True).add(self._inner(functions, node, frame))
        inner = self._inner(functions, node, frame).add(callbacks)
        if inner.computed:
            return inner.add(BatchFlow(arguments.sources))
        if not self._loop.contains(node, frame):
            return BatchFlow()
        source = called_source(node, frame, paths, bool(functions), arguments, inner)
        return BatchFlow([source]) if source is not None else arguments.add(inner)

    def _is_fixed_owner(self, method: ast.Attribute, frame: CallFrame) -> bool:
        """Return whether a method belongs to a model, or to an object that lives longer than an iteration and delivers data."""
        if self._models.is_model(method.value, frame):
            return True
        return gets_data(method.attr) and self._persists(method.value, frame)

    def _persists(self, owner: ast.expr, frame: CallFrame) -> bool:
        """Return whether a name means the same object in all iterations: the loop may change this object, such as a buffer."""
        home = self._inference.home(owner.id, frame) if isinstance(owner, ast.Name) else None
        if home is None or not isinstance(owner, ast.Name):
            return False
        bindings = home.scope.bindings[owner.id]
        return not any(
            each.kind in ("parameter", "for") or (each.kind != "change" and self._loop.contains(each.node, home))
            for each in bindings
        )

    def _callbacks(self, node: ast.Call, frame: CallFrame) -> BatchFlow:
        """Return what flows into the results of local functions, such as a loss, that are passed to a function of a package."""
        found = BatchFlow()
        for argument in (*node.args, *([node.func] if isinstance(node.func, ast.Call) else [])):
            if isinstance(argument, ast.Name | ast.Attribute | ast.Lambda):
                for value in self._inference.values(argument, frame):
                    if isinstance(value, LocalFunction):
                        found.add(self._inner([value], node, frame))
        return found

    def _inner(self, functions: list[LocalFunction], node: ast.Call, frame: CallFrame) -> BatchFlow:
        found = BatchFlow()
        for function in functions:
            inner = self._inference.call_frame(function, node, frame)
            if inner.depth <= 30:
                found.add(self.of_all((*function.scope.returns, *function.scope.yields), inner))
        return found

    def _next(self, node: ast.Call, frame: CallFrame) -> BatchFlow:
        iterator = self.of(node.args[0], frame)
        if is_parameter_list(node.args[0]):
            return BatchFlow()
        if iterator.clear and not self._begins_anew(node.args[0], frame):
            return iterator
        return BatchFlow([Source(node, frame, Strength.CLEAR)]) if self._loop.contains(node, frame) else BatchFlow()

    def _begins_anew(self, iterator: ast.expr, frame: CallFrame) -> bool:
        """Return whether the loop makes the iterator from an object outside of the loop, as in `next(iter(loader))`."""
        for value in self._inference.values(iterator, frame):
            if (
                isinstance(value, Outside)
                and value.path == "builtins.iter()"
                and value.call is not None
                and value.frame is not None
            ):
                return not self.of(value.call.args[0], value.frame).clear
        return False

    def _is_lookup(self, node: ast.Call, frame: CallFrame, arguments: BatchFlow) -> bool:
        """Return whether the call gets a batch by an index or file name that a loop or a sampler yields."""
        name = ast.unparse(node.func).rpartition(".")[2]
        if not gets_data(name):
            return False
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if owner is not None and (self._models.is_model(owner, frame) or self.of(owner, frame).clear):
            return False
        return any(chooses_data(each) for argument in node.args for each in _names(argument))


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
