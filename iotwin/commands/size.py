"""``iotwin size``: find the least storage with which a twin's training keeps a target, by running it."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, at_least

_AXES, _CACHES = ("bandwidth", "requests", "latency", "cache"), ("cold", "warm")


class SizeCommand(Command):
    name = "size"
    help = "find the least storage (bandwidth, requests, latency, cache) with which a twin's training keeps a target"
    epilog = """examples:
  iotwin size twin -o size
  iotwin size twin -o size --target epoch_time=1.05 --axes bandwidth,requests --cache cold --ranks 64"""

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "twin", type=Path, metavar="TWIN", help="a folder of iotwin twin, a packed twin, or a workload's YAML"
        )
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="directory to write")
        parser.add_argument(
            "--target",
            default="au=0.9",
            metavar="TARGET",
            help="au=SHARE (accelerator utilisation), or epoch_time=RATIO to the unlimited run (default au=0.9)",
        )
        parser.add_argument("--ranks", type=at_least(1), metavar="N", help="ranks that share the storage (default: the twin's)")
        parser.add_argument(
            "--cache",
            type=_several(_CACHES),
            default=["cold"],
            metavar="STATES",
            help="page cache at the start of each run: cold, warm or both, joined by commas (default cold)",
        )
        parser.add_argument(
            "--axes",
            type=_several(_AXES),
            default=list(_AXES),
            metavar="AXES",
            help=f"what to limit: {','.join(_AXES)} (default all)",
        )
        parser.add_argument(
            "--runs",
            type=at_least(1),
            default=3,
            metavar="N",
            help="most runs of a limit whose result is near the target (default 3)",
        )
        parser.add_argument(
            "--clock",
            choices=("real", "virtual"),
            help="virtual: skip the time in which the job only computes (default, unless the twin has busy_wait); real: sleep",
        )
        parser.add_argument("--force", action="store_true", help="replace an earlier result in DIR")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.loops.size.least_storage import SizeQuestion, size
        from iotwin.loops.size.limit_search import parse_target

        target = parse_target(args.target)
        question = SizeQuestion(target, args.ranks, args.cache, args.axes, args.runs, args.clock)
        return Outcome({"action": "size", **size(args.twin, question, args.output, args.force), "output": str(args.output)})

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.terminal import print_table
        from iotwin.loops.size.size_files import limit_text
        from iotwin.loops.size.size_sentences import sentences_of

        figure = "AU" if document["target"].startswith("au") else "epoch time"
        rows = [
            (
                f"{need['axis']}, {need['cache']}",
                limit_text(need),
                "-" if need["figure_there"] is None else f"{need['figure_there']:.3f}",
                f"{limit_text(need, 'low')} to {limit_text(need, 'high')}",
            )
            for need in document["needs"]
        ]
        print_table(("limit, cache", "least", f"{figure} there", "edge between"), rows)
        for sentence in sentences_of(document):
            print(sentence)


def _several(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Return a function for argparse's `type=`: it splits text at commas and rejects words that are not in `known`."""

    def convert(text: str) -> list[str]:
        words = list(dict.fromkeys(word.strip() for word in text.split(",")))
        for word in words:
            if word not in known:
                raise ArgumentTypeError(f"'{word}' is none of {', '.join(known)}")
        return words

    return convert
