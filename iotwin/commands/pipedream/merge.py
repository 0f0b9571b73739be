"""``iotwin pipedream merge``: join the stages of a checkpoint into one file of the whole model."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class PipeDreamMergeCommand(Command):
    name = "merge"
    help = "join the stages of a checkpoint into a state dict of the whole model"
    epilog = "example: iotwin pipedream merge out/checkpoint -o full.pt"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "checkpoint",
            type=Path,
            metavar="CHECKPOINT",
            help="checkpoint, or a store of checkpoints, of which the newest is read",
        )
        parser.add_argument(
            "-o", "--output", type=Path, required=True, metavar="FULL.pt", help="file for the state dict of the whole model"
        )
        parser.add_argument(
            "--stages", type=Path, metavar="DIR", help="also write a file checkpoint.STAGE.pth.tar for each stage to DIR"
        )

    def run(self, args: Namespace) -> Outcome:
        from iotwin.common.files import check_output
        from iotwin.workloads.pipedream.runtime.merge import merge

        check_output(args.output)
        return Outcome(merge(args.checkpoint, args.output, args.stages))

    def show(self, document: dict[str, Any]) -> None:
        print(
            f"{document['output']}: {document['network']} after epoch {document['epoch']}, {document['parameters']} parameters "
            f"of {document['stages']} stages"
        )
        for path in document["stage_files"]:
            print(path)
