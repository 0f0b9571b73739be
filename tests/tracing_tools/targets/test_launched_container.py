"""A container that a command starts: held until it is watched whatever the load, else the trace fails; ended with its command."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.targets.container import ContainerWatch
from tests.conftest import PATIENCE_S, ROOT, run_iotwin
from tests.docker_engine import client, containers, start_when_watched
from tests.processes import wait_for
from tests.tracing_tools.recorder.test_capture import on_path

pytestmark = pytest.mark.root
# The shell's parent is the tracer, which now is held, as if the machine were too busy for it, until `{}` is done.
BUSY = "({}; kill -CONT $PPID) & kill -STOP $PPID; "
READ = "sh -c 'cat /bin/calls | wc -c; exit 3'"
FOREVER = "sh -c 'while true; do cat /bin/calls >/dev/null; sleep 0.05; done'"


def launched(tmp_path, name: str, script: str) -> subprocess.CompletedProcess[str]:
    return run_iotwin("trace", "-o", tmp_path / "t", "--container", name, "--", "sh", "-c", script)


def test_a_tracer_that_is_late_holds_the_container(tmp_path, test_image):
    run = f"docker run --rm --network=none --name=iotwin-late {test_image} {READ}"
    result = launched(tmp_path, "iotwin-late", BUSY.format("sleep 2") + run)
    assert result.returncode == 3, result.stderr
    trace = Trace(tmp_path / "t")
    shell = trace.processes().iloc[0]
    assert (shell["namespace_pid"], shell["comm"]) == (1, "sh")  # from its first instruction
    assert on_path(trace, "/bin/calls")["result"].max() > 0
    assert (trace.path / "logs" / "stdout").read_text().strip().isdecimal()


def test_a_container_that_cannot_be_held_fails_the_trace(tmp_path, test_image, docker_host):
    """Its launcher has the engine's own address."""
    runs = f"docker -H {docker_host} top iotwin-past >/dev/null 2>&1"
    script = BUSY.format(f"until {runs}; do sleep 0.1; done")
    script += f"docker -H {docker_host} run --network=none --name=iotwin-past {test_image} {FOREVER}"
    try:
        result = launched(tmp_path, "iotwin-past", script)
        assert result.returncode == 1
        assert "iotwin-past ran before it could be watched" in result.stderr.splitlines()[-1]
        assert "by another way than DOCKER_HOST, as docker -H" in result.stderr.splitlines()[-1]
        assert not (tmp_path / "t").exists()
        wait_for(lambda: client().containers.get("iotwin-past").status == "exited", "the container's end")
    finally:
        subprocess.run(["docker", "rm", "-f", "iotwin-past"], check=False, capture_output=True)


def test_a_container_that_ended_before_it_could_be_held_fails_the_trace(tmp_path, test_image, docker_host):
    """Its cgroup is gone by then, as if it had never run."""
    script = BUSY.format(f"until [ -e {tmp_path}/ran ]; do sleep 0.1; done")
    script += f"docker -H {docker_host} run --network=none --name=iotwin-over {test_image} true; touch {tmp_path}/ran; sleep 3"
    try:
        result = launched(tmp_path, "iotwin-over", script)
        assert result.returncode == 1 and "iotwin-over ran before it could be watched" in result.stderr, result.stderr
        assert not (tmp_path / "t").exists()
    finally:
        subprocess.run(["docker", "rm", "-f", "iotwin-over"], check=False, capture_output=True)


def test_a_launcher_with_the_engines_own_address_is_held_by_the_cgroup(tmp_path, test_image, docker_host):
    script = start_when_watched(f"--network=none --name=iotwin-frozen {test_image} {READ}")
    result = launched(tmp_path, "iotwin-frozen", f"export DOCKER_HOST={docker_host}; {script}")
    assert result.returncode == 3, result.stderr
    assert Trace(tmp_path / "t").processes().iloc[0]["namespace_pid"] == 1


def in_background(*arguments: str | os.PathLike) -> subprocess.Popen:
    """A tracer as a script starts it with `&`: it has SIGINT ignored."""
    command = ["env", "--ignore-signal=INT", sys.executable, "-m", "iotwin", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def has_events(path) -> bool:
    raw = path / "raw" / "events.bin"
    return raw.exists() and raw.stat().st_size > 10_000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_container_and_launcher_too(tmp_path, test_image, number):
    run = f"docker run --rm --network=none --name=iotwin-endless {test_image} {FOREVER}"
    script = f"echo $$ >{tmp_path}/pid; {run}; sleep 600"
    tracer = in_background("trace", "-o", tmp_path / "t", "--container", "iotwin-endless", "--", "sh", "-c", script)
    wait_for(lambda: has_events(tmp_path / "t"), "events")
    tracer.send_signal(number)
    _, errors = tracer.communicate(timeout=PATIENCE_S)
    wait_for(lambda: "iotwin-endless" not in containers(), f"the end of the container: {errors}")
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()
    trace = Trace(tmp_path / "t")
    assert trace.manifest.status == "complete" and any("interrupted" in note for note in trace.manifest.notes)
    assert tracer.returncode > 128, errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("child", ["sleep 600", "(trap '' TERM; sleep 600) & wait"], ids=["", "a child ignores SIGTERM"])
def test_a_signal_before_the_container_is_there_ends_the_launcher(tmp_path, docker_host, number, child):
    """And its children, which hold the tracer's stderr as long as they live."""
    script = f"echo $$ >{tmp_path}/pid; {child}"
    tracer = in_background("trace", "-o", tmp_path / "t", "--container", "iotwin-never", "--", "sh", "-c", script)
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip(), "the launcher")
    tracer.send_signal(number)
    tracer.communicate(timeout=PATIENCE_S)
    assert tracer.returncode == 130
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists() and not (tmp_path / "t").exists()


def test_what_fails_before_the_container_starts_leaves_none(tmp_path, test_image):
    """A backend that cannot watch containers: the container was created, and is removed; its command ends."""
    words = ("--", "docker", "run", "--network=none", "--name=iotwin-held", test_image, "true")
    result = run_iotwin("trace", "-o", tmp_path / "t", "--backend", "strace", "--container", "iotwin-held", *words)
    assert result.returncode == 1 and "strace traces only" in result.stderr.splitlines()[-1]
    assert "iotwin-held" not in containers() and "Traceback" not in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_trace_of_everything(tmp_path, number):
    tracer = in_background("trace", "-o", tmp_path / "t", "--all")
    wait_for(lambda: has_events(tmp_path / "t"), "events")
    tracer.send_signal(number)
    _, errors = tracer.communicate(timeout=PATIENCE_S)
    assert tracer.returncode == 0 and Trace(tmp_path / "t").manifest.status == "complete", errors


PRINT = "sh -c 'echo first; echo second >&2'"


def printed(logs: Path) -> tuple[str, str]:
    return (logs / "stdout").read_text(), (logs / "stderr").read_text()


def output_notes(trace: Path) -> list[str]:
    return [note for note in Trace(trace).manifest.notes if note.startswith("logs lack the container's output: ")]


@pytest.fixture
def past_the_gate(tmp_path, test_image, docker_host):
    """Return a function that traces a container whose launcher has the engine's own address."""

    def trace(options: str, **around: str) -> Path:
        script = start_when_watched(f"--network=none --name=iotwin-brief {options} {test_image} {PRINT}", **around)
        result = launched(tmp_path, "iotwin-brief", f"export DOCKER_HOST={docker_host}; {script}")
        assert result.returncode == 0, result.stderr
        return tmp_path / "t"

    yield trace
    subprocess.run(["docker", "rm", "-f", "iotwin-brief"], check=False, capture_output=True)


def test_the_output_of_a_container_that_was_held_by_its_cgroup_is_whole(past_the_gate):
    """It may have printed all, and have ended, before the engine answers a question about it."""
    trace = past_the_gate("", after=":")
    assert printed(trace / "logs") == ("first\n", "second\n") and not output_notes(trace)


def test_a_trace_notes_the_output_of_a_container_that_was_removed_before_its_log_was_read(past_the_gate, tmp_path):
    """The shell stops the tracer, its parent, after the release: by then the recording exists, and the cgroup is not frozen."""
    held = f"""until [ -e {tmp_path}/t/raw ] && [ "$(cat $cgroup/cgroup.freeze)" = 0 ]; do sleep 0.01; done; kill -STOP $PPID"""
    trace = past_the_gate("", before=held, after="docker rm --force $id >/dev/null 2>&1; kill -CONT $PPID")
    assert "there is no such container" in output_notes(trace)[0]


def test_a_trace_notes_the_output_of_a_container_whose_log_the_engine_does_not_keep(past_the_gate):
    assert "does not support reading" in output_notes(past_the_gate("--log-driver=none", after=":"))[0]


def test_waiting_for_the_output_of_a_container_that_has_ended_has_an_end(tmp_path, test_image, docker_host):
    container = client().containers.create(test_image, shlex.split(PRINT), network_mode="none")
    try:
        container.start()
        container.wait()
        watch = ContainerWatch(container.id, tmp_path, from_start=True)
        assert watch.finish() == []
        assert printed(tmp_path) == ("first\n", "second\n")
    finally:
        container.remove(force=True)
