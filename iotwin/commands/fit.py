"""``iotwin fit``: derive the twin of a traced job."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class Fit(Command):
    """Fit a twin."""

    name = "fit"
    help = "derive the I/O twin of a traced training job: a YAML that `iotwin emulate` runs"
    epilog = "example: iotwin fit run.trace -o twin.yaml"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        """Add the trace and the output."""
        parser.add_argument("trace", type=Path, metavar="TRACE")
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="TWIN.yaml", help="file to write")

    def run(self, args: Namespace) -> Outcome:
        """Fit and write the YAML."""
        from benchmark.config import dump
        from benchmark.fit import fit
        from tracing_tools.trace.output import check_output
        from tracing_tools.trace.reader import Trace

        check_output(args.output)
        fitted = fit(Trace(args.trace))
        dump(fitted.config, args.output)
        return Outcome({
            "twin": str(args.output), "evidence": fitted.evidence, "confidence": fitted.confidence,
            "assumptions": fitted.config.twin.assumptions,
        })  # fmt: skip

    def show(self, document: dict[str, Any]) -> None:
        """Say what was found, by what, and what had to be assumed."""
        from benchmark.fit_confidence import told

        print(f"{document['twin']}:")
        for name, text in document["evidence"].items():
            print(f"  {name:16} {text}")
        print("how sure:")
        for name, entry in document["confidence"].items():
            print(f"  {name:37} {told(entry)}")
        for text in document["assumptions"]:
            print(f"  assumed: {text}")
