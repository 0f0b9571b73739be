"""``iotwin checkfreq tune``: simulate how CheckFreq's controller changes the checkpoint interval over a series of steps."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome
from iotwin.common.units import counted


class CheckFreqTuneCommand(Command):
    name = "tune"
    help = "simulate how the controller changes the interval over a series of steps"
    epilog = "example: iotwin checkfreq tune steps.csv --overhead 0.05 --interval 14"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("steps", type=Path, metavar="STEPS.csv", help="columns seconds, checkpoint, stall_s [, writing]")
        parser.add_argument("--overhead", type=float, required=True, metavar="SHARE", help="bound, as 0.05 for 5 %%")
        parser.add_argument("--interval", type=int, required=True, metavar="K", help="steps between checkpoints at the start")

    def run(self, args: Namespace) -> Outcome:
        from dataclasses import asdict

        from iotwin.commands.checkfreq.tables import read_steps
        from iotwin.common.errors import UsageError
        from iotwin.workloads.policies.adaptive_interval import tune

        steps = read_steps(args.steps)
        try:
            windows, changes = tune(steps, args.overhead, args.interval)
        except ValueError as error:
            raise UsageError(f"--overhead or --interval: {error}") from None
        interval = windows[-1].interval if windows else args.interval
        return Outcome({"interval": interval, "windows": [asdict(window) for window in windows], "changes": changes})

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.terminal import print_table
        from iotwin.common.units import format_duration

        rows = [
            [
                f"{window['first_step']}-{window['last_step']}",
                format_duration(window["base_s"] * 1e9),
                f"{window['overhead']:.2%}",
                f"{window['stall_share']:.2%}",
                f"{window['interference_share']:.2%}",
                window["interval"],
            ]
            for window in document["windows"]
        ]
        print_table(("steps", "step", "overhead", "stall", "interference", "interval"), rows)
        print(f"a checkpoint every {counted(document['interval'], 'step')} after {counted(document['changes'], 'change')}")
