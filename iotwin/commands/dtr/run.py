"""``iotwin dtr run``: run an experiment of DTR's authors, or one in their format, and keep its results."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iotwin.command import Command, Outcome
from iotwin.common.units import counted

if TYPE_CHECKING:
    from iotwin.workloads.dtr.experiments.config import DtrExperiment
    from iotwin.workloads.dtr.experiments.trials import Machine


class DtrRunCommand(Command):
    name = "run"
    help = "train models under the memory budgets that a configuration of DTR's authors lists"
    epilog = """examples:
  iotwin dtr run config.json --dry-run
  iotwin dtr run config.json -o results --preset tiny
  iotwin dtr run config.json -o results --resume --webhook https://hooks.example.org/x"""

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG.json", help="configuration of the experiment")
        parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="directory of the results; it may hold earlier ones")
        parser.add_argument("--list", action="store_true", help="list the models and their sizes, and run nothing")
        parser.add_argument("--dry-run", action="store_true", help="list every run of the experiment, and run nothing")
        parser.add_argument("--resume", action="store_true", help="measure only what the latest run of the configuration lacks")
        parser.add_argument("--webhook", metavar="URL", help="post the summary to this address")
        parser.add_argument("--preset", choices=["tiny", "paper"], default="paper", help="size of the models (default paper)")
        parser.add_argument("--device", default="cpu", metavar="NAME", help="device to train on (default cpu)")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.commands.dtr.pictures import draw
        from iotwin.common.errors import UsageError
        from iotwin.common.progress import note
        from iotwin.workloads.dtr.experiments.config import read_experiment
        from iotwin.workloads.dtr.experiments.stages import run_experiment
        from iotwin.workloads.dtr.experiments.trials import Machine
        from iotwin.workloads.dtr.experiments.webhook import check_url
        from iotwin.workloads.models import ALIASES, MODELS, sizes_of

        if args.list:
            rows = [
                {"name": name, "is": ALIASES.get(name, name), "sizes": sizes_of(name, args.preset)} for name in sorted(MODELS)
            ]
            return Outcome({"models": rows})
        if args.config is None:
            raise UsageError("name the configuration of an experiment, or list the models with --list")
        url = None if args.webhook is None else check_url(args.webhook)
        experiment = read_experiment(args.config)
        for text in experiment.notes:
            note(text)
        machine = Machine(args.preset, args.device)
        if args.dry_run:
            return Outcome(_listed(experiment, machine))
        if args.output is None:
            raise UsageError("name the directory of the results, with -o DIR")
        from iotwin.workloads.dtr.live.device_memory import usable_device  # imports torch

        usable_device(args.device)  # checked here, since otherwise each run would fail
        document = run_experiment(experiment, args.output, machine, draw, args.resume, url)
        lost = document["webhook"] is not None and not document["webhook"]["success"]
        if lost:
            note(f"the summary could not be posted to {url}: {document['webhook']['message']}")
        return Outcome(document, 1 if lost else 0)

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.terminal import print_table

        if "models" in document:
            rows = [[row["name"], row["is"], _sizes(row["sizes"])] for row in document["models"]]
            print_table(("name", "model", "sizes"), rows)
        elif "commands" in document:
            rows = [
                [row["model"], row["command_id"], row["type"], row["kind"] or "", row["batch_size"],
                 "" if row["memory_budget"] is None else f"{row['memory_budget'] / 1e9:g}", row["ratio"] or "",
                 row["inputs"], f"{row['warm_ups']}+{row['steps']}", f"{row['timeout_s']:g}"]
                for row in document["commands"]
            ]  # fmt: skip
            names = ("model", "command", "type", "kind", "batch", "budget GB", "ratio", "inputs", "steps", "timeout s")
            print_table(names, rows)
            print(counted(len(rows), "run"))
        elif document["report"] is None:
            print(f"{document['experiment']} is not active: nothing was run")
        else:
            for error in document["errors"]:
                print(f"{error['model']}, command {error['command_id']}: {error['message']}")
            print(
                f"{counted(document['runs'], 'run')}, {document['measured']} of them now, {document['failed']} failed; "
                f"{document['report']}"
            )


def _sizes(sizes: dict[str, float]) -> str:
    return ",".join(f"{key}={value:g}" for key, value in sizes.items())


def _listed(experiment: "DtrExperiment", machine: "Machine") -> dict[str, Any]:
    """Return the document of --dry-run: each run with its parameters and the arguments of ``iotwin dtr`` for its first input."""
    from iotwin.workloads.dtr.experiments.settings import settings_of

    commands = []
    for setting in settings_of(experiment):
        warm_ups, steps = setting.steps(experiment)
        commands.append(
            {
                "model": setting.model, "command_id": setting.command_id, "type": setting.params["type"],
                "kind": setting.params.get("kind"), "batch_size": setting.params["batch_size"],
                "memory_budget": setting.budget_bytes, "ratio": setting.params.get("ratio"),
                "inputs": setting.inputs(experiment), "warm_ups": warm_ups, "steps": steps, "timeout_s": setting.timeout_s,
                "attempts": setting.attempts, "file": setting.file_name, "specific_params": setting.params,
                "arguments": machine.words(setting, experiment, 0),
            }
        )  # fmt: skip
    return {"experiment": experiment.name, "active": experiment.active, "commands": commands, "notes": list(experiment.notes)}
