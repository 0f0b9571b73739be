"""What is traced of a container, a process tree, a cgroup or the machine: all of it, and nothing of its neighbours."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from iotwin.trace_store.raw.record_files import EVENTS_FILE, NAMES_FILE
from iotwin.trace_store.raw.records import EVENT, NAME_OPENED, read_names
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.backends.choose_backend import unavailable_reason
from iotwin.tracing_tools.targets.cgroup_mounts import cgroup2_mount
from tests.conftest import PATIENCE_S, run_iotwin
from tests.docker_engine import client, containers
from tests.processes import left_behind, start, wait_for
from tests.tracing_tools.recorder.test_capture import on_path, own_counts

pytestmark = pytest.mark.root
ROUNDS = 20
NO_NETWORK = ("--container-option", "network_mode=none")


def trace_image(tmp_path: Path, image: str, *words: str, options: tuple[str, ...] = (), status: int = 0) -> Trace:
    result = run_iotwin("trace", "-o", tmp_path / "t", "--image", image, *NO_NETWORK, *options, "--", *words)
    assert result.returncode == status, result.stderr
    assert not left_behind()
    return Trace(tmp_path / "t")


@contextmanager
def running(*command: str | Path) -> Iterator[subprocess.Popen]:
    """A command that is ended with all its group."""
    process = subprocess.Popen(list(map(str, command)), start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def tracing_meanwhile(directory: Path, *target: str | Path) -> Iterator[None]:
    """Trace what runs already, from before the block until it has ended: the block waits for what the test needs."""
    tracer = start("trace", "-o", directory, *target)
    wait_for(lambda: (directory / "raw" / EVENTS_FILE).exists(), "the recording")
    try:
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        _, errors = tracer.communicate(timeout=PATIENCE_S)
    assert tracer.returncode == 0, errors


def opens_recorded(directory: Path, path: str) -> int:
    """How often a file of this path has been opened, for all that the recorder has taken over."""
    content = (directory / "raw" / NAMES_FILE).read_bytes()
    return sum(name.type == NAME_OPENED and name.text == path.encode() for name in read_names(content))


def calls_recorded(directory: Path) -> Counter[int]:
    """Calls by process, for all that the recorder has taken over."""
    content = (directory / "raw" / EVENTS_FILE).read_bytes()
    return Counter(np.frombuffer(content, EVENT, len(content) // EVENT.itemsize)["pid"].tolist())


def test_the_containers_status_and_output_are_ours(tmp_path, test_image):
    options = (*NO_NETWORK, "--container-option", "name=iotwin-ours")
    script = "echo out; echo err >&2; exit 7"
    result = run_iotwin("trace", "-o", tmp_path / "t", "--image", test_image, *options, "--", "sh", "-c", script)
    assert result.returncode == 7
    assert result.stdout == "out\n" and "err\n" in result.stderr
    assert (tmp_path / "t" / "logs" / "stdout").read_text() == "out\n"
    assert (tmp_path / "t" / "logs" / "stderr").read_text() == "err\n"
    assert "iotwin-ours" not in containers()


def test_bcc_sees_a_container_and_not_its_runtime(tmp_path, test_image):
    if reason := unavailable_reason("bcc"):
        pytest.skip(f"no bcc here: {reason}")
    trace = trace_image(tmp_path, test_image, "sh", "-c", "cat /bin/calls | wc -c; true", options=("--backend", "bcc"))
    processes = trace.processes()
    assert (processes["comm"].iloc[0], processes["namespace_pid"].iloc[0]) == ("sh", 1)
    assert not processes["command_line"].str.startswith("runc").any()
    assert set(processes["comm"]) == {"sh", "cat", "wc"}


@contextmanager
def container(image: str, script: str, **options: object) -> Iterator[object]:
    made = client().containers.run(image, ["sh", "-c", script], network_mode="none", detach=True, **options)
    try:
        yield made
    finally:
        made.remove(force=True)


def test_a_container_that_runs(tmp_path, test_image):
    """Attached to by name: its file that was open already has its name, and it runs on when the trace ends."""
    script = "exec 3</etc/group; echo ready; while true; do head -c 1 <&3; cat /etc/passwd; sleep 0.05; done"
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("p")
    (tmp_path / "etc" / "group").write_text("g" * 4096)
    volumes = [f"{tmp_path}/etc/{name}:/etc/{name}" for name in ("passwd", "group")]
    with container(test_image, script, volumes=volumes, name="iotwin-test-running") as made:
        wait_for(lambda: made.logs(), "the container's output")
        with tracing_meanwhile(tmp_path / "t", "--container", "iotwin-test-running"):
            wait_for(lambda: opens_recorded(tmp_path / "t", "/etc/passwd") > 3, "rounds of the container")
        made.reload()
        assert made.status == "running"
    trace = Trace(tmp_path / "t")
    assert (on_path(trace, "/etc/group")["op"] == "read").sum() >= 2
    assert len(on_path(trace, "/etc/passwd"))
    processes = trace.processes()
    assert set(processes["container"].dropna()) == {"iotwin-test-running"}
    shell = processes[processes["namespace_pid"] == 1].iloc[0]
    assert np_isna(shell["start_ns"]) and shell["comm"] == "sh"
    assert any("its target continues" in note for note in trace.manifest.notes)


def np_isna(value: object) -> bool:
    return value != value or value is None


def test_a_container_that_a_command_starts(tmp_path, test_image):
    script = f'docker run --network=none --name=iotwin-launched {test_image} sh -c "cat /bin/calls | wc -c; exit 3"'
    result = run_iotwin("trace", "-o", tmp_path / "t", "--container", "iotwin-launched", "--", "sh", "-c", script)
    client().containers.get("iotwin-launched").remove()
    assert result.returncode == 3, result.stderr
    trace = Trace(tmp_path / "t")
    assert len(on_path(trace, "/bin/calls")) or len(on_path(trace, "/bin/busybox"))
    assert not any("first moments" in note for note in trace.manifest.notes)
    assert not trace.processes()["comm"].str.startswith(("runc", "docker")).any()


_READER = """
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY)
if os.fork() == 0:
    fd = os.open(sys.argv[1], os.O_RDONLY)
while True:
    os.pread(fd, 100, 7)
    time.sleep(0.01)
"""


def child_reads(pid: int, target: Path) -> bool:
    """The child has the file open twice: the parent's descriptor and its own."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return bool(children) and [link.readlink() for link in Path(f"/proc/{children[0]}/fd").iterdir()].count(target) == 2


def reads(pid: int) -> int:
    """How many calls that read the process has made."""
    return int(Path(f"/proc/{pid}/io").read_text().split("syscr:")[1].split()[0])


def test_a_process_tree_that_runs(tmp_path):
    target = tmp_path / "shared"
    target.write_bytes(bytes(4096))
    with running(sys.executable, "-c", _READER, target) as job, running(sys.executable, "-c", _READER, target) as other:
        wait_for(lambda: child_reads(job.pid, target) and child_reads(other.pid, target), "both children at work")
        with tracing_meanwhile(tmp_path / "t", "--pid", str(job.pid)):
            begun = reads(other.pid)
            wait_for(lambda: Counter(c > 20 for c in calls_recorded(tmp_path / "t").values())[True] == 2, "reads of both")
            wait_for(lambda: reads(other.pid) > begun + 20, "reads of the other job")
        assert job.poll() is None
    trace = Trace(tmp_path / "t")
    events = on_path(trace, str(target))  # opened before the trace began
    assert set(events["op"].astype(str)) == {"pread64"}
    assert events["pid"].nunique() == 2 and job.pid in set(events["pid"]) and other.pid not in set(events["pid"])
    assert trace.manifest.target.command[0] == sys.executable


@contextmanager
def reading_passwd(directory: Path) -> Iterator[Callable[[], int]]:
    """Have a process read /etc/passwd over and over; what is yielded tells how often it has."""
    rounds = directory / "rounds"
    rounds.touch()
    with running("sh", "-c", f"while true; do cat /etc/passwd; echo >> {rounds}; sleep 0.05; done >/dev/null"):
        yield lambda: rounds.read_text().count("\n")


def test_a_cgroup(tmp_path):
    mount = cgroup2_mount()
    assert mount is not None
    group = mount / f"test-{os.getpid()}"
    group.mkdir()
    try:
        script = f"echo $$ > {group}/cgroup.procs; while true; do cat /etc/hostname; sleep 0.05; done >/dev/null"
        with (
            running("sh", "-c", script),
            reading_passwd(tmp_path) as rounds,
            tracing_meanwhile(tmp_path / "t", "--cgroup", group),
        ):
            begun = rounds()
            wait_for(lambda: opens_recorded(tmp_path / "t", "/etc/hostname") > 2, "the cgroup's opens")
            wait_for(lambda: rounds() > begun + 2, "the other's opens")
        paths = set(Trace(tmp_path / "t").files()["path"])
        assert "/etc/hostname" in paths and "/etc/passwd" not in paths
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text(), "the end of the processes")
        group.rmdir()


def test_the_whole_machine_but_not_the_tracer(tmp_path):
    rounds = f"$(wc -l < {tmp_path}/rounds)"
    script = f"begun={rounds}; until [ {rounds} -gt $((begun + 2)) ]; do sleep 0.05; done; cat /etc/hostname; exit 4"
    with reading_passwd(tmp_path):
        result = run_iotwin("trace", "-o", tmp_path / "t", "--all", "--", "sh", "-c", script)
    assert result.returncode == 4, result.stderr
    trace = Trace(tmp_path / "t")
    assert {"/etc/hostname", "/etc/passwd"} <= set(trace.files()["path"])
    assert not any(path.startswith(str(tmp_path / "t/raw")) for path in trace.files()["path"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_trace_and_not_what_runs(tmp_path, number):
    with running("sh", "-c", "while true; do cat /etc/hostname; sleep 0.05; done >/dev/null") as job:
        tracer = start("trace", "-o", tmp_path / "t", "--pid", str(job.pid))
        wait_for(lambda: (tmp_path / "t" / "raw" / "events.bin").exists(), "the recording")
        wait_for(lambda: (tmp_path / "t" / "raw" / "events.bin").stat().st_size > 80_000, "a thousand events")
        tracer.send_signal(number)
        _, errors = tracer.communicate(timeout=PATIENCE_S)
        assert tracer.returncode == 0, errors
        assert job.poll() is None
    assert "/etc/hostname" in set(Trace(tmp_path / "t").files()["path"])


def test_a_commands_trace_ends_after_its_duration_and_the_command_later(tmp_path):
    manifest = tmp_path / "t" / "manifest.json"
    script = f"until grep -q '\"complete\"' {manifest}; do cat /etc/hostname; sleep 0.1; done; cat /etc/passwd; exit 5"
    result = run_iotwin("trace", "-o", tmp_path / "t", "--duration", "3s", "--", "sh", "-c", script)
    assert result.returncode == 5, result.stderr
    assert "root:" in result.stdout
    paths = set(Trace(tmp_path / "t").files()["path"])
    assert "/etc/hostname" in paths and "/etc/passwd" not in paths


def test_own_counts_of_a_process_tree_to_its_end(tmp_path, calls_program):
    """Forks, threads and programs of what it attached to are seen without a loss, and its end ends the trace."""
    target = tmp_path / "target"
    target.write_bytes(bytes(16384))
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = f"cat {gate}; exec {calls_program} {target} {ROUNDS} {tmp_path}/counts > {tmp_path}/own"
    job = subprocess.Popen(["sh", "-c", script])
    tracer = start("trace", "-o", tmp_path / "t", "--attach", str(job.pid))
    wait_for(lambda: (tmp_path / "t" / "raw" / "events.bin").exists(), "the recording")
    manifest = tmp_path / "t" / "manifest.json"
    wait_for(lambda: manifest.exists() and '"start_ns": 0' not in manifest.read_text(), "the start")
    gate.write_text("go\n")
    job.wait()
    _, errors = tracer.communicate(timeout=PATIENCE_S)
    assert tracer.returncode == 0, errors
    trace = Trace(tmp_path / "t")
    seen = on_path(trace, str(target))["op"].astype(str).replace({"openat": "open"}).value_counts().to_dict()
    (trace.path / "logs" / "stdout").write_text((tmp_path / "own").read_text())
    assert own_counts(trace) == {key: seen.get(key, 0) for key in own_counts(trace)}
