"""``iotwin checkfreq results``: compare the checkpoint policies of an experiment by the time that they cost each network."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class CheckFreqResultsCommand(Command):
    name = "results"
    help = "compare the policies of an experiment: time, overhead and stall by network"
    epilog = "example: iotwin checkfreq results results/checkfreq-smoke"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("directory", type=Path, metavar="DIR", help="directory that iotwin run wrote")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.loops.checkfreq_results import summarise

        return Outcome(summarise(args.directory))

    def show(self, document: dict[str, Any]) -> None:
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
