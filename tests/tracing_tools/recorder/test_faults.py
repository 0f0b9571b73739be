"""What can go wrong while tracing, and that it ends in one line, an exit status and nothing left behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from iotwin.trace_store.manifest import Manifest
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.targets.cgroup import JobCgroup, remove_stale_cgroups
from tests.conftest import PATIENCE_S, ROOT, run_iotwin
from tests.processes import call, left_behind, one_line, root_pid, start, wait_for
from tests.tracing_tools.targets.test_targets import calls_recorded

root = pytest.mark.root


@root
def test_command_that_does_not_exist(tmp_path):
    result = run_iotwin("trace", "-o", tmp_path / "t", "--", "no-such-command-here")
    assert result.returncode == 2
    assert "no-such-command-here" in one_line(result)
    assert not (tmp_path / "t").exists()
    assert not left_behind()


@root
def test_command_that_cannot_be_executed(tmp_path):
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF not really")
    broken.chmod(0o755)
    result = run_iotwin("trace", "-o", tmp_path / "t", "--", broken)
    assert result.returncode == 1
    assert "broken" in one_line(result)
    assert not (tmp_path / "t").exists()
    assert not left_behind()


@root
@pytest.mark.parametrize(("script", "status"), [("exit 7", 7), ("kill -9 $$", 128 + 9)])
def test_exit_status_is_the_commands(tmp_path, script, status):
    result = run_iotwin("trace", "-o", tmp_path / "t", "--quiet", "--", "sh", "-c", script)
    assert result.returncode == status
    assert Trace(tmp_path / "t").manifest.exit_status == (status if status < 128 else 128 - status)
    assert not left_behind()


def test_no_command(tmp_path):
    result = run_iotwin("trace", "-o", tmp_path / "t")
    assert result.returncode == 2
    assert "no command" in one_line(result)


def test_output_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    for output in ("file", "full"):
        result = run_iotwin("trace", "-o", tmp_path / output, "--", "true")
        assert result.returncode == 2, output
        assert output in one_line(result)
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"


@root
def test_an_earlier_trace_is_kept_unless_forced(tmp_path):
    assert run_iotwin("trace", "-o", tmp_path / "t", "--quiet", "--", "true").returncode == 0
    before = (tmp_path / "t" / "manifest.json").read_text()
    result = run_iotwin("trace", "-o", tmp_path / "t", "--", "true")
    assert result.returncode == 2 and "--force" in one_line(result)
    assert (tmp_path / "t" / "manifest.json").read_text() == before
    assert run_iotwin("trace", "-o", tmp_path / "t", "--quiet", "--force", "--", "true").returncode == 0


@root
def test_second_tracer_on_the_same_trace_is_refused_and_another_works(tmp_path):
    first = start("trace", "-o", tmp_path / "t", "--", "sleep", "600")
    try:
        wait_for(lambda: (tmp_path / "t" / "raw" / "events.bin").exists(), "the first recording")
        second = run_iotwin("trace", "-o", tmp_path / "t", "--force", "--", "true")
        assert second.returncode == 2 and "another" in one_line(second)
        recovering = call("recover", tmp_path / "t")
        assert recovering.returncode == 1 and "right now" in one_line(recovering)
        elsewhere = run_iotwin("trace", "-o", tmp_path / "u", "--quiet", "--", "cat", "/etc/hostname")
        assert elsewhere.returncode == 0
        assert "/etc/hostname" in set(Trace(tmp_path / "u").files()["path"])
    finally:
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=PATIENCE_S)
    assert "/etc/hostname" not in set(Trace(tmp_path / "t").files()["path"])
    assert not left_behind()


@root
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_finishes_the_trace(tmp_path, number):
    tracer = start("trace", "-o", tmp_path / "t", "--", "sh", "-c", "cat /etc/hostname; sleep 600")
    log = tmp_path / "t" / "logs" / "stdout"
    wait_for(lambda: log.exists() and log.stat().st_size, "the job's output")
    tracer.send_signal(number)
    _, errors = tracer.communicate(timeout=PATIENCE_S)
    assert tracer.returncode != 0, errors
    assert "Traceback" not in errors
    trace = Trace(tmp_path / "t")
    assert trace.manifest.status == "complete"
    assert "/etc/hostname" in set(trace.files()["path"])
    assert any("interrupted" in note for note in trace.manifest.notes)
    assert not left_behind()


_WRITER = """
import json, os, sys, time
def phase(edge):
    print(":::MLLOG", json.dumps({"event_type": edge, "key": "epoch", "time_ns": time.time_ns(), "metadata": {}}), flush=True)
phase("INTERVAL_START")
fd, number = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY), 0
while not os.path.exists(sys.argv[2]):
    os.write(fd, b"%16d" % number)
    number += 1
    time.sleep(0.005)
phase("INTERVAL_END")
print(number, "done", flush=True)
"""


@root
def test_killed_tracer_keeps_what_it_had_and_leaves_the_job_alone(tmp_path):
    data, enough = tmp_path / "data", tmp_path / "enough"
    tracer = start("trace", "-o", tmp_path / "t", "--", sys.executable, "-c", _WRITER, data, enough)
    wait_for(lambda: data.exists() and data.stat().st_size >= 16 * 300, "300 writes")
    job = root_pid(tmp_path / "t")
    # However late the recorder is, it takes calls over while the job makes more, and what it has is kept.
    seen = calls_recorded(tmp_path / "t")[job]
    wait_for(lambda: calls_recorded(tmp_path / "t")[job] > max(seen, 300), "further calls taken over")
    killed_ns, kept = time.monotonic_ns(), calls_recorded(tmp_path / "t")[job]
    tracer.kill()
    tracer.communicate()
    refused = call("info", tmp_path / "t")
    assert refused.returncode == 1 and "iotwin recover" in one_line(refused)

    seen = data.stat().st_size
    wait_for(lambda: data.stat().st_size >= seen + 16 * 100, "100 writes more")
    enough.touch()
    wait_for(lambda: not Path(f"/proc/{job}").exists(), "the end of the job")
    last_line = (tmp_path / "t" / "logs" / "stdout").read_text().splitlines()[-1]
    assert last_line == f"{data.stat().st_size // 16} done"

    recovered = call("recover", tmp_path / "t")
    assert recovered.returncode == 0, recovered.stderr
    trace = Trace(tmp_path / "t")
    assert trace.manifest.status == "recovered"
    files, events = trace.files(), trace.events_frame()
    writes = events[(events["op"] == "write") & events["file_id"].isin(files.loc[files["path"] == str(data), "file_id"])]
    # Every write from the first on, without a gap, up to what had been taken over when it was killed.
    assert writes["offset"].tolist() == [16 * number for number in range(len(writes))]
    assert len(events[events["pid"] == job]) >= kept
    # The job wrote its log itself: its phases are whole, up to the end that no tracer saw.
    phase = trace.phases().iloc[0]
    assert phase["start_ns"] <= writes["start_ns"].min() and phase["end_ns"] > killed_ns
    assert call("recover", tmp_path / "t").returncode == 1  # nothing left to recover
    assert run_iotwin("trace", "-o", tmp_path / "u", "--quiet", "--", "true").returncode == 0  # clears the stale cgroup
    assert not left_behind()


@root
def test_a_cgroup_of_another_pid_namespace_is_left():
    """Its recorder has no folder in our /proc, whether it lives or not."""
    group = JobCgroup.create()
    assert isinstance(group, JobCgroup)
    namespace = str(Path("/proc/self/ns/pid").stat().st_ino)
    dead = group.path.name.replace(str(os.getpid()), str(2**22 + 1))  # above the highest number of a process
    ours, others = (group.path.with_name(dead.replace(namespace, each)) for each in (namespace, "1"))
    group.remove()
    ours.mkdir()
    others.mkdir()
    try:
        remove_stale_cgroups()
        assert not ours.exists() and others.exists()
    finally:
        others.rmdir()


@root
def test_full_disk_ends_the_recording_and_not_the_job(tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", mount], check=True)
    try:
        code = "import os\nfd = os.open('/dev/null', 1)\nfor _ in range(20000): os.write(fd, b'x')\nopen(%r, 'w').write('done')"
        result = run_iotwin("trace", "-o", mount / "t", "--", sys.executable, "-c", code % str(tmp_path / "ended"))
        assert result.returncode == 1
        assert "No space left" in result.stderr and "Traceback" not in result.stderr
        assert (tmp_path / "ended").read_text() == "done"
        manifest = json.loads((mount / "t" / "manifest.json").read_text())
        assert manifest["status"] == "recording"  # not passed off as a whole trace
        assert call("info", mount / "t").returncode == 1
        subprocess.run(["mount", "-o", "remount,size=64m", mount], check=True)
        assert call("recover", mount / "t").returncode == 0
        recovered = Trace(mount / "t").manifest
        assert recovered.events > 1000
        assert isinstance(recovered, Manifest) and recovered.lost_events > 0
    finally:
        subprocess.run(["umount", mount], check=True)
    assert not left_behind()


@root
def test_lost_events_are_counted(tmp_path):
    """Buffers of one page and a reader that sleeps: what does not fit is counted, and seen = recorded + lost."""
    from iotwin.trace_store.manifest import Host, Target
    from iotwin.trace_store.raw.finish import finish_trace
    from iotwin.trace_store.raw.record_files import Recording
    from iotwin.tracing_tools.backends.bpf_object import possible_cpus
    from iotwin.tracing_tools.backends.libbpf import LibbpfBackend
    from iotwin.tracing_tools.targets.cgroup import JobCgroup

    cgroup = JobCgroup.create()
    if isinstance(cgroup, str):
        pytest.skip(f"no cgroup for the test: {cgroup}")
    backend = LibbpfBackend(cgroup.scope, buffer_bytes=4096)
    manifest = Manifest("recording", "libbpf", Host("h", "k", 1, 1, "x86_64"), Target(["x"]))
    try:
        with Recording(tmp_path / "t", manifest) as recording:
            backend.start()
            code = "import os\nfor _ in range(5000): os.pread(3, 1, 0)"
            script = f"echo $$ > {cgroup.path}/cgroup.procs; exec {sys.executable} -c '{code}' 3</etc/hostname"
            subprocess.run(["sh", "-c", script], check=True)
            recording.append_clock()
            backend.stop(recording)
            ledger = backend.ledger()
            recording.append_journal("ledger", {"seen": ledger.seen, "lost": ledger.lost})
    finally:
        cgroup.remove()
    finished = finish_trace(tmp_path / "t", manifest)
    assert finished.lost["ring_full"] > 4000
    assert finished.seen == finished.events + finished.lost["ring_full"]
    # What the ring holds, and before that the lane of every CPU the program ran on.
    slots = 1 << (4096 // 80 // possible_cpus()).bit_length() - 1
    assert 4096 // 80 + slots <= finished.events <= 4096 // 80 + possible_cpus() * slots


def test_without_root_it_says_so_and_uses_strace(open_path):
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    # As root the test gives root up, after a first trace has imported all: the Python at hand may lie where only root can read.
    code = """
import os, sys
import iotwin.main
from iotwin.tracing_tools.backends import bcc, bpftrace, libbpf
def trace(name, *words):
    return iotwin.main.main(["trace", "-o", f"{sys.argv[1]}/{name}", *words, "--", "cat", "/etc/hostname"])
trace("before", "--backend", "strace", "--quiet")
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
sys.exit(trace("t"))
"""
    open_path.chmod(0o777)
    result = subprocess.run(
        [sys.executable, "-c", code, open_path],
        capture_output=True,
        text=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert result.returncode == 0, result.stderr
    assert "needs root" in result.stderr
    trace = Trace(open_path / "t")
    assert trace.manifest.backend == "strace"
    assert "/etc/hostname" in set(trace.files()["path"])


@root
def test_the_job_runs_as_the_invoking_user(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SUDO_UID": "65534", "SUDO_GID": "65534"}
    result = run_iotwin("trace", "-o", tmp_path / "t", "--", "id", "-u", env=environment)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "t" / "logs" / "stdout").read_text() == "65534\n"
    assert (tmp_path / "t" / "manifest.json").stat().st_uid == 65534
    assert Trace(tmp_path / "t").manifest.target.user_id == 65534


@root
def test_a_reader_that_goes_away_does_not_end_the_trace(tmp_path):
    script = "for i in 1 2 3 4; do seq 20000; sleep 0.1; done; cat /etc/hostname; exit 5"
    command = [sys.executable, "-m", "iotwin", "trace", "-o", tmp_path / "t", "--", "sh", "-c", script]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as tracer:
        assert tracer.stdout is not None and tracer.stderr is not None
        assert tracer.stdout.readline() == "1\n"
        tracer.stdout.close()
        errors = tracer.stderr.read()
    assert tracer.returncode == 5, errors
    assert "Traceback" not in errors
    trace = Trace(tmp_path / "t")
    assert trace.manifest.status == "complete"
    assert "/etc/hostname" in set(trace.files()["path"])
    assert len((trace.path / "logs" / "stdout").read_text().splitlines()) == 4 * 20000 + 1
