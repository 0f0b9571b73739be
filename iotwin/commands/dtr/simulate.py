"""``iotwin dtr simulate``: replay logs of tensor operations under memory budgets."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iotwin.command import Command, Outcome, at_least

if TYPE_CHECKING:
    from iotwin.workloads.dtr.simulator.graph import Graph
    from iotwin.workloads.dtr.simulator.simulate import Baseline, SimulatedRun, SimulationSettings


class DtrSimulateCommand(Command):
    name = "simulate"
    help = "replay logs under memory budgets, evicting and rematerialising by a heuristic"
    epilog = """examples:
  iotwin dtr simulate mlp.log --heuristic DTR,DTREqClass,LRU --ratio 1.0,0.7,0.5
  iotwin dtr simulate mlp.log --heuristic DTR --budget 3000000 --telemetry telemetry --events events.json"""

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="log or manifest (.json) of logs")
        parser.add_argument(
            "--heuristic",
            default="DTR",
            metavar="NAME,..",
            help="heuristics that choose the tensor to evict, or module.function (default DTR)",
        )
        budgets = parser.add_mutually_exclusive_group()
        budgets.add_argument(
            "--ratio", default="1.0", metavar="R,..", help="budgets as shares of the baseline's peak (default 1.0)"
        )
        budgets.add_argument("--budget", metavar="SIZE,..", help="budgets in bytes, or as 4GiB")
        parser.add_argument(
            "--dealloc",
            choices=["eager", "ignore", "banish"],
            default="eager",
            help="what happens at the end of a tensor's last reference: evict at once, nothing, or banish (default eager)",
        )
        parser.add_argument(
            "--overhead-limit",
            type=at_least(1, float),
            default=2.0,
            metavar="X",
            help="stop as thrashed if a step costs X times the step without a budget (default 2.0)",
        )
        parser.add_argument(
            "--output",
            choices=["rematerialize", "preallocate"],
            default="rematerialize",
            help="tensors in use at the end: have them in memory (default), or only sum their bytes",
        )
        parser.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="seed of random choices (default 0)")
        parser.add_argument("--trials", type=at_least(1), default=10, metavar="N", help="runs of a random heuristic (default 10)")
        parser.add_argument(
            "--mode",
            choices=["parity", "better"],
            default="parity",
            help="parity: as the original, slips included; better: without them, with lower bounds and the least feasible budget",
        )
        parser.add_argument(
            "--sampling",
            action="store_true",
            help="consider only a random sample of the candidates: the square root of their number",
        )
        parser.add_argument("--ignore-small", action="store_true", help="never evict tensors below 1 %% of the mean size")
        parser.add_argument("--events", type=Path, metavar="FILE", help="write the last run as a Chrome trace (.json)")
        parser.add_argument("--telemetry", type=Path, metavar="DIR", help="write tables of the last run as CSV files")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.commands.dtr.options import listed, note_missing_numba
        from iotwin.workloads.dtr.simulator.heuristics import heuristic_named
        from iotwin.workloads.dtr.simulator.log_manifest import load_graph, models_of
        from iotwin.workloads.dtr.simulator.simulate import baseline

        heuristics = listed(args.heuristic, "--heuristic", heuristic_named)
        note_missing_numba()
        runs: list[dict[str, Any]] = []
        baselines: list[dict[str, Any]] = []
        for model in models_of(args.logs):
            graph = load_graph(model.log, args.output == "preallocate")
            base = baseline(graph)
            baselines.append(_baseline_document(str(model.log), base, graph))
            _note_hopeless(args, model.log, base)
            for heuristic in heuristics:
                for share, budget in _budgets(args, base):
                    trials = args.trials if heuristic.random or args.sampling else 1
                    settings = _settings(args, heuristic, budget)
                    runs += [_one(args, str(model.log), graph, base, settings, share, trial) for trial in range(trials)]
        return Outcome({"runs": runs, "baselines": baselines})

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.terminal import print_table
        from iotwin.common.units import format_size

        rows = [
            [
                Path(run["log"]).name,
                run["heuristic"],
                "" if run["ratio"] is None else f"{run['ratio']:g}",
                format_size(run["budget_bytes"]),
                run["result"],
                "" if run["overhead"] is None else f"{run['overhead']:.4f}",
                run["evictions"],
                run["rematerializations"],
                format_size(run["peak_bytes"]),
            ]
            for run in document["runs"]
        ]
        print_table(("log", "heuristic", "ratio", "budget", "result", "overhead", "evictions", "rematerialised", "peak"), rows)


def _budgets(args: Namespace, base: "Baseline") -> list[tuple[float | None, int]]:
    from iotwin.commands.dtr.options import listed, ratio
    from iotwin.common.units import parse_size

    if args.budget is not None:
        return [(None, budget) for budget in listed(args.budget, "--budget", parse_size)]
    return [(share, int(base.peak * share)) for share in listed(args.ratio, "--ratio", ratio)]


def _note_hopeless(args: Namespace, log: Path, base: "Baseline") -> None:
    """Print a note if the smallest budget is below the size of the constants, which are never evicted."""
    from iotwin.common.progress import note
    from iotwin.common.units import format_size

    least = min(budget for _, budget in _budgets(args, base))
    if least < base.constant and args.dealloc != "banish":
        note(f"{log}: a budget of {format_size(least)} is below the {format_size(base.constant)} of its constants, which stay")


def _settings(args: Namespace, heuristic: Any, budget: int) -> "SimulationSettings":
    from iotwin.workloads.dtr.simulator.simulate import SimulationSettings

    return SimulationSettings(
        heuristic, budget, args.dealloc, args.overhead_limit, args.seed, args.sampling, args.ignore_small, args.mode == "better",
        events=args.events is not None or args.telemetry is not None,
    )  # fmt: skip


def _one(
    args: Namespace, log: str, graph: "Graph", base: "Baseline", settings: "SimulationSettings", share: float | None, trial: int
) -> dict[str, Any]:
    from dataclasses import replace

    from iotwin.workloads.dtr.simulator.simulate import least_budget, lower_bound, simulate

    settings = replace(settings, seed=settings.seed + trial)
    run = simulate(graph, settings, base.compute)
    _write(args, graph, run)
    document = _run_document(log, settings, run, base, share)
    if settings.better:
        document |= {"lower_bound_bytes": lower_bound(graph), "least_budget_bytes": least_budget(graph, settings, base)}
    return document


def _run_document(
    log: str, settings: "SimulationSettings", run: "SimulatedRun", base: "Baseline", share: float | None
) -> dict[str, Any]:
    so_far = run.clock / max(base.compute, 1)
    return {
        "log": log, "heuristic": settings.heuristic.name, "dealloc": settings.dealloc,
        "mode": "better" if settings.better else "parity", "ratio": share, "budget_bytes": settings.budget, "seed": settings.seed,
        "result": run.result, "clock_ns": run.clock, "overhead": so_far if run.result == "pass" else None,
        "overhead_so_far": so_far, "evictions": run.evictions, "deallocations": run.deallocations,
        "evictions_total": run.evictions + run.deallocations,
        "rematerializations": run.rematerializations, "remat_compute_ns": run.remat_compute, "accesses": run.accesses,
        "evaluations": run.evaluations, "peak_bytes": run.peak, "cpu_s": run.cpu_s,
    }  # fmt: skip


def _baseline_document(log: str, base: "Baseline", graph: "Graph") -> dict[str, Any]:
    return {
        "log": log,
        "compute_ns": base.compute,
        "peak_bytes": base.peak,
        "eager_peak_bytes": base.eager_peak,
        "constant_bytes": base.constant,
        "bottleneck_bytes": base.bottleneck,
        "output_bytes": graph.output_bytes,
    }


def _write(args: Namespace, graph: "Graph", run: "SimulatedRun") -> None:
    from iotwin.common.files import write_whole
    from iotwin.workloads.dtr.simulator.telemetry import chrome_events, write_telemetry

    if args.events is not None:
        write_whole(args.events, chrome_events(graph, run))
    if args.telemetry is not None:
        write_telemetry(args.telemetry, graph, run)
