"""``iotwin pipedream bandwidth``: measure how fast ranks exchange tensors, as the planner's -b requires."""

from argparse import ArgumentParser, Namespace
from typing import Any

from iotwin.command import Command, Outcome, at_least


class PipeDreamBandwidthCommand(Command):
    name = "bandwidth"
    help = "measure the bandwidth between ranks on this machine, for optimize -b"
    epilog = "example: iotwin pipedream bandwidth --ranks 2 --sizes 4KiB 1MiB 16MiB"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("--ranks", type=at_least(2), default=2, metavar="N", help="processes to start (default: 2)")
        parser.add_argument(
            "--sizes", nargs="+", default=["4KiB", "64KiB", "1MiB", "16MiB"], metavar="SIZE",
            help="bytes of a tensor (default: 4KiB 64KiB 1MiB 16MiB)",
        )  # fmt: skip
        parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo", help="gloo connects CPUs (default), nccl GPUs")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.common.units import parse_size
        from iotwin.workloads.pipedream.runtime.bandwidth import BandwidthOptions, measure_bandwidth

        return Outcome(measure_bandwidth(BandwidthOptions(args.ranks, [parse_size(size) for size in args.sizes], args.backend)))

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.terminal import print_table
        from iotwin.common.units import format_duration, format_size

        rows = [
            (
                name,
                format_size(each["size_bytes"]),
                format_duration(each["latency_s"] * 1e9),
                f"{format_size(each['bytes_per_s'])}/s",
            )
            for name, key in (("rank to rank", "point_to_point"), ("all-reduce", "all_reduce"))
            for each in document[key]
        ]
        print_table(("exchange", "size", "time", "rate"), rows)
        print(f"optimize: -b {document['recommended_b']:.3g}")
