"""``iotwin import``: convert the recording of another tool into a trace."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome
from iotwin.common.units import counted


class ImportCommand(Command):
    name = "import"
    help = "turn a recording of strace, fio, Darshan, DFTracer, a profiler or the paper artifact into a trace"
    epilog = "examples:\n  iotwin import strace.out -o job.trace\n  iotwin import run1 -o run1.trace --timezone America/Toronto"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("source", type=Path, metavar="SOURCE", help="file, or the artifact's directory")
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="TRACE", help="trace to write")
        parser.add_argument(
            "--format", metavar="NAME", help="artifact, strace, fio, darshan, dftracer, chakra or chrome (default: detected)"
        )
        parser.add_argument(
            "--timezone", metavar="ZONE", help="time zone of the machine that recorded an artifact directory (default UTC)"
        )
        parser.add_argument("--force", action="store_true", help="replace an earlier trace")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.trace_store.importers.import_trace import import_trace

        manifest, imported = import_trace(args.source, args.output, args.format, args.timezone, args.force)
        return Outcome(
            {
                "trace": str(args.output),
                "format": manifest.backend.removeprefix("import "),
                "events": manifest.events,
                "block_requests": imported.block.num_rows if imported.block is not None else 0,
                "accelerator_events": imported.gpu.num_rows if imported.gpu is not None else 0,
                "phases": len(imported.phases),
                "torn_lines": {name: count for name, count in imported.torn.items() if count},
                "notes": manifest.notes,
            }
        )

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.trace_visuals.labels import plain

        keys = ("events", "block_requests", "accelerator_events", "phases")
        found = ", ".join(counted(document[key], key[:-1].replace("_", " ")) for key in keys)
        print(f"{document['trace']}: {document['format']}, {found}")
        for note in document["notes"]:
            print(plain(f"note: {note}", 500))
