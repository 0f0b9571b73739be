"""Does a twin respond to other storage as its job does? Four kinds of job, four changes of storage.

    python -m tests.perf.perf_respond [JOB ...] [--edit EDIT ...] [--change CHANGE ...] [--runs N]

The jobs are those of tests/perf/unseen, whose data are so small that the caps are, too. The twin is fitted to a run with the data
set in the page cache, so that it has seen none of the changes. The job then runs as it did when traced: how far the kernel reads
ahead of random reads, and so how many requests they take, hangs on their order. Job and twin run in turns, each N times, of which
the medians are compared; the detail gives the range of the job's runs. Needs root.

With --edit, the twin's YAML is edited as perf_edits does, and compared with the job so edited.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from iotwin.loops.respond.storage_response import parse_change, respond
from iotwin.loops.twin_from_trace import TWIN, make_twin
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from iotwin.workload_yaml import dump, load
from tests.perf.figures import Figure
from tests.perf.perf_edits import EDITS, override
from tests.perf.records import record_figures

_JOBS = Path(__file__).parent / "unseen"
KINDS = ("images", "chunks", "crops", "shards")
_CHANGES = ("cold", "read=4MB", "requests=60", "read=8MB,cache=8MiB")
_RUNS = 3


def measure(
    kinds: Sequence[str] = (), changes: Sequence[str] = (), runs: int = _RUNS, edits: Sequence[str] = ()
) -> Iterator[Figure]:
    """Yield the figure of each job and change, by default of all; of the twin without an edit, or of each of the `edits`."""
    for kind in kinds or KINDS:
        with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as folder:
            job = unseen_job(kind, Path(folder))
            twin = _twin(job, Path(folder))
            for edit in edits or [None]:
                yield from _figures(kind, job, twin, edit, changes or _CHANGES, runs)


def unseen_job(kind: str, folder: Path) -> list[str]:
    """Return the command of a job of tests/perf/unseen, which lacks its seed, with its data in `folder`."""
    job = [sys.executable, str(_JOBS / f"{kind}.py"), str(folder)]
    subprocess.run([*job, "0"], check=True)  # makes the data
    return job


def _twin(job: list[str], folder: Path) -> Path:
    """Return the folder of the twin that is made from one run of the job."""
    trace = folder / "job.trace"
    manifest = trace_command([*job, "1"], trace, TraceOptions(forward_output=False))
    assert manifest.exit_status == 0, (trace / "logs" / "stderr").read_text()
    make_twin([trace], folder / "twin", force=False)
    return folder / "twin"


def _figures(kind: str, job: list[str], twin: Path, edit: str | None, changes: Sequence[str], runs: int) -> Iterator[Figure]:
    command, name = [*job, "1"], kind
    if edit is not None:
        name, command = f"{kind}, {edit}", [*command, EDITS[edit][0]]
        whole = load(twin / TWIN)
        dump(load(twin / TWIN, [override(twin / TWIN, edit)]), twin / TWIN)
    response = twin.parent / f"response {edit}"
    try:
        document = respond(twin, response, [parse_change(text) for text in changes], runs, command, force=False)
    finally:
        if edit is not None:
            dump(whole, twin / TWIN)
    unchanged, *changed = document["changes"]
    for row in changed:
        slower = row["job"]["seconds"] / unchanged["job"]["seconds"]
        spans = {side: row[side]["reading_s"] for side in ("job", "twin")}
        own = ", ".join(f"the {side} {min(times):.1f} to {max(times):.1f} s" for side, times in spans.items())
        told = f"twin / job {row['ratio']:.3f}, medians of {runs} runs: {own}; the job {slower:.1f} times as long as cached; "
        told += f"cached {unchanged['ratio']:.3f}"
        yield Figure(f"respond: {name}, {row['change']}, the twin's time off the job's", abs(row["ratio"] - 1), 0.05, True, told)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.perf.perf_respond")
    parser.add_argument("kinds", nargs="*", metavar="JOB", help=", ".join(KINDS))
    parser.add_argument("--change", action="append", default=[])
    parser.add_argument("--edit", action="append", default=[], choices=[edit for edit in EDITS if edit != "data doubled"])
    parser.add_argument("--runs", type=int, default=_RUNS)
    given = parser.parse_args()
    record_figures("respond", measure(given.kinds, given.change, given.runs, given.edit))
