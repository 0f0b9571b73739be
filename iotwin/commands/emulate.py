"""``iotwin emulate``: run a workload, with real I/O and the accelerators emulated."""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iotwin.command import Command, Outcome
from tracing_tools.trace.errors import IotwinError, UsageError

if TYPE_CHECKING:
    from benchmark.config import Workload

_Parsed = tuple[Namespace, list[str]]
_Parse = Callable[[list[str], Namespace | None], _Parsed]
_WORDS = ("++", "workload=", "hydra.")


def _words_anywhere(parse: _Parse) -> _Parse:
    """Let the workload and overrides stand among options: argparse itself fills a repeated positional from one place only."""

    def parse_known_args(args: list[str], namespace: Namespace | None) -> _Parsed:
        words = [argument for argument in args if argument.startswith(_WORDS)]
        parsed, rest = parse([argument for argument in args if not argument.startswith(_WORDS)], namespace)
        parsed.words += words
        return parsed, rest

    return parse_known_args


class Emulate(Command):
    """Run a workload YAML: real files through real loader processes, real checkpoints, and sleep for the accelerators."""

    name = "emulate"
    help = "run a workload or twin: the I/O of a training job without its model or a GPU"
    epilog = (
        "examples:\n  iotwin emulate twin.yaml\n"
        "  iotwin emulate workload=unet3d_a100 ++workload.workflow.generate_data=true --ranks 8\n"
        "  iotwin emulate twin.yaml ++workload.reader.batch_size=4 ++workload.dataset.data_folder=/mnt/nfs/kits19"
    )

    def prepare_parser(self, parser: ArgumentParser) -> None:
        """Add the workload, its overrides and how to run it."""
        parser.add_argument(
            "words", metavar="WORKLOAD", nargs="*",
            help="a YAML's path or workload=NAME, and overrides such as ++workload.reader.batch_size=4",
        )  # fmt: skip
        parser.add_argument("--config-dir", metavar="DIR", type=Path, help="where workload=NAME is looked for (default: shipped)")
        parser.add_argument("--show", action="store_true", help="print every value and where it comes from, and run nothing")
        parser.add_argument(
            "--ranks",
            metavar="N",
            type=int,
            help="accelerators emulated on this machine (default: the YAML's twin.ranks, else 1)",
        )
        parser.add_argument("--for", metavar="TIME", dest="limit", help="stop after this time, such as 60s")
        parser.add_argument(
            "--what-if", metavar="KEY=VALUES", help="vary one thing, such as accelerators=8,64 or reader.read_threads=1,4"
        )
        parser.add_argument("--instrument", action="store_true", help="log what every part of every step took")
        parse: Any = parser.parse_known_args  # overloaded, which no alias can say
        parser.parse_known_args = _words_anywhere(parse)  # type: ignore[method-assign,assignment]

    def run(self, args: Namespace) -> Outcome:
        """Run the workload and return its summary; progress and MLLOG lines are printed meanwhile."""
        # Must be said before numpy is loaded; see iotwin.emulation.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        from benchmark.mpi import let_first_rank_speak, started_as, under_mpi

        try:
            try:
                document = self._document(args)
            except IotwinError:
                let_first_rank_speak()
                raise
        except KeyboardInterrupt:
            if under_mpi() and started_as() > 0:
                raise SystemExit(130) from None  # the first rank says why
            raise
        if document is None:
            raise SystemExit(0)  # rank 0 has the results of all
        return Outcome(document)

    def _document(self, args: Namespace) -> dict[str, Any] | None:
        from benchmark.config import select
        from benchmark.mpi import under_mpi
        from iotwin.emulation import run_workload, trace_itself

        if args.ranks is not None and not 1 <= args.ranks <= 1024:
            raise UsageError(f"--ranks {args.ranks} cannot be run on one machine; give 1 to 1024, or use mpirun")
        if args.instrument:
            args.words.append("++workload.twin.instrument=true")
        workload = select(args.words, args.config_dir)
        config = workload.config
        if args.ranks is None:
            args.ranks = 1 if under_mpi() else config.twin.ranks
        if args.show or config.workflow.query:
            return _shown(workload)
        if args.what_if is not None:
            return self._asked(args)
        if config.workflow.profiling and config.profiling.profiler == "trace":
            return trace_itself(_words(args), config)
        return run_workload(config, _options(args, args.ranks))

    def _asked(self, args: Namespace) -> dict[str, Any]:
        from benchmark.config import select
        from iotwin.emulation import run_workload
        from iotwin.what_if import ACCELERATORS, ask, parse_question

        key, values = parse_question(args.what_if)
        folder = select(args.words, args.config_dir).config.output.folder

        def run(value: str | None) -> dict[str, Any]:
            name = "as_it_is" if value is None else f"{key}={value.replace('/', '_')}"
            words = [*args.words, f"++workload.output.folder={folder}/what_if/{name}"]
            if value is not None and key != ACCELERATORS:
                words.append(f"++workload.{key}={value}")
            ranks = int(value) if value is not None and key == ACCELERATORS else args.ranks
            summary = run_workload(select(words, args.config_dir).config, _options(args, ranks))
            if summary is None or "metric" not in summary:
                raise UsageError("--what-if compares runs that train on one machine; without mpirun, with workflow.train")
            return summary

        return {**ask(key, values, run), "output": f"{folder}/what_if"}

    def show(self, document: dict[str, Any]) -> None:
        """Print the figures that matter, each with its unit."""
        from iotwin import emulation_summary as summary

        if "values" in document:
            summary.print_values(document["values"])
        elif "what_if" in document:
            summary.print_question(document)
        elif "metric" in document:
            summary.print_run(document)
        else:
            generated = document["generated"]
            print(f"{generated['directory']}: {generated['samples']} samples")


def _options(args: Namespace, ranks: int) -> Any:
    from iotwin.emulation import Options
    from tracing_tools.trace.units import parse_duration

    limit_s = None if args.limit is None else parse_duration(args.limit) / 1e9
    # Under --json stdout is for the document alone; the log still goes where a tracer can find it.
    log = sys.stderr if args.json else None if args.quiet else sys.stdout
    return Options(ranks, limit_s, log)


def _words(args: Namespace) -> list[str]:
    """The command line again, for a process of its own."""
    options = {"--config-dir": args.config_dir, "--ranks": args.ranks, "--for": args.limit}
    return [
        *args.words, *(str(word) for name, value in options.items() if value is not None for word in (name, value)),
    ]  # fmt: skip


def _shown(workload: "Workload") -> dict[str, Any]:
    """Every value with its origin; with workflow.query that one alone."""
    query = workload.config.workflow.query
    rows = workload.rows()
    if query:
        rows = [row for row in rows if row[0] == query.removeprefix("workload.")]
        if not rows:
            raise UsageError(f"workflow.query: '{query}' is no key; iotwin emulate --show lists them all")
    return {"values": [{"key": key, "value": value, "origin": origin} for key, value, origin in rows]}
