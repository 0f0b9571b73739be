"""``iotwin export``: write a trace in the format of another program."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, add_memory_option
from iotwin.common.units import counted


class ExportCommand(Command):
    name = "export"
    help = "write a trace for other programs: Perfetto, Chrome, CSV, Chakra, or a log that fio replays"
    epilog = (
        "examples (open the first at https://ui.perfetto.dev):\n  iotwin export run.trace -o run.pftrace\n"
        "  iotwin export run.trace -o run.json.gz\n  iotwin export run.trace -o run.iolog --files /mnt/new"
    )

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, metavar="TRACE")
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="file to write; .gz compresses it")
        parser.add_argument(
            "--format",
            metavar="FORMAT",
            help="perfetto (.pftrace), chrome (.json), csv (.csv), fio (.iolog) or chakra (.et); default: as FILE ends",
        )
        parser.add_argument(
            "--files",
            type=Path,
            metavar="DIR",
            help="fio: directory whose files the replay reads and writes (default FILE.files)",
        )
        add_memory_option(parser)

    def run(self, args: Namespace) -> Outcome:
        from iotwin.trace_store.reader import Trace
        from iotwin.tracing_tools.exports.export_trace import export_trace, format_of

        format_ = format_of(args.output, args.format)
        trace = Trace(args.trace)
        events = export_trace(trace, args.output, format_, args.files)
        return Outcome(
            {
                "trace": str(args.trace),
                "output": str(args.output),
                "format": format_,
                "events": events,
                "lost": trace.manifest.lost_events,
                "size_bytes": args.output.stat().st_size,
            }
        )

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.units import format_size

        size = format_size(document["size_bytes"])
        print(f"{document['output']}: {counted(document['events'], 'event')} for {document['format']}, {size}")
        if document["lost"]:
            print(f"{document['trace']}: it lacks {counted(document['lost'], 'lost event')}")
