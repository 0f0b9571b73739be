"""``iotwin dtr validate``: check a log of tensor operations, and report the step's cost and peak memory without a budget."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class DtrValidateCommand(Command):
    name = "validate"
    help = "check a log of operations, and report the cost and peak memory of a step without a budget"
    epilog = "example: iotwin dtr validate mlp.log"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("log", type=Path, metavar="LOG", help="log to check")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.commands.dtr.options import note_missing_numba
        from iotwin.common.errors import UsageError
        from iotwin.common.untrusted_files import sha256_of
        from iotwin.workloads.dtr.simulator.log_format import read_log
        from iotwin.workloads.dtr.simulator.simulate import baseline

        if not args.log.is_file():
            raise UsageError(f"{args.log} is not a file")
        note_missing_numba()
        log = read_log(args.log, collect=True)
        graph, problems = log.graph, [{"line": p.line, "text": p.text} for p in log.problems]
        base = None if problems else baseline(graph)
        document = {
            "log": str(args.log), "sha256": sha256_of(args.log), "lines": log.lines, "instructions": log.instructions,
            "operators": graph.operators, "constants": int(graph.op_constant.sum()), "tensors": graph.tensors,
            "schedule_items": len(graph.items), "views": int((graph.tensor_alias >= 0).sum()), "backward_line": log.backward_line,
            "baseline": base and {
                "compute_ns": base.compute, "peak_bytes": base.peak, "eager_peak_bytes": base.eager_peak,
                "constant_bytes": base.constant, "bottleneck_bytes": base.bottleneck,
                "bottleneck_bytes_with_views": base.bottleneck_with_views,
            },
            "problems": problems,
        }  # fmt: skip
        return Outcome(document, 1 if problems else 0)

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.units import format_duration, format_size

        for problem in document["problems"]:
            print(f"{document['log']}:{problem['line']}: {problem['text']}")
        print(
            f"{document['lines']} lines, {document['operators']} operators ({document['constants']} constants), "
            f"{document['tensors']} tensors, {document['views']} views"
        )
        if base := document["baseline"]:
            print(
                f"a step costs {format_duration(base['compute_ns'])} and needs {format_size(base['peak_bytes'])}, "
                f"of which {format_size(base['constant_bytes'])} are constants"
            )
