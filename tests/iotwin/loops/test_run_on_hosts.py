"""iotwin run --hosts: two hosts with ssh daemons. Whatever fails is named with its host; what the others recorded remains."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from msgspec import structs

from iotwin import __version__
from iotwin.common.errors import IotwinError, UsageError
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import BertLayout, Unet3dLayout
from iotwin.loops.experiments import cells_on_hosts as hosts_module
from iotwin.loops.experiments.cells_on_hosts import _check, _commands, _reason, reach_hosts
from iotwin.loops.experiments.experiment import cells, read_experiment
from iotwin.loops.experiments.host_check import KnownHost
from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.steps.step_logs import read_steps
from iotwin.workloads.launch import Ending
from tests.conftest import PATIENCE_S
from tests.processes import call, one_line, press_ctrl_c, processes_of, start, wait_for

TINY = {"eval-every": 0, "checkpoint-every": 1, "base-channels": 4, "depth": 2, "crop": "16", "threads": 1}
SSHD = """
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
StrictModes no
UsePAM no
PidFile none
PermitRootLogin prohibit-password
"""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny data set of unet3d."""
    directory = tmp_path_factory.mktemp("cases")
    generate(Unet3dLayout(scale=0.1), directory, samples=20, workers=1)
    return directory


def write(path: Path, folder: Path | None = None, **changes: object) -> Path:
    job = {"workload": "unet3d", "data": ["cases"], "variant": ["instrumented"], "ranks": [2], "batch": [2], "workers": [0]}
    job |= {"options": TINY | {"epochs": changes.pop("epochs", 2)}} | changes
    data = {"cases": {"workload": job["workload"], "folder": str(folder)}}
    path.write_text(yaml.safe_dump({"name": "small", "container": False, "data": data, "jobs": [job]}))
    return path


Daemon = Callable[..., str]


@pytest.fixture
def sshd(two_namespaces: tuple[str, str], open_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """Start the daemon of host 1 or 2, after commands of a shell in the host, and return the address of the host."""
    name, subnet = two_namespaces
    if missing := [program for program in ("sshd", "ssh", "nsenter") if shutil.which(program) is None]:
        pytest.skip(f"there is no {', '.join(missing)} here")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", open_path / "key"], check=True)
    (open_path / "known").write_text(f"* {(open_path / 'key.pub').read_text()}")
    (open_path / "sshd.conf").write_text(SSHD.format(folder=open_path))
    options = f"-o IdentityFile={open_path}/key -o UserKnownHostsFile={open_path}/known"
    (open_path / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F none {options} "$@"\n')
    (open_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{open_path}:{os.environ['PATH']}")
    Path("/run/sshd").mkdir(exist_ok=True)
    daemons = []

    def begin(host: int, prepare: str = "true") -> str:
        shell = f"hostname node-{host}; {prepare}; exec {shutil.which('sshd')} -D -e -f {open_path}/sshd.conf"
        words = ["nsenter", f"--net=/run/netns/{name}-{host}", "unshare", "--uts", "--mount", "sh", "-c", shell]
        daemon = subprocess.Popen(words, stderr=subprocess.PIPE)
        daemons.append(daemon)
        assert daemon.stderr is not None
        wait_for(lambda: b"listening" in daemon.stderr.readline(), "the daemon")
        return f"{subnet}.1{host}"

    yield begin
    for daemon in daemons:
        daemon.terminate()
        daemon.communicate()


def trace_of(output: Path, host: int) -> Path:
    """The trace of a host of the only cell, perhaps not there yet."""
    return next(iter(output.glob("cells/*")), output) / "trace" / f"node-{host}.trace"


def process_of(folder: Path, *words: str, rank: int | None = None) -> int:
    """The pid of the process whose command has these words, and whose environment has this rank."""
    [found] = [
        pid
        for pid, command in processes_of(folder)
        if {*words} <= {*command} and (rank is None or f"RANK={rank}" in Path(f"/proc/{pid}/environ").read_text().split("\0"))
    ]
    return found


def trains(folder: Path, host: int) -> bool:
    log = trace_of(folder / "out", host) / "logs" / "stdout"
    return log.exists() and "all_compute" in log.read_text()


def wait_for_training(folder: Path) -> None:
    wait_for(lambda: trains(folder, 1) and trains(folder, 2), "steps on both hosts")


@pytest.mark.root
@pytest.mark.torch
def test_a_cell_of_two_hosts_after_a_killed_run(tmp_path, sshd, cases):
    """The second run waits for what the first has left on the hosts."""
    source, output, hosts = write(tmp_path / "e.yaml", cases, epochs=5), tmp_path / "out", f"{sshd(1)},{sshd(2)}"
    killed = start("run", source, "-o", output, "--hosts", hosts)
    wait_for_training(tmp_path)
    killed.kill()
    killed.communicate()
    done = start("run", source, "-o", output, "--hosts", hosts, "--json")
    document = json.loads(done.communicate(timeout=PATIENCE_S)[0])
    assert done.returncode == 0 and document["failed"] == []
    assert not processes_of(tmp_path)
    [record] = document["finished"]
    assert record["result"]["world_size"] == 2 and record["asked"]["hosts"] == 2
    trace = trace_of(output, 1).parent
    rows = json.loads((trace / "set.json").read_text())["hosts"]
    assert [(row["host"], row["status"], row["ranks"]) for row in rows] == [
        ("node-1", "complete", [0]),
        ("node-2", "complete", [1]),
    ]
    reads = Trace(trace).files()
    assert set(reads[reads["path"].str.contains("case_")]["host"]) == {"node-1", "node-2"}
    blocks = read_steps([output / "cells"]).groupby("rank")["block"].unique()
    assert [sorted(blocks[rank]) for rank in (0, 1)] == [[1, 2, 3, 4, 5]] * 2


@pytest.mark.root
def test_bert_on_two_hosts(tmp_path, sshd):
    """TensorFlow's ranks listen at the address of their host each. The later host has one rank more."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    options = {"steps": 3, "eval-steps": 1, "layers": 1, "hidden": 32, "heads": 2, "sequence": 32, "threads": 1}
    changes = {"workload": "bert", "variant": ["original"], "ranks": [3], "options": options}
    generate(BertLayout(), tmp_path / "shards", size_bytes=2 << 20, workers=1)
    source = write(tmp_path / "e.yaml", tmp_path / "shards", **changes)
    done = call("run", source, "-o", tmp_path / "out", "--hosts", f"{sshd(1)},{sshd(2)}", "--json")
    [record] = json.loads(done.stdout)["finished"]
    assert record["result"]["world_size"] == 3
    rows = json.loads((trace_of(tmp_path / "out", 1).parent / "set.json").read_text())["hosts"]
    assert [row["ranks"] for row in rows] == [[0], [1, 2]]


@pytest.mark.root
@pytest.mark.torch
def test_a_killed_rank_ends_all_hosts_and_is_named(tmp_path, sshd, cases):
    run = start(
        "run",
        write(tmp_path / "e.yaml", cases, epochs=10**6),
        "-o",
        tmp_path / "out",
        "--hosts",
        f"{sshd(1)},{sshd(2)}",
        "--json",
    )
    wait_for_training(tmp_path)
    os.kill(process_of(tmp_path, "iotwin.workloads.unet3d", "--epochs", rank=1), signal.SIGKILL)
    document = json.loads(run.communicate(timeout=PATIENCE_S)[0])
    assert run.returncode == 1 and not processes_of(tmp_path)
    assert document["failed"][0]["reason"].startswith("rank 1 on node-2 was killed by signal 9 (Killed)")
    assert [Trace(trace_of(tmp_path / "out", host)).manifest.status for host in (1, 2)] == ["complete"] * 2
    assert Trace(trace_of(tmp_path / "out", 1).parent).manifest.lost_events == 0


@pytest.mark.root
@pytest.mark.torch
def test_a_killed_tracer_ends_all_hosts_and_its_trace_can_be_recovered(tmp_path, sshd, cases):
    run = start("run", write(tmp_path / "e.yaml", cases, epochs=10**6), "-o", tmp_path / "out", "--hosts", f"{sshd(1)},{sshd(2)}")
    wait_for_training(tmp_path)
    trace = trace_of(tmp_path / "out", 2)
    os.kill(process_of(tmp_path, "trace", str(trace)), signal.SIGKILL)
    output, _ = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 1 and re.search(rf"\.12 was lost: its tracer was killed; .*iotwin recover {trace}", output), output
    wait_for(lambda: not processes_of(tmp_path), "the end of the job that has lost its tracer")
    assert call("recover", trace).returncode == 0 and call("set", "make", trace.parent).returncode == 0
    rows = json.loads((trace.parent / "set.json").read_text())["hosts"]
    assert [row["status"] for row in rows] == ["complete", "recovered"]


@pytest.mark.root
@pytest.mark.torch
def test_an_interrupt_ends_all_hosts_first(tmp_path, sshd, cases):
    run = start("run", write(tmp_path / "e.yaml", cases, epochs=10**6), "-o", tmp_path / "out", "--hosts", f"{sshd(1)},{sshd(2)}")
    wait_for_training(tmp_path)
    done = press_ctrl_c(run)
    assert done.returncode == 130 and not processes_of(tmp_path)
    assert [Trace(trace_of(tmp_path / "out", host)).manifest.status for host in (1, 2)] == ["complete"] * 2


HIDE = "mount -t tmpfs none"


@pytest.mark.root
@pytest.mark.parametrize(
    ("second", "prepare", "message"),
    [
        ("{0}.99", "true", r"^{0}\.99: ssh: connect to host .*; `ssh {0}\.99 true` must succeed without a question"),
        ("root@{0}.11", "true", r"{0}\.11 and root@{0}\.11 are both called node-1; name a host once"),
        ("{0}.12", "hostname node-1", r"{0}\.11 and {0}\.12 are both called node-1; .*different host names"),
        ("{0}.12", f"{HIDE} {Path(sys.executable).parent}", rf"^{{0}}\.12: .*; install iotwin there, too, .*{sys.executable}"),
        ("{0}.12", f"{HIDE} PATH/shared", r"^{0}\.12: .*PATH/shared/out/hosts/.*; the current directory and -o must be on"),
        ("{0}.12", f"{HIDE} PATH/shared; mkdir -p PATH/shared/out/hosts", r"^{0}\.12 does not see what this machine writes"),
        ("{0}.12", f"{HIDE} PATH/here", r"^{0}\.12: env: cannot change directory to .*; the current directory and -o must be on"),
    ],
)
def test_hosts_that_cannot_run_the_job_are_named_first(tmp_path, sshd, two_namespaces, monkeypatch, second, prepare, message):
    subnet, output = two_namespaces[1], tmp_path / "shared" / "out"
    for folder in (output, tmp_path / "here" / "deep"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / "deep")
    sshd(1), sshd(2, prepare.replace("PATH", str(tmp_path)))
    done = call("run", write(tmp_path / "e.yaml"), "-o", output, "--hosts", f"{subnet}.11,{second.format(subnet)}")
    assert done.returncode in (1, 2) and not list((output / "cells").iterdir())
    line = one_line(done).removeprefix("iotwin run: ")
    assert re.search(message.replace("{0}", re.escape(subnet)).replace("PATH", str(tmp_path)), line), line


@pytest.mark.parametrize(
    ("hosts", "container", "message"),
    [
        ("-oProxyCommand=x", False, "'-oProxyCommand=x' is no host"),
        ("a,", False, "'' is no host"),
        ("a,b", True, "--no-container"),
    ],
)
def test_what_cannot_be_hosts(tmp_path, hosts, container, message):
    source = write(tmp_path / "e.yaml")
    source.write_text(source.read_text().replace("container: false", f"container: {json.dumps(container)}"))
    done = call("run", source, "-o", tmp_path / "out", f"--hosts={hosts}")
    assert done.returncode == 2 and message in one_line(done)


def test_hosts_that_never_answer_are_named(tmp_path, monkeypatch):
    (tmp_path / "ssh").write_text('#!/bin/sh\ncase "$*" in *" slow "*) exec sleep 1000; esac\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(hosts_module, "_WAIT_S", 0.5)
    monkeypatch.setattr(hosts_module, "_CHECK_GRACE_S", 0.1)
    with pytest.raises(IotwinError, match=r"^slow: no answer after 1.0 s; try: ssh slow true$"):
        reach_hosts(["a", "slow"], tmp_path)


def known(*addresses: str) -> list[KnownHost]:
    return [KnownHost(f"node-{index}", each, 29500, 1, __version__, True) for index, each in enumerate(addresses)]


def test_a_host_that_others_would_not_find(tmp_path):
    with pytest.raises(UsageError, match=r"^localhost is the loopback address here"):
        _check(["a", "localhost"], known("10.0.0.1", "127.0.0.1"), tmp_path)
    _check(["a", "b"], known("127.0.0.1", "::1"), tmp_path)
    with pytest.raises(IotwinError, match=r"^a has iotwin 0\.0\.1, and this machine .*; install the same version"):
        _check(["a"], [structs.replace(known("10.0.0.1")[0], version="0.0.1")], tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks": [1]}, "it has 1 rank for 2 hosts"),
        ({"ranks": [3]}, None),
        ({"workload": "dlrm", "options": {}}, "dlrm is one process, which cannot run on 2 hosts"),
        ({"variant": ["emulated"], "emulate": ["workload=unet3d"]}, "emulated is one process"),
        ({"ranks": [3], "gpus": True}, "it needs 2 GPUs of node-1, which has 1"),
    ],
)
def test_cells_that_cannot_run_on_two_hosts(tmp_path, changes, message):
    gpus = changes.pop("gpus", False)
    grid = structs.replace(read_experiment(write(tmp_path / "e.yaml", **changes)), gpus=gpus)
    arguments = (grid, cells(grid)[0], known("10.0.0.1", "10.0.0.2"), ["job"], [tmp_path / "a.trace", tmp_path / "b.trace"])
    if message:
        with pytest.raises(IotwinError, match=message):
            _commands(*arguments)
        return
    shares = [command[command.index("--share") + 1 :] for command in _commands(*arguments)]
    assert shares == [["10.0.0.1,10.0.0.2", index, "29500", "3", "job"] for index in "01"]


def test_the_rank_that_was_killed_precedes_those_that_failed_because_of_it(tmp_path):
    grid = structs.replace(read_experiment(write(tmp_path / "e.yaml")), hosts=["a", "b", "c"])
    traces, logs = ([tmp_path / f"{host}.{kind}" for host in "abc"] for kind in ("trace", "log"))
    for trace, text in zip(traces[:2], ("reset by peer\nlaunch: rank 0 on a ended with exit status 1\nunet3d: interrupted",
                                        "launch: rank 1 on b was killed by signal 9 (Killed)"), strict=True):  # fmt: skip
        (trace / "logs").mkdir(parents=True)
        (trace / "logs" / "stderr").write_text(text)
    for log in logs:
        log.write_text('ssh: gone\n{"trace": "x"}')
    failed = "rank 1 on b was killed by signal 9 (Killed); also rank 0 on a ended with exit status 1: reset by peer"
    assert _reason(grid, Ending([1, 137, 1], 0, "x"), traces, logs) == f"{failed}; see {tmp_path}"
    assert _reason(grid, Ending([1, 137, 255], 0, "x"), traces, logs).startswith("c was lost: ssh: gone; also rank 1 on b was")
    shutil.rmtree(traces[0])
    shutil.rmtree(traces[1])
    failed = f"the tracer on a ended with exit status 1: ssh: gone; see {logs[0]}"
    assert _reason(grid, Ending([1, 0, 0], 0, "x"), traces, logs) == failed
    assert "time limit of 1h" in _reason(grid, Ending([1, 1, 1], None, "x"), traces, logs)
