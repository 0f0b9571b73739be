"""``iotwin twin make``, or just ``iotwin twin``: fit the twin of a traced job, run it and compare."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, accept_dropped_options


class TwinMakeCommand(Command):
    name = "make"
    help = "make the twin of a traced job, run it and compare (meant when no action is named)"
    epilog = "example: iotwin twin real.trace rerun.trace -o twin"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="the job's trace and reruns of it")
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="directory to write")
        accept_dropped_options(parser, "--rounds", "--kind")
        parser.add_argument(
            "--clock",
            choices=("real", "virtual"),
            default="real",
            help="whether the twin sleeps while its job computes, or skips that time (default: real)",
        )
        parser.add_argument("--force", action="store_true", help="replace an earlier twin in DIR")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.loops.twin_from_trace import make_twin

        return Outcome({"action": "make", **make_twin(args.traces, args.output, args.force, args.clock)})

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.tracesim.verdict.equivalence_sentences import lines_of_caveats, sentences_of_test

        print(f"the twin scores {_score(document)}; edits: {document['edits']}")
        _show_dimensions(document)
        print("\n".join([document["verdict"], *lines_of_caveats(document["caveats"])]))
        if document["equivalence"] is not None:
            print("\n".join(sentences_of_test(document["equivalence"], "the job", "its twin")))
        if document["noise_floor"] is not None:
            print(f"reruns of the job score {document['noise_floor']:.3f} or more among themselves")
        for held_out in document["held_out"]:
            print(f"against {held_out['a']}, which the fit has not seen: {_score(held_out)}, {held_out['verdict']}")
        print(f"{document['twin']}: run it with iotwin emulate, send it with iotwin twin pack")


def _score(scored: dict[str, Any]) -> str:
    return "withheld" if scored["overall"] is None else f"{scored['overall']:.3f}"


def _show_dimensions(document: dict[str, Any]) -> None:
    """Print the twin's score of each dimension, and the lowest of the reruns."""
    floors = document["noise_floor_dimensions"]
    print(f"\n{'the twin and the job':<22}score{'  reruns' if floors else ''}")
    for name, score in document["rounds"][0]["dimensions"].items():
        print(f"{name.replace('_', ' '):<22}{score:.3f}" + (f"  {floors[name]:>6.3f}" if name in floors else ""))
    print()
