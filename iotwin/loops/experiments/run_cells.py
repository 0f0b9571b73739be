"""Run an experiment: generate its data sets, then run every cell that has not finished. A failed cell does not stop others."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from iotwin.command_lines import own_command
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import make_folder, new_folder, open_rewritten, rename, write_json
from iotwin.common.paths_below import open_beneath
from iotwin.common.processes.children import dying_with_us, end_programs
from iotwin.common.progress import note
from iotwin.common.removal import remove_entry, remove_own
from iotwin.common.units import counted, format_duration
from iotwin.common.untrusted_files import read_foreign_end, read_foreign_json
from iotwin.loops.experiments.cell import remove_container, trace_command
from iotwin.loops.experiments.cell_inputs import Inputs, difference, inputs_of, inputs_of_data
from iotwin.loops.experiments.cells_on_hosts import HOSTS, lock_of, reach_hosts, run_on_hosts
from iotwin.loops.experiments.experiment import Cell, Experiment, ExperimentDataSet, cells
from iotwin.loops.experiments.plots import draw_plots
from iotwin.workloads.launch import PREFIX

# cell.json is written last, whole or not at all: if a cell has this file, it has finished.
FINISHED, FAILED, SUMMARY = "cell.json", "failure.json", "summary.json"
_CELLS, _DATA, _PLOTS = "cells", "data", "plots"
_GENERATED = "data.json"  # the inputs of each generated data set, by name
_GRACE_S = 60.0  # time for a tracer to end its job and finish the trace
_PACKAGES = ("iotwin", "torch", "tensorflow", "tensorflow_cpu", "numpy", "pyarrow")
Record = dict[str, Any]


def run_experiment(experiment: Experiment, directory: Path) -> Record:
    """Run the unfinished cells of `experiment` in `directory`. Return its summary, which is also written there as summary.json.

    Every cell has a directory under cells/ with trace/, output/ and, once it has finished, cell.json. A cell without cell.json
    is run again from the start. Raises IotwinError if another run uses the directory, and UsageError if a cell in the directory
    was run with other options or data.
    """
    if experiment.container and experiment.hosts:
        raise UsageError("on several hosts, cells run as processes, not in containers; add --no-container")
    if experiment.container:
        _check_engine()
    directory = directory.absolute()
    _refuse_links(directory, cells(experiment), experiment.hosts)
    make_folder(directory)
    make_folder(directory / _CELLS, below=directory)
    with _lock(directory) as lock:
        if experiment.hosts:
            reach_hosts(experiment.hosts, directory)
        runner = _Runner(experiment, directory, lock)
        return runner.run()


def _check_engine() -> None:
    """Raise IotwinError unless a Docker Engine can run the cells. This is checked before data sets are made."""
    from iotwin.tracing_tools.targets.container import connect

    try:
        connect()
    except IotwinError as error:
        raise IotwinError(f"{error}; or run the jobs as processes of this machine: add --no-container") from None


def _refuse_links(directory: Path, todo: Sequence[Cell], hosts: Sequence[str]) -> None:
    """Raise IotwinError if a folder or lock to write is a link, whose target another user of `directory` may have chosen."""
    partial = {f"{_DATA}/{_partial_name(cell.data)}" for cell in todo}
    folders = [_CELLS, _DATA, _PLOTS, f"{_PLOTS}/steps", HOSTS, *partial, *(str(lock_of(Path(), host)) for host in hosts)]
    for name in (*folders, *(f"{_CELLS}/{cell.name}" for cell in todo)):
        if (directory / name).is_symlink():
            raise IotwinError(f"{directory / name} is a symbolic link, which could lead anywhere; remove it or choose another -o")


def _refuse_other(folder: Path, before: Any, now: Inputs) -> None:
    """Raise UsageError unless the cell or data set in `folder` was made with the inputs `now`."""
    remedy = "choose another -o, or remove this folder to make it again"
    if before is None:
        raise UsageError(f"{folder} holds no record of the options that made it; {remedy}")
    if changed := difference(before, now):
        raise UsageError(f"{folder} was made by another experiment: {changed}; {remedy}")


def _partial_name(data: str) -> str:
    return f".{data}.partial"


@contextmanager
def _lock(directory: Path) -> Iterator[int]:
    """Lock `directory`, and yield the lock's descriptor. Jobs inherit it, so a new run waits for the jobs of a killed run."""
    with os.fdopen(open_beneath(directory, "lock", os.O_RDWR | os.O_CREAT)) as file:
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
        left = [cell for cell in todo if not self._has_finished(cell)]
        for name in sorted({cell.data for cell in left}):
            self._check_generated(name, self._experiment.data[name])
        note(f"{self._experiment.name}: {counted(len(todo), 'cell')}, {len(todo) - len(left)} of them finished earlier")
        for name in sorted({cell.data for cell in left}):
            self._provide(name, self._experiment.data[name])
        for index, cell in enumerate(left):
            note(f"[{index + 1}/{len(left)}] {cell.name}{self._time_left(len(left) - index)}")
            self._run_cell(cell)
        summary, plots = self._summary(todo), self._directory / _PLOTS
        if self._experiment.plot and summary["finished"] and (left or not plots.exists()):
            draw_plots(self._experiment.plot, summary["finished"], self._directory / _CELLS, plots)
        return summary

    def _cell_directory(self, cell: Cell) -> Path:
        return self._directory / _CELLS / cell.name

    def _has_finished(self, cell: Cell) -> bool:
        """Return whether `cell` has a result. Raises UsageError if the result was made with other options or data."""
        directory = self._cell_directory(cell)
        record = _read_json(directory / FINISHED)
        if record is not None:
            _refuse_other(directory, record.get("asked"), inputs_of(self._experiment, cell))
        return record is not None

    def _time_left(self, cells_left: int) -> str:
        if not self._took_s:
            return ""
        mean_s = sum(self._took_s) / len(self._took_s)
        return f" (about {format_duration(mean_s * cells_left * 1e9)} left)"

    # Data

    def _data_folder(self, name: str) -> Path:
        data = self._experiment.data[name]
        return Path(data.folder).absolute() if data.folder is not None else self._directory / _DATA / name

    def _generated(self) -> Record:
        return _read_json(self._directory / _GENERATED) or {}

    def _check_generated(self, name: str, data: ExperimentDataSet) -> None:
        """Raise UsageError if the data set exists and was generated with other options."""
        folder = self._data_folder(name)
        if data.generate is not None and folder.is_dir():
            _refuse_other(folder, self._generated().get(name), inputs_of_data(data))

    def _provide(self, name: str, data: ExperimentDataSet) -> None:
        """Generate the data set unless it exists. If that fails, cells that use it fail for the same reason."""
        folder = self._data_folder(name)
        if folder.is_dir():
            return
        if data.generate is None:
            self._data_failures[name] = f"its data {folder} is missing"
            return
        make_folder(folder.parent)
        partial = folder.with_name(_partial_name(name))
        remove_own(partial)
        note(f"generating {folder}")
        command = own_command("generate", data.workload, "-o", partial, *data.generate, "--quiet")
        done = subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=(self._lock,))
        if done.returncode or not partial.is_dir():
            self._data_failures[name] = f"its data could not be generated: {_last_line(done.stderr)}"
        else:
            write_json(self._directory / _GENERATED, {**self._generated(), name: inputs_of_data(data)})
            rename(partial, folder)

    # Cells

    def _run_cell(self, cell: Cell) -> None:
        directory = self._cell_directory(cell)
        if directory.exists():  # left by an unfinished attempt
            self._remove_container(directory)
            remove_entry(directory)
        new_folder(directory)
        begin, started = time.monotonic(), time.time()
        try:
            if cell.data in self._data_failures:
                raise IotwinError(self._data_failures[cell.data])
            inputs = inputs_of(self._experiment, cell)
            data = self._data_folder(cell.data)
            if self._experiment.hosts:
                run_on_hosts(self._experiment, cell, data, directory, self._directory)
            else:
                self._execute(trace_command(self._experiment, cell, data, directory), directory)
        except IotwinError as error:
            self._remove_container(directory)
            note(f"      FAILED: {cell.name}; the reason follows at the end")
            write_json(directory / FAILED, {"cell": cell.name, **cell.parameters(), "reason": str(error)})
            return
        seconds = time.monotonic() - begin
        self._took_s.append(seconds)
        result = _read_json(directory / "output" / "result.json")
        write_json(directory / FINISHED, {
            "cell": cell.name, **cell.parameters(), "asked": inputs,
            "started": started, "seconds": seconds, "machine": machine(), "result": result,
        })  # fmt: skip

    def _remove_container(self, directory: Path) -> None:
        if self._experiment.container:
            remove_container(directory)

    def _execute(self, command: list[str], directory: Path) -> None:
        """Run the tracer and its job. Raises IotwinError with the reason if they fail or exceed the time limit."""
        with open_rewritten(directory / "iotwin.log") as log:
            # If this process is killed, the kernel sends SIGTERM to the tracer, which then ends its job and finishes the trace.
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
    """Return why a cell failed: the last line of the tracer or, if it printed nothing, of the job; and whether it was killed."""
    own = _last_line(read_foreign_end(directory / "iotwin.log"))
    job = directory / "trace" / "logs" / "stderr"
    last = own or (_job_end(read_foreign_end(job)) if job.exists() else "")
    if status in (137, -signal.SIGKILL):
        return f"it was killed, as the kernel does when memory runs out{': ' if last else ''}{last}"
    return last or f"it ended with exit status {status} and printed nothing"


def _job_end(text: str) -> str:
    """Return the job's last line: that before the line of its ranks' launcher, which ends other ranks, if there is one."""
    own, _, _ = text.partition(f"\n{PREFIX}")
    return _last_line(own)


def _last_line(text: str) -> str:
    return "".join(text.strip().splitlines()[-1:]).removeprefix("iotwin trace: ")


def _read_json(path: Path) -> Record | None:
    try:
        document = read_foreign_json(path, follow=False)
    except (FileNotFoundError, IotwinError):  # the job may have replaced the file by anything
        return None
    return document if isinstance(document, dict) else None


def machine() -> Record:
    """Return the properties of this machine on which results depend: kernel, CPUs, memory, versions of packages."""
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
