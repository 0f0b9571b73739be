"""Under sudo: who owns a trace, who reads what the job made, and what root still follows by name."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from iotwin.common.errors import IotwinError
from iotwin.trace_store.manifest import Host, Manifest, Target
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.backends import choose_backend as backends
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from iotwin.tracing_tools.recorder.unprivileged_finish import finish_as, give, hold
from iotwin.tracing_tools.targets.user import User
from tests.conftest import PATIENCE_S, ROOT, run_iotwin
from tests.processes import one_line, root_pid, start, wait_for

pytestmark = pytest.mark.root
NOBODY = 65534
SUDO = {**os.environ, "PYTHONPATH": str(ROOT), "SUDO_UID": str(NOBODY), "SUDO_GID": str(NOBODY)}
USER = User(NOBODY, NOBODY, "nobody", "/nonexistent")


# Whoever has given up root can read nothing of where Python and iotwin are installed, as below a home that is root's alone.
UNREADABLE = """
import os, sys

class Unreadable:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if os.geteuid():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Unreadable)
"""


@pytest.fixture
def unreadable(tmp_path: Path) -> dict[str, str]:
    """The environment of a sudo whose user can import nothing."""
    (tmp_path / "sitecustomize.py").write_text(UNREADABLE)
    return {**SUDO, "PYTHONPATH": f"{ROOT}:{tmp_path}"}


def owners(directory: Path) -> set[int]:
    return {path.lstat().st_uid for path in (directory, *directory.rglob("*"))}


def test_the_invoking_user_owns_the_trace_and_its_directory(open_path):
    result = run_iotwin("trace", "-o", open_path / "t", "--", "id", "-u", env=SUDO)
    assert result.returncode == 0 and result.stdout == f"{NOBODY}\n", result.stderr
    assert owners(open_path / "t") == {NOBODY}
    assert Trace(open_path / "t").manifest.status == "complete"


@pytest.mark.parametrize("words", [[], ["--backend", "strace"], ["--backend", "preload"], ["--detail", "all"]])
def test_the_invoking_user_needs_to_read_nothing_of_the_installation(open_path, unreadable, words):
    result = run_iotwin("trace", "-o", open_path / "t", *words, "--", "cat", "/etc/hostname", env=unreadable)
    assert result.returncode == 0, result.stderr
    assert Trace(open_path / "t").manifest.status == "complete"


@pytest.mark.parametrize("backend", ["strace", "preload"])
def test_a_backend_inside_the_job_works_for_the_invoking_user(open_path, backend):
    """strace runs as the job's user and writes its own files; it could not, and the job did not even start."""
    result = run_iotwin("trace", "-o", open_path / "t", "--backend", backend, "--", "cat", "/etc/hostname", env=SUDO)
    assert result.returncode == 0 and result.stdout == Path("/etc/hostname").read_text(), result.stderr
    assert owners(open_path / "t") == {NOBODY}
    assert "/etc/hostname" in set(Trace(open_path / "t").files()["path"])


def _told(**facts: object) -> Manifest:
    host = Host("h", "k", 1, 1, "x86_64", "ext4")
    return Manifest("complete", "libbpf", host, Target(), notes=[json.dumps(facts)])


def _about_itself() -> Manifest:
    status = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines())
    entries = [path for path in list(Path("/proc/self/fd").iterdir()) if int(path.name) > 2 and path.is_symlink()]
    descriptors = [str(path.readlink()) for path in entries]  # without the one that listed them
    facts = {name: status[name] for name in ("Uid", "Gid", "Groups", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs")}
    try:
        os.setuid(0)
    except PermissionError:
        facts["root again"] = "no"
    return _told(descriptors=descriptors, **facts)


def test_what_finishes_is_the_user_without_any_privilege_and_holds_the_trace_alone(open_path):
    secret = os.open("/etc/shadow", os.O_RDONLY)
    held = hold(open_path)
    try:
        facts = json.loads(finish_as(USER, held, _about_itself).notes[0])
    finally:
        os.close(held)
        os.close(secret)
    ids = "\t".join([str(NOBODY)] * 4)
    assert (facts["Uid"], facts["Gid"]) == (ids, ids) and "0" not in facts["Groups"].split()
    assert {int(facts[name], 16) for name in ("CapPrm", "CapEff", "CapAmb")} == {0}
    assert facts["NoNewPrivs"] == "1" and facts["root again"] == "no"
    kept = [path for path in facts["descriptors"] if not path.startswith(("pipe:", "/proc/"))]
    assert kept == [str(open_path)]


@pytest.mark.parametrize("words", ["[1]" * 3, "boom"])
def test_what_goes_wrong_there_is_told_here(open_path, words):
    def fails() -> Manifest:
        raise ValueError(words)

    held = hold(open_path)
    with pytest.raises(IotwinError, match="boom" if words == "boom" else r"\[1\]"):
        finish_as(USER, held, fails)
    with pytest.raises(IotwinError, match="was ended"):
        finish_as(USER, held, lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(MemoryError):
        finish_as(USER, held, _out_of_memory)
    os.close(held)


def _out_of_memory() -> Manifest:
    raise MemoryError


def test_nothing_of_the_job_is_read_by_root(open_path):
    """strace sees every process of the tracer: the one that opens the job's log to read it has the user's ids."""
    log = open_path / "calls"
    command = [
        "strace", "-f", "-o", str(log), "-e", "trace=openat,setresuid", "-e", "signal=none", "--", sys.executable, "-m",
        "iotwin", "trace", "-o", str(open_path / "t"), "--backend", "libbpf", "--quiet", "--", "sh", "-c", "echo line",
    ]  # fmt: skip
    import shutil

    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    done = subprocess.run(command, env=SUDO, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    became: set[str] = set()
    readers = []
    for line in log.read_text().splitlines():
        process, _, call = line.partition(" ")
        if call.strip().startswith(f"setresuid({NOBODY}"):
            became.add(process)
        elif any(name in call for name in ('logs/stdout", O_RDONLY', 'names.bin", O_RDONLY', 'events.bin", O_RDONLY')):
            readers.append(process)
    assert readers and set(readers) <= became


def test_a_link_in_place_of_a_file_is_given_and_not_followed(open_path):
    inside, outside = open_path / "trace", open_path / "outside"
    (inside / "raw" / "deep").mkdir(parents=True)
    outside.write_text("root's")
    (inside / "raw" / "link").symlink_to(outside)
    (inside / "raw" / "deep" / "hard").hardlink_to(outside)
    held = hold(inside)
    give(held, USER)
    os.close(held)
    assert outside.stat().st_uid == 0
    assert {(inside / name).lstat().st_uid for name in ("", "raw", "raw/deep", "raw/link")} == {NOBODY}


def test_a_trace_that_was_cut_off_is_recovered_by_its_user(open_path, unreadable):
    tracer = start("trace", "-o", open_path / "t", "--", "sh", "-c", "cat /etc/hostname; exec sleep 600", env=SUDO)
    log = open_path / "t" / "logs" / "stdout"
    wait_for(lambda: log.exists() and log.stat().st_size, "the job's output")
    pid = root_pid(open_path / "t")
    tracer.kill()
    tracer.communicate(timeout=PATIENCE_S)
    os.kill(pid, signal.SIGKILL)
    assert owners(open_path / "t") == {0}
    result = run_iotwin("recover", open_path / "t", env=unreadable)
    assert result.returncode == 0, result.stderr
    assert owners(open_path / "t") == {NOBODY}
    assert Trace(open_path / "t").manifest.status == "recovered"


def test_recover_gives_away_nothing_that_is_no_trace(open_path):
    (open_path / "mine").mkdir()
    (open_path / "mine" / "file").write_text("x")
    result = run_iotwin("recover", open_path / "mine", env=SUDO)
    assert result.returncode == 1 and "is not an iotwin trace" in one_line(result)
    assert owners(open_path / "mine") == {0}


@pytest.mark.parametrize("backend", ["strace", "bpftrace", "preload"])
def test_what_a_backend_left_in_a_form_of_its_own_is_read_by_the_user(open_path, monkeypatch, backend):
    if reason := backends.unavailable_reason(backend):
        pytest.skip(f"no {backend} here: {reason}")
    convert = backends._CONVERTERS[backend]

    def told(raw: Path, manifest: Manifest) -> None:
        manifest.notes.append(f"{manifest.events} events before, converted by {os.getresuid()}")
        convert(raw, manifest)

    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    monkeypatch.setitem(backends._CONVERTERS, backend, told)
    options = TraceOptions(backend=backend, forward_output=False)
    manifest = trace_command(["cat", "/etc/hostname"], open_path / "t", options)
    assert f"0 events before, converted by {(NOBODY,) * 3}" in manifest.notes
    assert manifest.counts["read"] >= 2 and not manifest.lost_events


@pytest.mark.parametrize("backend", ["strace", "preload"])
def test_a_job_inside_which_records_are_written_is_unhurt_by_the_umask(open_path, backend):
    """Its user could not pass through the trace's directory: strace ended in place of the job, preload saw nothing."""
    if reason := backends.unavailable_reason(backend):
        pytest.skip(f"no {backend} here: {reason}")
    words = ["trace", "-o", str(open_path / "t"), "--backend", backend, "--", "cat", "/etc/hostname"]
    done = subprocess.run(
        ["sh", "-c", 'umask 077; exec "$@"', "sh", sys.executable, "-m", "iotwin", *words],
        env=SUDO,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0 and done.stdout == Path("/etc/hostname").read_text(), done.stderr
    assert "/etc/hostname" in set(Trace(open_path / "t").files()["path"])
    assert (open_path / "t").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("backend", ["strace", "preload"])
def test_a_place_that_the_jobs_user_cannot_enter_is_told_before_the_job_runs(open_path, backend):
    if reason := backends.unavailable_reason(backend):
        pytest.skip(f"no {backend} here: {reason}")
    closed = open_path / "closed"
    closed.mkdir(mode=0o700)
    result = run_iotwin("trace", "-o", closed / "t", "--backend", backend, "--", "touch", open_path / "ran", env=SUDO)
    assert result.returncode == 1 and f"nobody, who runs the command, cannot enter {closed}" in one_line(result)
    assert not (open_path / "ran").exists() and not list(closed.iterdir())
