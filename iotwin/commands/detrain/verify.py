"""``iotwin detrain verify``: check that reruns and resumed runs of a script are equal bit for bit."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, at_least
from iotwin.commands.detrain.script_arguments import add_script_arguments
from iotwin.common.detrain_options import REPLAYS
from iotwin.common.units import counted

_RESULT, _INST = "verification.json", "inst.json"
_DROPS = ("rng", "loader", "scaler", "threads", "workers")
_PROFILES = ("strict", "seeded", "off")


class DetrainVerifyCommand(Command):
    name = "verify"
    help = "rerun a script, resume it at chosen batches, compare all steps bit for bit, and name the first difference"
    epilog = """examples:
  iotwin detrain verify train.py -o check -- --epochs 2
  iotwin detrain verify train.py -o check --resume-at all --workers 0,1,4
  iotwin detrain verify train.py -o check --drop rng"""

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("script", type=Path, metavar="SCRIPT", help="a training script; its files remain as they are")
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="directory for results and runs")
        parser.add_argument("--reruns", type=at_least(1), default=2, metavar="N", help="compare N reruns (default 2)")
        parser.add_argument(
            "--resume-at",
            default="sample:3",
            metavar="POINTS",
            help="resume at all batches, at a sample:N, or at E:B,... counted from 0 (default sample:3)",
        )
        parser.add_argument(
            "--workers", metavar="N,...", help="resume with these numbers of worker processes (default: the script's own)"
        )
        parser.add_argument(
            "--drop", choices=_DROPS, help="negative control: resume without this, or with another number of threads or workers"
        )
        parser.add_argument("--minimal", action="store_true", help="find the parts of the state that a resumed run needs")
        parser.add_argument(
            "--determinism", choices=_PROFILES, default="strict", help="how far randomness is fixed (default strict)"
        )
        parser.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="seed for --determinism (default 0)")
        parser.add_argument(
            "--inst", type=Path, metavar="FILE", help="the script's loops, as iotwin detrain discover writes them"
        )
        parser.add_argument("--force", action="store_true", help="run although it is unsure which lines are the script's loops")
        parser.add_argument(
            "--ranks", type=at_least(1), default=1, metavar="N", help="start the script as N ranks, as torchrun does (default 1)"
        )
        parser.add_argument(
            "--replay", choices=REPLAYS[:-1], default=REPLAYS[0], help="how resumed runs reach their batch (default restore)"
        )
        add_script_arguments(parser)

    def run(self, args: Namespace) -> Outcome:
        from iotwin.common.errors import UsageError
        from iotwin.common.files import struct_json, write_whole
        from iotwin.common.result_folder import MadeFolder
        from iotwin.workloads.detrain.instrumentation import write_instrumentation
        from iotwin.workloads.detrain.options import check_one_process
        from iotwin.workloads.detrain.runner import instrumentation_of
        from iotwin.workloads.detrain.verify.verification import VerifiedScript
        from iotwin.workloads.detrain.verify.verified_document import Checks, verified_document

        if not args.script.is_file():
            raise UsageError(f"{args.script}: is no file; name a training script")
        check_one_process(self.name)
        checks = Checks(args.reruns, args.resume_at, _numbers(args.workers), args.drop, args.minimal)
        found = instrumentation_of(args)
        made = MadeFolder.claim(args.output, "verification", force=True)
        inst = made.entry(_INST)
        write_instrumentation(inst, found)
        for name in ("runs", "plain", "saving"):
            made.entry(name)
        output = args.output.resolve()
        script = VerifiedScript(
            args.script, args.arguments, output, output / _INST, args.determinism, args.seed, args.ranks, args.replay
        )
        document = verified_document(script, checks)
        write_whole(made.entry(_RESULT), struct_json(document))
        return Outcome(document, 0 if document["equal"] else 1)

    def show(self, document: dict[str, Any]) -> None:
        reruns, resumes = document["reruns"], document["resumes"]
        print(
            f"{counted(document['steps'], 'step')}; {_equal(reruns)} reruns and {_equal(resumes)} resumed runs "
            "are equal bit for bit"
        )
        for rerun in reruns:
            if not rerun["equal"]:
                print(f"rerun: {_described(rerun)}")
        for resume in resumes:
            if not resume["equal"]:
                workers = "" if resume["workers"] is None else f", {counted(resume['workers'], 'worker')}"
                print(f"resumed at {resume['epoch']}:{resume['batch']}{workers}: {_described(resume)}")
        if document["needed_state"] is not None:
            print(f"a resumed run needs: {', '.join(document['needed_state']) or 'nothing'}")
        if document["variance"] is not None:
            runs, spread = document["variance"]["runs"], document["variance"]["relative_spread"]
            print(f"without determinism, the last loss of {runs} runs spreads by {spread:.2g} of its mean")
        for found in document["entropy"]:
            print(f"{found['file']}:{found['line']}: {found['source']} draws without a seed")
        for found in document["nondeterministic_ops"]:
            print(f"{found['file']}:{found['line']}: {found['op']} has no deterministic implementation")


def _numbers(text: str | None) -> list[int | None]:
    from iotwin.common.errors import UsageError

    words = [] if text is None else text.split(",")
    if wrong := [word for word in words if not (word.isdecimal() and len(word) < 5)]:
        raise UsageError(f"--workers: '{wrong[0]}' is no number of processes; give numbers such as 0,1,4")
    return [int(word) for word in words] or [None]


def _equal(runs: list[dict[str, Any]]) -> str:
    return f"{sum(run['equal'] for run in runs)} of {len(runs)}"


def _described(run: dict[str, Any]) -> str:
    """Return in words how a run differs."""
    if run["error"] is not None:
        return f"failed: {run['error']}"
    difference = run["first_difference"]
    if difference is None:
        return f"equal, but not under the same conditions: {', '.join(run['differs_from_saved'])}"
    name = f" of {difference['name']}" if difference["name"] else ""
    op = f", computed by {difference['op']}" if difference["op"] else ""
    rank = f" of rank {difference['rank']}" if difference["rank"] else ""
    return f"differs from step {difference['step']}{rank} on, first in {difference['what']}{name}{op}"
