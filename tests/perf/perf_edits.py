"""Edited recorded twins of foreign jobs, compared with the jobs so edited.

    python -m tests.perf.perf_edits [JOB ...] [--edits EDIT ...]

The jobs are those of perf_unseen. The twin of each is recorded from one run. An edit changes the twin's YAML as a user would, and
gives the job the option that means the same. The edited twin is compared with a run of the edited job. If it scores less than
0.95, another run of the job gives the noise floor. An edit that the twin refuses counts as 0, with the reason.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from iotwin.benchmark.fit.batches.labels import label_calls
from iotwin.benchmark.fit.batches.paced_steps import paced_steps
from iotwin.benchmark.fit.passes import find_passes
from iotwin.benchmark.fit.traced_job import look
from iotwin.command_lines import own_command
from iotwin.common.errors import IotwinError
from iotwin.loops.emulation import make_copies
from iotwin.loops.kept_cache import kept_cached
from iotwin.trace_store.reader import Trace
from iotwin.tracesim import compare
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from iotwin.workload_yaml import Config, load
from tests.perf.figures import Figure
from tests.perf.perf_unseen import TRAINING, UnseenJob
from tests.perf.records import record_figures

_ENOUGH, _FLOOR = 0.95, 0.02  # a score, or how far below the noise floor of the edited job
_LONGEST = 0.05  # relative difference of the times from the first call on the data to the last one
# The option of the job, the key of the YAML, and its new value by the recorded one.
EDITS: dict[str, tuple[str, str, Callable[[float], float]]] = {
    "batch doubled": ("--batch-factor=2", "reader.batch_size", lambda size: 2 * size),
    "batch halved": ("--batch-factor=0.5", "reader.batch_size", lambda size: size // 2),
    "four loaders": ("--workers=4", "reader.read_threads", lambda _: 4),
    "one loader": ("--workers=1", "reader.read_threads", lambda _: 1),
    "computation halved": ("--computation=0.5", "train.computation_scale", lambda _: 0.5),
    "one epoch more": ("--epochs-more=1", "train.epochs", lambda epochs: epochs + 1),
    "two ranks": ("--ranks=2", "twin.ranks", lambda _: 2),
    "one rank": ("--ranks=1", "twin.ranks", lambda _: 1),
    "four ranks": ("--ranks=4", "twin.ranks", lambda _: 4),
    "data doubled": ("--data-factor=2", "dataset.num_files_train", lambda samples: 2 * samples),
}


def measure(names: Sequence[str] = (), edits: Sequence[str] = ()) -> Iterator[Figure]:
    """Yield the figures of the `edits` of the jobs, by default of all."""
    for name, program in TRAINING.items():
        if not names or name in names:
            with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as folder:
                job = UnseenJob(program, Path(folder))
                twin = _recorded(job)
                ranks = load(twin).twin.ranks
                own = [edit for edit in EDITS if edit not in (("one rank", "four ranks") if ranks == 1 else ("two ranks",))]
                for edit in edits or own:
                    yield from _edited(name, job, twin, edit)


def _recorded(job: UnseenJob) -> Path:
    twin = job.folder / "twin.yaml"
    command = own_command("fit", job.run(1), "-o", twin)
    subprocess.run(command, check=True, capture_output=True)
    return twin


def override(twin: Path, edit: str) -> str:
    """Return the option of `iotwin emulate` that makes the edit of the YAML `twin`."""
    _, key, change = EDITS[edit]
    value: Config | float = load(twin)
    for part in key.split("."):
        value = getattr(value, part)
    assert isinstance(value, int | float)
    return f"++workload.{key}={change(value)}"


def _edited(name: str, job: UnseenJob, twin: Path, edit: str) -> Iterator[Figure]:
    option, folder = EDITS[edit][0], job.folder / edit.replace(" ", "-")
    folder.mkdir()
    title = f"{name}, {edit}: edited recorded twin"
    if "data" in option:
        job.make_data(option)
    real = Trace(job.run(2, option))
    try:
        option_of_twin = override(twin, edit)
        outputs = [f"++workload.checkpoint.checkpoint_folder={folder}/saved", f"++workload.output.folder={folder}/output"]
        _copy_data(twin, [option_of_twin, *outputs])
        run = _emulate(job, twin, [option_of_twin, *outputs], folder)
    except (IotwinError, AssertionError) as refused:
        yield Figure(f"{title} compared with the job so edited", 0.0, _ENOUGH, False, f"refused: {str(refused)[-200:]}")
        return
    score, asked, floor = compare(real, run).overall or 0.0, _ENOUGH, ""
    if score < _ENOUGH:
        with_floor = compare(real, run, [Trace(job.run(3, option))])
        asked, floor = min(_ENOUGH, (with_floor.noise_floor or 1.0) - _FLOOR), f"; noise floor {with_floor.noise_floor:.3f}"
    parts = {dimension.name: dimension.score for dimension in compare(real, run).dimensions}
    lowest = min(parts, key=lambda part: parts[part])
    detail = f"lowest {lowest} {parts[lowest]:.3f}{floor}"
    yield Figure(f"{title} compared with the job so edited", score, asked, False, detail)
    yield Figure(f"{title}: time of training, relative difference", abs(_span_s(run) / _span_s(real) - 1), _LONGEST)
    stalls = [_stall_share(trace) for trace in (real, run)]
    if None not in stalls:
        apart = abs((stalls[0] or 0.0) - (stalls[1] or 0.0))
        told = f"{stalls[0]:.3f} of the job's time, {stalls[1]:.3f} of the twin's"
        yield Figure(f"{title}: share of the time that ranks wait for data, difference", apart, _LONGEST, True, told)
    shutil.rmtree(folder)


def _copy_data(twin: Path, changes: list[str]) -> None:
    """Make the copies of the data that the edit reads, so that the measured run does not."""
    config = load(twin, changes)
    make_copies(config, str(twin.with_suffix(".recording")), 1)


def _emulate(job: UnseenJob, twin: Path, changes: list[str], folder: Path) -> Trace:
    command = [sys.executable, "-m", "iotwin", "emulate", str(twin), *changes]
    with kept_cached(job.mapped()):
        manifest = trace_command(command, folder / "twin.trace", TraceOptions(forward_output=False, detail=job.groups))
    assert manifest.exit_status == 0, (folder / "twin.trace" / "logs" / "stderr").read_text().strip()
    return Trace(folder / "twin.trace")


def _stall_share(trace: Trace) -> float | None:
    """Return the share of the time of training that a rank wanted its next batch and did not have it, None if that is unknown.

    It is unknown if steps are inferred from the reads of threads that read ahead.
    """
    job = look(trace)
    try:
        training = find_passes(job, label_calls(job)).training
    except IotwinError:
        return None
    spans = sum(int(part.computed_ns[-1] - part.taken_ns[0]) for part in training)
    if not spans or not paced_steps(job).empty:
        return None
    return sum(int((part.taken_ns[1:] - part.computed_ns[:-1]).sum()) for part in training) / spans


def _span_s(trace: Trace) -> float:
    """Return the time from the first call on the data set to the end of the last one."""
    files = trace.files()
    calls = trace.events_frame(("start_ns", "duration_ns", "file_id"))
    calls = calls[calls["file_id"].isin(files.loc[files["kind"] == "dataset", "file_id"])]
    return float((calls["start_ns"] + calls["duration_ns"]).max() - calls["start_ns"].min()) / 1e9


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="JOB")
    parser.add_argument("--edits", nargs="+", choices=EDITS, default=())
    given = parser.parse_args()
    if unknown := set(given.names) - set(TRAINING):
        parser.error(f"no job is called {unknown.pop()}; known: {', '.join(TRAINING)}")
    record_figures("edits", measure(given.names, given.edits))
