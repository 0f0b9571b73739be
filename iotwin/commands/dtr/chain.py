"""``iotwin dtr chain``: count the recomputed operations of a chain of operations of unit cost, and compare with theory."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, at_least


class DtrChainCommand(Command):
    name = "chain"
    help = "count what chains of unit operations recompute under a budget, with the theory's bounds"
    epilog = """examples:
  iotwin dtr chain --layers 64,128,256 --budget 2ceil_sqrt,log2 --heuristic DTR,DTRLocal -o growth.svg
  iotwin dtr chain --layers 128 --budget 24 --residency memory.png"""

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("--layers", default="64,128,256", metavar="N,..", help="lengths of chains (default 64,128,256)")
        parser.add_argument(
            "--budget",
            default="2ceil_sqrt",
            metavar="B,..",
            help="tensors that fit: numbers, or 2sqrt, sqrt, 4sqrt, 6sqrt, 8sqrt, log2, 3log2, n, n/2, 2ceil_sqrt (default)",
        )
        parser.add_argument(
            "--heuristic", default="DTR", metavar="NAME,..", help="heuristics that choose the tensor to evict (default DTR)"
        )
        parser.add_argument(
            "--limit",
            type=at_least(1, float),
            metavar="X",
            help="stop as thrashed if recomputing costs X - 1 times the step (default: never)",
        )

        parser.add_argument(
            "--adversary", action="store_true",
            help="simulate the graph of Theorem 3.2 instead, of N steps: each extends a chain that has no tensor in memory",
        )  # fmt: skip
        parser.add_argument(
            "-o", "--output", type=Path, metavar="FILE", help="picture of what is recomputed by length, with the theory's lines"
        )
        parser.add_argument(
            "--residency", type=Path, metavar="FILE", help="picture of which tensors of the last run are in memory at what time"
        )

    def run(self, args: Namespace) -> Outcome:
        import math

        from iotwin.commands.dtr.options import listed, note_missing_numba
        from iotwin.commands.dtr.pictures import check_picture, draw, draw_residency
        from iotwin.common.errors import UsageError
        from iotwin.workloads.dtr.simulator.chain import growth, run_chain, theory_lines
        from iotwin.workloads.dtr.simulator.heuristics import heuristic_named

        layers = listed(args.layers, "--layers", int)
        if min(layers) < 1:
            raise UsageError(f"--layers: a chain must have at least 1 (got {min(layers)})")
        limit = math.inf if args.limit is None else args.limit
        for picture in filter(None, (args.output, args.residency)):
            check_picture(picture)
        note_missing_numba()
        cases = [
            (length, budget.strip(), heuristic)
            for length in layers
            for budget in args.budget.split(",")
            for heuristic in listed(args.heuristic, "--heuristic", heuristic_named)
        ]
        runs = [
            run_chain(*case, limit, against=args.adversary, residency=args.residency is not None and case is cases[-1])
            for case in cases
        ]
        document: dict[str, Any] = {"runs": runs}
        if not args.adversary:  # the theory's lines do not apply to the adversary's graph
            document["theory"] = {"layers": layers, **theory_lines(layers)}
        if args.residency:
            draw_residency(runs[-1].pop("residency"), f"{layers[-1]} layers, {runs[-1]['heuristic']}", args.residency)
        if args.output:
            draw(growth(document), args.output)
        return Outcome(document)

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.terminal import print_table

        rows = [
            [
                run["layers"],
                run["bound"],
                run["budget"],
                run["heuristic"],
                run["result"],
                run["remat_ops"],
                "" if run["extra_per_layer"] is None else f"{run['extra_per_layer']:.3f}",
                run["accesses"],
            ]
            for run in document["runs"]
        ]
        print_table(("layers", "bound", "budget", "heuristic", "result", "recomputed", "a layer", "accesses"), rows)
