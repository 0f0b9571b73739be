"""``iotwin pipedream verify``: train by processes, and compare their weights with those of one process, bit for bit."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, at_least

_SCHEDULES = ("1f1b", "gpipe", "flush", "none", "2bw")


class PipeDreamVerifyCommand(Command):
    name = "verify"
    help = "train a small model by one process per rank, and compare its weights with those of a single process"
    epilog = "example: iotwin pipedream verify mp_conf.json --module mlp4 --minibatches 40"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("plan", type=Path, metavar="CONF.json", help="conf.json or plan.json with the ranks of each stage")
        parser.add_argument(
            "--module", default="mlp4", metavar="MODEL", help="model to train, of iotwin's models (default: mlp4)"
        )
        parser.add_argument("--minibatches", type=at_least(1), default=40, metavar="N", help="minibatches to train (default: 40)")
        parser.add_argument("--schedule", choices=_SCHEDULES, help="order of the passes (default: the plan's, which is 1f1b)")
        parser.add_argument("--vertical-sync", action="store_true", help="use the version of stage 0 in all stages")
        parser.add_argument("--recompute", action="store_true", help="repeat the forward pass instead of keeping activations")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.workloads.pipedream.runtime.verify import Verification, verify

        options = Verification(str(args.plan), args.module, args.minibatches, args.schedule, args.vertical_sync, args.recompute)
        document = verify(options)
        return Outcome(document, exit_status=0 if document["equal"] else 1)

    def show(self, document: dict[str, Any]) -> None:
        for stage, used in document["versions_used"].items():
            print(f"stage {stage}: versions {' '.join(map(str, used[:12]))}{' ...' if len(used) > 12 else ''}")
        verdict = "equal to" if document["equal"] else "DIFFERENT from"
        print(f"the weights are {verdict} those of a single process; largest difference {document['max_difference']:.3g}")
