"""``iotwin compare``: how alike are two traces."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome

_BAR_WIDTH = 20


class Compare(Command):
    """Scores the likeness of what two runs did to their data set and checkpoints."""

    name = "compare"
    help = "how alike two traces are, dimension by dimension"
    epilog = "example: iotwin compare real.trace twin.trace --repeats rerun1.trace rerun2.trace"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        """Add A, B and --repeats."""
        parser.add_argument("a", type=Path, metavar="A", help="a trace, the reference in every sentence")
        parser.add_argument("b", type=Path, metavar="B", help="the trace to compare with it")
        parser.add_argument(
            "--repeats", type=Path, nargs="+", default=[], metavar="TRACE", help="more runs of A's job, for the noise floor"
        )

    def run(self, args: Namespace) -> Outcome:
        """Compare the traces; IotwinError when one is damaged or has nothing to compare."""
        from tracesim import compare
        from tracing_tools.trace.reader import Trace

        similarity = compare(Trace(args.a), Trace(args.b), [Trace(path) for path in args.repeats])
        return Outcome(similarity.to_document())

    def show(self, document: dict[str, Any]) -> None:
        """Print the table of dimensions, the verdict and what it rests on."""
        print(f"A  {document['a']}\nB  {document['b']}\n")
        floors = document["noise_floor_dimensions"]
        print(f"{'':<16}score  weight{'  reruns' if floors else ''}")
        for name, score in document["dimensions"].items():
            bar = "█" * round(score * _BAR_WIDTH)
            rerun = f"  {floors[name]:>6.3f}" if name in floors else "        " if floors else ""
            print(f"{name.replace('_', ' '):<16}{score:.3f}  {document['weights'][name]:>6.2f}{rerun}  {bar}")
        print(_overall_line(document))
        print(f"\n{document['verdict']}")
        for title in ("differences", "warnings"):
            if document[title]:
                print(f"\n{title}:\n" + "\n".join(f"  {sentence}" for sentence in document[title]))


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
