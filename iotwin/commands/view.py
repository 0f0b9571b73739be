"""``iotwin view``: serve the report of traces of any size to a browser on this machine."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class ViewCommand(Command):
    name = "view"
    help = "explore traces of any size in a browser, down to single calls, from a local server"
    epilog = "example: iotwin view real.trace twin.trace"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "traces", nargs="+", type=Path, metavar="TRACE", help="trace to view; several are compared with the first"
        )
        parser.add_argument("--port", type=int, default=0, metavar="N", help="port of the loopback address (default: a free one)")

    def run(self, args: Namespace) -> Outcome:
        import sys
        import threading

        from iotwin.common.errors import UsageError
        from iotwin.loops.answers.bottleneck import quick_verdict
        from iotwin.loops.trace_with_phases import open_with_phases
        from iotwin.trace_store.reader import Trace
        from iotwin.trace_visuals.report.view import ReportServer

        if not 0 <= args.port < 1 << 16:
            raise UsageError(f"--port {args.port} is no port; give a number below 65536, or 0 for a free one")
        verdicts = [quick_verdict(Trace(path)) for path in args.traces]
        with ReportServer(args.traces, args.port, open_with_phases, verdicts) as server:
            try:
                # The user needs the address, so it is printed even under --quiet and --json.
                print(f"open {server.url} in a browser on this machine; Ctrl-C ends", file=sys.stderr, flush=True)
                threading.Event().wait()
            except KeyboardInterrupt:
                return Outcome({"url": server.url})
        return Outcome({"url": server.url})

    def show(self, document: dict[str, Any]) -> None:
        print("the server has ended")
