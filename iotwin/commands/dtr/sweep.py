"""``iotwin dtr sweep``: the paper's studies."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class DtrSweepCommand(Command):
    """Runs studies over models, heuristics and budgets."""

    name = "sweep"
    help = "run the paper's studies: Pareto curves, ablation, banishing, metadata accesses"
    epilog = "example: iotwin dtr sweep mlp.log --study pareto -o sweep"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        """Add the models, the study and where results go."""
        parser.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="manifest (.json) of logs, or logs")
        parser.add_argument(
            "--study", choices=["pareto", "ablation", "banishing", "accesses", "all"], default="pareto", help="study to run"
        )
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="directory of the results")
        parser.add_argument("--workers", type=int, metavar="N", help="processes (default: one a CPU)")
        parser.add_argument("--resume", action="store_true", help="run only what the directory lacks")
        parser.add_argument("--trials", type=int, default=10, metavar="N", help="runs of a random heuristic (default 10)")
        parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of random choices (default 0)")

    def run(self, args: Namespace) -> Outcome:
        """Run what is missing."""
        from iotwin.commands.dtr.options import note_missing_numba
        from iotwin.common.errors import UsageError
        from iotwin.workloads.dtr.simulator.logs import models_of
        from iotwin.workloads.dtr.simulator.sweep import STUDIES, run_sweep

        if (args.workers is not None and args.workers < 1) or args.trials < 1 or args.seed < 0:
            raise UsageError("--workers and --trials are at least 1, --seed at least 0")
        note_missing_numba()
        studies = list(STUDIES) if args.study == "all" else [args.study]
        models = models_of(args.logs)
        return Outcome(run_sweep(models, studies, args.output, args.workers, args.resume, args.trials, args.seed))

    def show(self, document: dict[str, Any]) -> None:
        """Print how the runs ended."""
        print(
            f"{document['runs']} runs in {document['cpu_s']:.1f} CPU seconds: {document['passed']} passed, {document['oom']} out "
            f"of memory, {document['thrash']} thrashed; {len(document['files'])} files in {document['directory']}"
        )
