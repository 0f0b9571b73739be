"""``iotwin twin``: make a proven twin of a traced job, pack it, run a packed one."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome
from tracing_tools.trace.errors import UsageError


class Twin(Command):
    """Fit, generate, run, compare and correct; or send the result on."""

    name = "twin"
    help = "make the twin of a traced job and correct it until its own trace matches; pack it; run a packed one"
    epilog = """examples:
  iotwin twin real.trace rerun.trace -o twin
  iotwin twin pack twin -o unet3d.twin
  iotwin twin run unet3d.twin -o here"""

    def prepare_parser(self, parser: ArgumentParser) -> None:
        """Add what to do, on what, and where to."""
        parser.add_argument(
            "what", nargs="+", metavar="TRACE", help="the job's trace and reruns of it; or: pack DIR; or: run ARCHIVE"
        )
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="directory (pack: file) to write")
        parser.add_argument("--rounds", type=int, default=4, metavar="N", help="correct at most N - 1 times (default 4)")
        parser.add_argument("--keep-names", action="store_true", help="pack: keep file, host and model names")
        parser.add_argument("--force", action="store_true", help="replace an earlier twin in OUT")

    def run(self, args: Namespace) -> Outcome:
        """Make, pack or run a twin."""
        action = args.what[0] if args.what[0] in ("pack", "run") else "make"
        if action != "make" and len(args.what) != 2:
            raise UsageError(f"{action} takes one {'directory' if action == 'pack' else 'archive'}; see: iotwin twin --help")
        if args.rounds < 1:
            raise UsageError(f"--rounds {args.rounds} runs nothing; give at least 1")
        if args.keep_names and action != "pack":
            raise UsageError("--keep-names is for pack; a twin at home keeps its names anyway")
        if action == "pack":
            from iotwin.twin_archive import pack

            return Outcome({"action": "pack", **pack(Path(args.what[1]), args.output, args.keep_names)})
        if action == "run":
            return Outcome({"action": "run", **_run(Path(args.what[1]), args.output)})
        from iotwin.twin import make_twin

        return Outcome({"action": "make", **make_twin([Path(path) for path in args.what], args.output, args.rounds, args.force)})

    def show(self, document: dict[str, Any]) -> None:
        """Say what came out."""
        match document["action"]:
            case "pack":
                names = "with names" if document["names_kept"] else "without names"
                print(f"{document['archive']}: the twin of {document['files']} files, {names}")
            case "run":
                print(f"{document['directory']}: ran; results in {document['output']}")
            case "make":
                _show_made(document)


def _show_made(document: dict[str, Any]) -> None:
    for record in document["rounds"]:
        kept = "  <- kept" if record["round"] == document["best_round"] else ""
        overall = "withheld" if record["overall"] is None else f"{record['overall']:.3f}"
        print(f"round {record['round']}  {overall}  {record['verdict']}{kept}")
    if document["noise_floor"] is not None:
        print(f"reruns of the job score {document['noise_floor']:.3f} or more among themselves")
    for held_out in document["held_out"]:
        overall = "withheld" if held_out["overall"] is None else f"{held_out['overall']:.3f}"
        print(f"against {held_out['a']}, which the fit has not seen: {overall}, {held_out['verdict']}")
    print(f"{document['twin']}: run it with iotwin emulate, send it with iotwin twin pack")


def _run(archive: Path, directory: Path) -> dict[str, Any]:
    """Unpack, make the data set and run the twin in a process of its own."""
    import subprocess
    import sys

    from iotwin.twin import TWIN
    from iotwin.twin_archive import unpack
    from tracing_tools.trace.errors import IotwinError

    unpack(archive, directory)
    command = [sys.executable, "-m", "iotwin.main", "emulate", str(directory / TWIN)]
    status = subprocess.run(command, stdout=sys.stderr, check=False).returncode
    if status:
        raise IotwinError(f"the twin in {directory} ended with exit status {status}; its message is above")
    return {"directory": str(directory), "output": str(directory / "output"), "twin": str(directory / TWIN)}
