"""``iotwin pipedream drive``: print the commands that start the ranks of a driver file."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome
from iotwin.common.errors import UsageError


class PipeDreamDriveCommand(Command):
    name = "drive"
    help = "print the command of every rank of a driver file"
    epilog = "example: iotwin pipedream drive vgg16_4pipedream.yml --dry-run"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("config", type=Path, metavar="CONFIG.yml", help="driver file")
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="print the commands and launch nothing (required: launching is not implemented)",
        )
        parser.add_argument("--resume", metavar="PREFIX", help="prefix of the checkpoints to resume from")
        parser.add_argument("--local", action="store_true", help="run on this machine, without ssh and containers")
        parser.add_argument("--launch-single-container", action="store_true", help="one container a host instead of one a GPU")
        parser.add_argument(
            "--mount-directories", nargs="+", default=[], metavar="DIR", help="directories to mount in the containers"
        )
        parser.add_argument("--models", type=Path, metavar="DIR", help="directory that config_file is relative to")

    def run(self, args: Namespace) -> Outcome:
        from iotwin.workloads.pipedream.plan.driver_file import Launch, commands, read_driver

        if not args.dry_run:
            raise UsageError("there is no runtime to launch yet; --dry-run prints the commands")
        driver = read_driver(args.config, args.models)
        directory = Path(str(driver.keys.get("log_directory", "."))) / "TIMESTAMP"
        launch = Launch(directory, args.resume, args.local, args.launch_single_container, tuple(args.mount_directories))
        found = commands(driver, launch)
        return Outcome(
            {
                "directory": str(directory),
                "commands": found,
                "ranks": len(driver.machines),
                "exit_statuses": None,
                "stopped_by": None,
            }
        )

    def show(self, document: dict[str, Any]) -> None:
        import shlex

        for command in document["commands"]:
            print(shlex.join(command))
