"""``iotwin checkfreq plan``: compute the checkpoint interval from the times of a step and of a checkpoint (CheckFreq's paper)."""

from argparse import ArgumentParser, Namespace
from typing import Any

from iotwin.command import Command, Outcome
from iotwin.common.units import counted

_TIMES = (
    ("--iteration-time", None, "time of a whole step without checkpoints"),
    (
        "--update-time",
        "0",
        "time of the weight update at the end of a step, during which the state must not be copied (default 0)",
    ),
    ("--host-copy", None, "time to copy the state into host memory"),
    ("--device-copy", "", "time to copy the state within the device's memory (default: there is no device)"),
    ("--write-time", None, "time to write the state durably from host memory"),
)


class CheckFreqPlanCommand(Command):
    name = "plan"
    help = "plan the steps between checkpoints from what a step and a checkpoint take"
    epilog = "example: iotwin checkfreq plan --iteration-time 200ms --host-copy 600ms --write-time 2 --size 1GiB --overhead 0.05"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        for option, default, text in _TIMES:
            parser.add_argument(option, required=default is None, default=default, metavar="TIME", help=text)
        parser.add_argument(
            "--size", required=True, metavar="SIZE", help="size of the state: weights, optimizer and all else in a checkpoint"
        )
        parser.add_argument("--memory-used", default="0", metavar="SIZE", help="device memory in use at its peak (default 0)")
        parser.add_argument("--memory-total", default="0", metavar="SIZE", help="device memory in all (default 0)")
        parser.add_argument(
            "--overhead", type=float, required=True, metavar="SHARE", help="bound of the stalls, as 0.05 for 5 %%"
        )
        parser.add_argument("--mtbf", metavar="TIME", help="mean time between failures; adds Young's interval")
        parser.add_argument("--in-flight", type=int, default=1, metavar="N", help="checkpoints being written at once (default 1)")

    def run(self, args: Namespace) -> Outcome:
        from dataclasses import asdict

        from iotwin.commands.checkfreq.tables import seconds
        from iotwin.common.errors import UsageError
        from iotwin.common.units import parse_size
        from iotwin.workloads.policies.adaptive_interval import CheckpointProfile, plan

        times = [
            seconds(text, option) if text else None
            for option, _, _ in _TIMES
            for text in [getattr(args, option[2:].replace("-", "_"))]
        ]
        sizes = [parse_size(text, zero=True) for text in (args.size, args.memory_used, args.memory_total)]
        mtbf_s = None if args.mtbf is None else seconds(args.mtbf, "--mtbf")
        try:
            found = plan(CheckpointProfile(*times, *sizes), args.overhead, mtbf_s, args.in_flight)  # type: ignore[arg-type]
        except ValueError as error:
            raise UsageError(f"--iteration-time, --overhead, --mtbf or --in-flight: {error}") from None
        return Outcome(asdict(found))

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.units import format_duration

        print(
            f"a checkpoint every {counted(document['interval'], 'step')}, snapshot on the {document['snapshot']}: "
            f"each stalls training for {format_duration(document['stall_s'] * 1e9)}, "
            f"{document['overhead']:.2%} of the time of steps"
        )
        print(f"at least {document['interval_no_overlap']}, or more would be on the way at once than allowed")
        print(f"at least {document['interval_bounded']}, or stalls would take more than the bound")
        if document["interval_mtbf"] is not None:
            print(f"at least {document['interval_mtbf']}, or stalls would cost more than failures do (Young)")
