"""``iotwin pipedream optimize``: find the partition of a profile whose slowest stage is fastest."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome
from iotwin.commands.pipedream.options import add_machine_options, options_of
from iotwin.common.errors import UsageError
from iotwin.common.units import counted


class PipeDreamOptimizeCommand(Command):
    name = "optimize"
    help = "find the best partition of a profile into stages and replicas"
    epilog = (
        "examples:\n  iotwin pipedream optimize vgg16.graph.txt -n 4 -b 1e9 --activation-compression-ratio 1 -o plan\n"
        "  iotwin pipedream optimize gnmt.graph.txt -n 4 4 -b 1e10 1.25e9 --activation-compression-ratio 1"
    )

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("graph", type=Path, metavar="GRAPH.txt", help="a profile's graph.txt")
        add_machine_options(parser)
        parser.add_argument(
            "--inputs-in-flight", type=int, metavar="N", help="most minibatches in flight for each worker of stage 0"
        )
        parser.add_argument(
            "--objective",
            choices=["throughput", "latency"],
            default="throughput",
            help="throughput: minimise the slowest stage; latency: minimise one forward pass under --interval",
        )
        parser.add_argument("--interval", type=float, metavar="S", help="seconds between two inputs; for --objective latency")
        parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="directory for plan.json, gpus=N.txt and gpus=N.svg")

    def run(self, args: Namespace) -> Outcome:
        import time

        from iotwin.common.files import make_folder
        from iotwin.workloads.pipedream.plan.graph_file import file_sha256, read_graph
        from iotwin.workloads.pipedream.plan.report import optimize

        options = options_of(args)
        if args.objective == "latency":
            return _run_latency(args)
        if args.interval is not None:
            raise UsageError("--interval is for --objective latency; leave it out")
        graph = read_graph(args.graph)
        if args.output:
            make_folder(args.output)
        begin = time.monotonic()
        found = optimize(graph, options, args.fold, args.inputs_in_flight, file_sha256(args.graph))
        document = {**found.document, "plan": None, "partition": None, "seconds": time.monotonic() - begin}
        if args.output:
            document |= _write(found, args.output)
        return Outcome(document)

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.units import format_size

        if document.get("objective") == "latency":
            print(f"latency {document['latency_s']:.6g} s, stage time {document['stage_time_s']:.6g} s")
            for stage in document["stages"]:
                layers = counted(len(stage["nodes"]), "layer")
                print(f"stage {stage['stage']}: {stage['replicas']} x {layers}, {stage['compute_s']:.6g} s")
            return
        print(_states(document))
        for stage in document["stages"]:
            print(
                f"stage {stage['stage']}: {counted(len(stage['nodes']), 'layer')} on {stage['replicas']}, "
                f"compute {stage['compute_s']:.6g} s, "
                f"all-reduce {stage['all_reduce_s']:.6g} s, receive {stage['receive_s']:.6g} s, "
                f"weight versions {stage['weight_versions']}, {format_size(stage['memory_bytes'])}"
            )
        _show_times(document)


def _states(document: dict[str, Any]) -> str:
    """Return a text: how many states were searched and, if these were not all, how far from the optimum the plan may be."""
    folded, count = document["folded_states"], document["states"]
    if document["complete"]:
        return f"{document['graph']}: {counted(count, 'state')}" + (f", {folded:,} after folding" if folded != count else "")
    number = "too many" if count is None else f"{count:,}"
    return (
        f"{document['graph']}: {number} states, a part of which was searched; no plan is faster than "
        f"{document['bound_s']:.6g} s, this one takes {document['stage_time_s'] / document['bound_s'] - 1:.2%} more"
    )


def _show_times(document: dict[str, Any]) -> None:
    """Print the lines that PipeDream's own optimizer prints, then workers, memory and the written files."""
    gain = document["speedup_over_data_parallel"]
    print(f"Time taken by single-stage pipeline: {document['single_machine_s']:.9g} s")
    print(f"Time per stage in pipeline: {document['stage_time_s']:.9g} s")
    if gain is not None:
        print(f"Throughput increase (compared to single machine): {document['speedup_over_single']:.4g}")
        print(f"Throughput increase of data parallelism (compared to single machine): {document['data_parallel_speedup']:.4g}")
        print(f"Throughput increase (compared to data parallelism): {gain:.4g}")
    print(f"Workers: {document['workers']}, not used: {document['workers_unused']}; inputs in flight: {document['noam']}")
    if document["fits_memory"] is False:
        print("The plan needs more memory than was given: see each stage's")
    if document["plan"]:
        print(f"written: {document['plan']}, {document['partition']}")


def _write(found: Any, directory: Path) -> dict[str, str]:
    from iotwin.common.files import write_json
    from iotwin.workloads.pipedream.plan.draw import draw
    from iotwin.workloads.pipedream.plan.graph_file import write_graph
    from iotwin.workloads.pipedream.plan.plan_file import plan_document

    name = directory / f"gpus={found.document['workers'] + found.document['workers_unused']}"
    write_graph(found.partition, name.with_name(name.name + ".txt"))
    draw(found.partition, name.with_name(name.name + ".svg"))
    write_json(directory / "plan.json", plan_document(found.plan))
    return {"plan": str(directory / "plan.json"), "partition": f"{name}.txt", "drawing": f"{name}.svg"}


def _run_latency(args: Namespace) -> Outcome:
    from iotwin.workloads.pipedream.plan.graph_file import read_graph
    from iotwin.workloads.pipedream.plan.latency import optimize_latency

    if args.interval is None or not 0 < args.interval < float("inf"):
        raise UsageError("--objective latency needs --interval S, the seconds between two inputs, above 0")
    if len(args.machines) > 1:
        raise UsageError("--objective latency knows one level; give one number to -n and -b")
    if args.output:
        raise UsageError("--objective latency writes no files; leave out -o")
    return Outcome(optimize_latency(read_graph(args.graph), options_of(args), args.interval))
