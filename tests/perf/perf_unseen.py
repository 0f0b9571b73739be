"""Jobs that nothing here was written for: four shapes of fio, fitted and twinned.

    python -m tests.perf.perf_unseen [SHAPE ...]

The shapes are the job files of tests/perf/fio. Each is traced twice: the twin is fitted to the first run and held against the
second, which the fit has not seen.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from iotwin.loops.twin import make_twin
from tests.perf.figures import Figure
from tracing_tools.recorder.session import Options, trace_command

_JOBS = Path(__file__).parent / "fio"
_ROUNDS = 3


def measure(shapes: Sequence[str] = ()) -> Iterator[Figure]:
    """Yield the figure of each shape, by default of all."""
    for job in sorted(_JOBS.glob("*.fio")):
        if not shapes or job.stem in shapes:
            with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
                yield _figure(job, Path(name))


def _figure(job: Path, folder: Path) -> Figure:
    data = folder / "data"
    data.mkdir()
    fio = ["env", "-C", str(data), "fio", f"--output={folder / 'fio.log'}", str(job)]
    subprocess.run([*fio, "--create_only=1"], check=True)
    traces = []
    for run in ("job", "rerun"):
        for written in data.glob("checkpoint.*"):
            written.unlink()
        manifest = trace_command(fio, folder / f"{run}.trace", Options(forward_output=False))
        assert manifest.exit_status == 0, (folder / "fio.log").read_text()
        traces.append(folder / f"{run}.trace")
    shutil.rmtree(data)
    made = make_twin(traces, folder / "twin", _ROUNDS, force=False)
    score = made["held_out"][0]["overall"]
    lowest = min(made["held_out"][0]["dimensions"].items(), key=lambda item: item[1])
    told = f"lowest part {lowest[0]} {lowest[1]:.3f}; a rerun {made['noise_floor']:.3f}; {len(made['rounds'])} rounds"
    return Figure(f"fio's {job.stem}, unseen: twin against a rerun, overall", score, 0.90, False, told)


if __name__ == "__main__":
    for figure in measure(sys.argv[1:]):
        print(figure.line(), flush=True)
