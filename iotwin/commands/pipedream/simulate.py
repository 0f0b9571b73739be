"""``iotwin pipedream simulate``: predict when each rank of a plan computes, waits, reads and checkpoints."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, at_least
from iotwin.common.errors import UsageError

_SCHEDULES = ("1f1b", "gpipe", "flush", "none", "2bw")


class PipeDreamSimulateCommand(Command):
    name = "simulate"
    help = "predict the timeline of a plan: fill, drain, bubbles, memory, reads, checkpoints"
    epilog = "example: iotwin pipedream simulate plan/plan.json --minibatches 100 --trace plan.json.trace"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("plan", type=Path, metavar="PLAN.json", help="plan.json, or a conf.json, whose stages count as equal")
        parser.add_argument(
            "--minibatches", type=at_least(1), default=100, metavar="N", help="minibatches of the whole run (default: 100)"
        )
        parser.add_argument("--schedule", choices=_SCHEDULES, help="order of the passes (default: the plan's, which is 1f1b)")
        parser.add_argument(
            "--trace",
            type=Path,
            metavar="FILE",
            help="write the timeline: FILE.json or .json.gz for Perfetto, else a trace for iotwin's commands",
        )

    def run(self, args: Namespace) -> Outcome:
        from iotwin.workloads.pipedream.plan.plan_file import read_plan
        from iotwin.workloads.policies.pipeline_simulator import Stalled, details, simulate, summary

        plan = read_plan(args.plan)
        schedule = args.schedule or plan.schedule
        try:
            timeline = simulate(plan, args.minibatches, schedule)
        except Stalled:
            raise UsageError(
                f"{args.plan}: with these depths the stages wait for one another for ever; leave depth out"
            ) from None
        if args.trace:
            from iotwin.workloads.pipedream.plan.timeline_file import write_timeline

            write_timeline(plan, timeline, args.minibatches, schedule, args.trace)
        document = {"schedule": schedule, "minibatches": args.minibatches, **summary(plan, timeline, args.minibatches, schedule)}
        return Outcome(
            {**document, **details(plan, args.minibatches, schedule), "trace": str(args.trace) if args.trace else None}
        )

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.units import format_size

        print(
            f"{document['minibatches']} minibatches in {document['seconds']:.6g} s ({document['schedule']}): fill "
            f"{document['fill_s']:.4g} s, {document['seconds_per_minibatch']:.6g} s each, drain {document['drain_s']:.4g} s; "
            f"the slowest is stage {document['bottleneck_stage']}"
        )
        for stage in document["stages"]:
            print(
                f"stage {stage['stage']}: ranks {stage['replicas']}, warm-up {stage['warm_up']}, "
                f"weight versions {stage['versions']}, "
                f"busy {stage['busy_share']:.1%}, bubble {stage['bubble_share']:.1%}, peak {format_size(stage['peak_bytes'])}, "
                f"reads {format_size(stage['read_bytes'])}, checkpoint {format_size(stage['checkpoint_bytes'])}"
            )
        if document["trace"]:
            print(f"timeline: {document['trace']}")
