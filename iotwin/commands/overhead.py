"""``iotwin overhead``: measure what tracing costs a command."""

from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any

from iotwin.command import Command, Outcome, at_least
from iotwin.common.errors import UsageError
from iotwin.common.units import counted, format_duration


class OverheadCommand(Command):
    name = "overhead"
    help = "measure what tracing costs a command: time, CPU, bytes and losses, by runs with and without the tracer"
    epilog = "example: iotwin overhead --runs 9 -- python train.py --epochs 1"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--runs", type=at_least(1), default=7, metavar="N", help="pairs of runs, traced and untraced (default 7)"
        )
        parser.add_argument("--backend", default="auto", help="auto (default), libbpf, bcc, bpftrace, strace or preload")
        parser.add_argument(
            "--detail", default="data,async", metavar="GROUPS", help="what to record, as for iotwin trace (default data,async)"
        )
        parser.add_argument("words", nargs=REMAINDER, metavar="-- COMMAND...", help="the command to run, after --")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.loops.answers.overhead_runs import measure_overhead
        from iotwin.trace_store.syscalls import parse_detail
        from iotwin.tracing_tools.recorder.record_target import TraceOptions

        command = args.words[1:] if args.words[:1] == ["--"] else args.words
        if not command:
            raise UsageError("no command given; write it after --, for example: iotwin overhead -- python train.py")
        options = TraceOptions(args.backend, forward_output=False, detail=parse_detail(args.detail), is_scratch=True)
        return Outcome(measure_overhead(command, args.runs, options))

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.terminal import print_table

        bytes_, cpu = document["bytes_per_event"], document["job_cpu_ratio"]
        rows = [
            ("time of the command, traced / untraced", *_texts(document["wall_ratio"], "{:.3f}".format)),
            ("time added for each event", *_texts(document["added_ns_per_event"], format_duration)),
            ("CPU time of the command, traced / untraced", "-" if cpu is None else f"{cpu:.3f}", ""),
            ("CPU time of the tracer in a run", format_duration(document["tracer_cpu_s"] * 1e9), ""),
            ("events in a run", f"{document['events']}", ""),
            ("bytes of the trace for each event", "-" if bytes_ is None else f"{bytes_:.1f}", ""),
        ]
        print_table(("measured", "median", "95 % interval"), rows)
        lost = f"{counted(document['lost'], 'event')} LOST" if document["lost"] else "no event lost"
        machine = document["machine"]
        print(
            f"{counted(document['runs'], 'pair')} of runs, {lost}, by {machine['backend']} on {counted(machine['cpus'], 'CPU')}"
        )
        print(_verdict(document["wall_ratio"]))


def _texts(found: dict[str, float | None], text: Callable[[float], str]) -> tuple[str, str]:
    """Return the median and the interval as text; "-" for what is unknown."""
    median, low, high = found["median"], found["low"], found["high"]
    interval = "-" if low is None or high is None else f"{text(low)} to {text(high)}"
    return "-" if median is None else text(median), interval


def _verdict(ratio: dict[str, float | None]) -> str:
    median, low, high = ratio["median"] or 0.0, ratio["low"], ratio["high"]
    if low is None or high is None:
        return "Whether the runs differ by more than noise is unknown: that takes 6 runs or more."
    if low <= 1 <= high:
        return "The runs differ by no more than noise."
    return f"Tracing makes the command {abs(median - 1):.1%} {'slower' if median > 1 else 'faster'}, which is more than noise."
