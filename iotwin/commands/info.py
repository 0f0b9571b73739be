"""``iotwin info``: what a trace holds, in a screenful."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome

_SHOWN = 5
_MOST_EVENTS = 2_000_000  # of which is told what twin they have: a fit holds them in memory


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
        from rich.table import Table
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

        clock = document["clock"]
        if clock["drift_ppm"] is not None:
            console.print(
                f"wall clock: drift {clock['drift_ppm']:+.2f} ppm, known to ±{format_duration(clock['uncertainty_ns'])}, "
                f"{clock['readings']} readings, set {len(clock['steps'])} times meanwhile"
            )

        show_statistics(document["operations"], "operations", len(document["operations"]))
        table = Table("kind", "files", "calls", "read", "written", title="files", title_justify="left")
        for row in document["files"]:
            sizes = (format_size(row[key]) for key in ("read_bytes", "written_bytes"))
            table.add_row(row["kind"], str(row["files"]), str(row["calls"]), *sizes)
        console.print(table)
        if cache := document["page_cache"]:
            share = "" if cache["hit_ratio"] is None else f": {cache['hit_ratio']:.0%} were in the page cache"
            fetched = f"{format_size(cache['read_bytes'])} read, {format_size(cache['device_bytes'])} of it from devices"
            console.print(f"{fetched}{share}")
        storage = document["busiest_storage_files"]
        what = "data-set and checkpoint files" if storage else "files"
        show_statistics(storage or document["busiest_files"], f"{what} with the most time in calls", _SHOWN)
        show_statistics(document["busiest_processes"], "processes with the most time in calls", _SHOWN)
        if document["phases"]:
            table = Table("phase", "times", "mean", "total", title="phases", title_justify="left")
            for row in document["phases"]:
                table.add_row(row["phase"], str(row["count"]), format_duration(row["mean_ns"]), format_duration(row["total_ns"]))
            console.print(table)
        if document["parts"]:
            table = Table("part", "times", "median", "total", title="parts of steps", title_justify="left")
            for row in document["parts"]:
                times = (format_duration(row[key] * 1e9) for key in ("median_s", "total_s"))
                table.add_row(plain(row["name"], 40), str(row["count"]), *times)
            console.print(table)
        processes = ", ".join(f"{count} {role}" for role, count in document["processes"].items())
        console.print(f"processes: {processes}")
        if document["twin"] is not None:
            console.print(Text(plain(f"its twin: {document['twin']}", 1000)))
        for note in manifest["notes"]:
            console.print(Text(plain(f"note: {note}", 500)))
