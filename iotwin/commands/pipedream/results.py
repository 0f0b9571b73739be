"""``iotwin pipedream results``: a table of epochs from the logs of a training."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class PipeDreamResultsCommand(Command):
    name = "results"
    help = "print time, loss and precision by epoch from the logs of a training's ranks"
    epilog = "example: iotwin pipedream results logs/rank-0.log logs/rank-1.log"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "logs", type=Path, nargs="+", metavar="LOG", help="log of a rank of the last stage, or the logs of all ranks"
        )

    def run(self, args: Namespace) -> Outcome:
        from iotwin.workloads.pipedream.epoch_log_reader import epoch_results

        return Outcome({"epochs": epoch_results(args.logs)})

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.terminal import print_table

        names = ("epoch", "hours", "top1", "top5", "loss", "epoch_hours")
        rows = [
            [("" if (value := row[name]) is None else str(value) if name == "epoch" else f"{value:.4f}") for name in names]
            for row in document["epochs"]
        ]
        print_table(names, rows)
