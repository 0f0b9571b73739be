"""Does a real PyTorch job keep its utilisation on the storage that `iotwin size` found, and miss it on 20 % less?

    python -m tests.perf.perf_size [JOB ...]

The job is tests/perf/size_job.py, without loaders and with two. Its twin is made from one trace with the data in the page cache.
`size` finds the least cold bandwidth for the target, and the job then runs on that bandwidth and on 80 % of it, each several
times. The clock is real, since the kernel's limits let bursts pass that the job meets, too. Needs root.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from iotwin.loops.page_cache_state import evict
from iotwin.loops.size.least_storage import SizeQuestion, size
from iotwin.loops.size.limit_search import parse_target
from iotwin.loops.traced_run import run_traced
from iotwin.loops.twin_from_trace import make_twin
from iotwin.tracing_tools.targets.storage_limits import LimitedCgroups, Limits, device_below
from tests.perf.figures import Figure
from tests.perf.records import record_figures

_JOB = Path(__file__).parent / "size_job.py"
_TARGET, _RUNS, _LESS = 0.8, 5, 0.8
_JOBS = {"no loaders": "0", "two loaders": "2"}


def measure(names: Sequence[str] = ()) -> Iterator[Figure]:
    """Yield the figures of the jobs with these names, by default of all."""
    for name in names or _JOBS:
        yield from _figures(name)


def _figures(job_name: str) -> Iterator[Figure]:
    """Yield how far the job's AU is from the target on the found bandwidth, and its AU on 20 % less."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-", dir="/var/tmp") as name:
        folder = Path(name)
        job = [sys.executable, str(_JOB), str(folder / "data"), _JOBS[job_name]]
        run_traced(job, folder / "first.trace", "makes the data")
        run_traced(job, folder / "job.trace", "size")
        make_twin([folder / "job.trace"], folder / "twin", force=False)
        question = SizeQuestion(parse_target(f"au={_TARGET}"), None, ["cold"], ["bandwidth"], _RUNS, "real")
        (need,) = size(folder / "twin", question, folder / "size", force=False)["needs"]
        found = {share: [_au(job, folder, need["least"] * share, f"{share}-{i}") for i in range(_RUNS)] for share in (1.0, _LESS)}
    told = f"{need['least'] / 2**20:.2f} MiB/s; the twin's AU there {need['au_there']:.3f}, the job's "
    detail = told + "; ".join(f"at {share:.0%} {', '.join(f'{au:.3f}' for au in aus)}" for share, aus in found.items())
    off = abs(median(found[1.0]) - _TARGET)
    yield Figure(f"size: {job_name}, AU of the job on the found bandwidth, off the target", off, 0.02, True, detail)
    yield Figure(f"size: {job_name}, AU of the job on 20 % less bandwidth", median(found[_LESS]), _TARGET, True, detail)


def _au(job: list[str], folder: Path, bytes_per_s: float, name: str) -> float:
    """Return the AU of the job, run once with cold data at `bytes_per_s`."""
    for path in (folder / "data").iterdir():
        evict(path)
    with LimitedCgroups(Limits(round(bytes_per_s)), {device_below(folder / "data")}) as cgroups:
        run_traced(job, folder / f"{name}.trace", "size", limits=cgroups)
    return float(json.loads((folder / f"{name}.trace" / "logs" / "stdout").read_text().splitlines()[-1])["au"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.perf.perf_size")
    parser.add_argument("names", nargs="*", metavar="JOB", help=", ".join(_JOBS))
    record_figures("size", measure(parser.parse_args().names))
