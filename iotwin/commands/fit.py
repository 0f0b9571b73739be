"""``iotwin fit``: derive the twin of a traced job."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class FitCommand(Command):
    name = "fit"
    help = "derive the I/O twin of a traced job: a YAML that `iotwin emulate` runs"
    epilog = "example: iotwin fit run.trace -o twin.yaml"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, metavar="TRACE")
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="TWIN.yaml", help="file to write")
        parser.add_argument(
            "--kind",
            choices=("auto", "structured", "recorded"),
            default="auto",
            help="kind of twin (default auto: structured if fit can infer the job's structure, else recorded)",
        )

    def run(self, args: Namespace) -> Outcome:
        from iotwin.benchmark.fit import fit
        from iotwin.common.files import check_output
        from iotwin.trace_store.reader import Trace
        from iotwin.workload_yaml import dump
        from iotwin.workload_yaml.recording import SUFFIX, write_recording

        check_output(args.output)
        fitted = fit(Trace(args.trace), args.kind)
        if fitted.recording is not None and fitted.config.twin.recorded is not None:
            recording = args.output.with_suffix(SUFFIX)
            write_recording(fitted.recording, recording)
            fitted.config.twin.recorded.file = recording.name
        dump(fitted.config, args.output)
        return Outcome(
            {
                "twin": str(args.output),
                "evidence": fitted.evidence,
                "confidence": fitted.confidence,
                "coverage": fitted.coverage,
                "assumptions": fitted.config.twin.assumptions,
            }
        )

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.benchmark.fit import coverage
        from iotwin.benchmark.fit.confidence import describe

        print(f"{document['twin']}:")
        for name, text in document["evidence"].items():
            print(f"  {name:16} {text}")
        print(coverage.describe_coverage(document["coverage"]))
        if document["confidence"]:
            print("how sure:")
        for name, entry in document["confidence"].items():
            print(f"  {name:37} {describe(entry)}")
        for text in document["assumptions"]:
            print(f"  assumed: {text}")
