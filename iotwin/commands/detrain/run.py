"""``iotwin detrain run``: run a training script so that it can resume at any batch."""

import os
import signal
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome
from iotwin.commands.detrain.script_arguments import add_script_arguments
from iotwin.common.detrain_options import add_run_options, as_arguments
from iotwin.common.processes.children import dying_with_us
from iotwin.common.ranks import launched_by_torchrun
from iotwin.common.units import counted


class DetrainRunCommand(Command):
    name = "run"
    help = "run a training script so that it saves its state and resumes at any batch; needs PyTorch"
    epilog = """examples:
  iotwin detrain run train.py -o run --every 100batches -- --epochs 10
  iotwin detrain run train.py -o run --resume step-200"""

    def prepare_parser(self, parser: ArgumentParser) -> None:
        add_run_options(parser)
        add_script_arguments(parser)

    def run(self, args: Namespace) -> Outcome:
        from iotwin.common.untrusted_files import read_foreign_json
        from iotwin.workloads.detrain.options import check_options
        from iotwin.workloads.detrain.randomness.determinism import environment

        check_options(args)
        is_first = launched_by_torchrun().rank == 0  # rank 0 alone writes run.json
        written = args.output / "run.json" if args.output else None
        before = _version(written)
        command = [sys.executable, "-m", "iotwin.workloads.detrain", *as_arguments(args)]
        status = _status(command, os.environ | environment(args.determinism, args.seed))
        # A run that ends before it begins training leaves the document of an earlier run as it is.
        document = read_foreign_json(written) if is_first and written and _version(written) != before else {}
        return Outcome({**document, "exit_status": status}, status)

    def show(self, document: dict[str, Any]) -> None:
        if "steps" not in document:
            return
        resumed = f", resumed from {document['resumed_from']} ({document['replay']})" if document["resumed_from"] else ""
        print(f"{counted(document['steps'], 'step')} in {counted(document['epochs'], 'epoch')}{resumed}")
        print(f"checkpoints: {', '.join(document['checkpoints']) or 'none'}")
        if interval := document["interval"]:
            times = f"a step takes {interval['step_s']:.3g} s, a checkpoint {interval['checkpoint_s']:.3g} s"
            print(f"saved every {counted(interval['batches'][-1][1], 'batch')}: {times}")
        for what in document["differs_from_saved"]:
            print(f"not on the same machine as the checkpoint: {what}")
        for entropy in document["entropy"]:
            print(f"{entropy['file']}:{entropy['line']}: {entropy['source']} draws without a seed; a rerun differs")
        for found in document["nondeterministic_ops"]:
            print(f"{found['file']}:{found['line']}: {found['op']} has no deterministic implementation; a rerun may differ")


def _version(file: Path | None) -> tuple[int, int] | None:
    """Return numbers that change if a file is written anew; None if there is no such file."""
    if file is None or not file.is_file():
        return None
    state = file.stat()
    return state.st_ino, state.st_mtime_ns


def _status(command: list[str], environment: dict[str, str]) -> int:
    """Run a command and return its exit status as a shell reports it.

    SIGTERM and SIGUSR1 (save now) are passed on. Ctrl-C reaches the command directly, since it is in the same process group.
    """
    process = subprocess.Popen(command, env=environment, preexec_fn=dying_with_us(signal.SIGTERM))
    handlers: dict[int, Any] = {signal.SIGINT: lambda *_: None}
    handlers |= dict.fromkeys((signal.SIGTERM, signal.SIGUSR1), lambda number, _: process.send_signal(number))
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status
