"""``python -m iotwin.workloads.launch RANKS MODULE [OPTION...]``: start a job's ranks on this machine; end all if one fails.

This launcher is for workloads whose framework has none. It sets the same environment variables as PyTorch's
torch.distributed.run. Callers build a `LaunchPlan` themselves if ranks run different programs or on several machines.
"""

import os
import selectors
import signal
import subprocess
import sys
import time
from argparse import REMAINDER, ArgumentParser
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import make_folder, open_rewritten, write_json
from iotwin.common.foreign_files import read_foreign_end
from iotwin.common.processes.children import dying_with_us, end_programs
from iotwin.common.ranks import claimed_ports, rank_variables
from iotwin.common.signals import interrupted_status

_GRACE_S = 10.0
RECORD = "launch.json"
_Program = subprocess.Popen[bytes]


@dataclass(frozen=True)
class RankProcess:
    """The process of one rank. `environment` is added to the environment of the process that starts it.

    Without a `log`, stdout and stderr are inherited. `host` is only for messages and the record. A command for another machine
    must begin with ssh or a similar program.
    """

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    log: Path | None = None  # file for stdout and stderr
    host: str = "localhost"


@dataclass(frozen=True)
class Ending:
    """How a plan ended: each rank's exit status (-N if signal N killed it), the first rank that failed, and a message.

    `stopped_by` is that rank, None if no rank failed. In that case `reason` is None, too, unless the time limit was reached.
    """

    exit_statuses: list[int]
    stopped_by: int | None = None
    reason: str | None = None

    @property
    def exit_status(self) -> int:
        """Return the shell's exit status for the first failed rank: 0 if none failed, 1 if the time limit ended all."""
        if self.stopped_by is None:
            return 0 if self.reason is None else 1
        status = self.exit_statuses[self.stopped_by]
        return status if status > 0 else 128 - status


@dataclass(frozen=True)
class LaunchPlan:
    """Processes that run together, one for each rank.

    If one process fails, or after `limit_s` seconds, all get SIGTERM. Those that still run after `grace_s` more seconds get
    SIGKILL. `record` is a JSON file with each rank's command, pid and exit status, written at the start and at the end.
    """

    processes: list[RankProcess]
    limit_s: float | None = None
    grace_s: float = _GRACE_S
    record: Path | None = None

    def run(self) -> Ending:
        """Start all processes and wait until all have ended. Raises IotwinError if one cannot start or its log is unwritable."""
        programs: list[_Program] = []
        ending: Ending | None = None
        try:
            for rank, process in enumerate(self.processes):
                programs.append(_start(rank, process))
            self._write(programs, None)
            stopped_by, reason = self._supervise(programs)
            end_programs(programs, self.grace_s)
            ending = Ending([program.returncode for program in programs], stopped_by, reason)
            return ending
        finally:
            end_programs(programs, self.grace_s)
            self._write(programs, ending)

    def _supervise(self, programs: Sequence[_Program]) -> tuple[int | None, str | None]:
        """Wait until all ranks have ended, one has failed, or the time limit is reached.

        Returns (first failed rank or None, message or None). There is no message if all ranks ended by themselves.
        """
        deadline = None if self.limit_s is None else time.monotonic() + self.limit_s
        with selectors.DefaultSelector() as running, ExitStack() as descriptors:
            for rank, program in enumerate(programs):
                descriptor = os.pidfd_open(program.pid)
                descriptors.callback(os.close, descriptor)
                running.register(descriptor, selectors.EVENT_READ, rank)
            while running.get_map():
                ended = running.select(None if deadline is None else max(0.0, deadline - time.monotonic()))
                if not ended:
                    still = ", ".join(str(key.data) for key in running.get_map().values())
                    return None, f"ranks still running after the limit of {self.limit_s:g} s: {still}"
                for key, _ in ended:
                    running.unregister(key.fd)
                failed = {key.data: status for key, _ in ended if (status := programs[key.data].wait())}
                if failed:  # a killed rank makes others fail, perhaps before this process runs again
                    rank = min(failed, key=lambda rank: (failed[rank] > 0, rank))
                    return rank, self._explain(rank, failed[rank])
        return None, None

    def _explain(self, rank: int, status: int) -> str:
        process = self.processes[rank]
        how = f"ended with exit status {status}"
        if status < 0:
            how = f"was killed by signal {-status} ({signal.strsignal(-status)})"
        said = _last_line(process.log) if process.log else ""
        return f"rank {rank} on {process.host} {how}{': ' if said else ''}{said}"

    def _write(self, programs: Sequence[_Program], ending: Ending | None) -> None:
        if self.record is None or len(programs) < len(self.processes):
            return
        ranks: list[dict[str, Any]] = [
            {"rank": rank, **asdict(process), "log": process.log and str(process.log), "pid": program.pid}
            | {"exit_status": program.returncode}
            for rank, (process, program) in enumerate(zip(self.processes, programs, strict=True))
        ]
        stopped = {"stopped_by": ending and ending.stopped_by, "reason": ending and ending.reason}
        write_json(self.record, {"ranks": ranks, **stopped})


def _start(rank: int, process: RankProcess) -> _Program:
    environment, dying = os.environ | process.environment, dying_with_us(signal.SIGKILL)
    try:
        if process.log is None:
            return subprocess.Popen(process.command, env=environment, preexec_fn=dying)
        with open_rewritten(process.log) as log:
            return subprocess.Popen(process.command, env=environment, preexec_fn=dying, stdout=log, stderr=subprocess.STDOUT)
    except OSError as error:
        what = error.filename or process.command[0]
        raise IotwinError(f"rank {rank} on {process.host} cannot be started: {what}: {error.strerror}") from None


def _last_line(log: Path) -> str:
    lines = read_foreign_end(log).strip().splitlines()
    return lines[-1] if lines else ""


def local_plan(
    module: Sequence[str], ranks: int, port: int, logs: Path | None = None, limit_s: float | None = None
) -> LaunchPlan:
    """Return a plan of `ranks` processes on this machine that all run `module`, a module's name followed by its options.

    MASTER_PORT is `port`. The folder `logs` gets the output of rank R as rank-R.log, and the plan's record.
    """
    # -P keeps Python from importing modules from the current directory. In a container image the workloads are in that directory,
    # so ranks get -P only if this process has it.
    command = [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", *module]
    processes = [
        RankProcess(command, rank_variables(rank, ranks, port), logs and logs / f"rank-{rank}.log") for rank in range(ranks)
    ]
    return LaunchPlan(processes, limit_s, record=logs and logs / RECORD)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ranks and return the exit status of the first that failed, 0 if none did."""
    parser = ArgumentParser(prog="python -m iotwin.workloads.launch", description="Start a job's ranks on this machine.")
    parser.add_argument("--logs", type=Path, metavar="DIR", help=f"write each rank's output to DIR/rank-N.log, and DIR/{RECORD}")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="end the job if it takes longer")
    parser.add_argument("ranks", type=int, metavar="RANKS")
    parser.add_argument("module", nargs=REMAINDER, metavar="MODULE [OPTION...]")
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _run(args.module, args.ranks, args.logs, args.limit)
    except IotwinError as error:
        print(f"launch: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return interrupted_status()


def _run(module: list[str], ranks: int, logs: Path | None, limit_s: float | None) -> int:
    if ranks < 1 or not module:
        raise UsageError(
            f"RANKS {ranks} must be at least 1" if module else "name the MODULE to run, such as iotwin.workloads.bert"
        )
    if limit_s is not None and not limit_s > 0:
        raise UsageError(f"--limit {limit_s} must be more than 0")
    if logs is not None:
        try:
            make_folder(logs)
        except OSError as error:
            raise IotwinError(f"--logs {logs}: {error.strerror}") from None
    with claimed_ports(ranks) as port:
        ending = local_plan(module, ranks, port, logs, limit_s).run()
    if ending.reason:
        print(f"launch: {ending.reason}", file=sys.stderr, flush=True)
    return ending.exit_status


if __name__ == "__main__":
    sys.exit(main())
