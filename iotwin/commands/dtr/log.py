"""``iotwin dtr log``: record the tensor operations of one training step of a PyTorch model."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, at_least


class DtrLogCommand(Command):
    name = "log"
    help = "record the operations of one training step of a PyTorch model"
    epilog = "example: iotwin dtr log mlp -o mlp.log"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("model", metavar="MODEL", help="model to run; 'list' names them all")
        parser.add_argument("-o", "--output", type=Path, metavar="LOG", help="log to write")
        parser.add_argument("--batch", type=at_least(1), metavar="N", help="samples in the batch (default: the model's own)")
        parser.add_argument("--preset", choices=["tiny", "paper"], default="tiny", help="size of the model (default tiny)")
        parser.add_argument("--fake", action="store_true", help="compute shapes only; take times from a cost model")
        parser.add_argument(
            "--warm-up", type=at_least(0), default=1, metavar="N", help="steps before the one that is logged (default 1)"
        )
        parser.add_argument("--device", default="cpu", metavar="NAME", help="device to run on (default cpu)")
        parser.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="seed of weights and inputs (default 0)")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.common.errors import UsageError
        from iotwin.workloads.models import MODELS

        if args.model == "list":
            return Outcome({"models": list(MODELS)})
        if args.output is None:
            raise UsageError("give the log to write, with -o LOG")
        try:
            from iotwin.workloads.dtr.record import record_model
        except ImportError:
            raise UsageError("logging a model needs torch; install iotwin[torch]") from None
        return Outcome(record_model(
            args.model, args.output, batch=args.batch, preset=args.preset, fake=args.fake, warm_up=args.warm_up,
            device=args.device, seed=args.seed,
        ))  # fmt: skip

    def show(self, document: dict[str, Any]) -> None:
        if "models" in document:
            print(" ".join(document["models"]))
            return
        print(
            f"{document['log']}: {document['operators']} operators in {document['seconds']:.3f} s, "
            f"{document['overhead_us_per_op']:.0f} us of logging each"
        )
