"""``iotwin merge``: join the traces that several hosts recorded of one job."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome
from iotwin.common.units import counted


class MergeCommand(Command):
    name = "merge"
    help = "join traces of several hosts into one, aligned by their wall clocks"
    epilog = "example: iotwin merge node0.trace node1.trace -o job.trace"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("traces", type=Path, nargs="+", metavar="TRACE", help="traces of one job, one a host")
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="SET", help="trace to write")
        parser.add_argument("--force", action="store_true", help="replace an earlier trace of that name")

    def run(self, args: Namespace) -> Outcome:
        import msgspec

        from iotwin.trace_store.merge import merge_traces
        from iotwin.trace_store.reader import Trace

        manifest = merge_traces([Trace(path) for path in args.traces], args.output, args.force)
        hosts = msgspec.to_builtins(manifest.hosts)
        return Outcome({"trace": str(args.output), "events": manifest.events, "lost": manifest.lost_events, "hosts": hosts})

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.units import format_duration

        events, hosts = counted(document["events"], "event"), counted(len(document["hosts"]), "host")
        print(f"{document['trace']}: {events} of {hosts}, {document['lost']} lost")
        for host in document["hosts"]:
            shift, sure = format_duration(abs(host["shift_ns"])), format_duration(host["uncertainty_ns"])
            moved = f"moved by {'-' if host['shift_ns'] < 0 else ''}{shift} (±{sure})"
            print(f"  {host['name']}: {counted(host['events'], 'event')}, {moved}")
