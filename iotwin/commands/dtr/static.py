"""``iotwin dtr static``: plan before training which tensors to recompute, by solvers that know the whole graph."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iotwin.command import Command, Outcome, at_least

if TYPE_CHECKING:
    from iotwin.workloads.dtr.static.planner_graph import Dag


class DtrStaticCommand(Command):
    name = "static"
    help = "plan rematerialisation statically: integer program, rounding, checkpointing rules, and DTR to compare with"
    epilog = """examples:
  iotwin dtr static chain:8 --budget 5,8 --solver all
  iotwin dtr static mlp.log --budget 4MB --solver chen-sqrt,dtr:DTR
  iotwin dtr static chain:16 --max-batch 64 --solver chen-greedy"""

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("graph", metavar="GRAPH", help="log, graph (.json), or chain:N for the linear training graph")
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("--budget", metavar="SIZE,..", help="budgets in bytes (units on a chain), constants included")
        what.add_argument("--max-batch", metavar="SIZE", help="find how many times the sizes may grow in this memory")
        parser.add_argument(
            "--solver",
            default="all",
            metavar="NAME,..",
            help="ilp, lp-bound, lp-round, chen-sqrt, chen-greedy (and -linear), griewank, checkpoint-all, -last, dtr:NAME, all",
        )
        parser.add_argument(
            "--time-limit", type=float, default=60.0, metavar="S", help="seconds for each linear program (default 60)"
        )
        parser.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="seed of random rounding (default 0)")
        parser.add_argument("--write-graph", type=Path, metavar="FILE", help="write the planned graph as JSON")
        parser.add_argument("--schedule", type=Path, metavar="FILE", help="write the last plan's instructions as JSON")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.commands.dtr.options import listed
        from iotwin.common.errors import UsageError
        from iotwin.common.files import write_whole
        from iotwin.common.units import parse_size
        from iotwin.workloads.dtr.static import solve
        from iotwin.workloads.dtr.static.planner_graph import write_dag

        if args.time_limit <= 0:
            raise UsageError(f"--time-limit {args.time_limit:g}: it must be above 0")
        dag = _graph(args.graph)
        solvers = solve.ALL if args.solver == "all" else [solve.check_solver(name.strip()) for name in args.solver.split(",")]
        if args.write_graph is not None:
            write_whole(args.write_graph, write_dag(dag))
        document: dict[str, Any] = {"graph": {"nodes": len(dag), "edges": len(dag.edges), "fixed_bytes": dag.fixed_bytes}}
        if args.max_batch is not None:
            memory = parse_size(args.max_batch)
            found = [{"solver": s, "batch": solve.max_batch(dag, s, memory, args.time_limit, args.seed)} for s in solvers]
            return Outcome(document | {"memory_bytes": memory, "batches": found})
        budgets = listed(args.budget, "--budget", parse_size)
        results = _solve_all(dag, solvers, budgets, args)
        return Outcome(document | {"results": results})

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.terminal import print_table

        if "batches" in document:
            print_table(("solver", "largest batch"), [[row["solver"], row["batch"]] for row in document["batches"]])
            return
        rows = [
            [
                row["solver"],
                row["budget"],
                row["status"],
                "" if row["cost"] is None else row["cost"],
                "" if row["cost_over_checkpoint_all"] is None else f"{row['cost_over_checkpoint_all']:.4f}",
                "" if row["cost_over_optimum"] is None else f"{row['cost_over_optimum']:.4f}",
                "" if row["peak_bytes"] is None else row["peak_bytes"],
                "" if row["bound"] is None else f"{row['bound']:.1f}",
                f"{row['seconds']:.2f}",
            ]
            for row in document["results"]
        ]
        print_table(("solver", "budget", "status", "cost", "/ all", "/ optimum", "peak", "bound", "seconds"), rows)


def _graph(text: str) -> "Dag":
    from iotwin.common.errors import UsageError
    from iotwin.workloads.dtr.simulator.log_manifest import load_graph
    from iotwin.workloads.dtr.simulator.rewrite import rewrite_for_planners
    from iotwin.workloads.dtr.static.planner_graph import from_graph, read_dag, training_chain

    if text.startswith("chain:"):
        if not text[6:].isdigit() or int(text[6:]) < 1:
            raise UsageError(f"'{text}': a chain is written chain:N with N at least 1")
        return training_chain(int(text[6:]))
    path = Path(text)
    if not path.is_file():
        raise UsageError(f"{path} is not a file; give a log, a graph (.json) or chain:N")
    if path.suffix == ".json":
        return read_dag(path)
    rewritten = rewrite_for_planners(load_graph(path))
    return from_graph(rewritten.graph, rewritten.constant_bytes)


def _solve_all(dag: "Dag", solvers: Any, budgets: list[int], args: Namespace) -> list[dict[str, Any]]:
    import json

    from iotwin.common.files import write_whole
    from iotwin.workloads.dtr.static.solve import plan

    results = []
    made = None
    for budget in budgets:
        plans = [plan(dag, solver, max(0, budget - dag.fixed_bytes), args.time_limit, args.seed) for solver in solvers]
        optimum = next((p.cost for p in plans if p.solver == "ilp" and p.status == "optimal"), None)
        for made in plans:
            ratio = made.cost / max(optimum, 1) if optimum is not None and made.cost is not None else None
            results.append(made.document(sum(dag.cost), dag.fixed_bytes) | {"cost_over_optimum": ratio})
    if args.schedule is not None and made is not None:
        write_whole(args.schedule, json.dumps({"solver": made.solver, "instructions": made.schedule}).encode())
    return results
