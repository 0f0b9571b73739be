"""``iotwin merge``: write the traces that several hosts recorded of one job as one trace."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, add_memory_option
from iotwin.common.units import counted


class MergeCommand(Command):
    name = "merge"
    help = "write the traces of several hosts, or a set, as one trace"
    epilog = "example: iotwin merge node0.trace node1.trace -o job.trace"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("traces", type=Path, nargs="+", metavar="TRACE", help="a set, or the traces of one job, one a host")
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="trace to write")
        parser.add_argument("--force", action="store_true", help="replace an earlier trace of that name")
        add_memory_option(parser)

    def run(self, args: Namespace) -> Outcome:
        import msgspec

        from iotwin.trace_store.hosts.merge import merge_traces

        manifest = merge_traces(args.traces, args.output, args.force)
        hosts = msgspec.to_builtins(manifest.hosts)
        return Outcome({"trace": str(args.output), "events": manifest.events, "lost": manifest.lost_events, "hosts": hosts})

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.trace_visuals.labels import host_line

        events, hosts = counted(document["events"], "event"), counted(len(document["hosts"]), "host")
        print(f"{document['trace']}: {events} of {hosts}, {document['lost']} lost")
        for host in document["hosts"]:
            print(f"  {host_line(host['name'], host, host['uncertainty_ns'])}")
