"""Jobs are told apart: reruns are nearer to one another than to other jobs, and what imitates a job is nearest to that job."""

from dataclasses import replace

import pytest

from iotwin.trace_store.reader import Trace
from iotwin.tracesim import compare
from tests.perf.identification import all_scores, repeats_apart, twins_apart
from tests.synthetic import MILLISECOND, Job, write_job

BASE = Job(epochs=2, files=20, evaluation_files=2)
# Three workloads, each with two configurations.
JOBS = [
    BASE,
    replace(BASE, batch=4),
    replace(BASE, file_bytes=1 << 20, read_bytes=1 << 17, loaders=1),
    replace(BASE, file_bytes=1 << 20, read_bytes=1 << 17, loaders=3),
    replace(BASE, files=40, file_bytes=1 << 18, shuffle=False, checkpoint_every=0),
    replace(BASE, files=40, file_bytes=1 << 18, shuffle=False, checkpoint_every=0, compute_ns=20 * MILLISECOND),
]


def test_every_run_is_nearest_to_its_own_job(tmp_path):
    """Reruns differ in shuffle and by 3 % in speed; a twin has other process ids, paths and start, and computes 5 % longer."""
    numbers = list(range(len(JOBS)))
    runs, of = [], []
    for number, job in enumerate(JOBS):
        for repeat in range(3):
            again = replace(job, seed=10 * number + repeat, compute_ns=job.compute_ns * (100 + 3 * repeat) // 100)
            runs.append(Trace(write_job(tmp_path / f"{number}-{repeat}", again)))
            of.append(number)
    twins = [
        replace(job, seed=99, pid=7000, root="/twin", start_ns=9_000 * MILLISECOND, compute_ns=job.compute_ns * 105 // 100)
        for job in JOBS
    ]
    scores = all_scores(runs, [*runs, *(Trace(write_job(tmp_path / f"twin-{n}", twin)) for n, twin in enumerate(twins))])
    assert scores[0, 3] == pytest.approx(compare(runs[0], runs[3]).overall)
    assert (repeats_apart(scores[:, : len(runs)], of) > 0).all()
    assert (twins_apart(scores[:, len(runs) :], of, numbers) > 0).all()
