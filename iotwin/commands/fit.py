"""``iotwin fit``: derive the twin of a traced job."""

import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, accept_dropped_options, add_memory_option


class FitCommand(Command):
    name = "fit"
    help = "derive the I/O twin of a traced job: a YAML and a recording that `iotwin emulate` runs"
    epilog = "example: iotwin fit run.trace -o twin.yaml"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, metavar="TRACE")
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="TWIN.yaml", help="file to write")
        parser.add_argument(
            "--parameters",
            action="store_true",
            help="write the job's parameters as a DLIO-style YAML instead; its samples must be whole files",
        )
        parser.add_argument("--force", action="store_true", help="replace TWIN.yaml even if it was edited")
        add_memory_option(parser)
        accept_dropped_options(parser, "--kind")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.benchmark.fit.fit_trace import fit
        from iotwin.benchmark.fit.parameters.parameters import fit_parameters
        from iotwin.common.errors import IotwinError
        from iotwin.common.files import check_output, check_type
        from iotwin.trace_store.reader import EVENT_BYTES, Trace
        from iotwin.workload_yaml import check_unedited

        if args.output.suffix:
            check_type(args.output, (".yaml", ".yml"))
        check_output(args.output)
        if not args.force:
            check_unedited(args.output)  # before the fit, which takes long
        trace = Trace(args.trace)
        if args.memory_limit and not trace.fits_in_memory:
            least = -(-trace.manifest.events * EVENT_BYTES >> 20)
            raise IotwinError(f"{args.trace}: to fit {trace.manifest.events:,} events takes more; give --memory {least}MiB")
        fitted = fit_parameters(trace) if args.parameters else fit(trace)
        fitted.write(args.output, args.force)
        return Outcome({"twin": str(args.output), **fitted.to_document()})

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.benchmark.fit import coverage
        from iotwin.benchmark.fit.confidence import describe
        from iotwin.common.terminal import print_wrapped

        print(f"{document['twin']}:")
        for name, text in document["evidence"].items():
            print_wrapped(f"  {name:16} {text}", 19)
        if document["coverage"]:
            print_wrapped(coverage.describe_coverage(document["coverage"]), 2)
        if document["confidence"]:
            print("how sure:")
        for name, entry in document["confidence"].items():
            print_wrapped(f"  {name:37} {describe(entry)}", 40)
        for text in document["assumptions"]:
            print_wrapped(f"  assumed: {text}", 11)
        print(f"next: iotwin emulate {shlex.quote(document['twin'])}")
