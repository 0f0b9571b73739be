"""``iotwin dtr train``: train a model of PyTorch within a memory budget."""

from argparse import ArgumentParser, Namespace
from typing import Any

from iotwin.command import Command, Outcome, at_least
from iotwin.common.units import counted


class DtrTrainCommand(Command):
    name = "train"
    help = "train a PyTorch model within a memory budget"
    epilog = "example: iotwin dtr train resnet18 --ratio 0.6 --steps 5 --compare-plain"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("model", metavar="MODEL", help="model to train; 'list' names them all")
        budget = parser.add_mutually_exclusive_group()
        budget.add_argument("--budget", metavar="SIZE", help="bytes that tensors may take, such as 4GiB")
        budget.add_argument("--ratio", metavar="R", help="budget as a share of the peak memory without a budget")
        budget.add_argument("--plain", action="store_true", help="train without a budget, and measure the peak memory")
        parser.add_argument(
            "--heuristic", default="h_eq", metavar="NAME", help="rule that chooses the tensor to evict (default h_eq)"
        )
        parser.add_argument("--steps", type=at_least(1), default=5, metavar="N", help="steps to train (default 5)")
        parser.add_argument("--batch", type=at_least(1), metavar="N", help="samples in the batch (default: the model's own)")
        parser.add_argument("--preset", choices=["tiny", "paper"], default="tiny", help="size of the model (default tiny)")
        parser.add_argument("--device", default="cpu", metavar="NAME", help="device to train on (default cpu)")
        parser.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="seed of weights and inputs (default 0)")
        parser.add_argument(
            "--compare-plain", action="store_true", help="also train without a budget, and compare times and results"
        )
        parser.add_argument("--offload", metavar="DIR", help="save evicted tensors to a file in DIR if that is faster")
        parser.add_argument(
            "--no-search", action="store_true", help="do not look for a budget that is enough if the given one is not"
        )
        parser.add_argument("--sampling", action="store_true", help="consider only a random sample of tensors for eviction")
        parser.add_argument("--ignore-small", action="store_true", help="never evict tensors below 1 %% of the mean size")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.commands.dtr.options import ratio
        from iotwin.common.errors import UsageError
        from iotwin.common.units import parse_size
        from iotwin.workloads.models import MODELS

        if args.model == "list":
            return Outcome({"models": list(MODELS)})
        if args.budget is None and args.ratio is None and not args.plain:
            raise UsageError("give a memory budget, with --budget SIZE or --ratio R")
        try:
            from iotwin.workloads.dtr.live.train import BudgetedTraining, train, train_plain
        except ImportError:
            raise UsageError("training a model needs torch; install iotwin[torch]") from None
        try:
            share = None if args.ratio is None else ratio(args.ratio)
        except ValueError:
            raise UsageError(f"--ratio: '{args.ratio}' is not a number") from None
        training = BudgetedTraining(args.model, args.preset, args.batch, args.steps, args.seed, args.device)
        if args.plain:
            return Outcome(train_plain(training))
        return Outcome(train(
            training, None if args.budget is None else parse_size(args.budget), ratio=share, compare_plain=args.compare_plain,
            search=not args.no_search, heuristic=args.heuristic, sampling=args.sampling, ignore_small=args.ignore_small,
            offload=args.offload,
        ))  # fmt: skip

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.units import format_size

        if "models" in document:
            print(" ".join(document["models"]))
            return
        if document["budget_bytes"] is None:
            print(f"{document['model']}: {counted(document['steps'], 'step')} in at most {format_size(document['peak_bytes'])}")
            return
        print(
            f"{document['model']}: {counted(document['steps'], 'step')} in at most {format_size(document['peak_bytes'])} of "
            f"{format_size(document['budget_bytes'])}; {counted(document['evictions'], 'eviction')}, "
            f"{counted(document['rematerializations'], 'operation')} computed again "
            f"(overhead {document['overhead']:.4f})"
        )
        if document["slowdown"] is not None:
            equal = document["gradients_equal"] and document["weights_equal"]
            print(
                f"a step takes {document['slowdown']:.2f} times as long as without a budget; losses, gradients and weights are "
                f"{'equal bit for bit' if equal else 'NOT EQUAL'}"
            )
