"""Imitations of the same jobs by others: how far from the job are they, compared with the twin?

    python -m tests.perf.perf_rivals [JOB ...]

Each is made from one run of a job of tests/perf/unseen, run under our tracer and held against another run of that job, of
which the first is a rerun, by `iotwin compare`:

* fio, replaying our export of the trace (--read_iolog);
* fio, with a job file of histograms only: sizes of requests and of files, readers, bytes and time, as a distiller makes;
* dftracer_replay on DFTracer's own trace of the same job, with its times if it ends in two minutes, and as fast as it can;
* dftracer_gen_dlio_config on that trace, and our emulator with the configuration it writes.

DFTracer is taken from the Python that IOTWIN_DFTRACER_PYTHON names (a virtual environment with dftracer and dftracer-utils).
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from iotwin.command_lines import own_command
from iotwin.common.errors import IotwinError
from iotwin.loops.twin_from_trace import make_twin
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.schema import READ_OPS, WRITE_OPS
from iotwin.tracesim import compare
from iotwin.tracing_tools.exports.fio_log import write_iolog
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from tests.perf.figures import Figure
from tests.perf.perf_respond import KINDS, unseen_job
from tests.perf.records import record_figures
from tests.perf.rivals import NotMeasuredError, dftracer_settings, last_line

_READERS = 2  # of every job of tests/perf/unseen
_TIMED_S = "120"  # dftracer_replay goes through the trace of one process after the other


def measure(kinds: Sequence[str] = KINDS) -> Iterator[Figure]:
    """Yield the figure of each job."""
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as folder:
            yield _figure(kind, Path(folder))


def _figure(kind: str, folder: Path) -> Figure:
    job = unseen_job(kind, folder)
    traces = [_traced([*job, str(seed)], folder / f"job-{seed}.trace") for seed in (1, 2)]
    made = make_twin([trace.path for trace in traces], folder / "twin", force=False)
    ours = made["held_out"][0]["overall"]
    makers: dict[str, Callable[[Trace, list[str], Path], Iterator[list[str]]]] = {
        "fio's replay of our iolog": _fio_replay,
        "fio by histograms": _fio_histograms,
        "dftracer_replay": _dftracer_replay,
        "dftracer_gen_dlio_config": _dlio_config,
    }
    scores, told = [], []
    for name, make in makers.items():
        place = folder / name.partition("'")[0].replace(" ", "-")
        place.mkdir(exist_ok=True)
        try:
            best = max(_scores(make(traces[0], job, place), place, traces))
            scores.append(best)
            told.append(f"{name} {best:.3f}")
        except NotMeasuredError as error:
            told.append(f"{name} not measured: {error}")
    ratio = (1 - max(scores)) / max(1 - ours, 1e-9)
    detail = f"our twin {ours:.3f}, a rerun {made['noise_floor']:.3f}; {'; '.join(told)}"
    return Figure(f"rivals: {kind}, distance of the best one over our twin's", ratio, 3, False, detail)


def _scores(commands: Iterator[list[str]], place: Path, traces: list[Trace]) -> list[float]:
    """Return the scores of the commands that can be scored; NotMeasuredError, with the last one's message, if none can."""
    scores, said = [], NotMeasuredError("there is nothing to run")
    for i, command in enumerate(commands):
        try:
            scores.append(compare(traces[1], _traced(command, place / f"{i}.trace"), traces[:1]).overall or 0.0)
        except (NotMeasuredError, IotwinError) as error:
            said = NotMeasuredError(str(error))
    if not scores:
        raise said
    return scores


def _traced(command: list[str], path: Path) -> Trace:
    manifest = trace_command(command, path, TraceOptions(forward_output=False))
    # dftracer_replay ends with 1 or 2 whenever a call failed, as some calls of every job do.
    if manifest.exit_status not in (0, 1, 2) or manifest.events == 0:
        raise NotMeasuredError(f"it ended with {manifest.exit_status}: {last_line((path / 'logs' / 'stderr').read_text())}")
    return Trace(path)


def _fio_replay(trace: Trace, _job: list[str], place: Path) -> Iterator[list[str]]:
    with (place / "log").open("wb") as out:
        write_iolog(trace, out, place / "files")
    yield ["fio", "--name=replay", f"--read_iolog={place / 'log'}", "--ioengine=psync", f"--output={place / 'out'}"]


def _fio_histograms(trace: Trace, _job: list[str], place: Path) -> Iterator[list[str]]:
    calls = _calls(trace)
    span_s = float((calls["end_ns"].max() - calls["start_ns"].min()) / 1e9)
    text = "[global]\nioengine=psync\nfile_service_type=random\n"
    for kind, direction, jobs in (("dataset", "randread", _READERS), ("checkpoint", "write", 1)):
        chosen = calls[(calls["kind"] == kind) & (calls["is_write"] == (kind == "checkpoint"))]
        if chosen.empty:
            continue
        moved, files = int(chosen["result"].sum()), chosen.groupby("file_id")["extent"].max()
        # A tenth of the requests has each of ten sizes: the histogram that fio accepts.
        sizes = np.quantile(chosen["result"], np.arange(0.05, 1, 0.1)).astype(int).clip(512)
        suffix = Path(str(chosen["path"].iloc[0])).suffix or ".bin"
        text += (
            f"[{kind}]\ndirectory={place}\nrw={direction}\nnumjobs={jobs}\nnrfiles={len(files)}\n"
            f"filename_format={kind}.$filenum{suffix}\nfilesize={int(files.min())}-{int(files.max())}\nsize={int(files.sum())}\n"
            f"bssplit={':'.join(f'{size}/10' for size in sizes)}\nbs_unaligned=1\nio_size={moved // jobs}\n"
            f"rate={max(int(moved / jobs / span_s), 1)}\n{'end_fsync=1' if kind == 'checkpoint' else ''}\n"
        )
    (place / "job.fio").write_text(text)
    done = subprocess.run(["fio", "--create_only=1", str(place / "job.fio")], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotMeasuredError(f"fio refuses it: {last_line(done.stderr + done.stdout)}")
    for written in place.glob("checkpoint.*"):
        written.unlink()
    yield ["fio", f"--output={place / 'out'}", str(place / "job.fio")]


def _calls(trace: Trace) -> pd.DataFrame:
    """Return the reads and writes of files: result (bytes), extent (where each ends), path, kind and whether it writes."""
    events = trace.events_frame(["start_ns", "duration_ns", "op", "file_id", "offset", "result"])
    op = events["op"].astype(str)
    events = events.assign(is_write=op.isin(WRITE_OPS), end_ns=events["start_ns"] + events["duration_ns"])
    events = events[op.isin([*READ_OPS, *WRITE_OPS]) & (events["result"] > 0)].dropna(subset=["file_id", "offset"])
    events = events.merge(trace.files()[["file_id", "path", "kind"]], on="file_id")
    return events.assign(extent=events["offset"] + events["result"])


def _dftracer_trace(job: list[str], place: Path) -> Path:
    """Trace the job once more, by DFTracer, and return the folder of its logs."""
    logs = place.parent / "dftracer"
    if not logs.exists():
        settings = dftracer_settings(logs / "job", "all")
        logs.mkdir()
        subprocess.run([*job, "1"], check=True, env={**os.environ, **settings})
    return logs


def _program(name: str) -> str:
    return str(Path(os.environ["IOTWIN_DFTRACER_PYTHON"]).parent / name)


def _dftracer_replay(_trace: Trace, job: list[str], place: Path) -> Iterator[list[str]]:
    logs = _dftracer_trace(job, place)
    # It makes files in the current directory, of each whose name it did not find.
    replay = ["env", "-C", str(place), _program("dftracer_replay"), "--recursive"]
    yield ["timeout", _TIMED_S, *replay, str(logs)]
    yield [*replay, "--no-timing", str(logs)]


def _dlio_config(_trace: Trace, job: list[str], place: Path) -> Iterator[list[str]]:
    yaml = place / "dlio.yaml"
    command = [_program("dftracer_gen_dlio_config"), "-d", str(_dftracer_trace(job, place)), "-o", str(yaml)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not yaml.exists():
        said = (done.stderr + done.stdout).splitlines()
        error = next((line.partition("ERROR ")[2] for line in said if "ERROR" in line), f"it ended with {done.returncode}")
        raise NotMeasuredError(error.replace(str(place.parent), "").partition(" (dft")[0])
    folder = place / "data"
    places = [f"++workload.dataset.data_folder={folder}", f"++workload.output.folder={place / 'output'}"]
    subprocess.run(own_command("emulate", yaml, *places, "++workload.workflow.generate_data=true"), check=False)
    yield own_command("emulate", yaml, *places)


if __name__ == "__main__":
    record_figures("rivals", measure(sys.argv[1:] or KINDS))
