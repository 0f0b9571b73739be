"""``iotwin set make``: write set.json, which makes a directory a set of hosts."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class SetMakeCommand(Command):
    name = "make"
    help = "make a directory a set of hosts: name their traces, align their clocks; nothing is copied"
    epilog = "examples:\n  iotwin set make job node0.trace node1.trace\n  iotwin set make $SCRATCH/job"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("directory", type=Path, metavar="DIR", help="directory of the set, which is made if it is missing")
        parser.add_argument(
            "traces", type=Path, nargs="*", default=[], metavar="TRACE", help="traces, one a host (default: all in DIR)"
        )

    def run(self, args: Namespace) -> Outcome:
        import msgspec

        from iotwin.trace_store.hosts.make_set import make_set

        hosts = make_set(args.directory, args.traces)
        return Outcome({"set": str(args.directory), "version": 1, "hosts": msgspec.to_builtins(hosts)})

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.trace_visuals.labels import host_line

        print(f"{document['set']}: {sum(each['status'] != 'missing' for each in document['hosts'])} of "
              f"{len(document['hosts'])} hosts")  # fmt: skip
        for each in document["hosts"]:
            print(f"  {host_line(each['host'], each, each['error_ns'])}")
