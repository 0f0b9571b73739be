"""``iotwin set check``: report which hosts of a set can be read, and why not the others."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class SetCheckCommand(Command):
    name = "check"
    help = "report the hosts of a set: which can be read, the errors of their clocks, losses, differences"
    epilog = "example: iotwin set check job"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("directory", type=Path, metavar="DIR", help="set of hosts")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.trace_store.hosts.check_set import check_set

        document = {"set": str(args.directory), **check_set(args.directory)}
        return Outcome(document, 0 if all(each["status"] != "missing" for each in document["hosts"]) else 1)

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.units import counted
        from iotwin.trace_visuals.labels import host_line, plain

        events = counted(sum(each["events"] for each in document["hosts"]), "event")
        print(f"{document['set']}: {events} of {counted(len(document['hosts']), 'host')}")
        for each in document["hosts"]:
            print(f"  {host_line(each['name'], each, each['uncertainty_ns'])}")
        for note in document["notes"]:
            print(plain(f"note: {note}", 300))
