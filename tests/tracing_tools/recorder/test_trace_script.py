"""tracing_tools/trace.sh: the artifact's options, over real containers."""

import os
import signal
import subprocess
import sys

import pytest

from iotwin.trace_store.reader import Trace
from tests.conftest import PATIENCE_S, ROOT
from tests.docker_engine import containers
from tests.processes import wait_for
from tests.tracing_tools.recorder.test_capture import on_path
from tests.tracing_tools.targets.test_launched_container import has_events

SCRIPT = ROOT / "tracing_tools" / "trace.sh"


@pytest.fixture
def environment(tmp_path):
    """An environment in which `iotwin` is the one under test."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "iotwin").write_text(f'#!/bin/sh\nexec {sys.executable} -m iotwin "$@"\n')
    (programs / "iotwin").chmod(0o755)
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def trace_sh(environment, *arguments, script=SCRIPT):
    command = ["bash", script, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.root
def test_two_jobs_each_with_its_trace(tmp_path, test_image, environment):
    launch = tmp_path / "start.sh"
    launch.write_text(
        'gpus=$1 name=$2 logs=$3 image=$4; mkdir -p "$logs"; echo "$gpus $CUDA_VISIBLE_DEVICES" >"$logs/gpus"\n'
        + 'docker run --rm --network=none --name "$name" "$image" sh -c "cat /bin/calls >/dev/null; exit $5"'
    )
    arguments = ("-w", "dlio", "-l", launch, "-n", 2, "-j", 2, "-o", tmp_path / "out", "-e", "two", "--", test_image, 0)
    result = trace_sh(environment, *arguments, script=SCRIPT.with_name("trace_v2.sh"))
    assert result.returncode == 0, result.stderr
    for name, container, gpus in (("dlio", "train_dlio", "2 0,1\n"), ("dlio_1", "train_dlio_1", "2 2,3\n")):
        trace = Trace(tmp_path / "out" / "two" / f"{name}.trace")
        assert trace.manifest.workload == "dlio" and trace.manifest.target.container.startswith(f"{container} (")
        assert len(on_path(trace, "/bin/calls"))
        assert set(trace.processes()["container"]) == {container}
        assert (tmp_path / "out" / "two" / f"{name}.logs" / "gpus").read_text() == gpus


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_jobs_and_their_containers(tmp_path, test_image, environment, number):
    """Started as a script does it with `&`, which has SIGINT ignored."""
    launch = tmp_path / "start.sh"
    forever = "while true; do cat /bin/calls >/dev/null; sleep 0.05; done"
    launch.write_text(f'docker run --rm --network=none --name "$2" {test_image} sh -c "{forever}"\n')
    options = ["-w", "dlio", "-l", launch, "-j", "2", "-o", tmp_path / "out", "-e", "x", "-c", "iotwin-ended"]
    script = subprocess.Popen(["env", "--ignore-signal=INT", "bash", SCRIPT, *map(str, options)], env=environment)
    traces = [tmp_path / "out" / "x" / name for name in ("dlio.trace", "dlio_1.trace")]
    wait_for(lambda: all(has_events(trace) for trace in traces), "events of both jobs")
    script.send_signal(number)
    assert script.wait(PATIENCE_S) > 128
    wait_for(lambda: not [name for name in containers() if name.startswith("iotwin-ended")], "the end of the containers")
    assert [Trace(trace).manifest.status for trace in traces] == ["complete", "complete"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-w", "gpt"], "must be bert"),
        (["-w", "bert"], "launch script"),
        (["-w", "bert", "-n", "two"], "numbers"),
        (["-w"], "needs a value"),
        (["--wokload", "bert"], "unknown option"),
    ],
)
def test_what_cannot_be(environment, arguments, says):
    result = trace_sh(environment, *arguments)
    assert result.returncode == 2 and says in result.stderr and len(result.stderr.splitlines()) == 1


@pytest.mark.root
@pytest.mark.parametrize(
    ("option", "setup", "found"),
    [
        (["--drop-caches"], "true", "3\n"),
        ([], "true", "untouched\n"),
        (["--drop-caches"], "mount -o remount,bind,ro $file", None),
    ],
)
def test_the_page_cache_is_dropped_before_the_jobs_start_and_only_when_asked(tmp_path, option, setup, found):
    """A file lies over the kernel's in a mount namespace of our own; the tracer here only notes what it finds in it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "iotwin").write_text(f"#!/bin/sh\ncat /proc/sys/vm/drop_caches > {tmp_path}/found\n")
    (tmp_path / "bin" / "iotwin").chmod(0o755)
    (tmp_path / "start.sh").touch()
    (tmp_path / "drop").write_text("untouched\n")
    arguments = ["-w", "dlio", "-l", tmp_path / "start.sh", "-o", tmp_path / "out", *option]
    inside = f'file=/proc/sys/vm/drop_caches; mount --bind {tmp_path}/drop $file && {setup} && exec bash "$@"'
    environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    command = ["unshare", "--mount", "sh", "-c", inside, "sh", SCRIPT, *map(str, arguments)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if found is None:
        assert result.returncode == 1 and "cannot be dropped here" in result.stderr and not (tmp_path / "found").exists()
    else:
        assert result.returncode == 0, result.stderr
        assert (tmp_path / "found").read_text() == found
