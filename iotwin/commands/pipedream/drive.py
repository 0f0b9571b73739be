"""``iotwin pipedream drive``: start the ranks of a driver file and supervise them, or print their commands."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome


class PipeDreamDriveCommand(Command):
    name = "drive"
    help = "start every rank of a driver file, and end all if one fails"
    epilog = "example: iotwin pipedream drive vgg16_4pipedream.yml --local"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "config", type=Path, metavar="CONFIG.yml", help="driver file: machines, model and options of a training"
        )
        parser.add_argument("--dry-run", action="store_true", help="print the commands and launch nothing")
        parser.add_argument("--resume", metavar="PREFIX", help="store of the checkpoints to resume from, DIR/checkpoint")
        parser.add_argument("--local", action="store_true", help="run on this machine, without ssh and containers")
        parser.add_argument(
            "--launch-single-container", action="store_true", help="one container per host instead of one per GPU"
        )
        parser.add_argument(
            "--mount-directories", nargs="+", default=[], metavar="DIR", help="directories to mount in the containers"
        )
        parser.add_argument("--models", type=Path, metavar="DIR", help="directory to which the file's config_file is relative")

    def run(self, args: Namespace) -> Outcome:
        from datetime import datetime

        from iotwin.workloads.pipedream.plan.driver_file import Launch, commands, read_driver
        from iotwin.workloads.pipedream.runtime.drive import drive, run_directory

        driver = read_driver(args.config, args.models)
        directory = Path(str(driver.keys.get("log_directory", "."))) / "TIMESTAMP"
        launch = Launch(directory, args.resume, args.local, args.launch_single_container, tuple(args.mount_directories))
        if args.dry_run:
            document = {
                "directory": str(directory),
                "commands": commands(driver, launch),
                "ranks": len(driver.machines),
                "exit_statuses": None,
                "stopped_by": None,
                "reason": None,
            }
            return Outcome(document)
        commands(driver, launch)  # refuses a driver file with a problem before its log_directory is inspected
        document = drive(driver, launch.at(run_directory(driver, datetime.now().astimezone())))
        return Outcome(document, 1 if document["reason"] else 0)

    def show(self, document: dict[str, Any]) -> None:
        import shlex

        if document["exit_statuses"] is None:
            for command in document["commands"]:
                print(shlex.join(command))
            return
        print(f"{document['directory']}: {document['reason'] or 'all ranks ended'}")
