"""Run the cells of an experiment on several hosts by ssh: a tracer and a launcher of ranks on each, whose traces become a set."""

import ipaddress
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import combinations
from operator import itemgetter
from pathlib import Path

from iotwin import __version__
from iotwin.command_lines import own_job
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import make_folder, new_folder, scratch_folder
from iotwin.common.units import counted
from iotwin.common.untrusted_files import decode_foreign, read_foreign_end
from iotwin.common.workloads import EMULATED, workload_named
from iotwin.loops.experiments.cell import module_of, tracer_of
from iotwin.loops.experiments.experiment import Cell, Experiment
from iotwin.loops.experiments.host_check import KnownHost
from iotwin.workloads.launch import PREFIX, Ending, LaunchPlan, RankProcess, on_host, ranks_of_host

HOSTS = "hosts"  # folder of a lock file for each host, which a cell's job holds there
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_ASKED = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@%-]*")  # a name, an address or USER@NAME, but no option of ssh
_FAILED = re.compile(
    rf"^{PREFIX}(?P<line>rank \d+ on \S+ (?:ended with exit status (?P<status>\d+)|was killed by signal (?P<signal>\d+)).*)", re.M
)
_LOST, _KILLED = 255, 128  # exit status of ssh if the connection breaks; those of a shell for killed programs are greater
_MOST_REASONS = 4
_GRACE_S = 60.0  # time for tracers to finish their traces
_CHECK_GRACE_S = 1.0
_WAIT_S = 60  # time for the jobs of a killed run to end
_SHARED = "the current directory and -o must be on a file system that all hosts share"
# What helps, by the exit status of ssh: its own failures, env's, flock's.
_ADVICE = {
    _LOST: "`ssh {host} true` must succeed without a question; see ssh-copy-id(1) and ssh-keyscan(1)",
    125: _SHARED,
    66: _SHARED,
    73: _SHARED,
    75: "the job of an earlier iotwin run still runs there; wait for it",
}
_NO_IOTWIN = f"install iotwin there, too, so that its Python is {sys.executable}"


def reach_hosts(hosts: Sequence[str], directory: Path) -> list[KnownHost]:
    """Return what each host reports of itself, once all jobs of an earlier run in `directory` have ended there.

    Raises UsageError if a host is named twice or cannot be named so, and IotwinError if a host does not answer, has no iotwin, or
    another version, or does not share `directory`. Both name the host and what to do.
    """
    for host in hosts:
        if not _ASKED.fullmatch(host):
            raise UsageError(f"'{host}' is no host; give names that ssh knows, as node1,node2 or USER@node1")
    make_folder(directory / HOSTS, below=directory)
    # The new folder's name is random: a host that has it shares the directory.
    with scratch_folder(directory) as folder:
        check = own_job("iotwin.loops.experiments.host_check", folder)
        logs = [folder / str(index) for index in range(len(hosts))]
        ending = _run(hosts, [check] * len(hosts), logs, directory, 2 * _WAIT_S, _CHECK_GRACE_S)
        last = [_last_line(log) for log in logs]
    if ending.stopped_by is not None:
        host = hosts[ending.stopped_by]
        advice = _ADVICE.get(ending.exit_statuses[ending.stopped_by], _NO_IOTWIN)
        raise IotwinError(f"{host}: {last[ending.stopped_by]}; {advice.format(host=host)}")
    if ending.reason:
        silent = ", ".join(host for host, status in zip(hosts, ending.exit_statuses, strict=True) if status)
        raise IotwinError(f"{silent}: no answer after {2 * _WAIT_S} s; try: ssh {silent.partition(',')[0]} true")
    found = [decode_foreign(line.encode(), KnownHost, f"the answer of {host}") for host, line in zip(hosts, last, strict=True)]
    _check(hosts, found, directory)
    return found


def _run(
    hosts: Sequence[str],
    commands: Sequence[Sequence[str]],
    logs: Sequence[Path],
    results: Path,
    limit_s: float,
    grace_s: float = _GRACE_S,
) -> Ending:
    """Run a command on each host, once the host has ended what an earlier run in the directory `results` left running."""
    processes = []
    for host, command, log in zip(hosts, commands, logs, strict=True):
        held = ["flock", "--timeout", str(_WAIT_S), "--conflict-exit-code", "75", "--no-fork", str(lock_of(results, host))]
        processes.append(RankProcess(on_host(host, [*held, *command]), log=log, host=host, ends_with_stdin=True))
    return LaunchPlan(processes, limit_s, grace_s).run()


def lock_of(results: Path, host: str) -> Path:
    """Return the path of the file that a cell's job on `host` locks."""
    return results / HOSTS / f"{host}.lock"


def _check(hosts: Sequence[str], found: Sequence[KnownHost], directory: Path) -> None:
    """Raise an error if the hosts cannot run one job together."""
    for host, known in zip(hosts, found, strict=True):
        if not known.sees_folder:
            raise IotwinError(f"{host} does not see what this machine writes to {directory}; {_SHARED}")
        if known.version != __version__:
            raise IotwinError(f"{host} has iotwin {known.version}, and this machine {__version__}; install the same version")
        if not _NAME.fullmatch(known.name):
            raise IotwinError(f"{host}: its name {known.name!r:.80} cannot name its trace; set another host name")
    for (host, known), (other, its) in combinations(zip(hosts, found, strict=True), 2):
        if known.name == its.name:
            raise UsageError(f"{host} and {other} are both called {its.name}; name a host once, and set different host names")
    local = [host for host, known in zip(hosts, found, strict=True) if _is_loopback(known.address)]
    if 0 < len(local) < len(hosts):
        raise UsageError(f"{local[0]} is the loopback address here, which means another machine on other hosts; give its name")


def _is_loopback(address: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False


def run_on_hosts(experiment: Experiment, cell: Cell, data: Path, directory: Path, results: Path) -> None:
    """Run `cell` on the experiment's hosts, and make trace/ in its `directory` the set of their traces.

    If a host fails, all others are ended, and finish their traces. Raises IotwinError that names the host and the rank that
    failed. `results` is the directory of the experiment.
    """
    hosts = reach_hosts(experiment.hosts, results)
    traces = [directory / "trace" / f"{host.name}.trace" for host in hosts]
    logs = [directory / f"{host.name}.log" for host in hosts]
    commands = _commands(experiment, cell, hosts, module_of(experiment, cell, data, directory), traces)
    new_folder(directory / "trace")
    try:
        ending = _run(experiment.hosts, commands, logs, results, experiment.limit_s)
    finally:
        missing = _make_set(directory / "trace", traces)
    reasons = [_reason(experiment, ending, traces, logs)] if ending.exit_status else []
    if missing and (not reasons or all(trace.exists() for trace in traces)):
        reasons.append(missing)
    if reasons:
        raise IotwinError("; ".join(reasons))


def _make_set(directory: Path, traces: Sequence[Path]) -> str | None:
    """Make `directory` the set of the traces. Return why a trace is missing; None if none is."""
    from iotwin.trace_store.hosts.make_set import make_set

    try:
        hosts = make_set(directory, traces)
    except IotwinError as error:
        return str(error)
    return next((f"the trace of {host.host} cannot be read: {host.note}" for host in hosts if host.status == "missing"), None)


def _commands(
    experiment: Experiment, cell: Cell, hosts: Sequence[KnownHost], module: Sequence[str], traces: Sequence[Path]
) -> list[list[str]]:
    """Return the command of each host. Raises IotwinError if a host has no rank or too few GPUs."""
    emulated, workload = cell.variant == EMULATED, workload_named(cell.jobs.workload)
    is_one_process = emulated or workload.launcher is None
    ranks, addresses = 1 if is_one_process else cell.ranks, ",".join(host.address for host in hosts)
    commands = []
    for index, (host, trace) in enumerate(zip(hosts, traces, strict=True)):
        here = len(ranks_of_host(ranks, len(hosts), index))
        if not here and is_one_process:
            what = EMULATED if emulated else workload.name
            raise IotwinError(f"{what} is one process, which cannot run on {len(hosts)} hosts; name one host")
        if not here:
            raise IotwinError(f"it has {counted(ranks, 'rank')} for {len(hosts)} hosts; each host needs one")
        gpus = cell.ranks if is_one_process else here
        if experiment.gpus and not emulated and host.gpus < gpus:
            raise IotwinError(f"it needs {gpus} GPUs of {host.name}, which has {host.gpus}")
        share = ["--share", addresses, str(index), str(hosts[0].port), str(ranks)]
        commands.append(tracer_of(cell, trace, own_job("iotwin.workloads.launch", *share, *module)))
    return commands


def _reason(experiment: Experiment, ending: Ending, traces: Sequence[Path], logs: Sequence[Path]) -> str:
    """Return which ranks on which hosts failed by themselves, and why.

    The lost host or the killed rank is first: it makes others fail, whose hosts may end earlier.
    """
    if ending.stopped_by is None:
        return f"it ran longer than the time limit of {experiment.time_limit} and was ended"
    failures: list[tuple[int, str]] = []
    for host, status, trace, log in zip(experiment.hosts, ending.exit_statuses, traces, logs, strict=True):
        if failed := _failed_rank(trace / "logs" / "stderr"):
            failures.append(failed)
        elif status == _LOST:
            failures.append((0, f"{host} was lost: {_last_line(log, 'its tracer was killed')}"))
    if not failures:
        first = ending.stopped_by
        how = f"ended with exit status {ending.exit_statuses[first]}: {_last_line(logs[first])}"
        return f"the tracer on {experiment.hosts[first]} {how}; see {logs[first]}"
    reasons = [text for _, text in sorted(failures, key=itemgetter(0))]
    return f"{'; also '.join(reasons[:_MOST_REASONS])}; see {traces[0].parent}"


def _failed_rank(stderr: Path) -> tuple[int, str] | None:
    """Return (1 if the rank was killed, else 2; the launcher's line on it, and the job's line before unless it was killed)."""
    text = read_foreign_end(stderr) if stderr.exists() else ""
    found = _FAILED.search(text)
    if not found:
        return None
    if found["signal"] or int(found["status"]) > _KILLED:
        return 1, found["line"]
    return 2, ": ".join([found["line"], *text[: found.start()].strip().splitlines()[-1:]])


def _last_line(log: Path, otherwise: str = "it printed nothing") -> str:
    """Return the last line of the log of a host, except of the document that the tracer prints; `otherwise` if there is none."""
    lines = [line for line in read_foreign_end(log).strip().splitlines() if not line.startswith('{"trace"')]
    return lines[-1] if lines else otherwise
