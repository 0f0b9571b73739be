"""PipeDream's plan: the optimizer's time and memory, and the error of its simulation of an emulated run.

    python -m tests.perf.perf_pipedream

Profiles are those of the tests; a directory of more (`NAME.graph.txt`) is read from PIPEDREAM_PROFILES.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np

from tests.conftest import nothing_can_trace
from tests.perf.figures import Figure
from tests.workloads.pipedream.common import DATA, options, profile

_CONFIGURATIONS = (
    ("-n 4 -b 1e9", ()),
    ("-n 16 -b 1e8", ()),
    ("-n 16 -b 1.25e9", ()),
    ("-n 4 4 -b 1e10 1.25e9", ()),
    ("-n 8 2 -b 2.5e10 3.125e9", ()),
    ("-n 16 -b 1.25e9", ("--straight-pipeline",)),
)
_COMMON = ("--activation-compression-ratio", "1", "--json")
_MINIBATCHES = 100


def _iotwin(*words: object) -> str:
    command = [sys.executable, "-m", "iotwin", *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _optimizing() -> Iterator[Figure]:
    folder = Path(os.environ.get("PIPEDREAM_PROFILES", DATA))
    begin = time.perf_counter()
    _iotwin("pipedream", "graph", DATA / "alexnet.graph.txt", "--json")
    start_s = time.perf_counter() - begin
    took: dict[str, float] = {}
    cpu: dict[str, float] = {}
    for path in sorted(folder.glob("*.graph.txt")):
        if path.name.startswith("test"):
            continue
        for machines, more in _CONFIGURATIONS:
            name = f"{path.name.removesuffix('.graph.txt')} {machines} {' '.join(more)}".strip()
            begin, begin_cpu = time.perf_counter(), _children_cpu_s()
            _iotwin("pipedream", "optimize", path, *machines.split(), *more, *_COMMON)
            took[name], cpu[name] = time.perf_counter() - begin, _children_cpu_s() - begin_cpu
    slowest = max(took, key=took.__getitem__)
    mean_s = sum(took.values()) / len(took)
    detail = f"{slowest}, of {len(took)}; mean {mean_s:.2f} s, a program that only reads a graph {start_s:.2f} s"
    yield Figure("optimize: slowest whole process, seconds", took[slowest], 2.0, detail=detail)
    slowest = max(cpu, key=cpu.__getitem__)
    yield Figure("optimize: most processor time, seconds", cpu[slowest], 2.0, detail=f"{slowest}; alone it takes about as long")
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    yield Figure("optimize: largest process, GiB", memory, 1.0)


def _enumerated() -> Iterator[Figure]:
    """Every contiguous split of a chain into four stages or fewer, against the optimizer's."""
    from iotwin.workloads.pipedream.plan.costs import Costs
    from iotwin.workloads.pipedream.plan.optimizer import solve
    from iotwin.workloads.pipedream.plan.prepare import prepared_points, without_inputs

    for name in ("alexnet", "vgg16"):
        asked = options([4], [1e9], straight=True, exact_workers=False)
        _, points = prepared_points(without_inputs(profile(name)))
        costs = Costs(asked)

        def seconds(cuts, points=points, costs=costs):
            ends, worst = (0, *cuts, points.last), 0.0
            for a, b in pairwise(ends):
                compute, parameters = points.seconds[b] - points.seconds[a], points.parameters[b] - points.parameters[a]
                leaving = 0 if b == points.last else points.output[b]
                worst = max(
                    worst,
                    costs.later(0, compute, parameters, points.output[a], leaving, 1)
                    if a
                    else costs.first(0, compute, parameters, 1),
                )
            return worst

        splits = [cuts for count in range(4) for cuts in combinations(range(1, points.last), count)]
        best = min(map(seconds, splits))
        parallel = costs.data_parallel(points.seconds[-1], points.parameters[-1])
        gap = solve(points, asked).seconds / min(best, parallel) - 1
        yield Figure(f"{name} straight: gap to full enumeration", abs(gap), 1e-12, detail=f"{len(splits)} splits")


def _programmed() -> Iterator[Figure]:
    """The best split of whole layer graphs into four stages by HiGHS, an integer program, against the optimizer's.

    y[v, s] says that layer v is in stage s or before; communication is left out, whose bytes are not linear in y.
    """
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import lil_array
    except ImportError:
        return
    from iotwin.workloads.pipedream.plan.optimizer import solve
    from iotwin.workloads.pipedream.plan.prepare import prepared_points, without_inputs

    stages = 4
    for name in ("alexnet", "vgg16", "gnmt", "resnet50"):
        graph = without_inputs(profile(name))
        costs = np.array([node.forward_ms + node.backward_ms for node in graph.nodes]) / 1000
        count, cuts = len(costs), stages - 1
        rows = lil_array((stages + cuts * len(graph.edges) + count * (cuts - 1), cuts * count + 1))
        upper = np.zeros(rows.shape[0])
        for stage in range(stages):  # a stage's layers take no longer than the last unknown, the time
            if stage < cuts:
                rows[stage, stage * count : (stage + 1) * count] = costs
            if stage:
                rows[stage, (stage - 1) * count : stage * count] = -costs
            rows[stage, cuts * count] = -1
        upper[cuts] = -costs.sum()
        at = stages
        for stage in range(cuts):
            orders = [(stage * count + b, stage * count + a) for a, b in graph.edges]
            orders += [(stage * count + v, (stage + 1) * count + v) for v in range(count) if stage < cuts - 1]
            for less, more in orders:
                rows[at, less], rows[at, more], at = 1, -1, at + 1
        found = milp(
            np.eye(1, cuts * count + 1, cuts * count)[0],
            constraints=LinearConstraint(rows.tocsr(), -np.inf, upper),
            integrality=np.append(np.ones(cuts * count), 0),
            bounds=Bounds(0, np.append(np.ones(cuts * count), np.inf)),
            options={"time_limit": 60, "mip_rel_gap": 1e-9},
        )
        _, points = prepared_points(graph)
        ours = solve(points, options([stages], [1e9], straight=True, exact_workers=True, compression=None)).seconds
        detail = f"{count} layers; HiGHS {found.fun:.9g} s, its own gap {found.mip_gap:.1e}, in at most a minute"
        yield Figure(f"{name} straight: gap to HiGHS", abs(ours / found.fun - 1), 1e-6, detail=detail)


def _emulated(scratch: Path) -> Iterator[Figure]:
    """A plan emulated, traced where that is possible, against its simulation."""
    from iotwin.common.files import write_json
    from iotwin.trace_store.reader import Trace
    from iotwin.workloads.pipedream.plan.plan_file import parse_plan
    from iotwin.workloads.policies.pipeline_simulator import simulate, summary

    stages = [
        {"stage": k, "ranks": [k], "forward_s": 0.02, "backward_s": 0.04, "parameter_bytes": 1e6 * (k + 1)} for k in range(4)
    ]
    write_json(scratch / "plan.json", document := {"version": 1, "stages": stages})
    _iotwin("generate", "unet3d", "-o", scratch / "data", "--samples", "130", "--scale", "0.05", "--quiet")
    twin = scratch / "twin.yaml"
    made_of = (scratch / "plan.json", "--data", scratch / "data", "--minibatches", _MINIBATCHES)
    _iotwin("pipedream", "twin", *made_of, "-o", twin, "--quiet")
    folders = (f"++workload.output.folder={scratch}/out", f"++workload.checkpoint.checkpoint_folder={scratch}/saved")
    words = ["emulate", twin, *folders, "--json"]
    traced = nothing_can_trace() is None
    if traced:
        command = [sys.executable, "-m", "iotwin", *map(str, words)]
        _iotwin("trace", "-o", scratch / "run.trace", "--quiet", "--", *command)
        text = (scratch / "run.trace" / "logs" / "stdout").read_text()
        found = json.loads(next(line for line in text.splitlines() if line.startswith("{")))["pipeline"]
    else:
        found = json.loads(_iotwin(*words))["pipeline"]
    plan = parse_plan(document, "plan")
    expected = summary(plan, simulate(plan, _MINIBATCHES), _MINIBATCHES)
    how = "traced" if traced else "untraced: nothing can trace here"
    rate = found["seconds_per_minibatch"] / expected["seconds_per_minibatch"]
    yield Figure("emulated pipeline: seconds a minibatch / simulated", rate, 1.02, detail=how)
    bubbles = [abs(a["bubble_share"] - b["bubble_share"]) for a, b in zip(found["stages"], expected["stages"], strict=True)]
    yield Figure("emulated pipeline: largest difference of a bubble", max(bubbles), 0.02, detail=how)
    if traced:
        wrong = _wrong_bytes(Trace(scratch / "run.trace"), found)
        yield Figure("emulated pipeline: bytes read or saved by the wrong stage", wrong, 0.0, detail="of the trace's calls")


def _wrong_bytes(trace, found) -> float:  # type: ignore[no-untyped-def]
    """Bytes of data-set reads and checkpoint writes by rank that are not those of the run's own account."""
    processes = trace.processes().to_pandas() if hasattr(trace.processes(), "to_pandas") else trace.processes()
    rank_of = {
        int(row.pid): int(str(row.comm).removeprefix("iotwin-rank"))
        for row in processes.itertuples()
        if str(row.comm).startswith("iotwin-rank")
    }
    files = trace.files().to_pandas() if hasattr(trace.files(), "to_pandas") else trace.files()
    kinds = dict(zip(files["file_id"], files["kind"], strict=True))
    counted = np.zeros((4, 2))
    for batch in trace.events(columns=["op", "pid", "file_id", "result"]):
        for op, pid, file_id, result in zip(*(batch.column(k).to_pylist() for k in range(4)), strict=True):
            kind = kinds.get(file_id)
            if kind in ("dataset", "checkpoint") and op in ("read", "pread64", "write", "pwrite64") and result and result > 0:
                counted[rank_of.get(pid, 0), int("write" in op)] += (
                    result if kind == ("checkpoint" if "write" in op else "dataset") else 0
                )
    expected = np.array([[stage["read_bytes"], stage["checkpoint_bytes"]] for stage in found["stages"]])
    return float(np.abs(counted - expected)[1:].sum() + abs(counted[0, 1] - expected[0, 1]))


def measure() -> Iterator[Figure]:
    """Yield the figures."""
    yield from _optimizing()
    yield from _enumerated()
    yield from _programmed()
    with tempfile.TemporaryDirectory() as scratch:
        yield from _emulated(Path(scratch))
