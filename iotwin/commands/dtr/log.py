"""``iotwin dtr log``: the log of a real model's step."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class DtrLogCommand(Command):
    """Records the operations of a PyTorch model."""

    name = "log"
    help = "record the operations of one training step of a PyTorch model"
    epilog = "example: iotwin dtr log mlp -o mlp.log"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        """Add the model and how it is run."""
        parser.add_argument("model", metavar="MODEL", help="model to run; 'list' names them all")
        parser.add_argument("-o", "--output", type=Path, metavar="LOG", help="log to write")
        parser.add_argument("--batch", type=int, metavar="N", help="samples in the batch (default: the model's own)")
        parser.add_argument("--preset", choices=["tiny", "paper"], default="tiny", help="size of the model (default tiny)")
        parser.add_argument("--fake", action="store_true", help="compute shapes only; take times from a cost model")
        parser.add_argument("--warm-up", type=int, default=1, metavar="N", help="steps before the one that is logged (default 1)")
        parser.add_argument("--device", default="cpu", metavar="NAME", help="device to run on (default cpu)")
        parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of weights and inputs (default 0)")

    def run(self, args: Namespace) -> Outcome:
        """Train one step under the logger."""
        from iotwin.common.errors import UsageError
        from iotwin.workloads.models import MODELS

        if args.model == "list":
            return Outcome({"models": list(MODELS)})
        if args.output is None:
            raise UsageError("give the log to write, with -o LOG")
        if (args.batch is not None and args.batch < 1) or args.warm_up < 0 or args.seed < 0:
            raise UsageError("--batch is at least 1, --warm-up and --seed at least 0")
        try:
            from iotwin.workloads.dtr.record import record_model
        except ImportError:
            raise UsageError("logging a model needs torch; install iotwin[torch]") from None
        return Outcome(record_model(
            args.model, args.output, batch=args.batch, preset=args.preset, fake=args.fake, warm_up=args.warm_up,
            device=args.device, seed=args.seed,
        ))  # fmt: skip

    def show(self, document: dict[str, Any]) -> None:
        """Print the size of the log, or the names of the models."""
        if "models" in document:
            print(" ".join(document["models"]))
            return
        print(
            f"{document['log']}: {document['operators']} operators in {document['seconds']:.3f} s, "
            f"{document['overhead_us_per_op']:.0f} us of logging each"
        )
