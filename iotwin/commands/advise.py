"""``iotwin advise``: report what limits a traced job, and which changes help, each tested on the job's twin."""

import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, at_least


class AdviseCommand(Command):
    name = "advise"
    help = "report what limits a traced job, and which changes help; each is tested on the job's twin first"
    epilog = """examples:
  iotwin advise job.trace
  iotwin advise job.trace rerun.trace --runs 5
  iotwin advise job.trace --untested"""

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, metavar="TRACE", help="trace of the job")
        parser.add_argument(
            "reruns",
            type=Path,
            nargs="*",
            default=[],
            metavar="RERUN",
            help="traces of further runs, which show what varies by chance",
        )
        parser.add_argument(
            "--runs",
            type=at_least(1),
            default=3,
            metavar="N",
            help="runs of the twin unchanged, and with each change (default 3)",
        )
        parser.add_argument("--untested", action="store_true", help="list the findings only, and run no twin")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.loops.answers.tested_advice import advise
        from iotwin.trace_store.reader import Trace

        advice = advise(Trace(args.trace), [Trace(path) for path in args.reruns], args.runs, not args.untested)
        return Outcome(advice.to_document())

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.terminal import console
        from iotwin.loops.answers.finding import describe_change, describe_gain
        from iotwin.trace_visuals.labels import plain

        print_line = console().print
        print_line(plain(document["verdict"]["sentence"], 500), style="bold", markup=False)
        if document["machine"]["crowded"]:
            print_line("The machine was crowded: the times of the trace include other programs' work.", markup=False)
        for each in document["findings"]:
            print_line()
            print_line(plain(f"{each['rank']}. {each['kind']}: {describe_gain(each)}", 500), markup=False)
            print_line(plain(f"   {each['sentence'][0].upper()}{each['sentence'][1:]}.", 500), markup=False)
            print_line(plain(f"   {describe_change(each)}", 500), markup=False)
            for text in each["notes"]:
                print_line(plain(f"   {text}", 500), markup=False)
        if not document["findings"]:
            print_line("No change suggests itself.", markup=False)
        for text in document["notes"]:
            print_line(plain(text, 1000), markup=False)
        for each in document["findings"][:1]:
            print_line()
            command = f'iotwin stats {shlex.quote(document["trace"])} --sql "{each["sql"]}"'  # no query has double quotes
            print_line(f"calls behind the first finding: {command}", markup=False, soft_wrap=True)
