"""``iotwin dtr sweep``: run the studies of the DTR paper over models, heuristics and budgets."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, at_least
from iotwin.common.units import counted


class DtrSweepCommand(Command):
    name = "sweep"
    help = "run the paper's studies: Pareto curves, ablation, banishing, metadata accesses"
    epilog = "example: iotwin dtr sweep mlp.log --study pareto -o sweep"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="manifest (.json) of logs, or logs")
        parser.add_argument(
            "--study", choices=["pareto", "ablation", "banishing", "accesses", "all"], default="pareto", help="study to run"
        )
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="directory of the results")
        parser.add_argument("--workers", type=at_least(1), metavar="N", help="processes (default: one a CPU)")
        parser.add_argument("--resume", action="store_true", help="run only what the directory lacks")
        parser.add_argument("--trials", type=at_least(1), default=10, metavar="N", help="runs of a random heuristic (default 10)")
        parser.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="seed of random choices (default 0)")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.commands.dtr.options import note_missing_numba
        from iotwin.workloads.dtr.simulator.log_manifest import models_of
        from iotwin.workloads.dtr.simulator.sweep import STUDIES, run_sweep

        note_missing_numba()
        studies = list(STUDIES) if args.study == "all" else [args.study]
        models = models_of(args.logs)
        return Outcome(run_sweep(models, studies, args.output, args.workers, args.resume, args.trials, args.seed))

    def show(self, document: dict[str, Any]) -> None:
        print(
            f"{counted(document['runs'], 'run')} in {document['cpu_s']:.1f} CPU seconds: {document['passed']} passed, "
            f"{document['oom']} out of memory, {document['thrash']} thrashed; "
            f"{counted(len(document['files']), 'file')} in {document['directory']}"
        )
