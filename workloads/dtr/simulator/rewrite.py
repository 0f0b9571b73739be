"""Rewrites a log's graph for static planners: no views, one result per operator, no constants."""

from dataclasses import dataclass

from iotwin.common.errors import IotwinError
from iotwin.workloads.dtr.simulator.graph import Graph, GraphBuilder, Step


@dataclass(frozen=True)
class Rewritten:
    """A rewritten graph, the new index of each old tensor and operator (None if removed), and the bytes of removed constants."""

    graph: Graph
    tensors: list[int | None]
    operators: list[int | None]
    constant_bytes: int = 0


class _Rewriter:
    """Copies a graph, item by item of its schedule, into a new graph. The caller decides how each operator changes."""

    def __init__(self, graph: Graph) -> None:
        self.old, self.new = graph, GraphBuilder(output_bytes=graph.output_bytes)
        self.tensors: list[int | None] = [None] * graph.tensors
        self.operators: list[int | None] = [None] * graph.operators
        self.constant_bytes = 0

    def add(self, op: int, results: list[tuple[str, int, int]]) -> range:
        args = [new for t in self.old.arguments(op) if (new := self.tensors[t]) is not None]
        self.operators[op] = len(self.new.op_names)
        return self.new.add(
            self.old.op_names[op],
            int(self.old.op_cost[op]),
            args,
            results,
            bool(self.old.op_backward[op]),
            bool(self.old.op_constant[op]),
        )

    def results(self, op: int) -> list[tuple[str, int, int]]:
        """Return (name, size, alias) of each result of `op` in the old graph."""
        old = self.old
        return [(old.tensor_names[t], int(old.tensor_size[t]), int(old.tensor_alias[t])) for t in old.results(op)]

    def follow(self, step: Step, tensor: int) -> None:
        """Repeat a GET, PIN or RELEASE of the old tensor `tensor` for the new one, unless it was removed."""
        new = self.tensors[tensor]
        if new is not None:
            {Step.GET: self.new.get, Step.PIN: self.new.pin, Step.RELEASE: self.new.release}[step](new)

    def done(self) -> Rewritten:
        return Rewritten(self.new.build(), self.tensors, self.operators, self.constant_bytes)


def collapse_aliases(graph: Graph) -> Rewritten:
    """Return the graph without views: each view becomes a reference to the tensor that it is a view of.

    Raises IotwinError if an operator returns both views and new tensors.
    """
    rewriter = _Rewriter(graph)
    for step, operand in graph.items.tolist():
        if step != Step.COMPUTE:
            rewriter.follow(Step(step), operand)
            continue
        views = [t for t in graph.results(operand) if graph.tensor_alias[t] >= 0]
        if not views:
            for old, new in zip(graph.results(operand), rewriter.add(operand, rewriter.results(operand)), strict=True):
                rewriter.tensors[old] = new
            continue
        if len(views) < len(graph.results(operand)):
            raise IotwinError(
                f"operator '{graph.op_names[operand]}' returns both views and new tensors; its views cannot be collapsed"
            )
        for view in views:
            base = rewriter.tensors[graph.arguments(operand)[int(graph.tensor_alias[view])]]
            rewriter.tensors[view] = base
            rewriter.follow(Step.GET, view)
    return rewriter.done()


def merge_tuples(graph: Graph) -> Rewritten:
    """Return the graph with one result per operator, as large as all its results. Raises IotwinError if the graph has views."""
    rewriter = _Rewriter(graph)
    for step, operand in graph.items.tolist():
        if step != Step.COMPUTE:
            rewriter.follow(Step(step), operand)
            continue
        results = rewriter.results(operand)
        if any(alias >= 0 for _, _, alias in results):
            raise IotwinError("collapse aliases before merging the results of operators")
        merged = ("+".join(name for name, _, _ in results), sum(size for _, size, _ in results), -1)
        new = rewriter.add(operand, [merged])[0]
        for index, old in enumerate(graph.results(operand)):
            rewriter.tensors[old] = new
            if index:
                rewriter.new.get(new)
    return rewriter.done()


def eliminate_constants(graph: Graph) -> Rewritten:
    """Return the graph without constants, and their total bytes. Raises IotwinError if the graph has views."""
    if (graph.tensor_alias >= 0).any():
        raise IotwinError("collapse aliases before eliminating constants")
    rewriter = _Rewriter(graph)
    for step, operand in graph.items.tolist():
        if step != Step.COMPUTE:
            rewriter.follow(Step(step), operand)
        elif graph.op_constant[operand]:
            rewriter.constant_bytes += sum(size for _, size, _ in rewriter.results(operand))
        else:
            for old, new in zip(graph.results(operand), rewriter.add(operand, rewriter.results(operand)), strict=True):
                rewriter.tensors[old] = new
    return rewriter.done()


def rewrite_for_planners(graph: Graph) -> Rewritten:
    """Return the graph without views and constants, with one result per operator. The result's indices map those of `graph`."""
    whole = Rewritten(graph, list(range(graph.tensors)), list(range(graph.operators)))
    for rewrite in (collapse_aliases, merge_tuples, eliminate_constants):
        step = rewrite(whole.graph)
        whole = Rewritten(
            step.graph,
            [None if t is None else step.tensors[t] for t in whole.tensors],
            [None if op is None else step.operators[op] for op in whole.operators],
            whole.constant_bytes + step.constant_bytes,
        )
    return whole
