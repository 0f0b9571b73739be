"""Running an experiment: data first, then every cell that has not finished, whatever becomes of the others."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from common.children import dying_with_us, end_programs
from common.errors import IotwinError
from common.files import write_json
from common.foreign_files import read_foreign_json
from common.progress import note
from common.units import format_duration
from iotwin.loops.experiments.cell import remove_container, trace_command
from iotwin.loops.experiments.experiment import Cell, DataSet, Experiment, cells
from iotwin.loops.experiments.plots import draw_plots
from iotwin.own_command import own_command

# Written last, whole or not at all: a cell has finished exactly if it has one.
FINISHED, FAILED, SUMMARY = "cell.json", "failure.json", "summary.json"
_GRACE_S = 60.0  # for the tracer to end the job and finish the trace
_PACKAGES = ("iotwin", "torch", "tensorflow", "tensorflow_cpu", "numpy", "pyarrow")
Record = dict[str, Any]


def run_experiment(experiment: Experiment, directory: Path) -> Record:
    """Run what is left of `experiment` in `directory` and return its summary, also written there as summary.json.

    Every cell has a directory under cells/ with trace/, output/ and, once it has finished, cell.json; a cell without is run again
    from the start. Raises IotwinError when another run has the directory and when it holds another experiment.
    """
    if experiment.container:
        _check_engine()
    directory = directory.absolute()
    (directory / "cells").mkdir(parents=True, exist_ok=True)
    with _lock(directory) as lock:
        runner = _Runner(experiment, directory, lock)
        return runner.run()


def _check_engine() -> None:
    """Raise IotwinError, before any data set is made, unless a Docker Engine can run the cells."""
    from tracing_tools.targets.container import connect

    try:
        connect()
    except IotwinError as error:
        raise IotwinError(f"{error}; or run the jobs as processes of this machine: add --no-container") from None


@contextmanager
def _lock(directory: Path) -> Iterator[int]:
    """Hold the directory. The jobs inherit the lock, so that one left by a killed run ends before its directory is used again."""
    with (directory / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(f"waiting for what another run of {directory} has left running")
            _wait_for_lock(file.fileno(), directory)
        yield file.fileno()


def _wait_for_lock(descriptor: int, directory: Path) -> None:
    deadline = time.monotonic() + _GRACE_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise IotwinError(f"{directory} is in use by another iotwin run; wait for it or choose another -o") from None
            time.sleep(0.2)


class _Runner:
    def __init__(self, experiment: Experiment, directory: Path, lock: int) -> None:
        self._experiment, self._directory, self._lock = experiment, directory, lock
        self._data_failures: dict[str, str] = {}
        self._took_s: list[float] = []

    def run(self) -> Record:
        """Make the data, run the cells, write the summary and draw the plots."""
        todo = cells(self._experiment)
        left = [cell for cell in todo if not (self._cell_directory(cell) / FINISHED).exists()]
        note(f"{self._experiment.name}: {len(todo)} cells, {len(todo) - len(left)} of them finished earlier")
        for name in sorted({cell.data for cell in left}):
            self._provide(name, self._experiment.data[name])
        for index, cell in enumerate(left):
            note(f"[{index + 1}/{len(left)}] {cell.name}{self._time_left(len(left) - index)}")
            self._run_cell(cell)
        summary, plots = self._summary(todo), self._directory / "plots"
        if self._experiment.plot and summary["finished"] and (left or not plots.exists()):
            draw_plots(self._experiment.plot, summary["finished"], self._directory / "cells", plots)
        return summary

    def _cell_directory(self, cell: Cell) -> Path:
        return self._directory / "cells" / cell.name

    def _time_left(self, cells_left: int) -> str:
        if not self._took_s:
            return ""
        mean_s = sum(self._took_s) / len(self._took_s)
        return f" (about {format_duration(mean_s * cells_left * 1e9)} left)"

    # Data

    def _data_folder(self, name: str) -> Path:
        data = self._experiment.data[name]
        return Path(data.folder).absolute() if data.folder is not None else self._directory / "data" / name

    def _provide(self, name: str, data: DataSet) -> None:
        """Generate a data set that is not there; what fails is the failure of its cells."""
        folder = self._data_folder(name)
        if folder.is_dir():
            return
        if data.generate is None:
            self._data_failures[name] = f"its data {folder} is missing"
            return
        folder.parent.mkdir(exist_ok=True)
        partial = folder.with_name(f".{name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        note(f"generating {folder}")
        command = own_command("generate", data.workload, "-o", partial, *data.generate, "--quiet")
        done = subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=(self._lock,))
        if done.returncode:
            self._data_failures[name] = f"its data could not be generated: {_last_line(done.stderr)}"
        else:
            partial.rename(folder)

    # Cells

    def _run_cell(self, cell: Cell) -> None:
        directory = self._cell_directory(cell)
        if directory.exists():  # what an unfinished attempt left
            self._remove_container(directory)
            shutil.rmtree(directory)
        directory.mkdir()
        begin, started = time.monotonic(), time.time()
        try:
            if cell.data in self._data_failures:
                raise IotwinError(self._data_failures[cell.data])
            self._execute(trace_command(self._experiment, cell, self._data_folder(cell.data), directory), directory)
        except IotwinError as error:
            self._remove_container(directory)
            note(f"      FAILED: {cell.name}; the reason follows at the end")
            write_json(directory / FAILED, {"cell": cell.name, **cell.parameters(), "reason": str(error)})
            return
        seconds = time.monotonic() - begin
        self._took_s.append(seconds)
        result = _read_json(directory / "output" / "result.json")
        write_json(directory / FINISHED, {
            "cell": cell.name, **cell.parameters(), "started": started, "seconds": seconds,
            "machine": machine(), "result": result,
        })  # fmt: skip

    def _remove_container(self, directory: Path) -> None:
        if self._experiment.container:
            remove_container(directory)

    def _execute(self, command: list[str], directory: Path) -> None:
        """Run the tracer with its job; IotwinError with the last line of what went wrong, or when the time limit passes."""
        with (directory / "iotwin.log").open("wb") as log:
            # A killed run takes the tracer along, which ends its job and finishes the trace.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                pass_fds=(self._lock,),
                preexec_fn=dying_with_us(signal.SIGTERM),
            )
            try:
                status = process.wait(self._experiment.limit_s)
            except subprocess.TimeoutExpired:
                end_programs([process], _GRACE_S, whole_session=True)
                raise IotwinError(f"it ran longer than the time limit of {self._experiment.time_limit} and was ended") from None
            except BaseException:
                end_programs([process], _GRACE_S, whole_session=True)
                raise
        if status:
            raise IotwinError(_explain(status, directory))

    def _summary(self, todo: list[Cell]) -> Record:
        records, failures = [], []
        for cell in todo:
            directory = self._cell_directory(cell)
            if record := _read_json(directory / FINISHED):
                records.append(record)
            else:
                failures.append(_read_json(directory / FAILED) or {"cell": cell.name, "reason": "it has not run"})
        summary = {
            "experiment": self._experiment.name,
            "directory": str(self._directory),
            "machine": machine(),
            "cells": len(todo),
            "finished": records,
            "failed": failures,
        }
        write_json(self._directory / SUMMARY, summary)
        return summary


def _explain(status: int, directory: Path) -> str:
    """Return why a cell failed: the tracer's own last line, or the job's, and how it ended."""
    own = _last_line((directory / "iotwin.log").read_text(errors="replace"))
    job = directory / "trace" / "logs" / "stderr"
    said = own or (_job_said(job.read_text(errors="replace")) if job.exists() else "")
    if status in (137, -signal.SIGKILL):
        return f"it was killed, as the kernel does when memory runs out{': ' if said else ''}{said}"
    return said or f"it ended with exit status {status} and said nothing"


def _job_said(text: str) -> str:
    """Return the job's last line; what the launcher of its ranks says of the same failure counts only where they said nothing."""
    lines = text.strip().splitlines(keepends=True)
    return _last_line("".join(line for line in lines if not line.startswith("launch: "))) or _last_line(text)


def _last_line(text: str) -> str:
    return "".join(text.strip().splitlines()[-1:]).removeprefix("iotwin trace: ")


def _read_json(path: Path) -> Record | None:
    try:
        document = read_foreign_json(path, follow=False)
    except (FileNotFoundError, IotwinError):  # a job, or somebody who may write there, may have made anything of it
        return None
    return document if isinstance(document, dict) else None


def machine() -> Record:
    """Return what a result depends on: kernel, CPUs, memory, versions."""
    system = os.uname()
    versions = {"python": sys.version.split()[0]}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "kernel": system.release,
        "architecture": system.machine,
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "versions": versions,
    }
