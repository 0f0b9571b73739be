"""``iotwin pipedream twin``: write the I/O twin of a plan on a data set, without a traced job."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, at_least
from iotwin.common.units import counted


class PipeDreamTwinCommand(Command):
    name = "twin"
    help = "write the I/O twin of a plan on a data set, for iotwin emulate"
    epilog = "example: iotwin pipedream twin plan/plan.json --data data -o pipeline.yaml"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("plan", type=Path, metavar="PLAN.json", help="plan.json")
        parser.add_argument(
            "--data", type=Path, required=True, metavar="DIR", help="directory of the data set that stage 0 reads"
        )
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="TWIN.yaml", help="workload to write")
        parser.add_argument(
            "--batch-size", type=at_least(1), metavar="N", help="samples of a minibatch (default: the plan's, else 1)"
        )
        parser.add_argument(
            "--minibatches", type=at_least(1), metavar="N", help="minibatches of an epoch (default: the whole data set)"
        )
        parser.add_argument(
            "--epochs", type=at_least(1), default=1, metavar="N", help="epochs, each with a checkpoint (default: 1)"
        )
        parser.add_argument(
            "--eval-batch-size",
            type=at_least(1),
            default=100,
            metavar="N",
            help="samples of a minibatch of evaluations, if the data set has validation images (default: 100)",
        )
        parser.add_argument(
            "-j",
            "--workers",
            type=at_least(0),
            default=4,
            metavar="N",
            help="loaders of each reading rank (default: 4)",
        )
        parser.add_argument(
            "--load-s", type=at_least(0, float), default=0.0, metavar="SECONDS",
            help="time in which a loader reads and decodes a minibatch, load_s of iotwin pipedream profile (default: 0)",
        )  # fmt: skip
        parser.add_argument("--force", action="store_true", help="replace TWIN.yaml even if it was edited")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.common.files import check_output
        from iotwin.loops.pipeline_twin import PipelineTraining, pipeline_twin
        from iotwin.workload_yaml import check_unedited, dump
        from iotwin.workloads.pipedream.plan.plan_file import read_plan

        plan = read_plan(args.plan)
        check_output(args.output)
        if not args.force:
            check_unedited(args.output)
        training = PipelineTraining(
            args.batch_size or plan.batch_size or 1,
            args.minibatches,
            args.epochs,
            args.eval_batch_size,
            args.workers,
            args.load_s,
        )
        config = pipeline_twin(plan, args.data, training)
        dump(config, args.output)
        return Outcome(
            {
                "twin": str(args.output),
                "ranks": plan.ranks,
                "readers": plan.stages[0].replicas,
                "batch_size": config.reader.batch_size,
                "checkpoint_bytes": [int(2 * stage.parameter_bytes) for stage in plan.stages],
            }
        )

    def show(self, document: dict[str, Any]) -> None:
        print(
            f"{document['twin']}: {counted(document['ranks'], 'rank')}, of which {document['readers']} read, "
            f"{counted(document['batch_size'], 'sample')} a minibatch; iotwin emulate runs it"
        )
