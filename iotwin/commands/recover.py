"""``iotwin recover``: finish a recording that was cut off."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome
from iotwin.common.units import counted


class RecoverCommand(Command):
    name = "recover"
    help = "finish a recording that was cut off (tracer killed, disk full)"
    epilog = "example: iotwin recover run.trace"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, metavar="TRACE")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.trace_store.raw.finish import recover_trace
        from iotwin.tracing_tools.backends.choose_backend import convert
        from iotwin.tracing_tools.recorder.unprivileged_finish import recover_as
        from iotwin.tracing_tools.targets.cgroup import remove_stale_cgroups
        from iotwin.tracing_tools.targets.user import invoking_user

        user = invoking_user()
        manifest = recover_trace(args.trace, convert) if user is None else recover_as(user, args.trace)
        removed = remove_stale_cgroups()
        return Outcome({"trace": str(args.trace), "events": manifest.events, "lost": manifest.lost, "cgroups_removed": removed})

    def show(self, document: dict[str, Any]) -> None:
        lost = sum(document["lost"].values())
        print(
            f"{document['trace']}: recovered {counted(document['events'], 'event')}"
            + (f", {lost} lost" if lost else ", none known to be lost")
        )
