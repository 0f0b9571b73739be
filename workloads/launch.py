"""``python -m iotwin.workloads.launch RANKS MODULE [OPTION...]``: start a job's ranks on this machine; end all if one fails.

This launcher is for workloads whose framework has none, and for jobs on several hosts: there, one launcher on each host starts
the host's ranks. It sets the same environment variables as PyTorch's torch.distributed.run. Callers build a `LaunchPlan`
themselves if ranks run different programs.
"""

import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import time
from argparse import REMAINDER, ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import make_folder, open_rewritten, write_json
from iotwin.common.processes.children import dying_with_us, end_programs
from iotwin.common.ranks import HOSTS_OF_RANKS, claimed_ports, interface_towards, rank_variables
from iotwin.common.signals import interrupted_status
from iotwin.common.untrusted_files import read_foreign_end

_GRACE_S = 10.0
RECORD = "launch.json"
PREFIX = "launch: "  # begins each line that this launcher prints
# No terminal and no questions, as nobody answers. If the other host is gone, ssh ends after 45 s.
_SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15")
_PASSED = re.compile("PYTHON|OMP_|GLOO_|NCCL_")  # environment variables that a job on another host has, too
_STDIN = 0
_Program = subprocess.Popen[bytes]


@dataclass(frozen=True)
class RankProcess:
    """The process of one rank. `environment` is added to the environment of the process that starts it.

    Without a `log`, stdout and stderr are inherited. `host` is only for messages and the record. A command for another machine
    must begin with ssh or a similar program (`on_host`). Such a program does not pass signals on; with `ends_with_stdin`, it is
    asked to end by the end of its stdin, and Ctrl-C on this terminal does not reach it.
    """

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    log: Path | None = None  # file for stdout and stderr
    host: str = "localhost"
    ends_with_stdin: bool = False


@dataclass(frozen=True)
class Ending:
    """How a plan ended: each rank's exit status (-N if signal N killed it), the first rank that failed, and a message.

    `stopped_by` is that rank, None if no rank failed. In that case `reason` is None, too, unless all ranks were ended by the time
    limit or by the end of stdin.
    """

    exit_statuses: list[int]
    stopped_by: int | None = None
    reason: str | None = None

    @property
    def exit_status(self) -> int:
        """Return the shell's exit status for the first failed rank: 0 if none failed, 1 if all were ended."""
        if self.stopped_by is None:
            return 0 if self.reason is None else 1
        status = self.exit_statuses[self.stopped_by]
        return status if status > 0 else 128 - status


@dataclass(frozen=True)
class LaunchPlan:
    """Processes that run together, one for each rank.

    If one process fails, or after `limit_s` seconds, all get SIGTERM. Those that still run after `grace_s` more seconds get
    SIGKILL. `record` is a JSON file with each rank's command, pid and exit status, written at the start and at the end.
    `ends_with_stdin`: all are also ended when this process's stdin ends, as when the ssh that started it ends.
    """

    processes: list[RankProcess]
    limit_s: float | None = None
    grace_s: float = _GRACE_S
    record: Path | None = None
    ends_with_stdin: bool = False
    first_rank: int = 0  # rank of the first process, for messages and the record

    def run(self, report: Callable[[str], object] | None = None) -> Ending:
        """Start all processes and wait until all have ended. Raises IotwinError if one cannot start or its log is unwritable.

        `report` is called with the reason for which all are ended, before they are.
        """
        programs: list[_Program] = []
        ending: Ending | None = None
        try:
            for rank, process in enumerate(self.processes):
                programs.append(_start(rank, process, subprocess.DEVNULL if self.ends_with_stdin else None))
            self._write(programs, None)
            stopped_by, reason = self._supervise(programs)
            if reason and report:
                report(reason)
            end_programs(programs, self.grace_s)
            ending = Ending([program.returncode for program in programs], stopped_by, reason)
            return ending
        finally:
            end_programs(programs, self.grace_s)
            self._write(programs, ending)

    def _supervise(self, programs: Sequence[_Program]) -> tuple[int | None, str | None]:
        """Wait until all ranks have ended, one has failed, stdin has ended, or the time limit is reached.

        Returns (first failed rank or None, message or None). There is no message if all ranks ended by themselves.
        """
        deadline = None if self.limit_s is None else time.monotonic() + self.limit_s
        with selectors.DefaultSelector() as running, ExitStack() as descriptors:
            for rank, program in enumerate(programs):
                descriptor = os.pidfd_open(program.pid)
                descriptors.callback(os.close, descriptor)
                running.register(descriptor, selectors.EVENT_READ, rank)
            left = set(range(len(programs)))
            if self.ends_with_stdin:
                running.register(_STDIN, selectors.EVENT_READ)
            while left:
                events = running.select(None if deadline is None else max(0.0, deadline - time.monotonic()))
                if not events:
                    still = ", ".join(str(self.first_rank + rank) for rank in sorted(left))
                    return None, f"ranks still running after the limit of {self.limit_s:g} s: {still}"
                ended = [key for key, _ in events if key.fd != _STDIN]
                for key in ended:
                    running.unregister(key.fd)
                failed = {key.data: status for key in ended if (status := programs[key.data].wait())}
                if failed:  # a killed rank makes others fail, perhaps before this process runs again
                    rank = min(failed, key=lambda rank: (failed[rank] > 0, rank))
                    return rank, self._explain(rank, failed[rank])
                left -= {key.data for key in ended}
                if len(ended) < len(events):
                    return None, "the ranks were ended by the host that started them"
        return None, None

    def _explain(self, rank: int, status: int) -> str:
        process = self.processes[rank]
        how = f"ended with exit status {status}"
        if status < 0:
            how = f"was killed by signal {-status} ({signal.strsignal(-status)})"
        said = _last_line(process.log) if process.log else ""
        return f"rank {self.first_rank + rank} on {process.host} {how}{': ' if said else ''}{said}"

    def _write(self, programs: Sequence[_Program], ending: Ending | None) -> None:
        if self.record is None or len(programs) < len(self.processes):
            return
        ranks: list[dict[str, Any]] = [
            {"rank": self.first_rank + rank, **asdict(process), "log": process.log and str(process.log), "pid": program.pid}
            | {"exit_status": program.returncode}
            for rank, (process, program) in enumerate(zip(self.processes, programs, strict=True))
        ]
        stopped = {"stopped_by": ending and ending.stopped_by, "reason": ending and ending.reason}
        write_json(self.record, {"ranks": ranks, **stopped})


def _start(rank: int, process: RankProcess, stdin: int | None) -> _Program:
    settings: dict[str, Any] = {"env": os.environ | process.environment, "preexec_fn": dying_with_us(signal.SIGKILL)}
    settings |= {"stdin": subprocess.PIPE, "start_new_session": True} if process.ends_with_stdin else {"stdin": stdin}
    try:
        if process.log is None:
            return subprocess.Popen(process.command, **settings)
        with open_rewritten(process.log) as log:
            return subprocess.Popen(process.command, **settings, stdout=log, stderr=subprocess.STDOUT)
    except OSError as error:
        what = error.filename or process.command[0]
        raise IotwinError(f"rank {rank} on {process.host} cannot be started: {what}: {error.strerror}") from None


def _last_line(log: Path) -> str:
    lines = read_foreign_end(log).strip().splitlines()
    return lines[-1] if lines else ""


def on_host(host: str, command: Sequence[str]) -> list[str]:
    """Return the command that runs `command` on `host` by ssh: in the directory of this process, with some of its environment."""
    environment = [f"{name}={value}" for name, value in os.environ.items() if _PASSED.match(name)]
    return [*_SSH, host, shlex.join(["env", "-C", str(Path.cwd()), *environment, *command])]


def local_plan(
    module: Sequence[str], ranks: int, port: int, logs: Path | None = None, limit_s: float | None = None
) -> LaunchPlan:
    """Return a plan of `ranks` processes on this machine that all run `module`, a module's name followed by its options.

    MASTER_PORT is `port`. The folder `logs` gets the output of rank R as rank-R.log, and the plan's record.
    """
    command = _python(module)
    processes = [
        RankProcess(command, rank_variables(rank, ranks, port), logs and logs / f"rank-{rank}.log") for rank in range(ranks)
    ]
    return LaunchPlan(processes, limit_s, record=logs and logs / RECORD)


def _python(module: Sequence[str]) -> list[str]:
    # -P keeps Python from importing modules from the current directory. In a container image the workloads are in that directory,
    # so ranks get -P only if this process has it.
    return [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", *module]


def ranks_of_host(ranks: int, hosts: int, index: int) -> range:
    """Return the ranks of the host with this index: all hosts have equally many, except that later ones may have one more."""
    return range(ranks * index // hosts, ranks * (index + 1) // hosts)


def share_of_host(module: Sequence[str], ranks: int, port: int, addresses: Sequence[str], index: int) -> LaunchPlan:
    """Return the plan of this host's share of `ranks` ranks on several hosts, which ends with stdin.

    `addresses` are those of all hosts, in the order of the ranks; `index` is that of this host. Rank 0 listens on `port` of the
    first.
    """
    own = ranks_of_host(ranks, len(addresses), index)
    hosts = [address for each, address in enumerate(addresses) for _ in ranks_of_host(ranks, len(addresses), each)]
    common = {HOSTS_OF_RANKS: ",".join(hosts)}
    # Else gloo takes the interface of the address that this host's name resolves to, which is often the loopback address.
    if "GLOO_SOCKET_IFNAME" not in os.environ and (interface := interface_towards(addresses[0])):
        common["GLOO_SOCKET_IFNAME"] = interface
    variables = [rank_variables(rank, ranks, port, addresses[0], rank - own.start) | common for rank in own]
    command, host = _python(module), os.uname().nodename
    return LaunchPlan([RankProcess(command, each, host=host) for each in variables], ends_with_stdin=True, first_rank=own.start)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ranks and return the exit status of the first that failed, 0 if none did."""
    parser = ArgumentParser(prog="python -m iotwin.workloads.launch", description="Start a job's ranks on this machine.")
    parser.add_argument("--logs", type=Path, metavar="DIR", help=f"write each rank's output to DIR/rank-N.log, and DIR/{RECORD}")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="end the job if it takes longer")
    parser.add_argument(
        "--share", nargs=3, metavar=("ADDRESS,...", "INDEX", "PORT"),
        help="start one host's share of RANKS, until stdin ends: addresses of all hosts, index of this one, port of rank 0",
    )  # fmt: skip
    parser.add_argument("ranks", type=int, metavar="RANKS")
    parser.add_argument("module", nargs=REMAINDER, metavar="MODULE [OPTION...]")
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if args.share:
            addresses, index, port = args.share
            plan = share_of_host(args.module, args.ranks, int(port), addresses.split(","), int(index))
            return plan.run(_report).exit_status
        return _run(args.module, args.ranks, args.logs, args.limit)
    except IotwinError as error:
        _report(error)
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
        return local_plan(module, ranks, port, logs, limit_s).run(_report).exit_status


def _report(reason: object) -> None:
    print(f"{PREFIX}{reason}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
