"""``iotwin run``: run a grid of training jobs from one YAML, each under the tracer."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome
from iotwin.common.units import counted


class RunCommand(Command):
    name = "run"
    help = "run a grid of training jobs from one YAML, each traced"
    epilog = "examples:\n  iotwin run experiment.yaml -o results\n  iotwin run timeline-smoke --dry-run"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "experiment", type=Path, metavar="EXPERIMENT.yaml", help="the experiment, or the name of a shipped one"
        )
        parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="directory of results (default results/NAME)")
        parser.add_argument("--no-container", action="store_true", help="run the cells as processes of this machine")
        parser.add_argument(
            "--hosts", metavar="HOST,...", help="run each cell on all of these hosts, by ssh, with a trace of each"
        )
        parser.add_argument("--dry-run", action="store_true", help="list the cells in their order, and run none")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.loops.experiments.experiment import cells, read_experiment
        from iotwin.loops.experiments.run_cells import run_experiment

        experiment = read_experiment(args.experiment)
        if args.no_container:
            experiment.container = False
        if args.hosts is not None:
            experiment.hosts = args.hosts.split(",")
        if args.dry_run:
            return Outcome({"experiment": experiment.name, "cells": [cell.name for cell in cells(experiment)]})
        summary = run_experiment(experiment, args.output or Path("results") / experiment.name)
        return Outcome(summary, 1 if summary["failed"] else 0)

    def show(self, document: dict[str, Any]) -> None:
        if "failed" not in document:
            print("\n".join(document["cells"]))
            return
        print(f"{document['directory']}: {len(document['finished'])} of {counted(document['cells'], 'cell')} finished")
        for reason, names in _by_reason(document["failed"]).items():
            print(f"FAILED {names[0] if len(names) == 1 else f'{len(names)} cells ({names[0]}, ...)'}: {reason}")


def _by_reason(failures: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the names of the failed cells by reason, so that a reason that several cells share is printed once."""
    found: dict[str, list[str]] = {}
    for failure in failures:
        found.setdefault(failure["reason"], []).append(failure["cell"])
    return found
