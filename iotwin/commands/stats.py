"""``iotwin stats``: count calls, errors, bytes and times by operation, file or process, or query a trace by SQL."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, add_dask_option, add_memory_option
from iotwin.common.units import counted

_SHOWN = 30
_USUAL_ERROR = 0.022  # of percentiles


class StatsCommand(Command):
    name = "stats"
    help = "count calls, errors, bytes and times by operation, file, process, host or rank; or query the tables by SQL"
    _latex = False  # set by `run` for `show`
    epilog = (
        "examples:\n  iotwin stats real.trace --by file\n"
        '  iotwin stats real.trace --sql "select op, count(*) from events group by op"'
    )

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="trace to count; several are counted together")
        what = parser.add_mutually_exclusive_group()
        what.add_argument(
            "--by", choices=["op", "file", "process", "host", "rank"], default="op", help="one row per system call, file, ..."
        )
        what.add_argument("--sql", metavar="SELECT", help="run this query on one trace; the tables are events, files, ...")
        parser.add_argument("--kind", metavar="KIND", help="--by file: only files of this kind, such as dataset or checkpoint")
        parser.add_argument("--all-files", action="store_true", help="--by file: a row for each file, most time first")
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--csv", action="store_true", help="print every row as comma-separated values")
        form.add_argument("--latex", action="store_true", help="print every row as a table for LaTeX")
        add_dask_option(parser)
        add_memory_option(parser)

    def run(self, args: Namespace) -> Outcome:
        from iotwin.common.errors import UsageError
        from iotwin.trace_store.figures.table_rows import TableRows
        from iotwin.trace_store.reader import Trace

        for name in ("csv", "latex"):
            if getattr(args, name) and args.json:
                raise UsageError(f"--{name} and --json exclude each other; choose one")
        if args.sql is not None and len(args.traces) > 1:
            raise UsageError(f"--sql asks one trace, not {len(args.traces)}; give one TRACE")
        traces = [Trace(path) for path in args.traces]
        lost = sum(trace.manifest.lost_events for trace in traces)
        self._latex = args.latex
        document: dict[str, Any] = {"traces": [str(path) for path in args.traces], "lost": lost, "csv": args.csv}
        if args.sql is not None:
            from iotwin.trace_store.figures.sql import plain_rows, query

            answer = query(traces[0], args.sql)
            return Outcome(document | {"columns": answer.column_names, "rows": plain_rows(answer)})
        if args.by != "file" and (args.kind or args.all_files):
            raise UsageError("--kind and --all-files choose among files; add --by file")
        table = _count(traces, args.by, args.dask)
        error, rows = table.attrs["percentile_error"], TableRows(table if args.kind is None else _of_kind(table, args.kind))
        document |= {"by": args.by, "kind": args.kind, "all_files": args.all_files, "percentile_error": error}
        return Outcome(document | {"rows": rows})

    def show(self, document: dict[str, Any]) -> None:
        rows = document["rows"]
        if document["csv"] or self._latex:
            columns = document.get("columns") or list(rows[0] if rows else ())
            values = (list(row.values() if isinstance(row, dict) else row) for row in rows)
            (_print_latex if self._latex else _print_csv)(columns, values)
        elif "columns" in document:
            _print_answer(document["columns"], rows)
        else:
            from iotwin.loops.statistics_table import show_statistics, storage_first

            if document["by"] == "file" and not document["all_files"] and not document["kind"]:
                rows = storage_first(rows)
            show_statistics(rows, f"calls by {document['by']}", _SHOWN, "see them all with --csv or --json")
            if document["percentile_error"] > _USUAL_ERROR:
                print(f"percentiles are within {document['percentile_error']:.0%}; a larger --memory makes them more exact")
            if document["lost"]:
                print(f"events LOST: {document['lost']:,}, so calls, bytes and times are too low")


def _of_kind(table: Any, kind: str) -> Any:
    """Return the rows of `table` of files of `kind`. Raises UsageError if there are none."""
    from iotwin.common.errors import UsageError, nearest

    kinds = sorted(table["kind"].dropna().unique())
    if kind not in kinds:
        raise UsageError(f"no file of kind '{kind}' was used{nearest(kind, kinds)}; these were: {', '.join(kinds)}")
    return table[table["kind"] == kind]


def _count(traces: list[Any], by: str, address: str | None) -> Any:
    """Return the table that `statistics` makes. If processes of only one trace are counted, it has no column `trace`."""
    from iotwin.trace_store.figures.statistics import statistics
    from iotwin.trace_store.parallel_fold import workers
    from iotwin.trace_visuals.labels import trace_labels

    with workers(address, traces) as each:
        table = statistics(traces, trace_labels([trace.path for trace in traces]), by, each)
    return table.drop(columns="trace") if by == "process" and len(traces) == 1 else table


def _print_latex(columns: list[str], rows: Iterable[list[Any]]) -> None:
    from iotwin.loops.latex_table import latex_table

    print(latex_table(columns, list(rows)), end="")


def _print_csv(columns: list[str], rows: Iterable[list[Any]]) -> None:
    import csv
    import sys

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_no_formula(value) for value in row])


def _no_formula(value: Any) -> Any:
    """Return `value`, with an apostrophe before text that a spreadsheet would evaluate: a traced process may choose its name."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") and value else value


def _print_answer(columns: list[str], rows: list[list[Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from iotwin.common.terminal import console
    from iotwin.trace_visuals.labels import plain

    table = Table()
    for name in columns:
        table.add_column(Text(name))
    for row in rows[:_SHOWN]:
        table.add_row(*(Text(plain("" if value is None else str(value), 80)) for value in row))
    out = console()
    out.print(table)
    if len(rows) > _SHOWN:
        out.print(f"{counted(len(rows) - _SHOWN, 'more row')}; see all with --csv or --json")
