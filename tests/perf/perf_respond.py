"""Does a twin respond to other storage as its job does? Four kinds of job, four changes of storage.

    python -m tests.perf.perf_respond [JOB ...]

The jobs are those of tests/perf/unseen, whose data are so small that the caps are, too. The twin is fitted to a run with the data
set in the page cache, so that it has seen none of the changes. Needs root.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from iotwin.loops.respond import parse_change, respond
from iotwin.loops.twin import make_twin
from tests.perf.figures import Figure
from tracing_tools.recorder.session import Options, trace_command

_JOBS = Path(__file__).parent / "unseen"
KINDS = ("images", "chunks", "crops", "shards")
_CHANGES = ("cold", "read=4MB", "requests=60", "read=8MB,cache=8MiB")
_ROUNDS = 3


def measure(kinds: Sequence[str] = KINDS) -> Iterator[Figure]:
    """Yield the figure of each job and change."""
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as folder:
            yield from _figures(kind, Path(folder))


def unseen_job(kind: str, folder: Path) -> list[str]:
    """Return the command of a job of tests/perf/unseen, which lacks its seed, with its data in `folder`."""
    job = [sys.executable, str(_JOBS / f"{kind}.py"), str(folder)]
    subprocess.run([*job, "0"], check=True)  # makes the data
    return job


def _figures(kind: str, folder: Path) -> Iterator[Figure]:
    job = unseen_job(kind, folder)
    trace = folder / "job.trace"
    manifest = trace_command([*job, "1"], trace, Options(forward_output=False))
    assert manifest.exit_status == 0, (trace / "logs" / "stderr").read_text()
    made = make_twin([trace], folder / "twin", _ROUNDS, force=False)
    document = respond(
        folder / "twin", folder / "response", [parse_change(text) for text in _CHANGES], 1, [*job, "2"], force=False
    )
    unchanged, *changed = document["changes"]
    for row in changed:
        slower = row["job"]["seconds"] / unchanged["job"]["seconds"]
        told = f"twin / job {row['ratio']:.3f}; the job {row['job']['seconds']:.1f} s, {slower:.1f} times as long as cached; "
        told += f"cached {unchanged['ratio']:.3f}; {made['kind'].partition(',')[0].partition(':')[0]}"
        yield Figure(f"respond: {kind}, {row['change']}, the twin's time off the job's", abs(row["ratio"] - 1), 0.05, True, told)


if __name__ == "__main__":
    for figure in measure(sys.argv[1:] or KINDS):
        print(figure.line(), flush=True)
