"""Targets that are missing, die, are renamed or run out of memory; tracers that are killed; jobs that lay traps for them."""

import os
import resource
import signal
import subprocess
import sys

import pytest

from iotwin.trace_store.reader import Trace
from tests.conftest import PATIENCE_S, ROOT, run_iotwin
from tests.docker_engine import client
from tests.processes import call, left_behind, one_line, start, wait_for
from tests.tracing_tools.recorder.test_capture import on_path
from tests.tracing_tools.targets.test_targets import NO_NETWORK, container

pytestmark = pytest.mark.root


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["--pid", "999999999"], 1, "no process 999999999"),
        (["--cgroup", "/no/such/group"], 2, "no cgroup"),
        (["--pid", "1", "--", "true"], 2, "needs no command"),
        (["--pid", "1", "--all"], 2, "not allowed with"),
        (["--volume", "a:b", "--", "true"], 2, "belong to --image"),
        (["--image", "x", "--volume", "nothing", "--", "true"], 2, "FROM:TO"),
        (["--image", "x", "--container-option", "shm_size", "--", "true"], 2, "KEY=VALUE"),
        (["--duration", "soon", "--", "true"], 2, "soon"),
    ],
)
def test_targets_that_cannot_be(tmp_path, words, status, says):
    result = run_iotwin("trace", "-o", tmp_path / "t", *words)
    assert result.returncode == status and says in one_line(result)
    assert not (tmp_path / "t").exists()


def test_no_docker_engine(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    result = run_iotwin("trace", "-o", tmp_path / "t", "--image", "x", "--", "true", env=environment)
    assert result.returncode == 1 and "no Docker Engine answers" in one_line(result)
    assert not (tmp_path / "t").exists() and not left_behind()


def test_images_and_containers_that_are_not_there(tmp_path, test_image):
    missing = run_iotwin("trace", "-o", tmp_path / "t", "--image", "no-such-image:1", "--", "true")
    assert missing.returncode == 1 and "no such image" in one_line(missing)
    container_ = run_iotwin("trace", "-o", tmp_path / "t", "--container", "no-such-container")
    assert container_.returncode == 1 and "no such container" in one_line(container_)
    option = run_iotwin("trace", "-o", tmp_path / "t", "--image", test_image, "--container-option", "volume=[]", "--", "true")
    assert option.returncode == 2 and "did you mean 'volumes'" in one_line(option)
    program = run_iotwin("trace", "-o", tmp_path / "t", "--image", test_image, *NO_NETWORK, "--", "no-such-program")
    assert program.returncode == 1 and "no-such-program" in one_line(program)
    launcher = run_iotwin("trace", "-o", tmp_path / "t", "--container", "never", "--", "false")
    assert launcher.returncode == 1 and "made no container" in one_line(launcher)
    assert not (tmp_path / "t").exists() and not left_behind()


def test_a_container_that_dies_at_once(tmp_path, test_image):
    result = run_iotwin("trace", "-o", tmp_path / "t", "--image", test_image, *NO_NETWORK, "--", "false")
    assert result.returncode == 1, result.stderr
    trace = Trace(tmp_path / "t")
    assert trace.manifest.status == "complete" and trace.manifest.exit_status == 1
    assert len(trace.processes()) == 1 and not left_behind()


def test_a_container_that_is_renamed(tmp_path, test_image):
    with container(
        test_image, "sleep 1; while [ ! -e /gone ]; do cat /bin/calls | tr -c a-z x; sleep 0.05; done", name="iotwin-before"
    ) as made:  # more than a pipe holds, and for now nobody reads it
        tracer = start("trace", "-o", tmp_path / "t", "--container", "iotwin-before", "--quiet")
        raw = tmp_path / "t" / "raw" / "events.bin"
        wait_for(lambda: raw.exists() and raw.stat().st_size > 300_000, "several passes")
        made.rename("iotwin-after")
        made.kill()
        _, errors = tracer.communicate(timeout=PATIENCE_S)
    assert tracer.returncode == 128 + 9, errors
    trace = Trace(tmp_path / "t")
    assert any("renamed from iotwin-before to iotwin-after" in note for note in trace.manifest.notes)
    assert len(on_path(trace, "/bin/calls"))


def test_a_container_out_of_memory(tmp_path, test_image):
    fill = "x=$(dd if=/dev/zero bs=1M count=200 2>/dev/null | tr '\\0' x); echo never"
    limits = ("--container-option", "mem_limit=16m", "--container-option", "memswap_limit=16m")
    result = run_iotwin("trace", "-o", tmp_path / "t", "--image", test_image, *NO_NETWORK, *limits, "--", "sh", "-c", fill)
    assert result.returncode != 0 and "never" not in result.stdout
    trace = Trace(tmp_path / "t")
    assert any("out of memory" in note for note in trace.manifest.notes)
    assert not left_behind()


def test_a_killed_tracer_leaves_the_container_running(tmp_path, test_image):
    (tmp_path / "gate").mkdir()
    script = "while [ ! -e /gate/go ]; do cat /bin/calls >/dev/null; sleep 0.1; done; exit 6"
    options = ("--container-option", "name=iotwin-survivor", "--volume", f"{tmp_path}/gate:/gate")
    tracer = start("trace", "-o", tmp_path / "t", "--image", test_image, *NO_NETWORK, *options, "--", "sh", "-c", script)
    raw = tmp_path / "t" / "raw" / "events.bin"
    wait_for(lambda: raw.exists() and raw.stat().st_size > 10_000, "events")
    tracer.send_signal(signal.SIGKILL)
    tracer.communicate(timeout=PATIENCE_S)
    survivor = client().containers.get("iotwin-survivor")
    try:
        assert survivor.status == "running"
        (tmp_path / "gate" / "go").touch()
        assert survivor.wait()["StatusCode"] == 6
    finally:
        survivor.remove(force=True)
    assert call("recover", tmp_path / "t").returncode == 0
    assert len(on_path(Trace(tmp_path / "t"), "/bin/calls"))
    assert not left_behind()  # recover has removed the cgroup


def test_a_job_cannot_turn_the_tracer_on_other_files(open_path):
    """The invoking user's job puts a link in the place of the trace: the tracer, with root, still writes only its own."""
    home, secret = open_path / "home", open_path / "secret"
    home.mkdir()
    secret.mkdir()
    (secret / "shadow").write_text("mine")
    os.chown(home, 65534, 65534)
    script = f"mv {home}/t {home}/moved && ln -s {secret} {home}/t && touch {home}/done"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SUDO_UID": "65534", "SUDO_GID": "65534"}
    result = run_iotwin("trace", "-o", home / "t", "--", "sh", "-c", script, env=environment)
    assert (home / "done").exists(), result.stderr
    assert sorted(path.name for path in secret.iterdir()) == ["shadow"]
    assert (secret.stat().st_uid, (secret / "shadow").stat().st_uid) == (0, 0)
    assert Trace(home / "moved").manifest.status == "complete"
    assert (home / "moved" / "manifest.json").stat().st_uid == 65534


def test_a_job_cannot_replace_its_logs(open_path):
    """A job of the invoking user may write to its log, but put no link in its place."""
    script = f"ln -sf /etc/passwd {open_path}/t/logs/stdout; rm -f {open_path}/t/raw/lock; echo {open_path}/t/logs/*"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SUDO_UID": "65534", "SUDO_GID": "65534"}
    result = run_iotwin("trace", "-o", open_path / "t", "--", "sh", "-c", script, env=environment)
    assert result.returncode == 0, result.stderr
    assert not (open_path / "t" / "logs" / "stdout").is_symlink()
    assert Trace(open_path / "t").manifest.status == "complete"


def test_a_machine_short_of_memory_at_the_start(tmp_path):
    """The kernel refuses the tracer memory at one point or another: the job has run whole or not at all, nothing is left."""
    script = f"ulimit -v 250000; exec {sys.executable} -m iotwin trace -o {tmp_path}/t -- touch {tmp_path}/ran"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    result = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, env=environment, check=False, timeout=PATIENCE_S
    )
    assert result.returncode == 0 or not (tmp_path / "t" / "manifest.json").exists(), result.stderr
    assert (tmp_path / "ran").exists() == (result.returncode == 0)
    assert not left_behind()


def test_a_machine_short_of_memory_at_the_end(tmp_path):
    """From the middle of the job on the kernel gives the tracer none: the job ends whole, and the trace once there is some."""
    gate, log = tmp_path / "gate", tmp_path / "t" / "logs" / "stdout"
    tracer = start(
        "trace", "-o", tmp_path / "t", "--", "sh", "-c", f"echo begun; while [ ! -e {gate} ]; do sleep 0.1; done; exit 3"
    )
    wait_for(lambda: log.exists() and log.stat().st_size, "the job's output")
    resource.prlimit(tracer.pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))
    gate.touch()
    _, errors = tracer.communicate(timeout=PATIENCE_S)
    assert tracer.returncode == 3 and "Traceback" not in errors  # the job's own comes first
    assert "cannot be finished" in errors.splitlines()[-1] and f"iotwin recover {tmp_path}/t" in errors.splitlines()[-1]
    refused = call("info", tmp_path / "t")
    assert refused.returncode == 1 and "recover" in one_line(refused)
    assert call("recover", tmp_path / "t").returncode == 0
    trace = Trace(tmp_path / "t")
    assert trace.manifest.status == "recovered" and trace.manifest.exit_status == 3 and trace.manifest.lost_events == 0
    assert not left_behind()
