"""``iotwin demo``: trace a real training run, fit its twin, run the twin and compare the two traces."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class DemoCommand(Command):
    name = "demo"
    help = "train a real network under the tracer, derive its twin, run the twin, show how alike they are"
    epilog = "example: iotwin demo -o demo\ntakes about three minutes on two CPU cores and needs half a gigabyte of disk"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "-o", "--output", type=Path, default=Path("demo"), metavar="DIR", help="directory to write to (default demo)"
        )
        parser.add_argument("--force", action="store_true", help="replace what an earlier demo wrote there")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.loops.demo_steps import run_demo

        return Outcome(run_demo(args.output, args.force))

    def show(self, document: dict[str, Any]) -> None:
        from rich.table import Table

        from iotwin.common import terminal

        twin, rerun = document["real_vs_twin"], document["real_vs_rerun"]
        table = Table("similarity", "real against its twin", "real against a rerun", title="how alike", title_justify="left")
        for name in twin["dimensions"]:
            table.add_row(name.replace("_", " "), *(f"{side['dimensions'][name]:.3f}" for side in (twin, rerun)))
        table.add_section()
        table.add_row("overall", f"{twin['overall']:.3f}", f"{rerun['overall']:.3f}", style="bold")
        console = terminal.console()
        console.print(table)
        console.print(f"verdict: {twin['verdict']}", highlight=False)
        seconds = ", ".join(f"{name} {value:.1f} s" for name, value in document["seconds_per_step"].items())
        console.print(f"took: {seconds}", highlight=False)
        console.print(f"open {document['directory']}/report.html and {document['directory']}/timeline.png", highlight=False)
