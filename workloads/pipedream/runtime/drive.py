"""Starts the ranks of a driver file, supervises them, and ends them by a record of their processes.

A run's folder contains PipeDream's files: a copy of the driver file and of the conf.json, git_info.log, command_history.log,
machinefile (the hosts) and output.log.RANK. launch.json records each process.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import make_folder, write_whole
from iotwin.common.progress import note
from iotwin.common.ranks import claimed_ports
from iotwin.common.untrusted_files import read_foreign, read_foreign_struct
from iotwin.workloads.launch import RECORD, Ending, LaunchPlan, RankProcess
from iotwin.workloads.pipedream.plan.driver_file import CONTAINER_NAME, Driver, Launch, commands
from iotwin.workloads.pipedream.plan.plan_file import MODULES, read_converted
from iotwin.workloads.policies.pipeline import PipelinePlan

_GRACE_S = 2.0  # time to end after SIGTERM; ranks have no handler for it and end at once
_SSH_LIMIT_S = 30.0
_MOST_BYTES = 1 << 20
MACHINEFILE = "machinefile"


def run_directory(driver: Driver, now: datetime) -> Path:
    """Return the folder for a run that starts `now`. Raises UsageError if the driver file's log_directory is missing."""
    logs = Path(str(driver.keys.get("log_directory", ".")))
    if not logs.is_dir():
        raise UsageError(f"{driver.path}: log_directory: {logs} is no directory; make it first")
    return logs / now.strftime("%Y-%m-%dT%H:%M:%S")


def drive(driver: Driver, launch: Launch) -> dict[str, Any]:
    """Start all ranks, and wait until all have ended. Return what ``iotwin pipedream drive`` prints, as a JSON object.

    If a rank fails or is killed, this function ends all others. The result's "reason" then names the failed rank and its stage.
    Raises UsageError if the driver file names a conf.json that does not exist.
    """
    found = commands(driver, launch)
    if driver.conf is None and "config_file" in driver.keys:
        raise UsageError(f"{driver.path}: config_file: {driver.keys['config_file']} is not there; name its folder by --models")
    _write_files(driver, launch.directory, found)
    processes = list(driver.processes(launch))
    with claimed_ports(1) as port:
        environment = {"MASTER_PORT": str(port)} if launch.local else {}
        plan = LaunchPlan(
            [
                RankProcess(command, environment, launch.directory / f"output.log.{index}", host)
                for index, (command, (host, _)) in enumerate(zip(found, processes, strict=True))
            ],
            grace_s=_GRACE_S,
            record=launch.directory / RECORD,
        )
        try:
            ending = plan.run()
        finally:
            _remove_containers(found)
    stage = _stage_of(driver.plan, processes[ending.stopped_by][1]) if ending.stopped_by is not None else ""
    return {
        "directory": str(launch.directory),
        "commands": found,
        "ranks": len(driver.machines),
        "exit_statuses": ending.exit_statuses,
        "stopped_by": ending.stopped_by,
        "reason": ending.reason and f"{stage}{ending.reason}",
    }


def _stage_of(plan: PipelinePlan | None, ranks: Iterable[int]) -> str:
    """Return the stages of `ranks` as the beginning of a message."""
    if plan is None:
        return ""
    stages = sorted({stage.stage for stage in plan.stages for rank in ranks if rank in stage.ranks})
    return f"stage {', '.join(map(str, stages))}: "


def _write_files(driver: Driver, directory: Path, found: list[list[str]]) -> None:
    try:
        make_folder(directory)
        write_whole(directory / driver.path.name, read_foreign(driver.path, _MOST_BYTES))
        if driver.conf is not None:
            write_whole(directory / driver.conf.name, read_foreign(driver.conf, _MOST_BYTES))
            if read_converted(driver.conf.parent):  # names the layers of each stage
                write_whole(directory / MODULES, read_foreign(driver.conf.parent / MODULES, _MOST_BYTES))
        write_whole(directory / "git_info.log", _git_info())
        write_whole(directory / "command_history.log", "".join(f"{shlex.join(command)}\n" for command in found).encode())
        hosts = dict.fromkeys(host for host, _ in driver.machines)
        write_whole(directory / MACHINEFILE, "".join(f"{host}\n" for host in hosts).encode())
    except OSError as error:
        raise IotwinError(f"{error.filename or directory} cannot be written: {error.strerror}") from None


def _git_info() -> bytes:
    """Return the commit of the current directory and its changes; nothing if it is no git repository."""
    content = b""
    for words in (["rev-parse", "HEAD"], ["diff"]):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(["git", *words], capture_output=True, timeout=_SSH_LIMIT_S, check=False)
            content += done.stdout
    return content


def run_host(arguments: Sequence[str], plan: PipelinePlan, ranks: Sequence[int]) -> int:
    """Run several ranks of a pipeline on this machine, with the options `arguments`. Return the first failed exit status."""
    command = [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", "iotwin.workloads.pipedream", *arguments]
    ending: Ending = LaunchPlan([RankProcess([*command, "--rank", str(rank)]) for rank in ranks], grace_s=_GRACE_S).run()
    if ending.reason and ending.stopped_by is not None:
        rank = ranks[ending.stopped_by]
        how = ending.reason.partition(" on localhost ")[2]
        print(f"pipedream: {_stage_of(plan, [rank])}rank {rank} {how}", file=sys.stderr, flush=True)
    return ending.exit_status


class _Process(msgspec.Struct):
    rank: int
    command: list[str]
    host: str
    pid: int


class _Record(msgspec.Struct):
    ranks: list[_Process]


def terminate(machinefile: Path) -> dict[str, Any]:
    """End the recorded processes and containers of the run whose folder contains `machinefile`.

    If a recorded pid now belongs to another command, it is left alone. Return the pids and containers that were ended.
    Raises IotwinError if the record is missing.
    """
    path = machinefile.parent / RECORD
    try:
        record = read_foreign_struct(path, _Record)
    except OSError as error:
        raise IotwinError(f"{path}: {error.strerror}; name the machinefile in the folder of a run") from None
    own = [process for process in record.ranks if _runs(process)]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in own:
            with contextlib.suppress(ProcessLookupError):
                if _runs(process):
                    os.kill(process.pid, number)
        deadline = time.monotonic() + _GRACE_S
        while any(_runs(process) for process in own) and time.monotonic() < deadline:
            time.sleep(0.02)
    containers = _remove_containers([process.command for process in record.ranks])
    return {"ended": [{"rank": each.rank, "pid": each.pid, "host": each.host} for each in own], "containers": containers}


def _runs(process: _Process) -> bool:
    """Return True if the recorded pid still runs the recorded command. A zombie has no command line."""
    try:
        return read_foreign(Path(f"/proc/{process.pid}/cmdline"), _MOST_BYTES).split(b"\0")[:-1] == [
            os.fsencode(word) for word in process.command
        ]
    except OSError:
        return False


def _remove_containers(found: list[list[str]]) -> list[str]:
    """Remove the containers that the commands `found` started, also on other hosts. They outlive their ssh or docker client."""
    removed = []
    for command in found:
        docker = shlex.split(command[-1]) if command[0] == "ssh" else command
        if docker[0] != "docker":
            continue
        name = docker[docker.index(CONTAINER_NAME) + 1]
        removal = ["docker", "rm", "--force", name]
        words = [*command[:-1], shlex.join(removal)] if command[0] == "ssh" else removal
        try:
            done = subprocess.run(words, capture_output=True, timeout=_SSH_LIMIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            note(f"the container {name} may still run: {error}")
            continue
        if not done.returncode and name in done.stdout.decode(errors="replace"):
            removed.append(name)
    return removed
