"""DTR's simulator, planners, logger and emulated budgets, each against its oracle, its floor, or the original.

    python -m tests.perf.perf_dtr [DIRECTORY OF uwsampl/dtr-prototype]

With a checkout of the original (its simrd/logs.zip unpacked in simrd), its own runs are repeated and timed on the same logs (by
CPython, or by PyPy if IOTWIN_SIMRD_PYTHON names it), and its models are run under 17 heuristics at ten ratios. The runs are
repeated cheapest first, as many as IOTWIN_SIMRD_MINUTES of CPU (40) have room for: all 1920 take the original many hours.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from iotwin.workloads.dtr.simulator.heuristics import HEURISTICS
from iotwin.workloads.dtr.simulator.log_format import read_log
from iotwin.workloads.dtr.simulator.log_manifest import load_graph, read_manifest
from iotwin.workloads.dtr.simulator.simulate import SimulatedRun, SimulationSettings, baseline, simulate
from iotwin.workloads.dtr.static.planner_graph import training_chain
from iotwin.workloads.dtr.static.solve import plan
from tests.perf.figures import Figure, interleaved
from tests.workloads.dtr.random_logs import write_random_log
from tests.workloads.dtr.test_simulator import DISTINCT, held_against_the_oracle
from tests.workloads.dtr.test_static import held_in_order, random_dag

_RATIOS = [step / 10 for step in range(10, 0, -1)]
_PROVEN = {(16, 8): 43, (16, 10): 41, (16, 12): 39, (16, 14): 37, (16, 18): 33, (32, 16): 83, (32, 24): 75, (32, 34): 65}
_FAMILIES = {
    "h_DTR's family": (("DTR", "MSPS", "AbESize", "AbEStale", "AbE"), 80),
    "equivalence classes": (("DTREqClass", "AbEqSize", "AbEqStale", "AbEq"), 50),
    "other heuristics": (
        ("DTRLocal", "LRU", "LargestStorage", "AbLocalSize", "AbLocalStale", "AbLocal", "AbSizeStale", "AbStale"),
        50,
    ),
}
# Runs the original: SIMRD LOG [[heuristic, policy, ratio], ..] SECONDS. It prints the runs that end within SECONDS of CPU.
# Releases are left out for "ignore", as the original does.
_ORIGINAL = """
import json, math, sys, threading, time
sys.path.insert(0, sys.argv[1]); sys.setrecursionlimit(10**6); threading.stack_size(1 << 29)
import simrd.heuristic as H, simrd.heuristic.ablation
from simrd.parse import parse_file, GRelease
from simrd.runtime import RuntimeV1, RuntimeV2EagerOptimized, RuntimeV2Optimized, RematExceededError
class Slow(Exception): pass
def main():
    graph, kept = (parse_file(open(sys.argv[2]), start=True) for _ in range(2))
    kept.schedule = [item for item in kept.schedule if not isinstance(item, GRelease)]
    base = RuntimeV1(math.inf, H.Heuristic()); graph.get_closure()(base)
    peak, cost = base.telemetry.summary["max_memory"], base.telemetry.summary["model_compute"]
    kinds = {"eager": RuntimeV2EagerOptimized, "ignore": RuntimeV2Optimized, "banish": RuntimeV1}
    for name, policy, ratio in json.loads(sys.argv[3]):
        heuristic, evictions = H.HEURISTICS[name](), 0
        begin, choose = time.process_time(), heuristic.choose
        def counted(*args, **named):
            nonlocal evictions
            evictions += 1
            if time.process_time() > float(sys.argv[4]): raise Slow
            return choose(*args, **named)
        heuristic.choose = counted
        run = kinds[policy](int(peak * ratio), heuristic, remat_limit=cost); result = "pass"
        try: (kept if policy == "ignore" else graph).get_closure()(run)
        except MemoryError: result = "oom"
        except RematExceededError: result = "thrash"
        except Slow: return
        print(json.dumps({"result": result, "clock": run.clock, "evictions": evictions, "cpu_s": time.process_time() - begin}))
thread = threading.Thread(target=main); thread.start(); thread.join()
"""


def _own_grid(directory: Path, plain: bool) -> float:
    """CPU seconds of every heuristic at ten ratios on three recorded models."""
    from iotwin.workloads.dtr.record import record_model

    total = 0.0
    for model in ("mlp", "resnet", "lstm"):
        log = directory / f"{model}.log"
        if not log.is_file():
            record_model(model, log)
        graph = read_log(log).graph
        base = baseline(graph)
        for name in DISTINCT:
            for ratio in _RATIOS:
                settings = SimulationSettings(HEURISTICS[name], int(base.peak * ratio), plain=plain)
                total += simulate(graph, settings, base.compute).cpu_s
    return total


def _theirs(directory: Path, log: Path, runs: list[tuple[str, str, float]], seconds: float) -> list[dict[str, Any]]:
    """Runs of the original, by the Python that IOTWIN_SIMRD_PYTHON names (it needs attrs), else by this one."""
    python = os.environ.get("IOTWIN_SIMRD_PYTHON", sys.executable)
    words = [python, "-c", _ORIGINAL, str(directory / "simrd"), str(log), json.dumps(runs), str(seconds)]
    return [json.loads(line) for line in subprocess.run(words, check=True, capture_output=True).stdout.splitlines()]


def _ours(log: Path, runs: list[tuple[str, str, float]]) -> list[SimulatedRun]:
    graph = read_log(log).graph
    base = baseline(graph)
    every = [SimulationSettings(HEURISTICS[name], int(base.peak * ratio), policy, plain=False) for name, policy, ratio in runs]
    simulate(graph, every[0], base.compute)
    return [simulate(graph, settings, base.compute) for settings in every]


def _same(ours: SimulatedRun, theirs: dict[str, Any]) -> bool:
    return (ours.result, ours.clock, ours.evictions) == (theirs["result"], theirs["clock"], theirs["evictions"])


def _speed(directory: Path) -> Iterator[Figure]:
    """CPU of the original over ours on two models, heuristic by heuristic in turns."""
    for family, (names, bound) in _FAMILIES.items():
        ratios, details = [], []
        for model in ("resnet32", "unet"):
            log = next((directory / "simrd" / "logs").glob(f"{model}*.log"))
            theirs = ours = 0.0
            for name in names:
                runs = [(name, "eager", ratio) for ratio in (0.9, 0.7, 0.5, 0.4)]
                theirs += sum(run["cpu_s"] for run in _theirs(directory, log, runs, 600 * len(runs)))
                ours += sum(run.cpu_s for run in _ours(log, runs))
            ratios.append(theirs / ours)
            details.append(f"{ratios[-1]:.0f} on {model}")
        yield Figure(f"CPU, original over ours, {family}", min(ratios), bound, at_most=False, detail=", ".join(details))


def _original(directory: Path) -> Iterator[Figure]:
    """Every heuristic, ratio and policy on every log; those that cost us least CPU first, as many as there is time for."""
    eager = [name for names, _ in _FAMILIES.values() for name in names]
    plans = [(name, "eager") for name in eager] + [("DTRUnopt", "banish")]
    plans += [(name, "ignore") for name in ("DTR", "MSPS", "DTREqClass", "DTRLocal", "LRU", "LargestStorage")]
    runs = [(name, policy, ratio) for name, policy in plans for ratio in _RATIOS]
    logs = sorted((directory / "simrd" / "logs").glob("*.log"), key=lambda log: log.stat().st_size)
    left_s = 60 * float(os.environ.get("IOTWIN_SIMRD_MINUTES", "40"))
    done, counts = 0, []
    differing: list[str] = []
    for number, log in enumerate(logs):
        begin_s = sum(os.times()[2:4])
        cheapest = sorted(zip(runs, _ours(log, runs), strict=True), key=lambda each: each[1].cpu_s)
        theirs = _theirs(directory, log, [run for run, _ in cheapest], left_s / (len(logs) - number))
        left_s -= sum(os.times()[2:4]) - begin_s
        name = log.name.partition("-")[0]
        done += len(theirs)
        counts.append(f"{len(theirs)} of {len(runs)} on {name}")
        differing += [f"{name} {run}" for (run, ours), their in zip(cheapest, theirs, strict=False) if not _same(ours, their)]
    name = f"runs equal to the original's, of {done}"
    detail = f"{', '.join(counts)}; different: {', '.join(differing) or 'none'}"
    yield Figure(name, done - len(differing), done, at_most=False, detail=detail)


def _grid(directory: Path, plain: bool, bound: float) -> Iterator[Figure]:
    """The original's models by 17 heuristics and ten ratios, eager eviction; `plain`: without numba."""
    cpu_s, runs = 0.0, 0
    for model in read_manifest(directory / "simrd" / "logs" / "manifest.json"):
        graph = load_graph(model.log)
        base = baseline(graph)
        for name in DISTINCT:
            if name in ("DTRUnopt", "AbStale"):  # the first is for banishing, the second chooses as LRU
                continue
            for ratio in _RATIOS:
                cpu_s += simulate(
                    graph, SimulationSettings(HEURISTICS[name], int(base.peak * ratio), plain=plain), base.compute
                ).cpu_s
                runs += 1
    name = f"the original's logs, 17 heuristics, 10 ratios: CPU minutes {'without' if plain else 'with'} numba"
    yield Figure(name, cpu_s / 60, bound, detail=f"{runs} runs")


def _long_inputs(directory: Path) -> Iterator[Figure]:
    """Commands on a log of 100 MB and on a chain of 20 000 layers: CPU and memory of the process."""
    log = directory / "long.log"
    piece = write_random_log(directory / "piece.log", 1).read_bytes()
    with log.open("wb") as file:
        for number in range(100 * 2**20 // len(piece) + 1):
            file.write(piece.replace(b'"x', b'"y%dx' % number))
    chain = ["chain", "--layers", "20000", "--budget", "2sqrt", "--heuristic", "DTREqClass"]
    for name, words, bound in (("log of 100 MB", ["validate", str(log)], 2048), ("chain of 20 000", chain, 1024)):
        words = [sys.executable, "-m", "iotwin", "dtr", *words, "--json", "--quiet"]
        child = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert child.stdout is not None
        document = json.load(child.stdout)
        usage = os.wait4(child.pid, 0)[2]
        found = f"{document['runs'][0]['extra_per_layer']:.3f} recomputed a layer" if "runs" in document else ""
        yield Figure(f"{name}: peak memory, MiB", usage.ru_maxrss / 1024, bound, detail=f"{usage.ru_utime:.1f} s of CPU {found}")


def _logger() -> Iterator[Figure]:
    """CPU time that recording adds to an operation, compared with a dispatch mode that does nothing; one thread, medians."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from iotwin.workloads.dtr.record import Recorder
    from iotwin.workloads.models import MODELS, build

    class Empty(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    torch.set_num_threads(1)
    for name in ("lstm", "treelstm", "transformer"):
        module, make_inputs, loss = build(name)
        inputs = make_inputs(MODELS[name])
        count = Recorder()

        def step(mode: AbstractContextManager[Any], module: Any = module, inputs: Any = inputs, loss: Any = loss) -> float:
            begin = time.process_time()
            with mode:
                loss(module, *inputs).backward()
            spent = time.process_time() - begin
            module.zero_grad(set_to_none=True)
            return spent

        step(count)
        times = interleaved(9, lambda: step(nullcontext()), lambda: step(Empty()), lambda: step(Recorder()))
        plain, empty, recorded = (statistics.median(each) / count.operations * 1e6 for each in times)
        detail = f"an empty mode adds {empty - plain:.1f}, the operation alone takes {plain:.1f}"
        yield Figure(f"logger on {name}: us of CPU an operation beyond an empty mode", recorded - empty, 25, detail=detail)


def _emulated_budget(directory: Path) -> Iterator[Figure]:
    """Emulate a job's parameters with a budget of overhead 1.4. Compare that with the job when it computes 1.4 times as long."""
    from iotwin.benchmark.fit.parameters.parameters import fit_parameters
    from iotwin.datagen.generate import generate
    from iotwin.datagen.layouts import Unet3dLayout
    from iotwin.loops.traced_run import run_traced
    from iotwin.trace_store.reader import Trace
    from iotwin.tracesim import compare
    from iotwin.workload_yaml import Rematerialized, dump

    generate(Unet3dLayout(0.2), directory / "data", samples=40, seed=1)

    def job(name: str, seconds: float) -> Trace:
        words = ["-m", "iotwin.workloads.unet3d", "--data", str(directory / "data"), "--output", str(directory / f"{name}_out")]
        options = ["--epochs", "4", "--batch-size", "2", "--workers", "2", "--eval-every", "2", "--checkpoint-every", "2",
                   "--base-channels", "4", "--depth", "3", "--crop", "32", "--overlap", "0", "--threads", "1"]  # fmt: skip
        run_traced([sys.executable, *words, *options, "--variant", "sleep", "--sleep", str(seconds)], directory / name, "unet3d")
        return Trace(directory / name)

    config = fit_parameters(job("plain", 0.2)).config
    base = config.train.computation_time
    curve = [(1.0, 1.0), (0.6, 1.15), (0.4, 1.4)]
    asked = job("asked", 0.28)
    for name, budget, bound in (("the budget", 4e9, 0.90), ("wrong: overhead left out", None, None)):
        config.train.computation_time = Rematerialized(base=base, curve=curve, peak_bytes=10**10, budget=budget)
        config.checkpoint.checkpoint_folder = config.output.folder = str(directory / "twin_out")
        dump(config, directory / "twin.yaml")
        words = [sys.executable, "-m", "iotwin", "emulate", str(directory / "twin.yaml")]
        run_traced(words, directory / f"twin {name}", "unet3d")
        score = compare(asked, Trace(directory / f"twin {name}")).overall or 0.0
        yield Figure(f"emulated budget never traced, {name}: likeness to the job", score, bound, at_most=False)


def measure() -> Iterator[Figure]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        begin = time.process_time()
        held_against_the_oracle(directory, range(2000), every=4)
        yield Figure("2000 random logs equal to the oracle: CPU seconds", time.process_time() - begin)
        found = [held_in_order(random_dag(seed, 6 + seed % 4), 900.0) for seed in range(200)]
        yield Figure("200 random graphs: budgets at which bound <= optimum <= every rule", sum(found), 200, at_most=False)
        compiled, plain = _own_grid(directory, False), _own_grid(directory, True)
        yield Figure("grid of own logs: CPU, plain over compiled", plain / compiled, detail=f"{compiled:.2f} s compiled")
        for (layers, budget), optimum in _PROVEN.items():
            exact = plan(training_chain(layers), "ilp", budget, 300.0)
            yield Figure(f"chain:{layers} at {budget}: proven optimum", exact.cost or 0, optimum, detail=f"{exact.seconds:.1f} s")
        yield from _long_inputs(directory)
        yield from _logger()
        yield from _emulated_budget(directory)
        if len(sys.argv) > 1:
            yield from _speed(Path(sys.argv[1]))
            yield from _original(Path(sys.argv[1]))
            yield from _grid(Path(sys.argv[1]), plain=False, bound=4)
            yield from _grid(Path(sys.argv[1]), plain=True, bound=40)
