"""`iotwin trace --jobs`: several jobs at once, a trace each."""

import json
import os
import signal

import pytest

from iotwin.loops import traced_jobs
from iotwin.trace_store.reader import Trace
from tests.conftest import PATIENCE_S, run_iotwin
from tests.processes import call, one_line, start, wait_for


@pytest.mark.root
def test_each_job_has_its_own_trace(tmp_path):
    a, b = (f"touch {tmp_path}/{own}; until [ -e {tmp_path}/{other} ]; do sleep 0.05; done" for own, other in ("ab", "ba"))
    jobs = {
        "a": {"command": ["sh", "-c", f"cat /etc/hostname; {a}; exit $CODE"], "environment": {"CODE": 3}, "workload": "x"},
        "b": {"command": ["sh", "-c", f"cat /etc/passwd; {b}"]},
    }
    (tmp_path / "jobs.yaml").write_text(json.dumps(jobs))
    result = run_iotwin("trace", "-o", tmp_path / "out", "--jobs", tmp_path / "jobs.yaml", "--json")
    assert result.returncode == 3, result.stderr
    assert {name: job["exit_status"] for name, job in json.loads(result.stdout)["jobs"].items()} == {"a": 3, "b": 0}
    a, b = Trace(tmp_path / "out" / "a.trace"), Trace(tmp_path / "out" / "b.trace")
    assert a.manifest.workload == "x" and b.manifest.workload is None
    assert max(a.manifest.start_ns, b.manifest.start_ns) < min(a.manifest.end_ns, b.manifest.end_ns)  # at once
    paths = set(a.files()["path"]), set(b.files()["path"])
    assert "/etc/hostname" in paths[0] - paths[1] and "/etc/passwd" in paths[1] - paths[0]


@pytest.mark.root
def test_an_interrupt_ends_all(tmp_path):
    (tmp_path / "jobs.yaml").write_text("a: {command: [sleep, '600']}\nb: {command: [sleep, '600']}\n")
    tracer = start("trace", "-o", tmp_path / "out", "--jobs", tmp_path / "jobs.yaml")
    manifests = [tmp_path / "out" / f"{name}.trace" / "manifest.json" for name in "ab"]
    wait_for(lambda: all(path.exists() and '"start_ns": 0' not in path.read_text() for path in manifests), "both jobs")
    os.kill(tracer.pid, signal.SIGTERM)
    _, errors = tracer.communicate(timeout=PATIENCE_S)
    assert tracer.returncode not in (0, None), errors
    assert {Trace(path.parent).manifest.status for path in manifests} == {"complete"}


_TRACER = """
trap 'printf "{\\"exit_status\\": 0, \\"words\\": \\"%s\\"}" "$*"; exit' USR1
touch $$.ready
while :; do test $(ls *.ready | wc -l) = 2 && kill -USR1 $PPID; sleep 0.05; done
"""


def test_options_and_the_signal_of_until_reach_every_tracer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.yaml").write_text("a: {command: [job]}\nb: {command: [job]}\n")
    monkeypatch.setattr(traced_jobs, "own_command", lambda *words: ["sh", "-c", _TRACER, *map(str, words)])
    options = {
        "--backend": "strace", "--detail": "all", "--duration": "9s", "--grace": "1s", "--interval": "2s", "--ring": "64MiB",
        "--until": "signal", "--workload": "mine",
    }  # fmt: skip
    words = [word for pair in options.items() for word in pair]
    result = call("trace", "-o", "out", "--jobs", "jobs.yaml", "--force", "--debug", "--json", *words)
    for job in json.loads(result.stdout)["jobs"].values():
        assert {"--force", "--debug", *map("=".join, options.items())} <= set(job["words"].split())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--live"], "show one job"),
        (["--metrics", "0"], "show one job"),
        (["--volume", "a:b"], "or to a job in the file of --jobs"),
        (["--gpus", "all"], "or to a job in the file of --jobs"),
        (["--ring", "1MiB"], "64 MiB or more"),
        (["--interval", "0s"], "take 1ms or more"),
        (["--detail", "dta"], "did you mean 'data'"),
        (["--backend", "libbfp"], "did you mean 'libbpf'"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_options_are_refused_once_before_any_job_starts(tmp_path, options, says):
    (tmp_path / "jobs.yaml").write_text("a: {command: [job]}\nb: {command: [job]}\n")
    result = call("trace", "-o", tmp_path / "out", "--jobs", tmp_path / "jobs.yaml", *options)
    assert result.returncode == 2 and says in one_line(result) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1]", "mapping"),
        ("a: {comand: [x]}", "did you mean 'command'"),
        ("a: {command: ls -l}", "list of words"),
        ("../a: {command: [ls]}", "cannot be the name"),
        ("a: {command: [", "not YAML"),
    ],
)
def test_files_that_are_wrong(tmp_path, text, says):
    (tmp_path / "jobs.yaml").write_text(text)
    result = call("trace", "-o", tmp_path / "out", "--jobs", tmp_path / "jobs.yaml")
    assert result.returncode == 2 and says in one_line(result)
    assert not (tmp_path / "out").exists()
