"""``iotwin checkfreq results``: what checkpoints cost each network of an experiment."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class CheckFreqResultsCommand(Command):
    """Read the cells of `iotwin run checkfreq`."""

    name = "results"
    help = "compare the policies of an experiment: time, overhead and stall by network"
    epilog = "example: iotwin checkfreq results results/checkfreq-smoke"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        """Add the experiment's directory."""
        parser.add_argument("directory", type=Path, metavar="DIR", help="what iotwin run wrote")

    def run(self, args: Namespace) -> Outcome:
        """Summarise the cells."""
        from iotwin.loops.checkfreq_results import summarise

        return Outcome(summarise(args.directory))

    def show(self, document: dict[str, Any]) -> None:
        """Print a line a network."""
        print(
            f"{'network':<14}{'interval':>9}"
            + "".join(f"{policy:>10}" for policy in ("auto", "sync", "epoch"))
            + "   sync/auto stall"
        )
        for model in document["models"]:
            overheads = "".join(f"{'-' if value is None else f'{value:.1%}':>10}" for value in model["overhead"].values())
            interval = "-" if model["interval"] is None else f"{model['interval']:g}"
            ratio = "-" if model["stall_ratio"] is None else f"{model['stall_ratio']:.1f}"
            print(f"{model['model']:<14}{interval:>9}{overheads}   {ratio:>15}")
        print(f"{document['directory']}/curves.json: draw it with iotwin plot curves")
