"""``iotwin emulate``: run a workload with real files and checkpoints, and sleep for the accelerators' computation."""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iotwin.command import Command, Outcome, at_least
from iotwin.common.errors import UsageError
from iotwin.common.units import counted

if TYPE_CHECKING:
    from iotwin.workload_yaml import ComposedWorkload

_CONFIG_NOTE = "config.yaml"
_Parsed = tuple[Namespace, list[str]]
_Parse = Callable[[list[str], Namespace | None], _Parsed]
_WORDS = ("+", "~", "workload=", "workload.", "hydra.")


def _words_anywhere(parse: _Parse) -> _Parse:
    """Return `parse`, changed so that WORKLOAD and overrides may be scattered among options, which argparse alone refuses."""

    def parse_known_args(args: list[str], namespace: Namespace | None) -> _Parsed:
        values = {index + 1 for index, argument in enumerate(args) if argument == "--what-if"}
        words = [index for index, argument in enumerate(args) if argument.startswith(_WORDS) and index not in values]
        parsed, rest = parse([argument for index, argument in enumerate(args) if index not in words], namespace)
        parsed.words += [args[number] for number in words]
        return parsed, rest

    return parse_known_args


class EmulateCommand(Command):
    name = "emulate"
    help = "run a workload or twin: the I/O of a training job without its model or a GPU"
    _latex = False  # set by `run` for `show`
    epilog = (
        "examples:\n  iotwin emulate twin.yaml\n"
        "  iotwin emulate workload=unet3d_a100 ++workload.workflow.generate_data=true --ranks 8\n"
        "  iotwin emulate twin.yaml ++workload.reader.batch_size=4 ++workload.dataset.data_folder=/mnt/nfs/kits19"
    )

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "words",
            metavar="WORKLOAD",
            nargs="*",
            help="a YAML's path or workload=NAME, and overrides such as ++workload.reader.batch_size=4",
        )
        parser.add_argument(
            "--config-dir",
            "-cd",
            metavar="DIR",
            type=Path,
            help="directory that workload=NAME is read from (default: the shipped ones)",
        )
        parser.add_argument("--show", action="store_true", help="print every value with its origin, and run nothing")
        parser.add_argument(
            "--ranks",
            metavar="N",
            type=int,
            help="number of accelerators to emulate on this machine (default: the YAML's twin.ranks, else 1)",
        )
        parser.add_argument("--for", metavar="TIME", dest="limit", help="stop after this time, such as 60s")
        parser.add_argument(
            "--what-if",
            metavar="KEY=VALUES",
            help="run unchanged, then with each value: accelerators=8,64 or reader.read_threads=1,4",
        )
        parser.add_argument(
            "--runs", type=at_least(1), default=1, metavar="N", help="with --what-if: runs of each variant, in turn (default 1)"
        )
        parser.add_argument("--latex", action="store_true", help="with --what-if: print the rows as a table for LaTeX")
        parser.add_argument(
            "--instrument",
            action="store_true",
            help="log the duration of every part of every step; not for twins with a recording",
        )
        parser.add_argument("--mllog", action="store_true", help="print MLLOG lines on a terminal, too")
        self._prepare_dlio(parser)
        parse: Any = parser.parse_known_args  # overloaded, which an alias cannot express
        parser.parse_known_args = _words_anywhere(parse)  # type: ignore[method-assign,assignment]

    def _prepare_dlio(self, parser: ArgumentParser) -> None:
        dlio = parser.add_argument_group("as dlio_benchmark, whose scripts then run unchanged")
        dlio.add_argument("--dlio", action="store_true", help="compose, override and log as Hydra does; ignore unknown keys")
        dlio.add_argument("--config-path", "-cp", metavar="DIR", type=Path, help="directory of config.yaml and its workloads")
        dlio.add_argument("--config-name", "-cn", metavar="NAME", help="YAML in that directory instead of config.yaml")
        dlio.add_argument("--cfg", "-c", choices=["job"], help="print the composed config as YAML, and run nothing")

    def run(self, args: Namespace) -> Outcome:
        # The emulator multiplies no matrices, so BLAS's threads would only take memory. This must be set before numpy is loaded.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        document = self._document(args)
        if document is None:
            raise SystemExit(0)  # this is an MPI rank above 0; rank 0 has the results of all ranks
        return Outcome(document)

    def _document(self, args: Namespace) -> dict[str, Any] | None:
        from iotwin.benchmark.emulator.ranks import under_mpi
        from iotwin.loops.emulation import run_workload, trace_itself
        from iotwin.loops.pipeline_twin import expand_plan

        if args.ranks is not None and not 1 <= args.ranks <= 1024:
            raise UsageError(f"--ranks {args.ranks} cannot be run on one machine; give 1 to 1024, or use mpirun")
        if args.runs > 1 and args.what_if is None:
            raise UsageError("--runs repeats the runs of --what-if; add --what-if KEY=VALUES, or leave --runs out")
        if args.latex and (args.what_if is None or args.json):
            raise UsageError(
                "--latex prints the rows of --what-if, in place of --json; add --what-if KEY=VALUES, or leave it out"
            )
        workload, notes = _composed(args, args.words)
        config = workload.config
        if args.cfg:
            return {"config": notes[_CONFIG_NOTE]}
        if args.ranks is None:
            args.ranks = 1 if under_mpi() else config.twin.ranks
            if config.twin.pipeline is not None:
                expand_plan(config)
                args.ranks = sum(len(stage.ranks) for stage in config.twin.pipeline.stages)
        if args.show or config.workflow.query:
            return _values(workload)
        if args.what_if is not None:
            self._latex = args.latex
            return self._what_if(args)
        if config.workflow.profiling and config.profiling.profiler == "trace":
            return trace_itself(_command_line(args), config)
        return run_workload(config, _options(args, args.ranks, notes))

    def _what_if(self, args: Namespace) -> dict[str, Any]:
        from iotwin.common.files import write_json
        from iotwin.loops.answers.recipe import Recipe
        from iotwin.loops.answers.what_if import ACCELERATORS, ask, assumptions_of, overrides_of, parse_question
        from iotwin.loops.emulation import check_edits, run_workload

        key, values = parse_question(args.what_if)
        composed = _composed(args, args.words)[0]
        recipe, unchanged = Recipe(composed.path), composed.config
        folder = unchanged.output.folder

        def compose(value: str | None) -> tuple[Any, int, dict[str, str], list[str]]:
            name = "as_it_is" if value is None else f"{key}={value.replace('/', '_')}"
            words = [*args.words, f"++workload.output.folder={folder}/what_if/{name}"]
            if value is not None and key != ACCELERATORS:
                words += overrides_of(key, value, unchanged)
            ranks = int(value) if value is not None and key == ACCELERATORS else args.ranks
            workload, notes = _composed(args, words)
            check_edits(workload.config, ranks)
            return workload.config, ranks, notes, words[len(args.words) :]

        variants = {value: compose(value) for value in (None, *values)}  # all are checked before the first one runs

        def run(value: str | None) -> dict[str, Any]:
            config, ranks, notes, _ = variants[value]
            summary = run_workload(config, _options(args, ranks, notes)._replace(one_of_several=True))
            if summary is None or "metric" not in summary:
                raise UsageError("--what-if compares runs that train on one machine; without mpirun, with workflow.train")
            return summary

        assumed = assumptions_of(key, variants[None][0])
        document = {**ask(key, values, run, args.runs), "assumptions": assumed, "output": f"{folder}/what_if"}
        document["recipe"] = recipe.document({value: (each[0], each[3]) for value, each in variants.items()})
        write_json(Path(document["output"]) / "what_if.json", document)
        return document

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.loops import emulation_summary as summary

        if "config" in document:
            print(document["config"], end="")
        elif "values" in document:
            summary.print_values(document["values"])
        elif "what_if" in document:
            (summary.print_what_if_latex if self._latex else summary.print_what_if)(document)
        elif "metric" in document:
            summary.print_run(document)
        else:
            generated = document["generated"]
            print(f"{generated['directory']}: {counted(generated['samples'], 'sample')}")


def _composed(args: Namespace, words: list[str]) -> "tuple[ComposedWorkload, dict[str, str]]":
    """Return the workload and, with --dlio, the files that Hydra would write into the output folder: content by name."""
    from iotwin.common.ranks import launched_by_mpi
    from iotwin.workload_yaml import note_ignored

    workload, notes = _as_dlio(args, words) if args.dlio else (_as_twin(args, words), {})
    if launched_by_mpi().rank == 0:
        note_ignored(str(workload.path), tuple(workload.passed_over))
    return workload, notes


def _as_dlio(args: Namespace, words: list[str]) -> "tuple[ComposedWorkload, dict[str, str]]":
    from iotwin.workload_yaml import ConfigFolders, compose_job, job_files, job_text

    job = compose_job(words, ConfigFolders(args.config_dir, args.config_path, args.config_name))
    return job.workload, {_CONFIG_NOTE: job_text(job)} if args.cfg else job_files(job)


def _as_twin(args: Namespace, words: list[str]) -> "ComposedWorkload":
    from iotwin.workload_yaml import select

    if args.config_path or args.config_name or args.cfg:
        raise UsageError("--config-path, --config-name and --cfg need --dlio; or use --config-dir and --show")
    return select(words, args.config_dir)


def _options(args: Namespace, ranks: int, notes: dict[str, str]) -> Any:
    from iotwin.common.units import parse_duration
    from iotwin.loops.emulation import EmulationOptions

    limit_s = None if args.limit is None else parse_duration(args.limit) / 1e9
    # Under --json, stdout holds the document alone; the MLLOG lines go to stderr, where a tracer still finds them.
    log = sys.stderr if args.json else None if args.quiet else sys.stdout
    if log is not None and log is sys.stdout and log.isatty() and not args.mllog:
        log = None  # MLLOG lines are for tracers and logs; a person reads the summary
    events = args.dlio and os.environ.get("DFTRACER_ENABLE") == "1"
    return EmulationOptions(ranks, limit_s, log, notes, events, args.dlio, args.instrument)


def _command_line(args: Namespace) -> list[str]:
    options = {
        "--config-dir": args.config_dir,
        "--config-path": args.config_path,
        "--config-name": args.config_name,
        "--ranks": args.ranks,
        "--for": args.limit,
    }
    return [
        *(["--dlio"] if args.dlio else []),
        *(["--instrument"] if args.instrument else []),
        *args.words,
        *(str(word) for name, value in options.items() if value is not None for word in (name, value)),
    ]


def _values(workload: "ComposedWorkload") -> dict[str, Any]:
    """Return every value with its origin, or only the value that workflow.query names."""
    query = workload.config.workflow.query
    rows = workload.rows()
    if query:
        rows = [row for row in rows if row[0] == query.removeprefix("workload.")]
        if not rows:
            raise UsageError(f"workflow.query: '{query}' is no key; iotwin emulate --show lists them all")
    return {"values": [{"key": key, "value": value, "origin": origin} for key, value, origin in rows]}
