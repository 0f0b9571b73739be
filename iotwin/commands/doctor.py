"""``iotwin doctor``: report what iotwin can capture on this machine, and why not the rest."""

from argparse import ArgumentParser, Namespace
from typing import Any

from iotwin.command import Command, Outcome


class DoctorCommand(Command):
    name = "doctor"
    help = "report what this machine can capture, with the reason for each no"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        pass

    def run(self, args: Namespace) -> Outcome:
        from iotwin.loops.checks import checks
        from iotwin.tracing_tools.backends import BACKEND_NAMES

        found = [{"name": name, "reason": reason, "purpose": purpose} for name, purpose, reason in checks()]
        can_trace = any(row["reason"] is None for row in found if row["name"] in BACKEND_NAMES)
        return Outcome({"can_trace": can_trace, "checks": found}, 0 if can_trace else 1)

    def show(self, document: dict[str, Any]) -> None:
        from rich.table import Table
        from rich.text import Text

        from iotwin.common.terminal import console

        table = Table("", "what", "for", "why not", box=None, pad_edge=False)
        for row in document["checks"]:
            mark = Text("yes", style="green") if row["reason"] is None else Text("no", style="yellow")
            table.add_row(mark, row["name"], row["purpose"], Text(row["reason"] or ""))
        console().print(table)
        if not document["can_trace"]:
            print("this machine cannot trace: fix one of the backends above")
