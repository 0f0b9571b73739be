"""Optimises a profile and describes the plan as a JSON document; evaluates other partitions by the same formulas."""

from dataclasses import dataclass, replace
from typing import Any

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.progress import note
from iotwin.workloads.pipedream.plan.costs import CostOptions, Costs, Points, chain_points, points_of, sent_bytes
from iotwin.workloads.pipedream.plan.layer_graph import LayerGraph, bits
from iotwin.workloads.pipedream.plan.optimizer import Solution, Split, arrange, plan_seconds, solve
from iotwin.workloads.pipedream.plan.prepare import folded, runs_of, without_inputs
from iotwin.workloads.pipedream.plan.states.antichains import MOST_STATES, TooManyStates, some_states_of, states_from, states_of
from iotwin.workloads.pipedream.plan.states.lattice import count_states, useful_states
from iotwin.workloads.policies.pipeline import PipelinePlan, Stage

# If every worker must be used, a graph of at most this many states is also searched without folding (prepare.py).
_MOST_UNFOLDED = 600
# The exact search tries all pairs of states. With several levels of machines, it takes at most this many states.
_MOST_OF_LEVELS = 2_000
# With one level, the exact search tries the pairs of all states of a graph with at most this many states. Of larger graphs, it
# gets only the states at which a plan can be cut that is as good as the best one known (useful_states).
_MOST_PAIRS = 500
_MOST_USEFUL = 4_000_000  # most states of a graph from which useful ones are selected; their selection takes 1 GiB
# The same limit on states times pairs (units, replicas); this selection takes minutes.
_MOST_STEPS = 60_000_000
_SAMPLE = 600  # states in a search of only some states


@dataclass(frozen=True)
class Optimized:
    """The best plan found, the graph with a stage for each node, and the JSON document that describes both."""

    plan: PipelinePlan
    partition: LayerGraph
    document: dict[str, Any]


def optimize(
    graph: LayerGraph, options: CostOptions, fold: bool | None = None, in_flight: int | None = None, sha256: str = ""
) -> Optimized:
    """Return the fastest plan for a profile. Raises IotwinError if no plan fits into the memory or the required workers.

    `fold`: True folds the graph (prepare.py). None folds it and, if all workers must be used, also searches the unfolded graph
    for a faster plan. `in_flight` limits the minibatches in flight per rank of stage 0. `sha256`: digest of the profile's file.
    """
    whole = without_inputs(graph)
    if not whole.nodes:
        raise UsageError(f"{graph.name} has only inputs; there is nothing to optimise")
    kept = whole if fold is False else folded(whole)
    found, unfolded = _searched(kept, options), None
    if fold is None and options.all_workers and found.complete and len(kept.nodes) < len(whole.nodes):
        wide = points_of(whole, states_of(whole))
        unfolded = wide.last
        other = _Found(solve(wide, options), wide, unfolded, True) if unfolded <= _MOST_UNFOLDED else found
        if other.best.seconds < found.best.seconds:
            found, kept = other, whole
    best, points = found.best, found.points
    partition = _with_stages(graph, kept, points, best)
    plan = plan_of(partition, kept, points, options, best.levels)
    plan = replace(plan, origin={**plan.origin, "graph_sha256": sha256, "cost_model": options.cost_model})
    if in_flight is not None:
        plan = _limited(plan, in_flight)
    head = {"graph": graph.name, "sha256": sha256, "states": unfolded or found.states}
    head |= {"folded_states": found.states, "complete": found.complete}
    return Optimized(plan, partition, head | _document(found, options, plan))


@dataclass(frozen=True)
class _Found:
    """The fastest plan with cuts in `points`. `states`: number of the graph's states. `complete`: True if no plan is faster."""

    best: Solution
    points: Points
    states: int | None
    complete: bool


def _searched(graph: LayerGraph, options: CostOptions) -> _Found:
    """Return the fastest plan over all states of a graph. If there are too many, search some of them and print a note."""
    count = count_states(graph)
    flat = len(options.levels) == 1
    # The selection of useful states ignores these two constraints, so it may miss the only plans that satisfy them.
    limited = options.all_workers or options.memory_bytes is not None
    most = MOST_STATES if flat else _MOST_OF_LEVELS
    if count is None or count <= (most if limited or not flat else _MOST_PAIRS):
        try:
            points = points_of(graph, states_of(graph, most))
            return _Found(solve(points, options), points, points.last, True)
        except TooManyStates:
            pass
    points = points_of(graph, some_states_of(graph, _SAMPLE))
    try:
        found = _Found(solve(points, options), points, count, False)
    except IotwinError as error:
        raise IotwinError(f"{error}; only {points.last} of the graph's states were searched") from None
    if flat:
        found = _among_useful(graph, options, found)
    if not found.complete:
        note(
            f"{graph.name} has {'too many' if count is None else format(count, ',')} states to search all: the plan is the best "
            f"over {found.points.last:,} of them; a better one may exist"
        )
    return found


def _among_useful(graph: LayerGraph, options: CostOptions, sample: _Found) -> _Found:
    """Return the fastest plan over the useful states (states/lattice.py) of the graph or its merged chains, or else `sample`."""
    machines = options.levels[0].machines

    def few(count: int | None) -> bool:
        return count is not None and count <= _MOST_USEFUL and count * machines * (machines - 1) // 2 <= _MOST_STEPS

    runs, members = graph, [1 << node for node in range(len(graph.nodes))]
    if not few(sample.states):
        runs, members = runs_of(graph)
        if not few(count_states(runs)):
            return sample
    useful, limit_s = useful_states(runs, options, sample.best.seconds)
    closures = [sum(members[run] for run in bits(each)) for each in useful]
    if not closures:  # no plan is faster than the sample's
        return replace(sample, complete=runs is graph)
    points = points_of(graph, states_from(graph, closures))
    best = solve(points, options)
    complete = runs is graph and best.seconds <= limit_s * (1 + 1e-9)
    return _Found(best, points, sample.states, complete) if complete or best.seconds < sample.best.seconds else sample


def _with_stages(graph: LayerGraph, kept: LayerGraph, points: Points, solution: Solution) -> LayerGraph:
    """Return `graph` with a stage for each node: the first stage that needs the node, and 0 for inputs."""
    stages: dict[str, int] = {}
    for index, split in enumerate(solution.stages()):
        needed = graph.closure(graph.index[kept.nodes[node].id] for node in bits(points.closures[split.end]))
        for node in bits(needed):
            stages.setdefault(graph.nodes[node].id, 0 if graph.nodes[node].is_input else index)
    for node in graph.topological:  # a node that no stage needs gets the stage of its predecessors
        before = [stages[graph.nodes[each].id] for each in graph.predecessors[node]]
        stages.setdefault(graph.nodes[node].id, max(before, default=0))
    return graph.with_stages(stages)


def plan_of(
    partition: LayerGraph, kept: LayerGraph, points: Points, options: CostOptions, levels: tuple[tuple[Split, ...], ...]
) -> PipelinePlan:
    """Return the plan with the stages in `levels`. Ranks are numbered stage by stage."""
    stages: list[Stage] = []
    splits = Solution(0.0, levels).stages()
    ranks = 0
    input_bytes = sum(node.activation_bytes for node in partition.nodes if node.is_input)
    for index, split in enumerate(splits):
        own = [node for node in partition.nodes if node.stage == index]
        parameters = float(points.parameters[split.end] - points.parameters[split.begin])
        seconds = float(points.busy_s(split.begin, split.end))
        forward = float(points.forward_s[split.end] - points.forward_s[split.begin] + points.exchange_s[split.begin])
        entering = crossing_bytes(kept, points.closures[split.begin]) if index else input_bytes
        stages.append(Stage(
            index, tuple(range(ranks, ranks + split.replicas)), forward, seconds - forward, entering,
            crossing_bytes(kept, points.closures[split.end]), parameters,
            float(points.activations[split.end] - points.activations[split.begin]),
            _all_reduce_s(options, levels, split, parameters, seconds),
            _receive_s(points, options, levels, split.begin) if index else 0.0,
            tuple(node.id for node in own), tuple(node.kind for node in own),
        ))  # fmt: skip
        ranks += split.replicas
    described = [
        {
            "machines": level.machines,
            "bandwidth_bytes_per_s": level.bandwidth,
            "splits": [{"first": each.begin, "last": each.end - 1, "replicas": each.replicas} for each in own],
        }
        for level, own in zip(options.levels, levels, strict=True)
    ]
    return PipelinePlan(tuple(stages), origin={"levels": described})


def crossing_bytes(graph: LayerGraph, closure: int) -> float:
    """Return the bytes of the layer outputs that leave the set `closure`: those read by a layer outside, or by no layer."""
    successors = graph.successor_sets
    leaving = (node for node in bits(closure) if not successors[node] or successors[node] & ~closure)
    return sum(graph.nodes[node].activation_bytes for node in leaving)


def _all_reduce_s(
    options: CostOptions, levels: tuple[tuple[Split, ...], ...], split: Split, parameters: float, seconds: float
) -> float:
    """Return the seconds per minibatch in which a rank of a stage averages gradients, summed over the levels."""
    found, inner = 0.0, 1
    for index, (level, own) in enumerate(zip(options.levels, levels, strict=True)):
        replicas = next(each.replicas for each in own if each.begin <= split.begin and split.end <= each.end)
        if options.cost_model == "paper":
            found += max(0.0, 2 * (replicas - 1) * parameters / level.bandwidth - seconds / inner) * inner
        else:
            share = options.levels[index - 1].machines if index and len(own) == 1 else 1
            found += 4 * (replicas - 1) * parameters / (level.bandwidth * replicas) / share * inner
        inner *= replicas
    return found


def _receive_s(points: Points, options: CostOptions, levels: tuple[tuple[Split, ...], ...], begin: int) -> float:
    """Return the seconds of both transfers of a minibatch over the link at point `begin`, of the outermost level cut there."""
    if options.compression is None and options.cost_model == "code":
        return 0.0
    level = max(index for index, own in enumerate(levels) if any(each.begin == begin for each in own))
    return 2 * float(points.output[begin]) / options.levels[level].bandwidth / (options.compression or 1)


def _limited(plan: PipelinePlan, in_flight: int) -> PipelinePlan:
    """Return the plan with shorter warm-ups, so that at most `in_flight` minibatches are in flight per rank of stage 0."""
    if in_flight < 1:
        raise UsageError(f"--inputs-in-flight must be at least 1 (got {in_flight})")
    admitted = in_flight * plan.stages[0].replicas
    depth = {stage.stage: min(plan.warm_up(stage.stage), max(0, admitted // stage.replicas - 1)) for stage in plan.stages}
    return replace(plan, depth=depth)


def stage_rows(plan: PipelinePlan) -> list[dict[str, Any]]:
    """Return a JSON object per stage, with the seconds for one minibatch on one replica, and sizes in bytes."""
    rows = []
    following = [*(stage.receive_s for stage in plan.stages[1:]), 0.0]
    for stage, send_s in zip(plan.stages, following, strict=True):
        held = plan.warm_up(stage.stage) + 1
        rows.append({
            "stage": stage.stage, "nodes": list(stage.nodes), "replicas": stage.replicas,
            "compute_s": stage.forward_s + stage.backward_s, "all_reduce_s": stage.all_reduce_s, "receive_s": stage.receive_s,
            "send_s": send_s, "parameter_bytes": stage.parameter_bytes, "activation_bytes": stage.activation_bytes,
            "output_bytes": stage.output_bytes, "weight_versions": held,
            "memory_bytes": held * (stage.parameter_bytes + stage.activation_bytes) + stage.parameter_bytes,
        })  # fmt: skip
    return rows


def bytes_per_minibatch(plan: PipelinePlan) -> tuple[float, float]:
    """Return the bytes that all ranks send per minibatch, as (under `plan`, under data parallelism on as many ranks)."""
    cuts = sum(2 * stage.input_bytes for stage in plan.stages[1:])
    shared = sum(float(sent_bytes(stage.parameter_bytes, stage.replicas)) for stage in plan.stages)
    parameters = sum(stage.parameter_bytes for stage in plan.stages)
    return cuts + shared, float(sent_bytes(parameters, plan.ranks))


def _document(found: _Found, options: CostOptions, plan: PipelinePlan) -> dict[str, Any]:
    best, points = found.best, found.points
    single = float(points.seconds[-1])
    parallel = Costs(options).data_parallel(single, float(points.parameters[-1]))
    sent, sent_parallel = bytes_per_minibatch(plan)
    limit, rows = options.memory_bytes, stage_rows(plan)
    return {
        "single_machine_s": single,
        "data_parallel_s": parallel,
        "stage_time_s": best.seconds,
        "bound_s": best.seconds if found.complete else single / options.workers,
        "speedup_over_single": single / best.seconds if best.seconds else None,
        "data_parallel_speedup": single / parallel if parallel else None,
        "speedup_over_data_parallel": parallel / best.seconds if best.seconds else None,
        "workers": plan.ranks,
        "workers_unused": options.workers - plan.ranks,
        "noam": plan.noam,
        "sent_bytes_per_minibatch": sent,
        "data_parallel_sent_bytes_per_minibatch": sent_parallel,
        "levels": plan.origin["levels"],
        "stages": rows,
        # These rows count the minibatches in flight of the whole plan; the search counts them level by level.
        "fits_memory": None if limit is None else all(row["memory_bytes"] <= limit for row in rows),
    }


def evaluate(graph: LayerGraph, options: CostOptions, plan: PipelinePlan | None = None, fold: bool = True) -> dict[str, Any]:
    """Return the time of a partition by the cost formulas, as a JSON object. The partition is `plan`, or the nodes' stages.

    Without a plan, the fastest replicas and levels are used. If the partition is invalid, `valid` is False, `reason` the cause.
    """
    whole = without_inputs(graph)
    kept = folded(whole) if fold else whole
    stage_of: dict[str, int | None] = {node.id: node.stage for node in graph.nodes}
    if plan is not None:
        stage_of = {node: stage.stage for stage in plan.stages for node in stage.nodes}
    reason, closures = _closures(kept, stage_of)
    if reason:
        return {"stage_time_s": None, "stages": [], "bottleneck_stage": None, "valid": False, "reason": reason}
    points = chain_points(kept, closures)
    levels = _arrangement(points, options, plan)
    if isinstance(levels, str):
        return {"stage_time_s": None, "stages": [], "bottleneck_stage": None, "valid": False, "reason": levels}
    seconds = plan_seconds(points, options, levels)
    partition = graph.with_stages({node.id: stage_of.get(node.id) or 0 for node in graph.nodes})
    found = plan_of(partition, kept, points, options, levels)
    return {
        "stage_time_s": seconds,
        "stages": stage_rows(found),
        "bottleneck_stage": found.bottleneck.stage,
        "valid": True,
        "reason": None,
    }


def _closures(graph: LayerGraph, stage_of: dict[str, int | None]) -> tuple[str | None, list[int]]:
    """Return (reason why `stage_of` is no partition, None if it is one; the set of layers of the stages 0 to k, for each k)."""
    stages: list[int] = []
    for node in graph.nodes:
        stage = stage_of.get(node.id)
        if stage is None:
            return f"node {node.id} is in no stage", []
        stages.append(stage)
    for source, target in graph.edges:
        if stages[source] > stages[target]:
            a, b = graph.nodes[source].id, graph.nodes[target].id
            return f"edge {a} -- {b} leads from stage {stages[source]} back to stage {stages[target]}", []
    used = sorted(set(stages))
    if used != list(range(len(used))):
        missing = next(index for index, stage in enumerate(used) if index != stage)
        return f"stage {missing} has no layers, stage {used[-1]} has", []
    return None, [sum(1 << node for node, own in enumerate(stages) if own <= stage) for stage in used]


def _arrangement(points: Points, options: CostOptions, plan: PipelinePlan | None) -> tuple[tuple[Split, ...], ...] | str:
    """Return the stages of each level for a partition; or, if they cannot be arranged, a message with the reason."""
    given = plan.origin.get("levels") if plan else None
    if plan and len(plan.stages) != points.last:
        return f"the plan has {len(plan.stages)} stages, its nodes are in {points.last}"
    if given and [level["machines"] for level in given] == [level.machines for level in options.levels]:
        return _given_levels(given)
    if points.last > options.workers:
        return f"{points.last} stages need as many workers, -n allows {options.workers}"
    if plan is None:
        try:
            return arrange(points, options).levels
        except IotwinError as error:
            return str(error)
    replicas = [stage.replicas for stage in plan.stages]
    if len(options.levels) > 1:
        return "the plan does not specify which stages share a machine; give one with levels, or one level (-n, -b)"
    if sum(replicas) > options.workers:
        return f"the plan uses {sum(replicas)} workers, -n allows {options.workers}"
    return (tuple(Split(begin, begin + 1, count) for begin, count in enumerate(replicas)),)


def _given_levels(given: list[dict[str, Any]]) -> tuple[tuple[Split, ...], ...]:
    """Return the stages of each level in a plan's file. Its points count states; the result's points count stages."""
    ends = sorted({split["last"] + 1 for split in given[0]["splits"]})
    index_of = {0: 0, **{end: number for number, end in enumerate(ends, 1)}}
    return tuple(
        tuple(Split(index_of[split["first"]], index_of[split["last"] + 1], split["replicas"]) for split in level["splits"])
        for level in given
    )


def with_stages_of(graph: LayerGraph, partition: LayerGraph) -> LayerGraph:
    """Return `graph` with the stages of `partition`'s nodes. Raises UsageError if `partition` has a node that `graph` lacks."""
    stages = {node.id: node.stage for node in partition.nodes}
    unknown = next((name for name in stages if name not in graph.index), None)
    if unknown is not None:
        raise UsageError(f"{partition.name}: node {unknown} is not in {graph.name}; the partition is of another graph")
    return replace(graph, nodes=tuple(replace(node, stage=stages.get(node.id)) for node in graph.nodes), ending="")
