"""What makes a verdict weak stands below it and in its document: a crowded machine, data that were not traced, unlike reruns."""

import json
from pathlib import Path

import pytest

from iotwin.trace_store.manifest import write_manifest
from iotwin.trace_store.reader import Trace
from iotwin.tracesim import compare
from iotwin.tracesim.similarity import compare_all
from tests.benchmark.made_trace import Made
from tests.processes import call
from tests.synthetic import Job, crowd, write_job

MAPPED = "what A reads of mapped data is unknown to the verdict: 30 MiB of the data set (2 files) are mapped into memory"


def mapped(path: Path, op: str = "mmap") -> Trace:
    """A job that reads one file and maps two more."""
    made = Made()
    made.process(1, 0, "rank")
    ms = made.read_file(1, 1, made.file("/d/a.npy", size=1 << 20))
    for name in ("b.arrow", "c.arrow"):
        ms = made.call(ms, 1, op, made.file(f"/d/{name}", size=15 << 20), 0, 15 << 20)
    trace = made.trace(path)
    trace.manifest.counts = {op: 2}
    write_manifest(trace.path, trace.manifest)
    return Trace(path)


@pytest.fixture
def traces(tmp_path) -> list[Path]:
    """A run, a rerun of it, a run on a crowded machine, and a run of another job."""
    jobs = {"run": Job(), "rerun": Job(seed=2), "crowded": Job(seed=3), "other": Job(batch=8, loaders=6, read_bytes=1 << 16)}
    found = [write_job(tmp_path / name, job) for name, job in jobs.items()]
    crowd(found[2])
    return found


def test_sound_traces_have_none(traces):
    run, rerun, *_ = map(Trace, traces)
    assert compare(run, rerun, [rerun]).to_document()["caveats"] == []


def test_a_crowded_machine_is_one_whichever_run_was_on_it(traces):
    run, rerun, crowded, _ = map(Trace, traces)
    for similarity, name in (
        (compare(run, crowded), "B"),
        (compare(crowded, run), "A"),
        (compare(run, rerun, [crowded]), "repeat 1"),
    ):
        (caveat,) = similarity.to_document()["caveats"]
        assert (
            caveat.startswith(f"{name}'s machine was crowded (other work took 1.0 of 2 CPUs)") and caveat in similarity.warnings
        )
    matrix = compare_all([run], [rerun, crowded])
    assert [len(each.caveats) for each in matrix[0]] == [0, 1]


def test_reruns_that_are_not_alike_are_one(traces):
    run, rerun, _, other = map(Trace, traces)
    (caveat,) = compare(run, rerun, [other]).caveats
    assert "below 0.90" in caveat and "the verdict proves little" in caveat


def test_mapped_data_that_were_not_traced_are_one_with_their_bytes(tmp_path):
    unseen, seen = mapped(tmp_path / "a"), mapped(tmp_path / "b", "page_fault")
    (caveat,) = compare(unseen, seen).caveats
    assert caveat.startswith(MAPPED) and "--detail data,mmap" in caveat


def test_compare_prints_them_once_below_the_verdict(traces):
    done = call("compare", traces[0], traces[2], "--repeats", traces[3])
    assert done.stdout.count("machine was crowded") == done.stdout.count("the verdict proves little") == 1
    lines = done.stdout.splitlines()
    verdict = json.loads(call("compare", traces[0], traces[2], "--repeats", traces[3], "--json").stdout)["verdict"]
    assert lines[lines.index(verdict) + 1].startswith("caveat: B's machine was crowded")
