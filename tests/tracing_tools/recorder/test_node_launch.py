"""Commands that a launcher starts as one of several: one trace and one tracer for each machine, whatever happens to either."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from iotwin.common.ranks import claimed_ports
from iotwin.trace_store.manifest import read_manifest
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.backends.choose_backend import unavailable_reason
from iotwin.tracing_tools.recorder import node_launch
from iotwin.tracing_tools.targets import node_tasks
from tests.conftest import PATIENCE_S, ROOT, STARTED
from tests.processes import call, left_behind, one_line, wait_for
from tests.tracing_tools.recorder.test_capture import on_path

NODE = os.uname().nodename
LINE = ':::MLLOG {{"namespace": "", "time_ms": {}, "event_type": "INTERVAL_{}", "key": "epoch", "value": null, "metadata": {{}}}}'
# Reads the file in argv[1] as often as argv[2] says, within an epoch whose lines name no rank, and ends with the status argv[3].
READER = f"""
import os, sys, time
line = {LINE!r}
print(line.format(time.time_ns() // 10**6, "START"), flush=True)
file = os.open(sys.argv[1], os.O_RDONLY)
for _ in range(int(sys.argv[2])):
    os.pread(file, 10, 3)
print(line.format(time.time_ns() // 10**6, "END"), flush=True)
sys.exit(int(sys.argv[3]))
"""


def launched(rank: int, tasks: int) -> dict[str, str]:
    """The environment of a task of Open MPI's."""
    names = {"RANK": rank, "SIZE": tasks, "LOCAL_SIZE": tasks}
    return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in names.items()} | {"PMIX_NAMESPACE": "4711"}


def task(
    rank: int, tasks: int, directory: Path, *command: str | Path, options: Sequence[str] = (), stdin: int | None = None
) -> subprocess.Popen[str]:
    """Start `iotwin trace` as one of so many tasks of this machine."""
    words = [sys.executable, "-m", "iotwin", "trace", "-o", str(directory), *options, "--", *map(str, command)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **launched(rank, tasks)}
    streams = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(words, env=environment, text=True, **streams)
    STARTED.add(process.pid)
    return process


def reader(target: Path, reads: int, status: int = 0) -> list[str]:
    return [sys.executable, "-S", "-c", READER, str(target), str(reads), str(status)]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").write_bytes(bytes(4096))
    return tmp_path / "target"


def preads(trace: Trace, target: Path) -> dict[int, int]:
    """The reads of `target`, by the rank whose command made them."""
    events = on_path(trace, str(target))
    ranks = {each.pid: each.rank for each in trace.manifest.target.tasks}
    return {ranks[pid]: len(group) for pid, group in events[events["op"] == "pread64"].groupby("pid")}


@pytest.mark.parametrize("backend", ["libbpf", "strace", "preload"])
def test_the_tasks_of_a_node_share_a_tracer(tmp_path, target, backend):
    """The first one ends before the others, one is killed, and one begins when all have ended."""
    if reason := unavailable_reason(backend):
        pytest.skip(f"no {backend} here: {reason}")
    killed = ["sh", "-c", "kill -9 $$"]
    commands = [reader(target, 3, 7), reader(target, 11, 4), killed]
    options = ["--backend", backend]
    tasks = [task(rank, 3, tmp_path / "set", *command, options=options) for rank, command in enumerate(commands)]
    said = [each.communicate(timeout=PATIENCE_S) for each in tasks]
    assert [each.returncode for each in tasks] == [7, 4, 137], said
    assert [path.name for path in (tmp_path / "set").iterdir()] == [f"{NODE}.trace"]
    assert sum("finishing" in errors for _, errors in said) == 1
    assert [output.count(":::MLLOG") for output, _ in said] == [2, 2, 0]
    trace = Trace(tmp_path / "set" / f"{NODE}.trace")
    lost = trace.manifest.lost_events - (backend == "strace")  # which counts a call of a killed thread as lost
    assert (trace.manifest.status, lost, trace.manifest.target.launch) == ("complete", 0, "4711")
    assert [(each.rank, each.exit_status) for each in trace.manifest.target.tasks] == [(0, 7), (1, 4), (2, -9)]
    assert preads(trace, target) == {0: 3, 1: 11}
    phases = trace.phases()
    assert sorted(zip(phases["rank"], phases["phase"], strict=True)) == [(0, "epoch"), (1, "epoch")]
    assert {path.name for path in (trace.path / "logs").iterdir()} == {
        f"rank-{rank}.{name}" for rank in range(3) for name in ("stdout", "stderr")
    }
    late = task(2, 3, tmp_path / "set", *reader(target, 5, 9))
    assert "this task runs untraced" in late.communicate(timeout=PATIENCE_S)[1]
    assert late.returncode == 9 and Trace(trace.path).manifest.events == trace.manifest.events
    wait_for(lambda: not left_behind(), "the end of the cgroups")


@pytest.mark.root
def test_a_killed_tracer_ends_no_task(tmp_path, target):
    """What it recorded can be recovered, with the ranks; tasks that begin later run untraced."""
    for name in ("first", "second"):
        os.mkfifo(tmp_path / name)
    trace = tmp_path / "set" / f"{NODE}.trace"
    tracer = task(0, 3, tmp_path / "set", "cat", tmp_path / "first")
    wait_for(lambda: (trace / "raw" / "lock").exists(), "the recording")
    joined = task(1, 3, tmp_path / "set", "sh", "-c", f"cat {target} {tmp_path}/second; exit 5")
    wait_for(lambda: (trace / "logs" / "rank-1.stdout").exists() and _tasks(trace) == [0, 1], "the second task")
    opened = os.open(tmp_path / "second", os.O_WRONLY)
    ledgers = _ledgers(trace)
    wait_for(lambda: _ledgers(trace) > ledgers + 1, "a drain after the second task's reads")
    tracer.kill()
    tracer.communicate()
    os.close(opened)
    assert "last calls are missing" in joined.communicate(timeout=PATIENCE_S)[1]
    late = task(2, 3, tmp_path / "set", "sh", "-c", "exit 6")
    assert "its tracer was killed" in late.communicate(timeout=PATIENCE_S)[1]
    assert (joined.returncode, late.returncode) == (5, 6)
    os.close(os.open(tmp_path / "first", os.O_WRONLY))  # ends the tracer's own command
    assert call("recover", trace).returncode == 0
    assert Trace(trace).manifest.status == "recovered" and _tasks(trace) == [0, 1]
    assert len(on_path(Trace(trace), str(target)))


def _ledgers(trace: Path) -> int:
    return (trace / "raw" / "journal.jsonl").read_text().count('"kind": "ledger"')


def _tasks(trace: Path) -> list[int]:
    return [each.rank for each in read_manifest(trace).target.tasks]


@pytest.mark.root
def test_the_failure_of_another_task_ends_the_trace(tmp_path):
    options = ["--until", "failure"]
    tracer = task(0, 2, tmp_path / "set", "sh", "-c", "read line", options=options, stdin=subprocess.PIPE)
    trace = tmp_path / "set" / f"{NODE}.trace"
    wait_for(lambda: (trace / "raw" / "lock").exists(), "the recording")
    failed = task(1, 2, tmp_path / "set", "sh", "-c", "exit 3", options=options)
    wait_for(lambda: (trace / "events.parquet").exists() and not (trace / "raw").exists(), "the end of the trace")
    assert tracer.poll() is None
    tracer.communicate("\n", timeout=PATIENCE_S)
    failed.communicate(timeout=PATIENCE_S)
    assert (tracer.returncode, failed.returncode) == (0, 3)
    assert any("with exit status 3 (--until failure)" in text for text in Trace(trace).manifest.notes)


@pytest.mark.root
def test_an_interrupt_ends_the_wait_for_tasks_that_never_come(tmp_path):
    tracer = task(0, 2, tmp_path / "set", "sh", "-c", "echo $$")
    assert tracer.stdout is not None
    command = int(tracer.stdout.readline())
    wait_for(lambda: not Path(f"/proc/{command}/exe").exists(), "the end of the command")  # a zombie has no program
    tracer.terminate()
    assert "1 of the 2 tasks of this node are not in the trace" in tracer.communicate(timeout=PATIENCE_S)[1]
    assert tracer.returncode == 0


def test_a_name_that_nobody_can_use_is_one_line(tmp_path, monkeypatch):
    """Another process has it and answers nothing, or the kernel grants none."""
    mine = node_launch.NodeTask(0, NODE, "4711", 2)
    monkeypatch.setattr(node_launch, "ANSWER_S", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(node_tasks.socket_name(mine, tmp_path / f"{NODE}.trace"))
        with pytest.raises(node_launch.IotwinError, match="does not answer"):
            node_launch.trace_task(["true"], mine, tmp_path, node_launch.TraceOptions())
    with pytest.raises(OSError, match="too long"):
        node_tasks.listen("\0" + "x" * 200)


@pytest.fixture
def as_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in launched(1, 2).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("iotwin.main.await_turn_to_report", lambda: "")


@pytest.mark.usefixtures("as_a_task")
@pytest.mark.parametrize(
    ("options", "says"),
    [(["--live"], "--live shows the activity of one tracer"), (["--phases", "auto"], "--phases auto labels a command")],
)
def test_what_is_for_one_process_is_refused(tmp_path, options, says):
    done = call("trace", "-o", tmp_path / "set", *options, "--", "true")
    assert (done.returncode, says in one_line(done)) == (2, True)


@pytest.mark.usefixtures("as_a_task")
def test_a_trace_of_before_is_not_replaced(tmp_path):
    from tests.synthetic import Job, write_job

    write_job(tmp_path / "set" / f"{NODE}.trace", Job())
    done = call("trace", "-o", tmp_path / "set", "--", "true")
    assert (done.returncode, "holds a trace already" in one_line(done)) == (2, True)
    done = call("trace", "-o", tmp_path / "set" / f"{NODE}.trace", "--", "true")
    assert (done.returncode, "-o names a directory of traces" in one_line(done)) == (2, True)


def test_the_socket_of_another_user_is_not_used(tmp_path, monkeypatch):
    mine = node_launch.NodeTask(0, NODE, "4711", 2)
    name = node_tasks.socket_name(mine, tmp_path / "set" / f"{NODE}.trace")
    with ExitStack() as sockets:
        listener = node_tasks.listen(name)
        assert listener is not None and node_tasks.listen(name) is None
        sockets.enter_context(listener)
        monkeypatch.setattr(node_tasks, "_is_ours", lambda connection: False)
        with pytest.raises(node_launch.IotwinError, match="another user"):
            node_tasks.NodeTracer.find(name, 1)
    assert node_tasks.NodeTracer.find(name, 1) is None
    with node_tasks.listen(name) or pytest.fail("the name is free again"):
        pass


def _ranks_by_node(directory: Path, target: Path, reads: int) -> dict[str, list[int]]:
    """The ranks in the trace of each node; each must have made so many reads."""
    found = {}
    for path in sorted(directory.iterdir()):
        counted = preads(Trace(path), target)
        assert set(counted.values()) == {reads} and Trace(path).manifest.lost_events == 0
        found[path.stem] = sorted(counted)
    return found


@pytest.mark.root
def test_open_mpi_over_two_network_namespaces(tmp_path, target, two_namespaces):
    name, subnet = two_namespaces
    if shutil.which("mpirun") is None:
        pytest.skip("needs mpirun (Open MPI)")
    agent = tmp_path / "agent"  # stands for ssh
    agent.write_text(
        f'#!/bin/sh\nnode=$1; shift\nexec ip netns exec {name}-$node unshare --uts sh -c "hostname node-$node; $*"\n'
    )
    agent.chmod(0o755)
    network = ["--mca", "oob_tcp_if_include", f"{subnet}.0/24", "--mca", "plm_rsh_agent", str(agent), "-x", "PYTHONPATH"]
    launcher = ["mpirun", "--allow-run-as-root", "--host", "1:2,2:2", "--map-by", "node", *network]
    _launch(launcher, tmp_path / "set", reader(target, 6))
    assert _ranks_by_node(tmp_path / "set", target, 6) == {"node-1": [0, 2], "node-2": [1, 3]}


def _launch(launcher: Sequence[str], directory: Path, command: Sequence[str], **environment: str) -> None:
    words = [*launcher, sys.executable, "-m", "iotwin", "trace", "-o", str(directory), "--", *command]
    known = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(words, env=known, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr


SLURM = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdParameters=config_overrides
MpiDefault=none
MailProg=/bin/true
NodeName=node-[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}] CPUs=4 RealMemory=100
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@pytest.fixture
def slurm(open_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a SLURM cluster of two nodes, which are daemons of this machine with host names of their own."""
    if missing := [name for name in ("munged", "slurmctld", "slurmd", "srun") if shutil.which(name) is None]:
        pytest.skip(f"there is no SLURM here: no {', '.join(missing)}")
    key = open_path / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    (open_path / "state").mkdir()
    munge = [f"--{name}={open_path}/munge.{name.partition('-')[0]}" for name in ("key-file", "socket", "pid-file", "log-file")]
    munge += [f"--seed-file={open_path}/munge.seed"]
    with claimed_ports(3) as first, ExitStack() as daemons:
        config = open_path / "slurm.conf"
        ports = [first, first + 1, first + 2]
        config.write_text(SLURM.format(host=NODE.partition(".")[0], folder=open_path, ports=ports))
        environment = {"SLURM_CONF": str(config)}
        commands = [["munged", "--foreground", "--force", *munge], ["slurmctld", "-D", "-c"]]
        commands += [["unshare", "--uts", "sh", "-c", f"hostname node-{n}; exec slurmd -D -N node-{n}"] for n in (1, 2)]
        for number, command in enumerate(commands):
            log = daemons.enter_context((open_path / f"{number}.log").open("wb"))
            daemon = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log)
            daemons.callback(daemon.wait)
            daemons.callback(daemon.send_signal, signal.SIGTERM)
            if not number:
                wait_for((open_path / "munge.socket").exists, "munge's socket")
        states = ["sinfo", "-h", "-N", "-o", "%t"]
        known = {**os.environ, **environment}
        wait_for(lambda: subprocess.run(states, env=known, capture_output=True).stdout.split() == [b"idle"] * 2, "idle nodes")
        yield environment


@pytest.mark.root
def test_slurm_with_two_tasks_on_each_of_two_nodes(tmp_path, target, slurm):
    _launch(["srun", "-N2", "--ntasks-per-node=2"], tmp_path / "set", reader(target, 6), **slurm)
    assert _ranks_by_node(tmp_path / "set", target, 6) == {"node-1": [0, 1], "node-2": [2, 3]}
    manifests = [Trace(path).manifest for path in (tmp_path / "set").iterdir()]
    assert {manifest.host.hostname for manifest in manifests} == {"node-1", "node-2"}
