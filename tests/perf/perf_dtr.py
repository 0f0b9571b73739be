"""DTR's simulator: the oracle on 2000 random logs, grids plain and compiled, long chains and logs, proven optima; the original.

    python -m tests.perf.perf_dtr [DIRECTORY OF uwsampl/dtr-prototype]

With a checkout of the original (its simrd/logs.zip unpacked beside), its own runs are repeated and timed on the same logs.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.perf.figures import Figure
from tests.workloads.dtr.random_logs import write_random_log
from tests.workloads.dtr.test_simulator import DISTINCT, held_against_the_oracle
from workloads.dtr.chain import run_chain
from workloads.dtr.heuristics import HEURISTICS
from workloads.dtr.log_format import read_log
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


def _long_log(directory: Path) -> Iterator[Figure]:
    log = directory / "long.log"
    piece = write_random_log(directory / "piece.log", 1).read_bytes()
    with log.open("wb") as file:
        for number in range(100 * 2**20 // (len(piece) + 1)):
            file.write(piece.replace(b'"x', b'"y%dx' % number))
    begin = time.perf_counter()
    items = len(read_log(log).graph.items)
    seconds = time.perf_counter() - begin
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield Figure("log of 100 MB: seconds to read", seconds, detail=f"{items} schedule items")
    yield Figure("log of 100 MB: peak memory, MiB", peak_mib, 2048)


def measure() -> Iterator[Figure]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        begin = time.perf_counter()
        held_against_the_oracle(directory, range(2000), every=4)
        yield Figure("2000 random logs equal to the oracle: seconds", time.perf_counter() - begin)
        compiled, plain = _own_grid(directory, False), _own_grid(directory, True)
        yield Figure("grid of own logs: CPU, plain over compiled", plain / compiled, detail=f"{compiled:.2f} s compiled")
        run = run_chain(20_000, "2sqrt", HEURISTICS["DTREqClass"])
        yield Figure("chain of 20 000: recomputed a layer", run["extra_per_layer"], 1.2)
        for (layers, budget), optimum in _PROVEN.items():
            found = plan(training_chain(layers), "ilp", budget, 300.0)
            yield Figure(f"chain:{layers} at {budget}: proven optimum", found.cost or 0, optimum, detail=f"{found.seconds:.1f} s")
        if len(sys.argv) > 1:
            yield from _original(Path(sys.argv[1]))
        yield from _long_log(directory)


if __name__ == "__main__":
    for figure in measure():
        print(figure.line(), flush=True)
