"""Runs an experiment by stages, and keeps its results in the folders of the authors' dashboard.

Each stage writes a status {"success", "message"}. Tables, data files and logs of earlier runs are not removed.
"""

import datetime
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import make_folder, new_folder, write_json, write_whole
from iotwin.common.locks import hold_lock, release_lock
from iotwin.common.progress import progress
from iotwin.common.result_folder import LIST, MadeFolder
from iotwin.common.untrusted_files import read_foreign_json
from iotwin.workloads.dtr.experiments import pictures, webhook
from iotwin.workloads.dtr.experiments.analysis import ERRORS, data_of, read_errors, summary_text
from iotwin.workloads.dtr.experiments.config import DtrExperiment
from iotwin.workloads.dtr.experiments.model_logs import write_log
from iotwin.workloads.dtr.experiments.report_page import report_page
from iotwin.workloads.dtr.experiments.settings import Setting, settings_of, with_peak
from iotwin.workloads.dtr.experiments.tables import table_text
from iotwin.workloads.dtr.experiments.trials import Machine, measure, peak_bytes

_WHAT = "experiments of dtr"
_STATE, _PEAKS = "state.json", "peaks.json"
STAGES = ("precheck", "run", "analysis", "visualization", "summary")
Draw = Callable[[dict[str, Any], Path], None]  # draws a document of `pictures.documents_of` into a file


@dataclass(frozen=True)
class ResultFolders:
    """The folders of one run of an experiment. `stamp` is the time of its start, as the authors' data files have it."""

    directory: Path
    name: str
    stamp: str

    def of(self, what: str) -> Path:
        """Return the folder of the experiment's data, status, graph or summary, created if missing."""
        folder = self.directory / "results" / "experiments" / what / self.name
        make_folder(folder, below=self.directory)
        return folder

    @property
    def raw(self) -> Path:
        """Return the folder of the run's tables."""
        return self.directory / "raw" / self.stamp / self.name

    def report_status(self, stage: str, success: bool, text: str, **more: Any) -> dict[str, Any]:
        """Write the status of a stage to the folder of statuses and to the stage's results, and return it."""
        status = {"success": success, "message": text, **more}
        write_json(self.of("status") / f"{stage}.json", status)
        own = {"run": self.raw, "visualization": self.of("graph"), "summary": self.of("summary")}.get(stage)
        if own is not None:
            write_json(own / "status.json", {"success": success, "message": text})
        return status


@dataclass
class ExperimentRun:
    """A run of an experiment: its inputs, and the statuses of its stages so far."""

    experiment: DtrExperiment
    folders: ResultFolders
    machine: Machine
    draw: Draw
    statuses: dict[str, dict[str, Any]] = field(default_factory=dict)
    measured: int = 0

    def report(self, stage: str, success: bool, text: str, **more: Any) -> None:
        """Record the status of a stage."""
        self.statuses[stage] = self.folders.report_status(stage, success, text, **more)


def run_experiment(
    experiment: DtrExperiment, directory: Path, machine: Machine, draw: Draw, resume: bool, url: str | None
) -> dict[str, Any]:
    """Run an experiment and write its results to `directory`. Return the document of ``iotwin dtr run``.

    With `resume`, a run is not measured again if the latest tables in `directory` have it, and come from the same configuration.
    `url`: where the summary is posted; None: nowhere.
    Raises IotwinError if a run fails and the configuration does not have report_errors.
    """
    _claim(directory)
    lock = hold_lock(directory / ".lock")
    try:
        folders = _folders(experiment, directory, machine, resume)
        run = ExperimentRun(experiment, folders, machine, draw)
        if not experiment.active:
            run.report("precheck", True, "Inactive")
            return _document(run, None)
        run.report("precheck", True, "")
        failure: IotwinError | None = None
        try:
            _run_stages(run)
        except IotwinError as error:
            failure = error
            stage = next(stage for stage in STAGES if stage not in run.statuses)
            run.report(stage, False, str(error))
        _write_page(run)
        posted = _post(run, url) if url is not None else None
        if failure is not None:
            raise failure
        return _document(run, posted)
    finally:
        release_lock(lock)


def _claim(directory: Path) -> None:
    """Create `directory` if it is missing. Raises UsageError if it holds files other than those of experiments."""
    if directory.is_dir() and any(directory.iterdir()) and not (directory / LIST).is_file():
        raise UsageError(f"{directory} holds other files; choose another directory")
    make_folder(directory)
    made = MadeFolder.of(directory, _WHAT)
    for name in ("config", "logs", "raw", "report.html", "results", ".lock"):
        made.entry(name)


def _folders(experiment: DtrExperiment, directory: Path, machine: Machine, resume: bool) -> ResultFolders:
    """Return the folders of the latest run with the same configuration, preset and device, or those of a new run."""
    same = {"config_sha256": experiment.sha256, "preset": machine.preset, "device": machine.device}
    earlier = sorted((directory / "raw").glob(f"*/{experiment.name}/{_STATE}"), key=lambda path: path.stat().st_mtime_ns)
    for path in reversed(earlier) if resume else ():
        if read_foreign_json(path) == same:
            return ResultFolders(directory, experiment.name, path.parent.parent.name)
    config = directory / "config" / "experiments" / experiment.name
    make_folder(config, below=directory)
    write_whole(config / "config.json", experiment.content)
    make_folder(directory / "raw", below=directory)
    start = time.strftime("%m-%d-%Y-%H%M")
    stamps = (start if number == 1 else f"{start}-{number}" for number in range(1, 1000))
    stamp = next(stamp for stamp in stamps if not (directory / "raw" / stamp).exists())
    new_folder(directory / "raw" / stamp)
    folders = ResultFolders(directory, experiment.name, stamp)
    new_folder(folders.raw)
    write_json(folders.raw / _STATE, same)
    return folders


def _run_stages(run: ExperimentRun) -> None:
    begin = time.time()
    settings = _measure_all(run)
    times = {
        "start_time": time.asctime(time.localtime(begin)), "end_time": time.asctime(),
        "time_delta": str(datetime.timedelta(seconds=time.time() - begin)),
    }  # fmt: skip
    run.report("run", True, "success", **times)
    data = {
        "timestamp": run.folders.stamp[:15], **data_of(run.experiment, settings, run.folders.raw), **times,
    }  # fmt: skip
    write_json(run.folders.of("data") / f"data_{run.folders.stamp}.json", data)
    run.report("analysis", True, "success")
    drawn = draw_all(run.experiment.models, pictures.read_data(_data_file(run)), run.folders.of("graph"), run.draw)
    run.report("visualization", True, f"{len(drawn)} files")
    summary = {"title": run.experiment.title, "value": summary_text(run.experiment, data)}
    write_json(run.folders.of("summary") / "summary.json", summary)
    run.report("summary", True, "success")


def _data_file(run: ExperimentRun) -> Path:
    return run.folders.of("data") / f"data_{run.folders.stamp}.json"


def draw_all(models: tuple[str, ...], data: dict[str, pictures.Entries], folder: Path, draw: Draw) -> list[Path]:
    """Draw the pictures of a data file into `folder`, with a table of medians, and return the paths of all files."""
    written = []
    for name, document in pictures.documents_of(models, data).items():
        draw(document, folder / name)
        written.append(folder / name)
    write_whole(folder / "medians.csv", pictures.medians_table(models, data).encode())
    return [*written, folder / "medians.csv"]


def _measure_all(run: ExperimentRun) -> list[Setting]:
    """Measure all runs that have no table yet. Raises IotwinError if one fails and the configuration has no report_errors."""
    settings = list(settings_of(run.experiment))
    errors = read_errors(run.folders.raw)
    failed = {error["file"] for error in errors}
    with progress("measuring", len(settings), "runs") as advance:
        for setting in settings:
            if setting.file_name not in failed and not (run.folders.raw / setting.file_name).is_file():
                _measure_one(run, setting, errors)
                run.measured += 1
            advance(1)
    return settings


def _measure_one(run: ExperimentRun, setting: Setting, errors: list[dict[str, Any]]) -> None:
    try:
        budgeted = _with_budget(run, setting)
        measured = measure(budgeted, run.experiment, run.machine)
        reason, index = measured.error, measured.failed_input
    except IotwinError as error:
        reason, index = str(error), 0
    if reason is None:
        write_whole(run.folders.raw / setting.file_name, table_text(budgeted, measured.rows).encode())
        if setting.is_baseline and measured.rows:
            _note_peak(run, setting, round(max(row["total_mem"] for row in measured.rows) * 1e6))
        if not setting.is_baseline and setting.params.get("save_logs", run.experiment.save_logs):
            write_log(budgeted, run.experiment, run.machine, run.folders.directory / "logs", run.folders.stamp)
        return
    if not run.experiment.report_errors:
        raise IotwinError(
            f"{setting.model}, command {setting.command_id}: {reason}; continue with --resume, or set report_errors in the "
            "configuration to go on after failures"
        )
    errors.append(
        {
            "model": setting.model, "command_id": setting.command_id, "file": setting.file_name, "message": reason,
            "input": index, "specific_params": setting.params,
        }
    )  # fmt: skip
    write_json(run.folders.raw / ERRORS, {"errors": errors})


def _with_budget(run: ExperimentRun, setting: Setting) -> Setting:
    """Return `setting` with its budget in bytes. For a ratio, measure the peak unless a baseline has done so."""
    if setting.params.get("kind") != "ratio":
        return setting
    name = json.dumps(setting.model_words())
    if name not in _peaks(run):
        _note_peak(run, setting, peak_bytes(setting, run.experiment, run.machine))
    return with_peak(setting, int(_peaks(run)[name]))


def _peaks(run: ExperimentRun) -> dict[str, int]:
    """Return the measured peaks without a budget in bytes, by model and samples."""
    path = run.folders.raw / _PEAKS
    return dict(read_foreign_json(path)) if path.is_file() else {}


def _note_peak(run: ExperimentRun, setting: Setting, peak: int) -> None:
    write_json(run.folders.raw / _PEAKS, {**_peaks(run), json.dumps(setting.model_words()): peak})


def _write_page(run: ExperimentRun) -> None:
    """Write report.html, with the pictures and medians of this run only."""
    folders, experiment = run.folders, run.experiment
    shown, medians = [], []
    if run.statuses.get("visualization", {}).get("success"):
        data = pictures.read_data(_data_file(run))
        shown = [folders.of("graph") / name for name in pictures.documents_of(experiment.models, data)]
        medians = [line.split(",") for line in pictures.medians_table(experiment.models, data).splitlines()]
    lines = [f"experiment {experiment.name}, started {folders.stamp}", *experiment.notes]
    page = report_page(experiment.title, lines, run.statuses, medians, read_errors(folders.raw), shown)
    write_whole(folders.directory / "report.html", page.encode())


def _post(run: ExperimentRun, url: str) -> dict[str, Any]:
    """Post the summary, or the reason why there is none, and return the status of this stage."""
    failed = [f"Failed at stage {stage}:\n{status['message']}" for stage, status in run.statuses.items() if not status["success"]]
    text = failed[0] if failed else read_foreign_json(run.folders.of("summary") / "summary.json")["value"]
    duration = run.statuses.get("run", {}).get("time_delta", "unknown")
    reason = webhook.post(url, webhook.message(run.experiment.title, text, duration, bool(failed), run.experiment.notify))
    folder = run.folders.directory / "results" / "subsystem" / "status" / "exp_results"
    make_folder(folder, below=run.folders.directory)
    status = {"success": reason is None, "message": reason or "success"}
    write_json(folder / "run.json", status)
    return status


def _document(run: ExperimentRun, posted: dict[str, Any] | None) -> dict[str, Any]:
    folders, experiment = run.folders, run.experiment
    settings = list(settings_of(experiment)) if experiment.active else []
    errors = read_errors(folders.raw)
    return {
        "directory": str(folders.directory),
        "experiment": experiment.name,
        "timestamp": folders.stamp,
        "runs": len(settings),
        "measured": run.measured,
        "failed": len(errors),
        "errors": errors,
        "stages": run.statuses,
        "report": str(folders.directory / "report.html") if experiment.active else None,
        "webhook": posted,
        "notes": list(experiment.notes),
    }
