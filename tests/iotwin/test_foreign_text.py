"""What others wrote, shown on a terminal, read from a job's directory, and given to processes."""

import io
import json
import os
import sys
import threading

import pytest

from iotwin.common.errors import UsageError
from iotwin.loops import traced_jobs
from iotwin.loops.experiments import run_cells as experiment_run
from iotwin.trace_store.manifest import read_manifest, write_manifest
from iotwin.trace_store.writer import write_table
from tests.conftest import PATIENCE_S, ROOT, run_iotwin
from tests.processes import call, one_line
from tests.synthetic import Job, write_job
from tests.trace_store.test_store import raw_events, record

_EVIL = "\x1b]0;title\x07\x1b[2Jevil\r\x9b\u202e"


def _evil_trace(path):
    """A trace whose manifest says _EVIL wherever it says anything."""
    write_job(path, Job(files=4, epochs=1, file_bytes=1 << 20, gpu=True))
    made = read_manifest(path)
    made.backend, made.notes, made.workload, made.target.command = _EVIL, [_EVIL], _EVIL, [_EVIL]
    made.lost, made.tool_version = {_EVIL: 1}, _EVIL
    for name in ("hostname", "kernel", "architecture", "file_system"):
        setattr(made.host, name, _EVIL)
    write_manifest(path, made)
    return path


def _is_clean(text):
    return not {"\x1b", "\x07", "\r", "\x9b", "\u202e"} & set(text)


def test_no_escape_sequence_of_a_trace_reaches_the_terminal(tmp_path):
    one, two = (_evil_trace(tmp_path / name) for name in "ab")
    for arguments in (
        ["info", one],
        ["compare", one, two],
        ["merge", one, two, "-o", tmp_path / "m"],
        ["stats", one],
        ["stats", one, "--sql", "select chr(27) || ']0;x' as x"],
        ["info", tmp_path / f"{_EVIL}"],
    ):
        result = call(*arguments)
        assert _is_clean(result.stdout) and _is_clean(result.stderr), arguments
        assert "evil" in result.stdout + result.stderr or arguments[0] in ("stats", "compare")


def test_no_escape_sequence_of_a_cut_off_recording_reaches_the_terminal(tmp_path):
    record(tmp_path / "t", raw_events(10))
    document = json.loads((tmp_path / "t" / "manifest.json").read_text())
    (tmp_path / "t" / "manifest.json").write_text(json.dumps(document | {"status": _EVIL}))
    result = call("recover", tmp_path / "t")
    assert result.returncode == 1 and _is_clean(one_line(result))


def test_tables_keep_their_own_colours_on_a_terminal(tmp_path, monkeypatch):
    from iotwin.common.terminal import cleaned_streams, console

    output = io.StringIO()
    output.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with cleaned_streams():
        console().print("[bold]ours[/bold] \x1b[31mtheirs")
        print("\x1b[31mtheirs\ttoo\n")
    assert "\x1b[1m" in output.getvalue() and "\x1b[31m" not in output.getvalue()
    assert "?[31mtheirs\ttoo\n" in output.getvalue()


def test_a_spreadsheet_computes_nothing_of_a_csv(tmp_path):
    path = write_job(tmp_path / "t", Job(files=4, epochs=1, file_bytes=1 << 20, loaders=0))
    import pyarrow.parquet as pq

    from iotwin.trace_store import schema

    table = pq.read_table(path / "processes.parquet")
    rows = table.num_rows
    names = (["=cmd|calc!A0", "@x", "a\x1b\r"] * rows)[:rows]
    write_table(path, "processes.parquet", schema.PROCESSES, table.to_pydict() | {"comm": names})
    text = call("stats", path, "--by", "process", "--csv").stdout
    assert "'=cmd|calc!A0" in text and ",=" not in text and _is_clean(text)


@pytest.mark.parametrize("kind", ["fifo", "folder", "deep", "link", "huge", "list"])
def test_a_job_s_result_that_is_none_holds_nothing_up(tmp_path, monkeypatch, kind):
    path = tmp_path / "result.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        (tmp_path / "secret").write_text('{"a": 1}')
        path.symlink_to("secret")
    elif kind == "huge":
        path.write_text("{}")
        os.truncate(path, 1 << 40)
    else:
        path.write_text("[" * 100_000 if kind == "deep" else "[1]")
    found = []
    reading = threading.Thread(target=lambda: found.append(experiment_run._read_json(path)), daemon=True)
    reading.start()
    reading.join(PATIENCE_S)
    assert found == [None]


@pytest.mark.parametrize(
    "text",
    [
        'a: {command: ["true"], environment: {"A=B": c}}',
        'a: {command: ["true"], environment: {5: c}}',
        'a: {command: ["true"], environment: {"": c}}',
        'a: {command: ["true"], environment: {A: "b\\0c"}}',
        'a: {command: ["true", "b\\0c"]}',
        'a: {command: ["true"], workload: "b\\0c"}',
        '"a\\0b": {command: ["true"]}',
    ],
)
def test_jobs_are_checked_before_the_first_is_started(tmp_path, text):
    (tmp_path / "jobs.yaml").write_text(text)
    with pytest.raises(UsageError):
        traced_jobs.trace_jobs(traced_jobs.read_jobs(tmp_path / "jobs.yaml"), tmp_path / "out", [])


def test_no_tracer_is_left_when_one_cannot_be_started(tmp_path, monkeypatch):
    class Tracer:
        signals: list[int] = []  # noqa: RUF012

        def __init__(self, command, **options):
            if "b.trace" in " ".join(command):
                raise BlockingIOError("no more processes")

        def send_signal(self, number):
            self.signals.append(number)

        def communicate(self):
            assert self.signals

    monkeypatch.setattr(traced_jobs.subprocess, "Popen", Tracer)
    with pytest.raises(BlockingIOError):
        traced_jobs.trace_jobs({"a": {}, "b": {}}, tmp_path / "out", [])
    assert len(Tracer.signals) == 1


def test_names_that_a_terminal_has_no_signs_for_are_spelled(tmp_path):
    path = write_job(tmp_path / "t", Job(files=4, epochs=1))
    made = read_manifest(path)
    made.target.command, made.notes = ["train", "日本"], ["日本"]
    write_manifest(path, made)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    result = run_iotwin("info", path, env=environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\\u65e5\\u672c") == 2
