"""``iotwin report``: write one HTML page about one or more traces, to explore in a browser."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, add_dask_option, add_memory_option


class ReportCommand(Command):
    name = "report"
    help = "write one self-contained HTML page about traces"
    epilog = "examples:\n  iotwin report real.trace -o report.html\n  iotwin report real.trace twin.trace -o comparison.html"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "traces", nargs="+", type=Path, metavar="TRACE", help="trace to report; several are compared with the first"
        )
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.html", help="page to write")
        parser.add_argument(
            "--repeats",
            nargs="+",
            type=Path,
            default=[],
            metavar="TRACE",
            help="reruns of the first trace's job, for the verdict",
        )
        parser.add_argument(
            "--response", type=Path, metavar="FILE", help="response.json of iotwin twin respond, shown as a table"
        )
        parser.add_argument(
            "--advise", type=Path, metavar="FILE", help="output of iotwin advise TRACE --json, whose best change the page names"
        )
        add_dask_option(parser)
        add_memory_option(parser)

    def run(self, args: Namespace) -> Outcome:
        from iotwin.loops.answers.advised_change import advised_change
        from iotwin.loops.answers.bottleneck import quick_verdict, verdict_of
        from iotwin.loops.trace_with_phases import open_with_phases
        from iotwin.trace_store.reader import Trace
        from iotwin.trace_visuals.report.diagnosis import describe, headline
        from iotwin.trace_visuals.report.report_page import write_report

        verdicts = [quick_verdict(Trace(path)) for path in args.traces]
        if args.advise is not None:
            index, change = advised_change(args.advise, args.traces)
            verdicts[index] = (verdicts[index] or asdict(verdict_of(Trace(args.traces[index])))) | {"change": change}
        analyses = write_report(
            args.traces,
            args.output,
            args.dask,
            open_with_phases,
            repeats=args.repeats,
            response=args.response,
            verdicts=verdicts,
        )
        return Outcome({
            "output": str(args.output), "size_bytes": args.output.stat().st_size,
            "traces": [
                {"label": analysis.label, "lost": analysis.trace.manifest.lost_events, "calls": analysis.survey.calls,
                 "headline": headline(analysis, verdict),
                 "findings": {finding.topic: finding.text for finding in describe(analysis)}}
                for analysis, verdict in zip(analyses, verdicts, strict=True)
            ],
        })  # fmt: skip

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.units import format_size

        print(f"{document['output']}: {format_size(document['size_bytes'])}, open it in a browser")
        for trace in document["traces"]:
            print(f"\n{trace['label']}" + (f" (events lost: {trace['lost']:,})" if trace["lost"] else ""))
            print("\n".join(f"  {sentence}" for sentence in trace["headline"]))
