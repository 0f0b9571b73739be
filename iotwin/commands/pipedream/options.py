"""Options that describe the machines of a pipeline's plan, shared by several commands of ``iotwin pipedream``."""

import math
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from iotwin.common.errors import UsageError

if TYPE_CHECKING:
    from iotwin.workloads.pipedream.plan.costs import CostOptions


_MOST_WORKERS = 4096  # most workers; the search's tables grow with the workers and the square of the states: 50 MB for 40 states


def add_machine_options(parser: ArgumentParser) -> None:
    """Add -n, -b and all other options that decide the costs and the search."""
    parser.add_argument(
        "-n",
        "--all-num-machines",
        dest="machines",
        nargs="+",
        type=int,
        metavar="N",
        help="workers at each level, innermost first: 4 4 is four machines of four GPUs",
    )
    parser.add_argument(
        "-b",
        "--network-bandwidths",
        dest="bandwidths",
        nargs="+",
        type=float,
        default=[1e9],
        metavar="BYTES/S",
        help="bandwidth within each level in bytes per second (default: 1e9)",
    )
    parser.add_argument(
        "-s",
        "--memory-size",
        dest="memory",
        type=float,
        default=16e9,
        metavar="BYTES",
        help="memory of a worker in bytes (default: 16e9); only with --use-memory-constraint",
    )
    parser.add_argument("--use-memory-constraint", action="store_true", help="only plans that fit the memory")
    parser.add_argument("--straight-pipeline", action="store_true", help="one worker a stage, without replicas")
    parser.add_argument(
        "--use-fewer-machines",
        action="store_true",
        help="use the fewest workers that give the same time",
    )
    parser.add_argument(
        "--exact-workers", action="store_true", help="use all workers, even if fewer are faster, as the original does"
    )
    parser.add_argument(
        "--activation-compression-ratio",
        dest="compression",
        type=float,
        metavar="X",
        help="count the bytes sent between stages, divided by X; without it, the original's costs ignore them",
    )
    parser.add_argument(
        "--cost-model", choices=["code", "paper"], default="code", help="the formulas of the original's code (default) or paper"
    )
    parser.add_argument(
        "--memory-model",
        choices=["versions", "original"],
        default="versions",
        help="what a stage holds: weight versions, activations in flight and optimizer state (default), or the original's rule",
    )
    parser.add_argument("--fold", action="store_true", default=None, help="drop layers without time and data (default)")
    parser.add_argument("--no-fold", dest="fold", action="store_false", help="keep those layers, as the original does")


def options_of(args: Namespace) -> "CostOptions":
    """Return the machines and cost models that the options describe. Raises UsageError that names the wrong option."""
    from iotwin.workloads.pipedream.plan.costs import CostOptions, Level

    if not args.machines:
        raise UsageError("-n is missing: give the workers, such as -n 4, or -n 4 4 for four machines of four")
    if len(args.machines) != len(args.bandwidths):
        raise UsageError(
            f"-n has {len(args.machines)} levels and -b has {len(args.bandwidths)}; give one bandwidth for each level"
        )
    for machines in args.machines:
        if machines < 1:
            raise UsageError(f"-n {machines}: a level has at least one worker")
    if math.prod(args.machines) > _MOST_WORKERS:
        raise UsageError(f"-n {' '.join(map(str, args.machines))}: a plan has at most {_MOST_WORKERS} workers")
    for option, value in (("-b", args.bandwidths), ("-s", [args.memory]), ("--activation-compression-ratio", [args.compression])):
        for number in value:
            if number is not None and not 0 < number < float("inf"):
                raise UsageError(f"{option} {number:g}: it must be above 0 and finite")
    return CostOptions(
        tuple(Level(*level) for level in zip(args.machines, args.bandwidths, strict=True)),
        args.straight_pipeline,
        args.exact_workers,
        args.use_fewer_machines,
        args.compression,
        args.cost_model,
        args.memory if args.use_memory_constraint else None,
        args.memory_model,
    )
