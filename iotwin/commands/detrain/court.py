"""``iotwin detrain court``: kill a script at many points, resume it by its own means, and certify the result."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, at_least
from iotwin.commands.detrain.script_arguments import add_script_arguments
from iotwin.common.units import counted

_RESULT = "court.json"
_MOST_CHARACTERS = 40  # longest value on a printed line; the document has it whole


class DetrainCourtCommand(Command):
    name = "court"
    help = "kill a script at its batches and checkpoint writes, resume it by its own option, and compare every later step"
    epilog = 'example: iotwin detrain court train.py -o court --kills 20 --resume-args "--resume {checkpoint}" -- --epochs 3'

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("script", type=Path, metavar="SCRIPT", help="a training script that can resume; it remains as it is")
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="directory for court.json and runs")
        parser.add_argument("--kills", default="20", metavar="N", help="kill at N points drawn by --seed, or at all (default 20)")
        parser.add_argument(
            "--kill-at",
            default="batches,calls",
            metavar="KIND,..",
            help="batches: after updates of weights; calls: before each write, fsync and rename of checkpoints (default: both)",
        )
        parser.add_argument(
            "--resume-args",
            metavar="ARGS",
            help="arguments that resume the script, with {checkpoint} for its newest checkpoint (default: its option for that)",
        )
        parser.add_argument(
            "--seed", type=at_least(0), default=0, metavar="N", help="seed of kill points and random generators (default 0)"
        )
        parser.add_argument(
            "--ranks", type=at_least(1), default=1, metavar="N", help="start the script as N ranks, as torchrun does (default 1)"
        )
        parser.add_argument("--force", action="store_true", help="replace the result of an earlier trial in DIR")
        add_script_arguments(parser)

    def run(self, args: Namespace) -> Outcome:
        import msgspec

        from iotwin.common.files import struct_json, write_whole
        from iotwin.common.progress import progress
        from iotwin.common.result_folder import MadeFolder
        from iotwin.workloads.detrain.court.trial import EXACT, Trial

        case = _case(args)
        made = MadeFolder.claim(args.output, "resume court", args.force)
        for name in ("uninterrupted", "repeat", "kills", _RESULT):
            made.entry(name)
        kills = []
        with Trial(case) as trial:
            trial.run_uninterrupted()
            points = trial.points()
            with progress("trial", len(points), "kills") as advance:
                for kill in trial.judged(points):
                    kills.append(kill)
                    advance(1)
            document = msgspec.to_builtins(trial.document(kills))
        write_whole(args.output / _RESULT, struct_json(document))
        return Outcome(document, 0 if document["verdict"] == EXACT else 1)

    def show(self, document: dict[str, Any]) -> None:
        if difference := document["repeat_difference"]:
            print(f"two runs without a kill differ at {_described(difference)}: nothing can be compared; fix its seeds first")
        for kill in document["kills"]:
            print(f"killed {_point(kill)}: {_outcome(kill)}")
        for note in document["notes"]:
            print(note)
        print(f"{document['verdict']}: {document['exact']} of {counted(len(document['kills']), 'kill')} exact")


def _case(args: Namespace) -> Any:
    from iotwin.common.errors import UsageError
    from iotwin.workloads.detrain.court.kill_points import BATCHES, CALLS
    from iotwin.workloads.detrain.court.trial import CourtCase
    from iotwin.workloads.detrain.options import check_one_process

    check_one_process("court")
    if not args.script.is_file():
        raise UsageError(f"{args.script} is not a file")
    kinds = tuple(dict.fromkeys(args.kill_at.split(",")))
    if unknown := [kind for kind in kinds if kind not in (BATCHES, CALLS)]:
        raise UsageError(f"--kill-at: '{unknown[0]}' is neither {BATCHES} nor {CALLS}")
    if args.kills != "all" and not (args.kills.isdecimal() and int(args.kills)):
        raise UsageError(f"--kills: '{args.kills}' is neither a number above 0 nor all")
    kills = None if args.kills == "all" else int(args.kills)
    return CourtCase(
        args.script.resolve(), args.arguments, args.output.resolve(), args.resume_args, kinds, kills, args.seed, args.ranks
    )


def _described(difference: dict[str, Any]) -> str:
    rank = f" of rank {difference['rank']}" if difference["rank"] else ""
    where = "the end" if difference["step"] is None else f"step {difference['step']}{rank}"
    name = f" of {difference['name']}" if difference["name"] else ""
    values = "" if difference["expected"] is None else f" ({_short(difference['expected'])} became {_short(difference['found'])})"
    also = f", and {', '.join(difference['also'])}" if difference["also"] else ""
    return f"{where}, in {difference['what']}{name}{values}{also}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def _point(kill: dict[str, Any]) -> str:
    point = kill["point"]
    when = f"after update {point['update']}"
    return when if "call" not in point else f"{when}, before {kill['at']} {point['call']} ({point['path']})"


def _outcome(kill: dict[str, Any]) -> str:
    at = "" if kill["resumed_at_step"] is None else f" (resumed at step {kill['resumed_at_step']})"
    error = f": {kill['error']}" if kill["error"] else ""
    difference = f", first at {_described(kill['first_difference'])}" if kill["first_difference"] else ""
    return f"{kill['verdict']}{at}{error}{difference}"
