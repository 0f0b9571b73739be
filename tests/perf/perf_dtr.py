"""DTR's simulator, planners, logger and emulated budgets, each against its oracle, its floor, or the original.

    python -m tests.perf.perf_dtr [DIRECTORY OF uwsampl/dtr-prototype]

With a checkout of the original (its simrd/logs.zip unpacked beside), its own runs are repeated and timed on the same logs, and
its models are run under 17 heuristics at ten ratios.
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

from tests.perf.figures import Figure, interleaved
from tests.workloads.dtr.random_logs import write_random_log
from tests.workloads.dtr.test_simulator import DISTINCT, held_against_the_oracle
from tests.workloads.dtr.test_static import held_in_order, random_dag
from workloads.dtr.heuristics import HEURISTICS
from workloads.dtr.log_format import read_log
from workloads.dtr.logs import load_graph, read_manifest
from workloads.dtr.simulator import Settings, baseline, simulate
from workloads.dtr.static.graph import training_chain
from workloads.dtr.static.solve import plan

_RATIOS = [step / 10 for step in range(10, 0, -1)]
_PROVEN = {(16, 8): 43, (16, 10): 41, (16, 12): 39, (16, 14): 37, (16, 18): 33, (32, 16): 83, (32, 24): 75, (32, 34): 65}
_COMPARED = (("resnet32", "DTR", 0.5), ("resnet32", "DTREqClass", 0.4), ("resnet32", "LRU", 0.6), ("unet", "DTRLocal", 0.6))
_ORIGINAL = """
import json, math, sys, time
sys.path.insert(0, sys.argv[1]); sys.setrecursionlimit(10**6)
from simrd.parse import parse_file
import simrd.heuristic as H
from simrd.runtime import RuntimeV1, RuntimeV2EagerOptimized, RematExceededError
graph = parse_file(open(sys.argv[2]), start=True)
base = RuntimeV1(math.inf, H.Heuristic()); graph.get_closure()(base)
peak, cost = base.telemetry.summary["max_memory"], base.telemetry.summary["model_compute"]
run = RuntimeV2EagerOptimized(int(peak * float(sys.argv[4])), H.HEURISTICS[sys.argv[3]](), remat_limit=cost)
begin = time.process_time(); result = "pass"
try: graph.get_closure()(run)
except MemoryError: result = "oom"
except RematExceededError: result = "thrash"
print(json.dumps({"result": result, "clock": run.clock, "cpu_s": time.process_time() - begin,
                  "accesses": run.telemetry.summary["heuristic_access_count"]}))
"""


def _own_grid(directory: Path, plain: bool) -> float:
    """CPU seconds of every heuristic at ten ratios on three recorded models."""
    from workloads.dtr.record import record_model

    total = 0.0
    for model in ("mlp", "resnet", "lstm"):
        log = directory / f"{model}.log"
        if not log.is_file():
            record_model(model, log)
        graph = read_log(log).graph
        base = baseline(graph)
        for name in DISTINCT:
            for ratio in _RATIOS:
                settings = Settings(HEURISTICS[name], int(base.peak * ratio), plain=plain)
                total += simulate(graph, settings, base.compute).cpu_s
    return total


def _original(directory: Path) -> Iterator[Figure]:
    for model, name, ratio in _COMPARED:
        log = next((directory / "simrd" / "logs").glob(f"{model}*.log"))
        words = [sys.executable, "-c", _ORIGINAL, str(directory / "simrd"), str(log), name, str(ratio)]
        theirs = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        graph = read_log(log).graph
        base = baseline(graph)
        settings = Settings(HEURISTICS[name], int(base.peak * ratio), plain=False)
        simulate(graph, settings, base.compute)
        ours = simulate(graph, settings, base.compute)
        equal = (ours.result, ours.clock) == (theirs["result"], theirs["clock"])
        yield Figure(f"{model} {name} {ratio}: same run as the original", float(equal), 1, at_most=False)
        bound = 80 if name == "DTR" else 50
        yield Figure(f"{model} {name} {ratio}: CPU, original over ours", theirs["cpu_s"] / ours.cpu_s, bound, at_most=False)


def _grid(directory: Path) -> Iterator[Figure]:
    """The original's models by 17 heuristics and ten ratios, eager eviction."""
    cpu_s, runs = 0.0, 0
    for model in read_manifest(directory / "simrd" / "logs" / "manifest.json"):
        graph = load_graph(model.log)
        base = baseline(graph)
        for name in DISTINCT:
            if name in ("DTRUnopt", "AbStale"):  # the first is for banishing, the second chooses as LRU
                continue
            for ratio in _RATIOS:
                cpu_s += simulate(graph, Settings(HEURISTICS[name], int(base.peak * ratio), plain=False), base.compute).cpu_s
                runs += 1
    yield Figure("the original's logs, 17 heuristics, 10 ratios: CPU minutes with numba", cpu_s / 60, 4, detail=f"{runs} runs")


def _long_inputs(directory: Path) -> Iterator[Figure]:
    """Commands on a log of 100 MB and on a chain of 20 000 layers: CPU and memory of the process."""
    log = directory / "long.log"
    piece = write_random_log(directory / "piece.log", 1).read_bytes()
    with log.open("wb") as file:
        for number in range(100 * 2**20 // len(piece) + 1):
            file.write(piece.replace(b'"x', b'"y%dx' % number))
    chain = ["chain", "--layers", "20000", "--budget", "2sqrt", "--heuristic", "DTREqClass"]
    for name, words, bound in (("log of 100 MB", ["validate", str(log)], 2048), ("chain of 20 000", chain, 1024)):
        words = [sys.executable, "-m", "iotwin.main", "dtr", *words, "--json", "--quiet"]
        child = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert child.stdout is not None
        document = json.load(child.stdout)
        usage = os.wait4(child.pid, 0)[2]
        found = f"{document['runs'][0]['extra_per_layer']:.3f} recomputed a layer" if "runs" in document else ""
        yield Figure(f"{name}: peak memory, MiB", usage.ru_maxrss / 1024, bound, detail=f"{usage.ru_utime:.1f} s of CPU {found}")


def _logger() -> Iterator[Figure]:
    """CPU that recording adds to an operation, beside a dispatch mode that does nothing; one thread, medians."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from workloads.dtr.record import Recorder
    from workloads.models import MODELS, build

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
    """The twin of a traced job, given a budget of overhead 1.4, against the trace of the job computing 1.4 times as long."""
    from benchmark.config import Rematerialized, dump
    from benchmark.fit import fit
    from datagen.generate import generate
    from datagen.layouts import Unet3dLayout
    from iotwin.loops.traced import run_traced
    from tracesim import compare
    from tracing_tools.trace.reader import Trace

    generate(Unet3dLayout(0.2), directory / "data", samples=40, seed=1)

    def job(name: str, seconds: float) -> Trace:
        words = ["-m", "workloads.unet3d", "--data", str(directory / "data"), "--output", str(directory / f"{name}_out")]
        options = ["--epochs", "4", "--batch-size", "2", "--workers", "2", "--eval-every", "2", "--checkpoint-every", "2",
                   "--base-channels", "4", "--depth", "3", "--crop", "32", "--overlap", "0", "--threads", "1"]  # fmt: skip
        run_traced([sys.executable, *words, *options, "--variant", "sleep", "--sleep", str(seconds)], directory / name, "unet3d")
        return Trace(directory / name)

    config = fit(job("plain", 0.2)).config
    base = config.train.computation_time
    curve = [(1.0, 1.0), (0.6, 1.15), (0.4, 1.4)]
    asked = job("asked", 0.28)
    for name, budget, bound in (("the budget", 4e9, 0.90), ("wrong: overhead left out", None, None)):
        config.train.computation_time = Rematerialized(base=base, curve=curve, peak_bytes=10**10, budget=budget)
        config.checkpoint.checkpoint_folder = config.output.folder = str(directory / "twin_out")
        dump(config, directory / "twin.yaml")
        words = [sys.executable, "-m", "iotwin.main", "emulate", str(directory / "twin.yaml")]
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
            yield from _original(Path(sys.argv[1]))
            yield from _grid(Path(sys.argv[1]))


if __name__ == "__main__":
    for figure in measure():
        print(figure.line(), flush=True)
