"""``iotwin info``: what a trace holds, in a screenful."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome

_SHOWN, _MOST_OPERATIONS = 3, 5
_MOST_EVENTS = 2_000_000  # of which is told what twin they have: a fit holds them in memory
_COUNTED = ("files", "calls", "read_bytes", "written_bytes")


class Info(Command):
    """Describe a trace."""

    name = "info"
    help = "say what a trace holds: the job, the machine, calls and bytes, files, phases, losses"
    epilog = "example: iotwin info run.trace"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        """Add the trace."""
        parser.add_argument("trace", type=Path, metavar="TRACE")

    def run(self, args: Namespace) -> Outcome:
        """Summarise in one pass over the events."""
        import msgspec

        from benchmark.fit import foretell
        from tracing_tools.trace.clocks import summarise_clock
        from tracing_tools.trace.figures.summary import summarise
        from tracing_tools.trace.reader import Trace

        trace = Trace(args.trace)
        summary = summarise(trace)
        summary["twin"] = foretell(trace) if 0 < trace.manifest.events <= _MOST_EVENTS else None
        clock = msgspec.to_builtins(summarise_clock(trace.manifest.clock))
        return Outcome({"trace": str(args.trace), "manifest": msgspec.to_builtins(trace.manifest), "clock": clock, **summary})

    def show(self, document: dict[str, Any]) -> None:
        """Print the summary as a few tables."""
        from rich.text import Text

        from common import terminal
        from common.units import format_duration, format_size
        from iotwin.loops.statistics_table import show_statistics
        from trace_visuals.labels import machine_words, plain
        from tracing_tools.trace.manifest import Host

        manifest, console = document["manifest"], terminal.console()
        host, lost = manifest["host"], sum(manifest["lost"].values())
        console.print(Text(plain(f"{document['trace']}: {' '.join(manifest['target']['command'])}", 200), style="bold"))
        machine = ", ".join(machine_words(Host(**host)))
        console.print(Text(f"{manifest['status']}, by {manifest['backend']}" + (f" on {machine}" if machine else "")))
        duration = format_duration(manifest["end_ns"] - manifest["start_ns"])
        losses = f"{lost} events LOST: {manifest['lost']}" if lost else "no event lost"
        console.print(f"{manifest['events']} events in {duration}, {losses}, exit status {manifest['exit_status']}")
        processes = ", ".join(f"{count} {role}" for role, count in document["processes"].items())
        console.print(f"processes: {processes}")
        if document["phases"]:
            console.print(f"phases: {', '.join(map(_phase, document['phases']))}")
        if document["parts"]:
            console.print(Text(f"parts of steps: {', '.join(map(_part, document['parts']))}"))
        if document["twin"] is not None:
            console.print(Text(plain(f"its twin: {document['twin']}", 1000)))
        for note in manifest["notes"]:
            console.print(Text(plain(f"note: {note}", 500)))
        _show_kinds(document["files"])
        if cache := document["page_cache"]:
            share = "" if cache["hit_ratio"] is None else f": {cache['hit_ratio']:.0%} were in the page cache"
            fetched = f"{format_size(cache['read_bytes'])} read, {format_size(cache['device_bytes'])} of it from devices"
            console.print(f"{fetched}{share}")
        storage = document["busiest_storage_files"]
        what = "data-set and checkpoint files" if storage else "files"
        show_statistics(storage or document["busiest_files"], f"{what} with the most time in calls", _SHOWN)
        show_statistics(document["operations"], "calls of all kinds", _MOST_OPERATIONS, "iotwin stats shows all")
        show_statistics(document["busiest_processes"], "processes with the most time in calls", _SHOWN)


def _phase(row: dict[str, Any]) -> str:
    """A kind of phase: how often, and how long each and all."""
    from common.units import format_duration

    total = f" ({format_duration(row['total_ns'])} in all)" if row["count"] > 1 else ""
    return f"{row['count']} {row['phase']} of {format_duration(row['mean_ns'])}{total}"


def _part(row: dict[str, Any]) -> str:
    """A part of steps: how often, and how long in the median."""
    from common.units import format_duration
    from trace_visuals.labels import plain

    return f"{row['count']} {plain(row['name'], 40)} of {format_duration(row['median_s'] * 1e9)}"


def _show_kinds(files: list[dict[str, Any]]) -> None:
    """Print what was done to the files of each kind, the job's storage first and all that is none in one line."""
    from common.terminal import console
    from common.units import format_size
    from iotwin.loops.statistics_table import KINDS_FIRST, plain_table

    by_kind = {row["kind"]: row for row in files}
    rest = [row for row in files if row["kind"] not in KINDS_FIRST]
    shown = [by_kind[kind] for kind in KINDS_FIRST if kind in by_kind]
    table = plain_table()
    table.add_column("files of kind")
    for heading in ("files", "calls", "read", "written"):
        table.add_column(heading, justify="right")
    for name, rows in [*((row["kind"], [row]) for row in shown), (", ".join(row["kind"] for row in rest), rest)]:
        if rows:
            number, calls, read, written = (sum(row[key] for row in rows) for key in _COUNTED)
            table.add_row(name, f"{number:,}", f"{calls:,}", format_size(read), format_size(written))
    out = console()
    out.print()
    out.print(table)
