"""``iotwin emulate``: run a twin, with real I/O and the accelerator emulated."""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome

_Parsed = tuple[Namespace, list[str]]
_Parse = Callable[[list[str], Namespace | None], _Parsed]


def _overrides_anywhere(parse: _Parse) -> _Parse:
    """Let overrides stand among options: argparse itself fills a repeated positional from one place only."""

    def parse_known_args(args: list[str], namespace: Namespace | None) -> _Parsed:
        overrides = [argument for argument in args if argument.startswith("++")]
        parsed, rest = parse([argument for argument in args if not argument.startswith("++")], namespace)
        parsed.overrides += overrides
        return parsed, rest

    return parse_known_args


class Emulate(Command):
    """Run a workload YAML: real files through real loader processes, real checkpoints, and sleep for the accelerator."""

    name = "emulate"
    help = "run a twin: the I/O of a training job without its model or a GPU"
    epilog = (
        "examples:\n  iotwin emulate twin.yaml\n"
        "  iotwin emulate twin.yaml ++workload.reader.batch_size=4 ++workload.dataset.data_folder=/mnt/nfs/kits19"
    )

    def prepare_parser(self, parser: ArgumentParser) -> None:
        """Add the workload and its overrides."""
        parser.add_argument("workload", metavar="TWIN.yaml", type=Path, help="workload YAML, as iotwin fit writes it")
        parser.add_argument("overrides", metavar="++workload.SECTION.KEY=VALUE", nargs="*", help="replace one value of the YAML")
        parse: Any = parser.parse_known_args  # overloaded, which no alias can say
        parser.parse_known_args = _overrides_anywhere(parse)  # type: ignore[method-assign,assignment]

    def run(self, args: Namespace) -> Outcome:
        """Run the workload and return its summary; progress and MLLOG lines are printed meanwhile."""
        # The emulator multiplies no matrices, so threads for it would only cost memory; this must be said before numpy is loaded.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        from benchmark.config import load
        from benchmark.emulator import emulate
        from benchmark.results import prepare_output, write_results

        config = load(args.workload, args.overrides)
        prepare_output(Path(config.output.folder))
        # Under --json stdout is for the document alone; the log still goes where a tracer can find it.
        log = sys.stderr if args.json else None if args.quiet else sys.stdout
        measured = emulate(config, log)
        return Outcome({**write_results(config, measured), "output": config.output.folder})

    def show(self, document: dict[str, Any]) -> None:
        """Print the figures that matter, each with its unit."""
        from tracing_tools.trace.units import format_duration, format_size

        metric, own = document["metric"], document["iotwin"]
        waits = own["train"]["data_wait_s"]
        utilisation = metric["train_au_mean_percentage"]
        reached = "reached" if metric["train_au_meet_expectation"] == "success" else "not reached"
        lines = {
            "accelerator utilisation": "unknown: one step per epoch"
            if utilisation is None
            else f"{utilisation:.1f} % (goal {reached})",
            "throughput": f"{metric['train_throughput_mean_samples_per_second']:.2f} samples/s",
            "read": f"{format_size(own['bytes_read'])}, in training {metric['train_io_mean_MB_per_second']:.1f} MiB/s",
            "wait for data": f"median {format_duration(waits['median'] * 1e9)}, p99 {format_duration(waits['p99'] * 1e9)} a step",
        }
        if own["checkpoint_files"]:
            rate = metric["save_checkpoint_io_mean_GB_per_second"]
            lines["checkpoints"] = f"{format_size(own['bytes_written'])} at {rate:.3g} GiB/s"
        lines["results"] = document["output"]
        for name, value in lines.items():
            print(f"{name:24} {value}")
