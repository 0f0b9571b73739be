"""``iotwin info``: show on one screen what a trace holds."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, add_memory_option
from iotwin.common.units import counted

_SHOWN, _MOST_OPERATIONS, _FEWEST_OPERATIONS, _MOST_NOTES = 3, 5, 2, 4
_MOST_HOSTS = 6
_SCREEN_LINES = 40
_MOST_EVENTS = 2_000_000  # with more events, info does not fit a twin, since fit holds all events in memory
_COUNTED = ("files", "calls", "read_bytes", "written_bytes")


class InfoCommand(Command):
    name = "info"
    help = "summarise a trace: the job, the machine, calls and bytes, files, phases, losses"
    epilog = "example: iotwin info run.trace"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, metavar="TRACE")
        add_memory_option(parser)

    def run(self, args: Namespace) -> Outcome:
        import msgspec

        from iotwin.loops.answers.bottleneck import quick_verdict
        from iotwin.trace_store.clocks import summarise_clock
        from iotwin.trace_store.figures.summary import summarise
        from iotwin.trace_store.reader import Trace

        trace = Trace(args.trace)
        summary = summarise(trace)
        summary["twin"] = None
        if 0 < trace.manifest.events <= _MOST_EVENTS and trace.fits_in_memory:
            from iotwin.benchmark.fit.fit_trace import predict_twin

            summary["twin"] = predict_twin(trace)
        summary["verdict"] = quick_verdict(trace)
        clock = msgspec.to_builtins(summarise_clock(trace.manifest.clock))
        return Outcome({"trace": str(args.trace), "manifest": msgspec.to_builtins(trace.manifest), "clock": clock, **summary})

    def show(self, document: dict[str, Any]) -> None:
        from rich.text import Text

        from iotwin.common import terminal
        from iotwin.common.units import format_size
        from iotwin.loops.statistics_table import show_statistics

        console, head = terminal.console(), list(_head(document))
        for number, line in enumerate(head):
            console.print(Text(line, style="" if number else "bold"))
        kinds = _show_kinds(document["files"])
        if cache := document["page_cache"]:
            share = "" if cache["hit_ratio"] is None else f": {cache['hit_ratio']:.0%} were in the page cache"
            fetched = f"{format_size(cache['read_bytes'])} read, {format_size(cache['device_bytes'])} of it from devices"
            console.print(f"{fetched}{share}")
        storage = document["busiest_storage_files"]
        what = "data-set and checkpoint files" if storage else "files"
        # Each of three tables has 4 lines in addition to its rows; one ends in a line on rows that are left out.
        fixed = sum(len(Text(line).wrap(console, console.width)) for line in head) + kinds + bool(cache) + 13
        rows = _SHOWN if fixed + 2 * _SHOWN + _FEWEST_OPERATIONS <= _SCREEN_LINES else _SHOWN - 1
        files, processes = (storage or document["busiest_files"])[:rows], document["busiest_processes"][:rows]
        used = fixed + len(files) + len(processes)
        show_statistics(files, f"{what} with the most time in calls", _SHOWN)
        most = min(_MOST_OPERATIONS, max(_FEWEST_OPERATIONS, _SCREEN_LINES - used))
        show_statistics(document["operations"], "calls of all kinds", most, "iotwin stats shows all")
        show_statistics(processes, "processes with the most time in calls", _SHOWN)


def _head(document: dict[str, Any]) -> Iterator[str]:
    """Yield the lines above the tables: the job, the machine, losses, phases, the twin and notes."""
    from iotwin.common.units import format_duration
    from iotwin.trace_store.manifest import Host
    from iotwin.trace_visuals.labels import machine_words, plain

    manifest = document["manifest"]
    if document["verdict"] is not None:
        yield document["verdict"]["sentence"]
    lost = sum(manifest["lost"].values())
    yield plain(f"{document['trace']}: {' '.join(manifest['target']['command'])}", 200)
    machine = ", ".join(machine_words(Host(**manifest["host"])))
    yield f"{manifest['status']}, by {manifest['backend']}" + (f" on {machine}" if machine else "")
    losses = f"{counted(lost, 'event')} LOST: {manifest['lost']}" if lost else "no event lost"
    duration = format_duration(manifest["end_ns"] - manifest["start_ns"])
    yield f"{counted(manifest['events'], 'event')} in {duration}, {losses}, exit status {manifest['exit_status']}"
    yield from _hosts(manifest["hosts"])
    yield f"time in calls: {', '.join(_uses(document))}"
    yield f"processes: {', '.join(counted(count, role) for role, count in document['processes'].items())}"
    if document["phases"]:
        yield f"phases: {', '.join(map(_phase, document['phases']))}"
    if document["parts"]:
        yield f"parts of steps: {', '.join(map(_part, document['parts']))}"
    if document["twin"] is not None:
        yield plain(f"its twin: {document['twin']}", 1000)
    notes = manifest["notes"]
    shown = notes if len(notes) <= _MOST_NOTES else notes[: _MOST_NOTES - 1]
    yield from (plain(f"note: {note}", 500) for note in shown)
    if len(shown) < len(notes):
        yield f"{counted(len(notes) - len(shown), 'more note')}: iotwin info --json"


def _hosts(hosts: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each host of a set or a merged trace, those first that have a problem; for many hosts, only some."""
    from iotwin.trace_visuals.labels import host_line

    shown = sorted(hosts, key=lambda host: (host["status"] == "complete", not host["lost"], not host["note"]))
    for host in shown[:_MOST_HOSTS]:
        yield f"host {host_line(host['name'], host, host['uncertainty_ns'])}"
    if len(shown) > _MOST_HOSTS:
        yield f"{counted(len(shown) - _MOST_HOSTS, 'more host')}: iotwin info --json, iotwin stats --by host"


def _uses(document: dict[str, Any]) -> Iterator[str]:
    """Yield calls and time by use, so that polling and libraries do not look like storage."""
    from iotwin.common.units import format_duration
    from iotwin.loops.answers.bottleneck import WAITS
    from iotwin.loops.statistics_table import KINDS_FIRST

    exchange = ("pipe", "socket")
    uses = {
        "storage": [row for row in document["files"] if row["kind"] in KINDS_FIRST],
        "polling": [row for row in document["operations"] if row["op"] in WAITS],
        "pipes and sockets": [row for row in document["files"] if row["kind"] in exchange],
        "libraries and others": [row for row in document["files"] if row["kind"] not in (*KINDS_FIRST, *exchange)],
    }
    for use, rows in uses.items():
        calls, time_ns = (int(sum(row[name] for row in rows)) for name in ("calls", "total_ns"))
        if calls:
            yield f"{use} {format_duration(time_ns)} in {counted(calls, 'call')}"


def _phase(row: dict[str, Any]) -> str:
    """Return how often a phase occurred, its mean duration and, if it occurred more than once, the sum."""
    from iotwin.common.units import format_duration

    total = f" ({format_duration(row['total_ns'])} in all)" if row["count"] > 1 else ""
    return f"{counted(row['count'], row['phase'])} of {format_duration(row['mean_ns'])}{total}"


def _part(row: dict[str, Any]) -> str:
    """Return how often a part of steps was timed, and its median duration."""
    from iotwin.common.units import format_duration
    from iotwin.trace_visuals.labels import plain

    return f"{row['count']} {plain(row['name'], 40)} of {format_duration(row['median_s'] * 1e9)}"


def _show_kinds(files: list[dict[str, Any]]) -> int:
    """Print files, calls and bytes by kind of file, and return the number of lines. All kinds outside KINDS_FIRST share a row."""
    from iotwin.common.terminal import console
    from iotwin.common.units import format_size
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
    return 3 + int(table.row_count)
