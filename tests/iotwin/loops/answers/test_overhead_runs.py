"""What tracing costs: the document from known runs, the order of runs, and real runs that work or fail."""

import json
import sys
from dataclasses import replace

import pytest

from iotwin.loops.answers import overhead_runs
from iotwin.loops.answers.overhead_runs import TimedRun, overhead_document
from iotwin.trace_store.manifest import Host, Manifest, Target
from iotwin.tracing_tools.backend_base import Backend
from iotwin.tracing_tools.recorder.record_target import TraceOptions
from tests.processes import call, one_line

KEYS = {
    "runs", "wall_ratio", "added_ns_per_event", "bytes_per_event", "events", "lost", "tracer_cpu_s", "job_cpu_ratio", "machine",
}  # fmt: skip


def traced(wall_ns: int, events: int = 1000, lost: int = 0, cpu_ns: int | None = 300) -> TimedRun:
    manifest = Manifest("complete", "libbpf", Host("h", "k", 1, 1, "x86_64"), Target(), events=events, lost={"ring_full": lost})
    manifest.cost.tracer_cpu_ns = 2_000_000_000
    return TimedRun(wall_ns, cpu_ns, manifest, 8 * events)


def test_the_document_of_known_runs():
    """A machine that becomes slower from pair to pair changes no ratio."""
    plain = [TimedRun(1_000_000 * slow, 200) for slow in range(1, 8)]
    under = [traced(round(run.wall_ns * 1.25), lost=index) for index, run in enumerate(plain)]
    document = overhead_document(plain, under)
    assert document.keys() == KEYS
    assert document["runs"] == 7 and document["events"] == 1000 and document["lost"] == sum(range(7))
    assert document["wall_ratio"] == {"median": 1.25, "low": 1.25, "high": 1.25}
    assert document["added_ns_per_event"] == {"median": 1000, "low": 250, "high": 1750}
    assert (document["bytes_per_event"], document["tracer_cpu_s"], document["job_cpu_ratio"]) == (8, 2, 1.5)
    unknown = overhead_document(plain[:2], [traced(100, events=0, cpu_ns=None)] * 2)
    assert unknown["added_ns_per_event"]["median"] is unknown["bytes_per_event"] is unknown["job_cpu_ratio"] is None
    assert unknown["wall_ratio"]["low"] is None


def test_every_other_pair_begins_with_the_traced_run(monkeypatch, capsys):
    order = []

    def once(kind, found):
        return lambda command, directory, *rest: order.append(kind) or replace(found, wall_ns=1000 + len(order))

    monkeypatch.setattr(overhead_runs, "choose_backend", lambda name, scope: (Backend(scope), []))
    monkeypatch.setattr(overhead_runs, "_untraced", once("u", TimedRun(0, 1)))
    monkeypatch.setattr(overhead_runs, "_traced", once("t", traced(0)))
    document = overhead_runs.measure_overhead(["job"], 4, TraceOptions())
    assert "".join(order) == "u" + "ut" + "tu" + "ut" + "tu"
    ratios = [1003 / 1002, 1004 / 1005, 1007 / 1006, 1008 / 1009]
    assert document["wall_ratio"]["median"] == pytest.approx(sum(sorted(ratios)[1:3]) / 2)
    assert capsys.readouterr().err.startswith("warm-up, untraced: 1 us\nrun 1 of 4, untraced: 1 us\nrun 1 of 4, traced: ")


@pytest.mark.root
def test_a_real_command(tmp_path, monkeypatch):
    """It runs as often as asked and leaves nothing in the folder; the events are the program's own."""
    monkeypatch.chdir(tmp_path)
    code = "import os; fd = os.open('runs', os.O_CREAT | os.O_APPEND | os.O_WRONLY); [os.write(fd, b'x') for _ in range(3000)]"
    result = call("overhead", "--runs", "2", "--json", "--", sys.executable, "-S", "-c", code)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document.keys() == KEYS and 3000 < document["events"] < 4000 and document["lost"] == 0
    assert document["job_cpu_ratio"] > 0 and document["wall_ratio"]["median"] > 0
    assert (tmp_path / "runs").stat().st_size == 5 * 3000 and [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.root
@pytest.mark.parametrize(("failing", "title"), [(1, "warm-up, untraced"), (3, "run 1 of 1, traced")])
def test_a_command_that_fails_ends_the_measurement(tmp_path, failing, title):
    script = f"echo x >> {tmp_path}/runs; test $(wc -l < {tmp_path}/runs) -lt {failing} || {{ echo no data >&2; exit 7; }}"
    result = call("overhead", "--runs", "1", "--", "sh", "-c", script)
    *progress, error = result.stderr.splitlines()
    assert result.returncode == 1
    assert error == f"iotwin overhead: {title}: the command ended with exit status 7, so nothing is measured: no data"
    assert [line.partition(":")[0] for line in progress] == ["warm-up, untraced", "run 1 of 1, untraced"][: failing - 1]


def test_the_command_does_not_run_if_it_cannot_be_traced(monkeypatch, tmp_path):
    def choose(name, scope):
        raise overhead_runs.IotwinError("this machine cannot trace")

    monkeypatch.setattr(overhead_runs, "choose_backend", choose)
    result = call("overhead", "--", "touch", tmp_path / "ran")
    assert result.returncode == 1 and "cannot trace" in one_line(result) and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("words", [["--"], ["--runs", "0", "--", "true"], ["--detail", "dta", "--", "true"]])
def test_wrong_requests(words):
    result = call("overhead", *words)
    assert result.returncode == 2 and one_line(result)
