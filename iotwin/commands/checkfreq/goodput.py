"""``iotwin checkfreq goodput``: predict the useful steps per second of a job whose machines fail."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class CheckFreqGoodputCommand(Command):
    name = "goodput"
    help = "compute the steps per second that remain if failures send a job back to its last checkpoint"
    epilog = (
        "example: iotwin checkfreq goodput --iteration-time 0.2 --checkpoint-time 2.6 --load-time 5 --interval 13 --mtbf 1h"
        " --system checkfreq"
    )

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("--iteration-time", required=True, metavar="TIME", help="time of a step without checkpoints")
        parser.add_argument("--checkpoint-time", required=True, metavar="TIME", help="time of a checkpoint from beginning to end")
        parser.add_argument("--load-time", required=True, metavar="TIME", help="time to start again and load a checkpoint")
        parser.add_argument("--interval", type=int, required=True, metavar="K", help="steps between checkpoints")
        parser.add_argument("--in-flight", type=int, default=1, metavar="N", help="checkpoints being written at once (pccheck)")
        failures = parser.add_mutually_exclusive_group(required=True)
        failures.add_argument("--mtbf", metavar="TIME", help="mean time between failures")
        failures.add_argument("--failures", type=Path, metavar="CSV", help="trace of GPUs in use: columns Time, GPUs")
        parser.add_argument(
            "--system", default="checkfreq", choices=["checkfreq", "sync", "pccheck", "ideal"], help="how checkpoints are written"
        )

    def run(self, args: Namespace) -> Outcome:
        from iotwin.commands.checkfreq.tables import read_failures, seconds
        from iotwin.common.errors import UsageError
        from iotwin.workloads.policies.goodput import FailingJob, goodput

        failures, span_s = (None, seconds(args.mtbf, "--mtbf")) if args.mtbf else read_failures(args.failures)
        if span_s <= 0:
            raise UsageError("--mtbf: it must be above 0")
        try:
            job = FailingJob(
                seconds(args.iteration_time, "--iteration-time"),
                seconds(args.checkpoint_time, "--checkpoint-time"),
                seconds(args.load_time, "--load-time"),
                args.interval,
                args.in_flight,
            )
        except ValueError as error:
            raise UsageError(str(error)) from None
        found = goodput(args.system, job, (1 if failures is None else failures) / span_s)
        return Outcome(
            {
                "goodput_steps_per_s": found.steps_per_s,
                "useful_share": found.useful_share,
                "redo_s_per_failure": found.redo_s,
                "failures": failures,
            }
        )

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.units import format_duration

        counted = "" if document["failures"] is None else f" of {document['failures']}"
        print(
            f"{document['goodput_steps_per_s']:.4g} steps a second count, {document['useful_share']:.1%} of the time; "
            f"a failure{counted} costs {format_duration(document['redo_s_per_failure'] * 1e9)}"
        )
