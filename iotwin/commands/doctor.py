"""``iotwin doctor``: report what iotwin can capture on this machine, and why not the rest."""

from argparse import ArgumentParser, Namespace
from typing import Any

from iotwin.command import Command, Outcome


class DoctorCommand(Command):
    name = "doctor"
    help = 'report what this machine can capture, with the reason for each "no"'

    def prepare_parser(self, parser: ArgumentParser) -> None:
        pass

    def run(self, args: Namespace) -> Outcome:
        from iotwin.loops.doctor_checks import checks
        from iotwin.tracing_tools.backends.choose_backend import BACKEND_NAMES

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
        print(f"\n{_conclusion(document)}")


def _conclusion(document: dict[str, Any]) -> str:
    """Return what this machine can do, and the next command or what to fix."""
    from iotwin.tracing_tools.backends.choose_backend import BACKEND_NAMES

    works = {row["name"]: row["reason"] is None for row in document["checks"]}
    usable = [name for name in BACKEND_NAMES if works.get(name)]
    if not usable:
        return "this machine cannot trace: fix one of the backends above"
    start = "iotwin demo -o demo" if works.get("torch") else "iotwin trace -o run.trace -- COMMAND"
    slower = "" if usable[0] == BACKEND_NAMES[0] else f"; {BACKEND_NAMES[0]} would cost the job less: see its line above"
    return f"this machine can trace, by {usable[0]}{slower}; next: {start}"
