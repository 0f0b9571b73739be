"""``iotwin plot``: draw timelines, the parts of steps, or curves as a picture file."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin import __version__
from iotwin.command import Command, Outcome, add_memory_option
from iotwin.command_lines import this_command
from iotwin.common.errors import UsageError
from iotwin.common.units import counted


class PlotCommand(Command):
    name = "plot"
    help = "draw timelines of traces, steps or curves as PNG, SVG or PDF"
    epilog = (
        "examples:\n  iotwin plot timeline real.trace twin.trace -o timeline.pdf\n"
        "  iotwin plot timeline real.trace -o epoch.png --zoom epoch:1 --group rank\n"
        "  iotwin plot steps results/cells -o steps\n"
        "  iotwin plot curves speed-ups.json -o speed-ups.svg"
    )

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "kind",
            choices=["timeline", "steps", "curves"],
            help="timeline: phases, CPU, GPU, calls and throughput on one time axis; steps: the parts of instrumented steps; "
            "curves: a panel for each JSON document of series",
        )
        parser.add_argument(
            "traces",
            nargs="+",
            type=Path,
            metavar="TRACE",
            help="trace to draw, several aligned; for steps: a directory; for curves: a document",
        )
        parser.add_argument(
            "-o",
            "--output",
            type=Path,
            required=True,
            metavar="FILE",
            help="picture to write (.png, .svg or .pdf); for steps: a directory",
        )
        parser.add_argument(
            "--zoom",
            metavar="WHAT",
            help="show only init, epoch:N, block:N, eval:N, checkpoint:N, the first 30s of training, last:30s, or "
            "FROM..TO in seconds from the zero of the time axis",
        )
        parser.add_argument(
            "--group",
            choices=["all", "role", "host", "rank", "process"],
            default="all",
            help="one set of rows for all processes, or for each role, host, rank with its loaders, or process (default all)",
        )

        parser.add_argument("--paper", action="store_true", help="leave out titles, machine and CPU row, for a paper")
        parser.add_argument("--short", action="store_true", help="make the picture as wide as one of two columns of text")
        parser.add_argument("--legend", type=Path, metavar="FILE", help="draw the legend into this file instead")
        add_memory_option(parser)

    def run(self, args: Namespace) -> Outcome:
        if args.kind == "steps":
            return _run_steps(args)
        if args.kind == "curves":
            return _run_curves(args)
        from iotwin.loops.trace_with_phases import open_with_phases
        from iotwin.trace_visuals.style import Origin
        from iotwin.trace_visuals.timeline.timeline_figure import Form, plot_timeline

        origin = Origin(f"iotwin {__version__}", this_command()) if args.paper else None
        form = Form(args.short, args.paper, args.legend is None, origin)
        blocks = plot_timeline(args.traces, args.output, args.zoom, args.group, form, args.legend, open_with_phases)
        return Outcome({
            "kind": args.kind, "output": str(args.output),
            "traces": [
                {"label": block.label, "lost": block.manifest.lost_events, "from_s": block.window.seconds()[0],
                 "to_s": block.window.seconds()[1], "calls_drawn": int(block.lanes.calls.sum())}
                for block in blocks
            ],
        })  # fmt: skip

    def show(self, document: dict[str, Any]) -> None:
        if document["kind"] == "curves":
            drawn = sum(panel["series"] for panel in document["panels"])
            print(f"{document['output']}: {counted(drawn, 'curve')} in {counted(len(document['panels']), 'panel')}")
            return
        if "traces" not in document:
            found = f"steps of {counted(document['runs'], 'run')} in {counted(document['configurations'], 'configuration')}"
            print(f"{document['output']}: {found}, {counted(len(document['pictures']), 'picture')}")
            return
        print(f"{document['output']}: timeline of {', '.join(trace['label'] for trace in document['traces'])}")
        for trace in document["traces"]:
            if trace["lost"]:
                print(f"{trace['label']}: events lost: {trace['lost']:,}, so its rates are too low; the picture states this")


def _run_steps(args: Namespace) -> Outcome:
    """Analyse instrumented runs. Raises UsageError if an option that shapes timelines is set."""
    from iotwin.trace_visuals.steps.plot_steps import plot_steps

    _refuse_timeline_options(args)
    return Outcome({"kind": args.kind, **plot_steps(args.traces, args.output)})


def _run_curves(args: Namespace) -> Outcome:
    """Draw JSON documents of curves, each as a panel."""
    from iotwin.trace_visuals.curves import plot_curves

    _refuse_timeline_options(args)
    return Outcome({"kind": args.kind, **plot_curves(args.traces, args.output)})


def _refuse_timeline_options(args: Namespace) -> None:
    if args.zoom or args.group != "all" or args.paper or args.short or args.legend:
        raise UsageError(f"--zoom, --group, --paper, --short and --legend are for timelines; leave them out for {args.kind}")
