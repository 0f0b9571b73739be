"""``iotwin checkpoints audit``: report which checkpoints of a traced job a power loss could have destroyed."""

import re
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome
from iotwin.common.units import counted

_MOST_ROWS = 20
_NUMBERS = re.compile(r"\d+")


class CheckpointsAuditCommand(Command):
    name = "audit"
    help = "check that a power loss at any instant leaves one of a traced job's checkpoints; name the missing calls"
    epilog = "example: iotwin checkpoints audit run.trace"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, metavar="TRACE", help="trace of any job")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.trace_store.figures.durability import audit
        from iotwin.trace_store.reader import Trace

        document = {"trace": str(args.trace), **audit(Trace(args.trace))}
        return Outcome(document, 0 if document["safe"] else 1)

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.units import format_duration, format_size
        from iotwin.trace_visuals.labels import plain

        each = document["checkpoints"]
        print(f"{'begun':>10}{'size':>11}{'durable':>10}{'at risk':>10}  checkpoint")
        for entry in each[:_MOST_ROWS]:
            durable = "never" if entry["durable_s"] is None else format_duration((entry["durable_s"] - entry["begun_s"]) * 1e9)
            risk = format_duration(entry["exposed_s"] * 1e9) if entry["exposed"] else "never"
            begun, size = format_duration(entry["begun_s"] * 1e9), format_size(entry["size_bytes"])
            print(f"{begun:>10}{size:>11}{durable:>10}{risk:>10}  {plain(entry['name'], 200)}")
        if len(each) > _MOST_ROWS:
            print(f"{len(each) - _MOST_ROWS} more: iotwin checkpoints audit --json")
        for line in _folded([line for entry in each for line in entry["lost"]]):
            print(plain(line, 300))
        for line in _folded([line for entry in each for line in entry["missing"]]):
            print(plain(f"missing: {line}", 300))
        exposed = sum(bool(entry["exposed"]) for entry in each)
        if exposed:
            print(f"a loss of power at {exposed} of {counted(len(each), 'checkpoint')} could leave none that loads")
        else:
            print("a loss of power at any instant leaves a checkpoint that loads")


def _folded(lines: list[str]) -> list[str]:
    """Merge lines that differ only in numbers: return the first of them, with their count."""
    counts: dict[str, int] = {}
    first: dict[str, str] = {}
    for line in lines:
        shape = _NUMBERS.sub("#", line)
        counts[shape] = counts.get(shape, 0) + 1
        first.setdefault(shape, line)
    return [line if counts[shape] == 1 else f"{line} ({counts[shape]} such)" for shape, line in first.items()]
