"""Does `iotwin advise` find a planted problem first, and does the mended job gain what it predicts?

    python -m tests.perf.perf_advise [KIND...]

The jobs are those of tests/perf/advise_job.py: real PyTorch, unlogged, each with one planted problem and the setting that mends
it, and healthy ones. The planted and the mended job run in turn, untraced; one run of the planted job is traced.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from subprocess import run

from iotwin.loops.answers.tested_advice import Advice, advise
from iotwin.loops.traced_run import run_traced
from iotwin.trace_store.reader import Trace
from tests.perf.advise_job import JOBS
from tests.perf.figures import Figure
from tests.perf.records import record_figures

_JOB = Path(__file__).parent / "advise_job.py"
_RUNS = 3
MENDED_BY = {"checkpoint_stall": "steps between checkpoints"}  # the setting of the mended job, if a kind has several findings


def measure(kinds: tuple[str, ...] = tuple(JOBS)) -> Iterator[Figure]:
    """Yield for each job whether its problem comes first, and how far the predicted step time is from the mended job's."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-", dir="/var/tmp") as name:
        for kind in kinds:
            yield from _of_job(kind, Path(name))


def _of_job(kind: str, folder: Path) -> Iterator[Figure]:
    job = [sys.executable, str(_JOB), str(folder), kind]
    _step_s(job)  # makes the data
    trace = folder / f"{kind.replace(' ', '')}.trace"
    run_traced(job, trace, kind)
    found = advise(Trace(trace))
    significant = [each for each in found.findings if each.significant]
    if JOBS[kind][1] is None:
        yield Figure(f"{kind}: findings with a gain", len(significant), 0, True, _described(found))
        return
    yield Figure(f"{kind}: rank of the planted problem", _rank_of(found, kind), 1, True, _described(found))
    planted, mended = zip(*((_step_s(job), _step_s([*job, "mended"])) for _ in range(_RUNS)), strict=True)
    ratio = median(mended) / median(planted)
    predicted = _predicted(found, kind)
    detail = f"predicted {predicted:.3f} of the planted job's step time, measured {ratio:.3f}"
    yield Figure(f"{kind}: predicted step time, off the mended job's", abs(predicted / ratio - 1), 0.1, True, detail)


def _kind_of(job: str) -> str:
    """Return the planted kind of finding: the job's name up to a comma."""
    return job.partition(",")[0]


def _rank_of(found: Advice, job: str) -> int:
    kinds = [each.kind for each in found.findings]
    return kinds.index(_kind_of(job)) + 1 if _kind_of(job) in kinds else len(kinds) + 1


def _predicted(found: Advice, job: str) -> float:
    """Return the predicted ratio of step times for the setting that mends the job; NaN without a prediction."""
    setting = MENDED_BY.get(job)
    ratios = (
        each.predicted.value
        for each in found.findings
        if each.kind == _kind_of(job) and setting in (None, each.change.setting) and each.predicted
    )
    return next(ratios, float("nan"))


def _described(found: Advice) -> str:
    return "; ".join(each.kind for each in found.findings) or "no finding"


def _step_s(job: list[str]) -> float:
    return float(run(job, capture_output=True, text=True, check=True).stdout.split()[-1])


if __name__ == "__main__":
    record_figures("advise", measure(tuple(sys.argv[1:]) or tuple(JOBS)))
