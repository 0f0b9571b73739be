"""The traced job has the output, signals and exit status that it would have untraced, whatever happens to its trace."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from iotwin.common import signals
from iotwin.common.errors import UnfinishedTraceError
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.backends.choose_backend import unavailable_reason
from iotwin.tracing_tools.recorder import interruption, unprivileged_finish
from iotwin.tracing_tools.recorder import record_target as capture
from iotwin.tracing_tools.targets.job_output import JobOutput
from tests.conftest import PATIENCE_S, ROOT, run_iotwin, small_disk
from tests.processes import call, start, wait_for

root = pytest.mark.root


_PRINTER = """
import os, sys
null = os.open(os.devnull, os.O_WRONLY)
for step in range(200):
    print(step, "x" * 5000, flush=True)
    print(step, "y" * 50, file=sys.stderr, flush=True)
    for _ in range(200):
        os.write(null, b"z")
sys.exit(7)
"""


@root
def test_a_full_disk_takes_neither_the_jobs_output_nor_its_exit_status(tmp_path):
    with small_disk(tmp_path / "small", 600 << 10) as small:
        result = run_iotwin("trace", "-o", small / "t", "--", sys.executable, "-c", _PRINTER)
        assert result.returncode == 7, result.stderr
        assert result.stdout == "".join(f"{step} {'x' * 5000}\n" for step in range(200))
        # Our own note may come in the middle of a line, as the job writes its lines in pieces.
        note = re.compile(r"the trace cannot be written: [^\n]*; the job continues untraced\n")
        errors = note.sub("", result.stderr).splitlines()
        assert [line for line in errors if line.endswith("y")] == [f"{step} {'y' * 50}" for step in range(200)]
        assert "No space left" in errors[-1] and f"iotwin recover {small / 't'}" in errors[-1] and "is 7)" in errors[-1]
        assert json.loads((small / "t" / "manifest.json").read_text())["exit_status"] == 7
        subprocess.run(["mount", "-o", "remount,size=64m", small], check=True)
        assert call("recover", small / "t").returncode == 0
        manifest = Trace(small / "t").manifest
        assert manifest.exit_status == 7 and manifest.seen == manifest.events + manifest.lost_events


@root
def test_a_failure_of_the_trace_itself_comes_after_the_jobs_status(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise AssertionError("hashes collided")

    monkeypatch.setattr(unprivileged_finish, "finish_trace", fail)
    with pytest.raises(UnfinishedTraceError, match=r"hashes collided.*iotwin recover .*status is 3\)") as error:
        capture.trace_command(["sh", "-c", "exit 3"], tmp_path / "t", capture.TraceOptions(forward_output=False))
    assert error.value.job_status == 3
    monkeypatch.undo()
    assert call("recover", tmp_path / "t").returncode == 0


@root
def test_an_error_while_recording_leaves_the_job_running(tmp_path, monkeypatch):
    monkeypatch.setattr(capture._Session, "_journal", lambda self: 1 // 0)
    with pytest.raises(UnfinishedTraceError, match="ZeroDivisionError") as error:
        capture.trace_command(["sh", "-c", "sleep 0.3; exit 4"], tmp_path / "t", capture.TraceOptions(forward_output=False))
    assert error.value.job_status == 4


@root
def test_what_the_job_prints_is_a_log_and_its_streams_can_be_opened(tmp_path):
    script = "echo a; echo b > /dev/stdout; echo c >> /dev/stdout; echo d >/dev/stderr; test -t 1 || echo no terminal"
    result = run_iotwin("trace", "-o", tmp_path / "t", "--", "sh", "-c", script)
    assert result.stdout == "a\nb\nc\nno terminal\n" and result.stderr.startswith("d\n")
    trace = Trace(tmp_path / "t")
    assert (trace.path / "logs" / "stdout").read_text() == result.stdout  # nothing was truncated
    files, events = trace.files(), trace.events_frame()
    row = files[files["path"] == str(trace.path / "logs" / "stdout")].iloc[0]
    assert row["kind"] == "log"
    assert events.loc[(events["file_id"] == row["file_id"]) & (events["op"] == "write"), "result"].sum() == len(result.stdout)


@root
def test_a_users_job_can_open_its_streams_under_sudo(open_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SUDO_UID": "65534", "SUDO_GID": "65534"}
    script = "echo a >/dev/stderr; id -u"
    result = run_iotwin("trace", "-o", open_path / "t", "--quiet", "--", "sh", "-c", script, env=environment)
    assert (result.stdout, result.stderr) == ("65534\n", "a\n")


@root
def test_quiet_silences_iotwin_and_not_the_job(tmp_path):
    result = run_iotwin("trace", "-o", tmp_path / "t", "--quiet", "--", "sh", "-c", "echo out; echo err >&2")
    assert (result.returncode, result.stdout, result.stderr) == (0, "out\n", "err\n")


@root
def test_a_killed_keeper_of_the_output_is_replaced(tmp_path):
    script = "echo one; until [ -e go ]; do sleep 0.05; done; seq 3; exit 5"
    tracer = start("trace", "-o", tmp_path / "t", "--", "sh", "-c", script, cwd=tmp_path)
    log = tmp_path / "t" / "logs" / "stdout"
    wait_for(lambda: log.exists() and log.read_text() == "one\n", "the first line")
    first = _keepers_of(tracer.pid)
    os.kill(first[0], signal.SIGKILL)
    wait_for(lambda: (now := _keepers_of(tracer.pid)) and now != first, "another keeper")
    (tmp_path / "go").touch()
    output, errors = tracer.communicate(timeout=PATIENCE_S)
    assert (tracer.returncode, output) == (5, "one\n1\n2\n3\n"), errors
    assert log.read_text() == output
    assert any("killed" in note for note in Trace(tmp_path / "t").manifest.notes)


def _keepers_of(parent: int) -> list[int]:
    found = []
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if b"output_keeper" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found


def test_a_reader_that_takes_nothing_holds_no_log_back(tmp_path):
    """What nobody reads yet waits in the keeper: the job goes on, its log is whole, and it is shown when somebody reads."""
    code = """
import os, sys
from pathlib import Path
from iotwin.tracing_tools.targets.job_output import JobOutput
output = JobOutput(Path(sys.argv[1]))
output.show()
for number in range(1000):
    os.write(output.ends[0], b"%06d " % number * 1000)
output.close_ends()
print(output.drain(), Path(sys.argv[1], "stdout").stat().st_size, file=sys.stderr, flush=True)
while not output.is_shown(1):
    pass
output.close()
"""
    reader = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None and reader.stderr is not None
    assert reader.stderr.readline() == "True 7000000\n"
    assert reader.stdout.read() == "".join(f"{number:06d} " * 1000 for number in range(1000))
    assert reader.wait(timeout=PATIENCE_S) == 0, reader.stderr.read()


def test_the_log_of_a_full_disk_says_what_it_lacks(tmp_path):
    for name, target in (("stdout", "/dev/full"), ("stderr", "/dev/null")):
        (tmp_path / name).symlink_to(target)
    real_open = os.open

    def follow(path: Path, flags: int, mode: int = 0o777) -> int:
        return real_open(path, flags & ~os.O_NOFOLLOW, mode)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", follow)
        output = JobOutput(tmp_path)
    os.write(output.ends[0], b"x" * 1234)
    assert output.drain() and output.missing_bytes == [1234, 0]
    output.close_ends()
    output.close()


# What ends a job early.

_COUNTING = """
import os, signal, sys, time
def count(number, frame):
    os.write(1, b"got %d\\n" % number)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, count)
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
sys.exit(9)
"""
# What a job has that is asked twice, 5 seconds, may be too little for a busy machine.
_PATIENT = """
import sys
from iotwin import main
from iotwin.tracing_tools.recorder import interruption
interruption._INSISTED_NS = 600 * 10**9
sys.exit(main.main(sys.argv[1:]))
"""


def _interrupted(tmp_path: Path, *options: str, press: Callable[[subprocess.Popen[str]], None]) -> tuple[int, str]:
    """Trace a job that prints its signals until the file `go` is there, do `press`; return the tracer's status and output."""
    go = tmp_path / "go"
    arguments = ["trace", "-o", tmp_path / "t", *options, "--", sys.executable, "-c", _COUNTING, go]
    tracer = start(*arguments, program=["-c", _PATIENT])
    _wait_for_line(tmp_path, 1)
    press(tracer)
    go.touch()
    output, errors = tracer.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in errors
    return tracer.returncode, output


def _wait_for_line(tmp_path: Path, count: int) -> None:
    """Wait until the job has printed so many lines."""
    log = tmp_path / "t" / "logs" / "stdout"
    wait_for(lambda: log.exists() and log.read_text().count("\n") >= count, f"line {count} of the job")


@root
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_job_gets_every_ctrl_c_once_and_ends_by_itself(tmp_path, times):
    told = ["waiting for it", "asked the job to end within", "ending the trace"]

    def press(tracer: subprocess.Popen[str]) -> None:
        assert tracer.stderr is not None
        for number in range(times):
            os.killpg(tracer.pid, signal.SIGINT)  # as a terminal does
            assert told[number] in tracer.stderr.readline()
            _wait_for_line(tmp_path, 2 + number)  # two that wait at once would be one to the kernel
            time.sleep(2 * signals._ONE_REQUEST_S)

    assert _interrupted(tmp_path, press=press) == (9, "ready\n" + f"got {int(signal.SIGINT)}\n" * times)
    manifest = Trace(tmp_path / "t").manifest
    assert manifest.status == "complete" and any("interrupted" in note for note in manifest.notes)


@root
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("whole_group", [False, True])
def test_a_request_to_end_reaches_the_job_as_it_is(tmp_path, number, whole_group):
    def press(tracer: subprocess.Popen[str]) -> None:
        assert tracer.stderr is not None
        (os.killpg if whole_group else os.kill)(tracer.pid, number)
        assert "asked the job" in tracer.stderr.readline()
        _wait_for_line(tmp_path, 2)

    assert _interrupted(tmp_path, press=press) == (9, f"ready\ngot {int(number)}\n")
    assert Trace(tmp_path / "t").manifest.status == "complete"


@root
def test_a_job_that_does_not_end_within_the_grace_is_killed(tmp_path):
    def press(tracer: subprocess.Popen[str]) -> None:
        os.killpg(tracer.pid, signal.SIGINT)
        assert tracer.wait(timeout=PATIENCE_S) == 128 + signal.SIGKILL

    _interrupted(tmp_path, "--grace", "50ms", press=press)
    manifest = Trace(tmp_path / "t").manifest
    assert manifest.status == "complete" and manifest.exit_status == -signal.SIGKILL
    assert any("killed" in note for note in manifest.notes)


def test_a_job_asked_twice_has_five_seconds(monkeypatch):
    """The clock is the test's own: no request but the second makes it run."""
    now_ns, sent = 0, []
    monkeypatch.setattr(interruption, "time", SimpleNamespace(monotonic_ns=lambda: now_ns))
    target = SimpleNamespace(is_ours=True, has_ended=lambda: False, signal=sent.append)
    asked = interruption.Interruption(target, None, [])
    asked._requests._received = [signal.SIGTERM]
    assert not asked.heed() and sent == [signal.SIGTERM]
    now_ns = 10**15
    assert not asked.heed() and sent == [signal.SIGTERM]
    asked._requests._received = [signal.SIGINT]
    assert not asked.heed() and sent == [signal.SIGTERM, signal.SIGINT]
    now_ns += 5 * 10**9 - 1
    assert not asked.heed() and sent[-1] == signal.SIGINT
    now_ns += 1
    assert not asked.heed() and sent[-1] == signal.SIGKILL
    asked._requests._received = [signal.SIGINT]
    assert asked.heed()  # the third ends the recording


def test_requests_at_once_are_one():
    requests = signals.Requests()
    requests.collect(even_ignored=True)
    try:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        assert requests.take() == signal.SIGTERM and requests.take() is None
    finally:
        requests.restore()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# What a job inherits.

_STATE = "import re, sys; print(re.findall(r'Sig(?:Blk|Ign|Cgt):.*', open('/proc/self/status').read()))"


@root
@pytest.mark.parametrize("ignored", [(), (signal.SIGINT, signal.SIGQUIT), (signal.SIGHUP, signal.SIGTERM)])
def test_the_jobs_signals_are_those_it_has_untraced(tmp_path, ignored):
    def ignore() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)

    command = ["grep", "-E", "^Sig(Blk|Ign|Cgt)|^(Threads|NoNewPrivs)", "/proc/self/status"]
    untraced = subprocess.run(command, preexec_fn=ignore, capture_output=True, text=True, check=True).stdout
    traced = run_iotwin("trace", "-o", tmp_path / "t", "--quiet", "--", *command, preexec_fn=ignore)
    assert traced.stdout == untraced, traced.stderr


@root
def test_a_job_beyond_its_file_size_ends_by_the_signal(tmp_path):
    script = f"ulimit -f 8; exec head -c 100000 /dev/zero >{tmp_path}/file"
    untraced = subprocess.run(["bash", "-c", script], check=False).returncode
    result = run_iotwin("trace", "-o", tmp_path / "t", "--", "bash", "-c", script)
    assert untraced == -signal.SIGXFSZ and result.returncode == 128 + signal.SIGXFSZ
    assert (tmp_path / "file").stat().st_size == 8192


@root
def test_a_limit_on_file_sizes_is_the_jobs_and_not_its_outputs(tmp_path):
    script = f"head -c 100000 /dev/zero; ulimit -f; head -c 100000 /dev/zero >{tmp_path}/file"
    limits = (8192, resource.RLIM_INFINITY)
    result = run_iotwin(
        "trace", "-o", tmp_path / "t", "--quiet", "--", "bash", "-c", script,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits),
        # Python leaves half a file of bytecode, for all who come after, where it may not write a whole one.
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert result.stdout == "\0" * 100_000 + "8\n", result.stderr
    assert (tmp_path / "file").stat().st_size == 8192 and result.returncode == 128 + signal.SIGXFSZ
    assert Trace(tmp_path / "t").manifest.status == "complete"


def test_records_of_preload_never_reach_the_jobs_limit_on_file_sizes(tmp_path):
    """They are written by the job's own processes, which the kernel ends beyond it."""
    if reason := unavailable_reason("preload"):
        pytest.skip(f"no preload here: {reason}")
    script = "ulimit -Sf 256; exec dd if=/dev/zero of=/dev/null bs=10 count=20000"
    result = run_iotwin("trace", "-o", tmp_path / "t", "--backend", "preload", "--quiet", "--", "bash", "-c", script)
    manifest = Trace(tmp_path / "t").manifest
    assert result.returncode == 0, result.stderr
    assert manifest.lost_events > 10_000 and manifest.events > 1000 and manifest.events + manifest.lost_events >= 40_000


def under_hard_limit(limit: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run iotwin trace without CAP_SYS_RESOURCE, so that nobody can raise the limit."""
    capless = "setpriv --inh-caps=-sys_resource --bounding-set=-sys_resource" if os.geteuid() == 0 else ""
    command = ["bash", "-c", f'{limit}; exec {capless} "$@"', "bash", sys.executable, "-B", "-P", "-m", "iotwin", "trace"]
    return subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize("backend", ["auto", "strace"])
def test_a_job_under_a_hard_limit_on_file_sizes_runs_and_ends_as_untraced(tmp_path, backend):
    """The trace has no more room than the job's files: it may be cut off, and says so."""
    if backend == "strace" and (reason := unavailable_reason("strace")):
        pytest.skip(f"no strace here: {reason}")
    script = f"echo begun; exec head -c 100000 /dev/zero >{tmp_path}/file"
    done = under_hard_limit("ulimit -f 8", "-o", tmp_path / "t", "--backend", backend, "--", "bash", "-c", script)
    assert (done.returncode, done.stdout) == (128 + signal.SIGXFSZ, "begun\n"), done.stderr
    assert (tmp_path / "file").stat().st_size == 8192
    assert "ulimit -f" in done.stderr or Trace(tmp_path / "t").manifest.lost_events == 0


@pytest.mark.parametrize(("limit", "told"), [("ulimit -f 0", "File too large"), ("ulimit -n 10", "Too many open files")])
def test_a_limit_that_leaves_no_room_for_a_trace_is_told_before_the_job_runs(tmp_path, limit, told):
    words = ("-o", tmp_path / "t", "--backend", "strace", "--", "touch", tmp_path / "ran")
    done = under_hard_limit(limit, *words)
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.count("\n") == 1, done.stderr
    assert f"{told}; raise" in done.stderr and limit[:9] in done.stderr
    assert not (tmp_path / "ran").exists() and not (tmp_path / "t").exists()


@root
def test_a_job_may_have_few_files_open_and_the_recorder_more(tmp_path):
    command = ["bash", "-c", 'ulimit -Sn 16; exec "$@"', "bash", sys.executable, "-m", "iotwin", "trace"]
    words = ["-o", tmp_path / "t", "--quiet", "--", "bash", "-c", "ulimit -Sn"]
    done = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (0, "16\n"), done.stderr
    assert Trace(tmp_path / "t").manifest.backend == "libbpf"


# Words and directories.


@root
@pytest.mark.parametrize("backend", ["libbpf", "strace", "preload"])
def test_words_and_directories_that_are_no_text(tmp_path, backend):
    folder = os.fsencode(tmp_path) + b"/cwd\xff"
    Path(os.fsdecode(folder)).mkdir()
    command = [sys.executable, "-m", "iotwin", "trace", "-o", tmp_path / "t", "--backend", backend, "--workload", b"w\xfe"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [*command, "--quiet", "--", "printf", "%s", b"a\xffb"], cwd=folder, env=environment, capture_output=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, b"a\xffb", b"")
    manifest = Trace(tmp_path / "t").manifest
    assert manifest.target.command == ["printf", "%s", "a\\xffb"]
    assert manifest.target.working_directory == f"{tmp_path}/cwd\\xff" and manifest.workload == "w\\xfe"


@root
def test_a_removed_working_directory(tmp_path):
    """A job runs in one as it does untraced; a name that is relative to it has no place."""
    (tmp_path / "gone").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    iotwin = f'"{sys.executable}" -P -m iotwin trace --quiet -o'
    script = f"cd {tmp_path}/gone && rmdir {tmp_path}/gone; {iotwin} {tmp_path}/t -- sh -c 'exit 6'; echo $?; {iotwin} u -- true"
    result = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert result.stdout == "6\n" and result.returncode == 2
    lines = [line for line in result.stderr.splitlines() if line.startswith("iotwin")]
    assert lines == [
        "iotwin trace: the traced command ended with status 6",
        "iotwin trace: u: the current directory was removed; change to one that exists, or give an absolute path",
    ]
    assert Trace(tmp_path / "t").manifest.target.working_directory == f"{tmp_path}/gone (deleted)"
