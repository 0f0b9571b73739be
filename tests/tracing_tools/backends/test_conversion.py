"""What backends leave in a form of their own becomes records at the end: once, also after a kill, and wherever the trace lies."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from iotwin.trace_store.manifest import Host, Manifest, Target
from iotwin.trace_store.raw.converted_records import ConvertedRecords
from iotwin.trace_store.raw.finish import finish_trace
from iotwin.trace_store.raw.record_files import RAW, Recording
from iotwin.trace_store.raw.records import EVENT, RING_HEADER_BYTES
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.backends import preload, strace
from tests.conftest import PATIENCE_S, ROOT, run_iotwin, small_disk
from tests.processes import root_pid, start, wait_for

_NEEDS = {"strace": strace.unavailable_reason, "preload": preload.unavailable_reason}


def _need(backend: str) -> None:
    if reason := _NEEDS[backend]():
        pytest.skip(f"no {backend} here: {reason}")


def _began(directory: Path) -> Path:
    """A recording in which nothing but one name is known yet; returns its raw/."""
    manifest = Manifest("recording", "strace", Host("h", "k", 1, 1, "x86_64", "ext4"), Target())
    with Recording(directory, manifest) as recording:
        recording.append_names(b"before")
    return directory / RAW


def _events(count: int) -> np.ndarray:
    made = np.zeros(count, EVENT)
    made["header"], made["pid"], made["start_ns"] = EVENT.itemsize - RING_HEADER_BYTES, 1, np.arange(count) + 1
    return made


def test_a_conversion_that_was_cut_off_leaves_the_next_one_nothing(tmp_path):
    raw = _began(tmp_path / "t")
    with pytest.raises(ZeroDivisionError), ConvertedRecords(raw) as made:
        made.append_events(_events(3))
        made.append_names(b"torn")
        raise ZeroDivisionError
    assert (raw / "events.bin").read_bytes() == b"" and (raw / "names.bin").read_bytes() == b"before"
    for _ in range(2):
        with ConvertedRecords(raw) as made:
            made.append_events(_events(2))
            made.append_names(b"after")
        assert made.events_written == 2
        assert (raw / "events.bin").read_bytes() == _events(2).tobytes() and (raw / "names.bin").read_bytes() == b"beforeafter"


def test_converting_comes_before_the_tables(tmp_path):
    raw = _began(tmp_path / "t")
    (raw / "names.bin").write_bytes(b"")

    def convert(found: Path, manifest: Manifest) -> None:
        assert found == raw
        with ConvertedRecords(found) as made:
            made.append_events(_events(5))
        manifest.seen, manifest.lost = 7, {"perf_buffer": 2}

    manifest = finish_trace(tmp_path / "t", Manifest("recording", "x", Host("h", "k", 1, 1, "x86_64", "ext4"), Target()), convert)
    assert manifest.events == 5 and (manifest.seen, manifest.lost) == (7, {"perf_buffer": 2})


@pytest.mark.parametrize("backend", ["strace", "preload"])
def test_a_killed_tracer_loses_nothing_that_was_written_by_then(tmp_path, backend):
    _need(backend)
    tracer = start("trace", "-o", tmp_path / "t", "--backend", backend, "--", "sh", "-c", "cat /etc/hostname; exec sleep 600")
    log = tmp_path / "t" / "logs" / "stdout"
    wait_for(lambda: log.exists() and log.stat().st_size, "the job's output")
    job = root_pid(tmp_path / "t")
    wait_for(lambda: "sleep" in Path(f"/proc/{job}/comm").read_text(), "cat's end")
    tracer.kill()
    tracer.communicate(timeout=PATIENCE_S)
    os.kill(job, signal.SIGKILL)
    result = run_iotwin("recover", tmp_path / "t")
    assert result.returncode == 0, result.stderr
    trace = Trace(tmp_path / "t")
    assert "/etc/hostname" in set(trace.files()["path"]) and trace.manifest.counts["read"] >= 2


@pytest.mark.parametrize("name", ["a b", "a:b", "$LIB", "ü;é"])
def test_preload_sees_a_job_whose_trace_has_a_name_that_the_loader_cannot_read(tmp_path, name):
    """LD_PRELOAD is a list without quotes. The job ran unseen: no event, none lost, status 0."""
    _need("preload")
    (tmp_path / name).mkdir()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = ("trace", "-o", tmp_path / name / "t", "--backend", "preload", "--", "cat", "/etc/hostname")
    result = run_iotwin(*words, env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)})
    assert result.returncode == 0 and "ld.so" not in result.stderr, result.stderr
    assert "/etc/hostname" in set(Trace(tmp_path / name / "t").files()["path"])
    assert not list(scratch.iterdir())


def test_the_copy_of_a_killed_tracer_goes_with_the_last_of_its_job(tmp_path, monkeypatch):
    """It stayed in the temporary directory for good."""
    _need("preload")
    scratch = tmp_path / "scratch"
    (tmp_path / "a b").mkdir()
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}
    words = ("trace", "-o", tmp_path / "a b" / "t", "--backend", "preload", "--")
    tracer = start(*words, "sh", "-c", "echo $$; exec sleep 600", env=environment, stderr=subprocess.DEVNULL)
    pid = int(tracer.stdout.readline())
    assert len(list(scratch.iterdir())) == 1 and preload.remove_stale_copies() == []  # its tracer lives
    tracer.kill()
    tracer.wait()
    assert preload.remove_stale_copies() == []  # a program that the job starts would not find it
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{pid}/maps").exists() or not Path(f"/proc/{pid}/maps").read_bytes(), "the job's end")
    tracer.communicate()
    assert run_iotwin("trace", "-o", tmp_path / "next", "--backend", "preload", "--", "true", env=environment).returncode == 0
    assert not list(scratch.iterdir())


def test_a_library_that_no_place_lets_run_is_told_before_the_job_runs(tmp_path, monkeypatch):
    _need("preload")
    monkeypatch.setattr(preload, "_reason_against", lambda _: "failed to map segment")
    made = preload.PreloadBackend(preload.Scope())
    with pytest.raises(preload.IotwinError, match=rf"from {tmp_path}/preload: failed to map segment; choose another place"):
        made.wrap(["cat"], tmp_path)
    assert made._elsewhere is not None and not made._elsewhere.path.exists()


def test_stracess_end_at_a_limit_on_file_sizes_is_not_the_jobs(tmp_path):
    """strace writes within the job's limit, and is ended by it. The job ended with it."""
    _need("strace")
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("setpriv is not installed")
    limit = 150_000  # more than the tracer itself needs, less than the text of so many calls
    script = "dd if=/dev/zero of=/dev/null bs=1 count=4000; echo later; exit 7"
    # Root may go beyond a limit.
    capless = [setpriv, "--bounding-set", "-sys_resource", "--inh-caps", "-sys_resource"] if os.geteuid() == 0 else []
    tracer = [sys.executable, "-m", "iotwin", "trace", "-o", tmp_path / "t", "--backend", "strace"]
    done = subprocess.run(
        [*capless, *tracer, "--", "sh", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == 7, done.stderr
    assert "4000 bytes" in (tmp_path / "t" / "logs" / "stderr").read_text()
    assert (tmp_path / "t" / "logs" / "stdout").read_text() == "later\n"
    if (tmp_path / "t" / RAW).exists():
        assert "ulimit -f" in done.stderr or "File too large" in done.stderr
        assert run_iotwin("recover", tmp_path / "t").returncode == 0
    manifest = Trace(tmp_path / "t").manifest
    assert 0 < manifest.events < 8000 and any("strace ended before the command" in note for note in manifest.notes)
    assert manifest.lost["text"] >= 2  # the shell's and dd's


@pytest.mark.root
def test_what_strace_had_no_room_for_is_lost_and_said(tmp_path):
    """strace goes on without the text that does not fit. The trace said that none was lost."""
    _need("strace")
    with small_disk(tmp_path / "small", 600_000) as small:
        words = ("trace", "-o", small / "t", "--backend", "strace", "--")
        done = run_iotwin(*words, "sh", "-c", "dd if=/dev/zero of=/dev/null bs=1 count=8000; exit 7")
        assert done.returncode == 7, done.stderr
        shutil.copytree(small / "t", tmp_path / "t")
    if (tmp_path / "t" / RAW).exists():  # no room for the tables either
        assert run_iotwin("recover", tmp_path / "t").returncode == 0
    else:
        assert " LOST" in done.stderr
    manifest = Trace(tmp_path / "t").manifest
    assert 0 < manifest.events < 16000 and manifest.lost["text"] >= 1
    assert any("each lost one call at least" in note for note in manifest.notes)


@pytest.mark.parametrize(
    "last", [b"+++ exited with 0 +++\n", b"+++ killed by SIGKILL (core dumped) +++\n", b"+++ superseded by execve in pid 4 +++\n"]
)
def test_only_a_text_that_does_not_go_on_to_its_threads_end_is_cut_off(tmp_path, last):
    line = b'1795359099.167367696 read(0</dev/zero>, "+++ ", 1) = 1 <0.000008162>\n'
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    ending = line * 40 + b"1795359099.466791655 " + last
    for pid, content, is_cut_off in (
        (ended.pid, ending, False),
        (ended.pid, ending[:-1], True),
        (ended.pid, line * 40, True),
        (ended.pid, b"", True),
        (os.getpid(), line, False),  # it runs, as where the trace had a duration
    ):
        path = tmp_path / f"thread.{pid}"
        path.write_bytes(content)
        assert strace._is_cut_off(path) == is_cut_off
