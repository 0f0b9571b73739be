"""``iotwin trace``: run a command under the tracer."""

from argparse import REMAINDER, ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome
from tracing_tools.trace.errors import UsageError
from tracing_tools.trace.units import format_duration, parse_duration


class Record(Command):
    """Trace a command."""

    name = "trace"
    help = "run a command and record its storage activity"
    epilog = "example: iotwin trace -o run.trace -- python train.py --epochs 3"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        """Add the output, the backend and the command."""
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="TRACE", help="directory to write the trace to")
        parser.add_argument("--backend", default="auto", help="auto (default), libbpf, bcc, strace or preload")
        parser.add_argument(
            "--interval", default="1s", metavar="TIME", help="between samples of CPU, memory, disk and GPU (default 1s)"
        )
        parser.add_argument(
            "--detail", default="data,async", metavar="GROUPS",
            help="what to record, a list of: data, metadata, mmap, async, block; or all (default data,async)",
        )  # fmt: skip
        parser.add_argument("--workload", metavar="NAME", help="label to keep in the trace")
        parser.add_argument("--force", action="store_true", help="replace an earlier trace of that name")
        parser.add_argument("words", nargs=REMAINDER, metavar="-- COMMAND...", help="the command to run, after --")

    def run(self, args: Namespace) -> Outcome:
        """Trace; the exit status is the command's (128 + signal when it was killed by one)."""
        from tracing_tools.capture import Options, trace_command
        from tracing_tools.trace.syscalls import parse_detail

        command = args.words[1:] if args.words[:1] == ["--"] else args.words
        if not command:
            raise UsageError("no command given; write it after --, for example: iotwin trace -o run.trace -- python train.py")
        interval_ns = parse_duration(args.interval)
        if interval_ns < 1_000_000:
            raise UsageError(f"--interval {args.interval} is too short; take 1ms or more")
        options = Options(
            args.backend, interval_ns, args.workload, args.force, not (args.quiet or args.json), parse_detail(args.detail)
        )
        manifest = trace_command(command, args.output, options)
        status = manifest.exit_status if manifest.exit_status is not None else 1
        document = {
            "trace": str(args.output), "backend": manifest.backend, "events": manifest.events, "lost": manifest.lost_events,
            "counts": manifest.counts, "wall_s": manifest.cost.wall_ns / 1e9, "tracer_cpu_s": manifest.cost.tracer_cpu_ns / 1e9,
            "exit_status": status, "notes": manifest.notes,
        }  # fmt: skip
        return Outcome(document, status if status >= 0 else 128 - status)

    def show(self, document: dict[str, Any]) -> None:
        """Say in a line or two what was recorded."""
        import sys

        lost = f", {document['lost']} LOST" if document["lost"] else ", none lost"
        took = format_duration(document["wall_s"] * 1e9)
        print(f"{document['trace']}: {document['events']} events in {took} by {document['backend']}{lost}", file=sys.stderr)
        for note in document["notes"]:
            if not note.startswith("no GPU"):  # the normal state of most machines; `iotwin info` says it too
                print(f"  note: {note}", file=sys.stderr)
