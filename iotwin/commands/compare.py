"""``iotwin compare``: score how alike two traces, or all pairs of traces in two folders, are."""

import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, add_dask_option, add_memory_option
from iotwin.common.errors import UsageError

_BAR_WIDTH = 20


class CompareCommand(Command):
    name = "compare"
    help = "score how alike two traces are, dimension by dimension"
    _latex = False  # set by `run` for `show`
    epilog = """examples:
  iotwin compare real.trace twin.trace --repeats rerun1.trace rerun2.trace -o results
  iotwin compare real/ emulated/ -o results"""

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("a", type=Path, metavar="A", help="the reference: a trace or a folder of traces")
        parser.add_argument("b", type=Path, metavar="B", help="the trace, or folder of traces, to compare with A")
        parser.add_argument(
            "--repeats", type=Path, nargs="+", default=[], metavar="TRACE", help="more runs of A's job, for the noise floor"
        )
        parser.add_argument(
            "-o",
            "--output",
            type=Path,
            metavar="DIR",
            help="directory for the results: JSON and pictures; of folders, those of every pair",
        )

        parser.add_argument("--latex", action="store_true", help="print the scores as a table for LaTeX")
        add_dask_option(parser)
        add_memory_option(parser)

    def run(self, args: Namespace) -> Outcome:
        from iotwin.loops.similarity_results import compare_folders, is_folder_of_traces, write_result
        from iotwin.trace_store.reader import Trace
        from iotwin.tracesim import compare
        from iotwin.tracesim.similarity import WORTH_PROCESSES

        if args.latex and args.json:
            raise UsageError("--latex and --json exclude each other; choose one")
        self._latex = args.latex
        if is_folder_of_traces(args.a) or is_folder_of_traces(args.b):
            if args.repeats or args.dask:
                raise UsageError("--repeats and --dask go with two traces; folders are compared pair by pair")
            return Outcome(compare_folders(args.a, args.b, args.output))
        from iotwin.trace_store.parallel_fold import workers

        traces = [Trace(path) for path in (args.a, args.b, *args.repeats)]
        with workers(args.dask, traces, WORTH_PROCESSES) as each:
            similarity = compare(traces[0], traces[1], traces[2:], each)
        if args.output is not None:
            write_result(similarity, args.output)
        return Outcome(similarity.to_document())

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.tracesim.verdict.equivalence_sentences import lines_of_caveats, sentences_of_test

        if self._latex:
            _print_latex(document)
            return
        if "matrix" in document:
            _show_matrix(document)
            return
        print(f"A  {document['a']}\nB  {document['b']}\n")
        floors = document["noise_floor_dimensions"]
        print(f"{'':<16}score  weight{'  reruns' if floors else ''}")
        for name, score in document["dimensions"].items():
            bar = "█" * round(score * _BAR_WIDTH)
            rerun = f"  {floors[name]:>6.3f}" if name in floors else "        " if floors else ""
            print(f"{name.replace('_', ' '):<16}{score:.3f}  {document['weights'][name]:>6.2f}{rerun}  {bar}")
        print(_overall_line(document))
        print("\n".join(["", document["verdict"], *lines_of_caveats(document["caveats"])]))
        if document["equivalence"] is not None:
            print("\n".join(sentences_of_test(document["equivalence"])))
        for title in ("differences", "warnings"):
            printed = [document["verdict"], *document["caveats"]]
            further = [sentence for sentence in document[title] if not any(sentence in text for text in printed)]
            if further:
                print(f"\n{'further ' if len(further) < len(document[title]) else ''}{title}:")
                print("\n".join(f"  {sentence}" for sentence in further))
        print(f"\nnext: iotwin report {shlex.quote(document['a'])} {shlex.quote(document['b'])} -o report.html")


def _print_latex(document: dict[str, Any]) -> None:
    from iotwin.loops.latex_table import latex_table

    if "matrix" in document:
        rows = [[name, *scores] for name, scores in zip(document["rows"], document["matrix"], strict=True)]
        print(latex_table(["", *document["columns"]], rows), end="")
        return
    floors = document["noise_floor_dimensions"]
    rows = [
        [name.replace("_", " "), score, document["weights"][name], floors.get(name)]
        for name, score in document["dimensions"].items()
    ]
    rows.append(["overall", document["overall"], None, document["noise_floor"]])
    print(latex_table(["dimension", "score", "weight", "reruns"], rows), end="")


def _show_matrix(document: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from iotwin.common.terminal import console

    table = Table("")
    for name in document["columns"]:
        table.add_column(Text(name), justify="right")
    for name, scores in zip(document["rows"], document["matrix"], strict=True):
        table.add_row(Text(name), *("withheld" if score is None else f"{score:.3f}" for score in scores))
    console().print(table)
    for column, row in document["nearest"].items():
        print(f"{column} is nearest to {row}")


def _overall_line(document: dict[str, Any]) -> str:
    if document["overall"] is None:
        return f"{'overall':<16}withheld"
    line = f"{'overall':<16}{document['overall']:.3f}"
    if document["confidence_interval"]:
        low, high = document["confidence_interval"]
        line += f"  (95 % interval {low:.3f} to {high:.3f})"
    if document["noise_floor"] is not None:
        line += f"  reruns of A score {document['noise_floor']:.3f} or more"
    return line
