"""Real captures of real programs: every call once, under the right path, and nothing of anybody else."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from iotwin.trace_store.reader import Trace
from tests.conftest import ROOT, run_iotwin, until_sampled
from tests.processes import call

pytestmark = pytest.mark.root
ROUNDS = 20


def record(tmp_path: Path, *command: str | Path, backend: str = "libbpf", status: int = 0, name: str = "t.trace") -> Trace:
    result = call("trace", "-o", tmp_path / name, "--backend", backend, "--", *command)
    assert result.returncode == status, result.stderr
    return Trace(tmp_path / name)


def python(tmp_path: Path, code: str, **options) -> Trace:
    return record(tmp_path, sys.executable, "-c", code, **options)


def on_path(trace: Trace, path: str):
    files = trace.files()
    ids = files.loc[files["path"] == path, "file_id"]
    events = trace.events_frame()
    return events[events["file_id"].isin(ids)]


def own_counts(trace: Trace) -> dict[str, int]:
    lines = (trace.path / "logs" / "stdout").read_text().split("\n")
    return {line.split()[0]: int(line.split()[1]) for line in lines if line}


def test_counts_equal_the_programs_own(tmp_path, calls_program):
    target = tmp_path / "target"
    target.write_bytes(bytes(16384))
    trace = record(tmp_path, calls_program, target, str(ROUNDS), tmp_path / "counts")
    events = on_path(trace, str(target))
    seen = events["op"].astype(str).replace({"openat": "open"}).value_counts().to_dict()
    assert own_counts(trace) == {key: seen.get(key, 0) for key in own_counts(trace)}
    # Main, two threads, two children, and one of these again after an exec: six times the work.
    assert seen["read"] == 6 * 2 * ROUNDS
    assert events["pid"].nunique() == 3
    assert events["tid"].nunique() == 5
    assert trace.manifest.lost_events == 0
    assert trace.manifest.seen == trace.manifest.events == len(trace.events_frame())


def test_counts_equal_strace(tmp_path, calls_program):
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    target = tmp_path / "target"
    target.write_bytes(bytes(16384))
    command = [calls_program, target, str(ROUNDS), tmp_path / "counts"]
    trace = record(tmp_path, *command)
    subprocess.run(["strace", "-f", "-c", "-o", tmp_path / "summary", *command], check=True, capture_output=True)
    oracle = {}
    for line in (tmp_path / "summary").read_text().splitlines():
        match = re.match(r"\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", line)
        if match:
            oracle[match[2]] = int(match[1])
    for op in ("read", "write", "openat", "close", "fsync"):
        assert trace.manifest.counts[op] == oracle[op], op


@pytest.mark.parametrize("backend", ["libbpf", "strace"])
def test_offsets_sizes_and_results(tmp_path, backend):
    target = tmp_path / "data"
    code = f"""
import os
fd = os.open({str(target)!r}, os.O_RDWR | os.O_CREAT)
os.write(fd, b"x" * 1000)
os.write(fd, b"x" * 24)
os.pwrite(fd, b"y" * 10, 4096)
os.lseek(fd, 512, 0)
os.read(fd, 100)
os.read(fd, 8192)
os.preadv(fd, [bytearray(64), bytearray(64)], 128)
os.fsync(fd)
os.close(fd)
end = os.open({str(target)!r}, os.O_WRONLY | os.O_APPEND)
os.write(end, b"z")
"""
    events = on_path(python(tmp_path, code, backend=backend), str(target))
    rows = (
        events[["op", "offset", "requested", "result"]]
        .astype(object)
        .where(events[["op", "offset", "requested", "result"]].notna(), None)
    )
    expected = [
        ("write", 0, 1000, 1000),
        ("write", 1000, 24, 24),
        ("pwrite64", 4096, 10, 10),
        ("read", 512, 100, 100),
        ("read", 612, 8192, 3494),
        ("preadv2", 128, 128, 128),
        ("fsync", None, None, 0),
        ("close", None, None, 0),
    ]
    found = [tuple(row) for row in rows.itertuples(index=False)]
    assert found[1:9] == expected
    if backend == "libbpf":  # strace does not tell where an appending write landed
        assert found[10] == ("write", 4106, 1, 1)
    assert (events["duration_ns"] >= 0).all()
    assert events["start_ns"].is_monotonic_increasing


def test_backends_agree_row_by_row(tmp_path, calls_program):
    target = tmp_path / "target"
    target.write_bytes(bytes(16384))
    rows = {}
    for backend in ("libbpf", "strace"):
        events = on_path(
            record(tmp_path, calls_program, target, "3", tmp_path / "counts", backend=backend, name=backend), str(target)
        )
        columns = events[["op", "offset", "requested", "result"]].copy()  # descriptors depend on what other threads hold
        columns.loc[columns["op"].isin(["mmap", "openat"]), "result"] = 0  # an address; a number that other threads' files shift
        columns[["offset", "requested"]] = columns[["offset", "requested"]].fillna(-1)
        # Threads and processes interleave differently in each run: compare the rows of each in their own order, as a multiset.
        per_thread = [tuple(map(tuple, group.astype(str).to_numpy())) for _, group in columns.groupby(events["tid"])]
        rows[backend] = sorted(per_thread)
    assert rows["libbpf"] == rows["strace"]


def test_paths_as_the_job_sees_them(tmp_path):
    folder = os.fsencode(tmp_path)
    names = [b"with space", b"new\nline", b"quote'\"", b"caf\xc3\xa9", b"bad\xff\xfebytes", b"x" * 255]
    code = f"""
import os
names = {names!r}
os.chdir({folder!r})
os.makedirs(b"deep/" * 20, exist_ok=True)
for name in names:
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
directory = os.open(b"deep", os.O_RDONLY)
os.close(os.open(b"../with space", os.O_RDONLY, dir_fd=directory))
os.close(os.open(b"deep/" * 20 + b"leaf", os.O_CREAT | os.O_WRONLY))
try:
    os.open(b"deep/absent", os.O_RDONLY)
except FileNotFoundError:
    pass
"""
    trace = python(tmp_path, code)
    files = trace.files()
    paths = set(files["path"])
    for name in names:
        assert (folder + b"/" + name).decode("utf-8", "backslashreplace") in paths
    assert f"{tmp_path}/{'deep/' * 20}leaf" in paths
    absent = files[files["path"] == f"{tmp_path}/deep/absent"]
    assert list(absent["kind"].astype(str)) == ["missing"]
    assert len(on_path(trace, f"{tmp_path}/with space")) == 4  # two opens, two closes
    assert on_path(trace, f"{tmp_path}/deep/absent")["result"].tolist() == [-2]
    status = (tmp_path / "with space").stat()
    row = files[files["path"] == f"{tmp_path}/with space"].iloc[0]
    assert (row["inode"], row["device"]) == (status.st_ino, status.st_dev)


def test_paths_across_mounts(tmp_path):
    """A bind mount and a root of its own: the path is the job's, not the host's."""
    (tmp_path / "real").mkdir()
    (tmp_path / "seen").mkdir()
    (tmp_path / "real" / "file").write_text("content")
    script = f"mount --bind {tmp_path}/real {tmp_path}/seen && cat {tmp_path}/seen/file"
    trace = record(tmp_path, "unshare", "--mount", "sh", "-c", script)
    assert f"{tmp_path}/seen/file" in set(trace.files()["path"])


def test_renamed_and_deleted_files(tmp_path):
    code = f"""
import os
for epoch in range(2):
    with open({str(tmp_path / "last.pt.tmp")!r}, "wb", buffering=0) as file:
        file.write(os.urandom(100_000 + epoch))
    os.replace({str(tmp_path / "last.pt.tmp")!r}, {str(tmp_path / "last.pt")!r})
os.unlink({str(tmp_path / "last.pt")!r})
"""
    trace = python(tmp_path, code)
    files, events = trace.files(), trace.events_frame()
    written = files[files["path"] == str(tmp_path / "last.pt.tmp")]
    assert list(written["renamed_to"]) == [str(tmp_path / "last.pt")] * 2
    assert list(written["kind"].astype(str)) == ["checkpoint"] * 2
    sizes = events[events["op"] == "write"].groupby("file_id")["result"].sum()
    assert [sizes[i] for i in written["file_id"]] == [100_000, 100_001]
    unlinked = events[(events["op"] == "unlink") & (events["result"] == 0)]
    assert unlinked["file_id"].tolist() == [written["file_id"].iloc[1]]


def test_files_of_a_renamed_folder_have_the_names_that_it_gives_them(tmp_path):
    """As checkpoints are committed: written into step.tmp, which becomes step-N; and the older one is removed."""
    code = f"""
import os, shutil
os.chdir({str(tmp_path)!r})
for step in (1, 2):
    os.makedirs("step.tmp/rank")
    for name in ("manifest", "rank/state.tmp"):
        with open("step.tmp/" + name, "wb", buffering=0) as file:
            file.write(os.urandom(100_000 + step))
    os.rename("step.tmp/rank/state.tmp", "step.tmp/rank/state")
    os.rename("step.tmp", f"step-{{step}}")
os.unlink("step-1/rank/state")
assert not os.path.exists("step.tmp/manifest")
"""
    trace = python(tmp_path, code)
    files, events = trace.files(), trace.events_frame()
    sizes = events[events["op"] == "write"].groupby("file_id")["result"].sum()
    written = files[files["file_id"].isin(sizes.index) & (files["kind"] == "checkpoint")]
    names = written.set_index("renamed_to")["path"].str.removeprefix(f"{tmp_path}/").to_dict()
    assert names == {
        f"{tmp_path}/step-{step}/{last}": f"step.tmp/{first}"
        for step in (1, 2)
        for first, last in (("manifest", "manifest"), ("rank/state.tmp", "rank/state"))
    }
    assert {name: sizes[i] - 100_000 for name, i in zip(written["renamed_to"], written["file_id"], strict=True)} == {
        name: int(name.removeprefix(f"{tmp_path}/step-")[0]) for name in names
    }
    unlinked = events[(events["op"] == "unlink") & (events["result"] == 0)]["file_id"].tolist()
    assert [files["renamed_to"].iloc[i] for i in unlinked] == [f"{tmp_path}/step-1/rank/state"]
    missing = files[(files["path"] == f"{tmp_path}/step.tmp/manifest") & (files["kind"] == "missing")]
    assert missing["renamed_to"].isna().all()


def test_nothing_of_a_neighbour(tmp_path):
    """Another process that reads the same file all the while is not in the trace."""
    shared = tmp_path / "shared"
    shared.write_bytes(bytes(1 << 16))
    loop = f"while True: open({str(shared)!r}, 'rb').read()"
    neighbour = subprocess.Popen([sys.executable, "-c", loop])
    try:
        code = f"import os\nfor _ in range(50):\n  fd = os.open({str(shared)!r}, 0)\n  os.pread(fd, 100, 7)\n  os.close(fd)"
        trace = python(tmp_path, code)
    finally:
        neighbour.kill()
        neighbour.wait()
    events = on_path(trace, str(shared))
    assert events["op"].astype(str).value_counts().to_dict() == {"openat": 50, "pread64": 50, "close": 50}
    assert neighbour.pid not in set(trace.processes()["pid"])


def test_processes_and_roles(tmp_path):
    data = tmp_path / "sample.npy"
    data.write_bytes(bytes(100_000))
    code = f"""
import os
for _ in range(2):
    if os.fork() == 0:
        open({str(data)!r}, "rb").read()
        os._exit(3)
    os.wait()
os.spawnvp(os.P_WAIT, "true", ["true"])
"""
    processes = python(tmp_path, code).processes()
    assert list(processes["role"].astype(str)) == ["rank", "loader", "loader", "helper"]
    assert processes["exit_status"].tolist() == [0, 3, 3, 0]
    assert processes["comm"].iloc[3] == "true"
    assert (processes["start_ns"] <= processes["exit_ns"]).all()
    assert processes["ppid"].iloc[1:].tolist() == [processes["pid"].iloc[0]] * 3


def test_pipes_and_logs_are_told_from_files(tmp_path):
    script = "echo to-stdout; echo to-stderr >&2; seq 1000 | cat >/dev/null"
    trace = record(tmp_path, "sh", "-c", script)
    kinds = set(trace.files()["kind"].astype(str))
    assert {"log", "pipe"} <= kinds
    assert (trace.path / "logs" / "stdout").read_text() == "to-stdout\n"
    assert (trace.path / "logs" / "stderr").read_text() == "to-stderr\n"
    files, events = trace.files(), trace.events_frame()
    on_pipes = events[events["file_id"].isin(files.loc[files["kind"] == "pipe", "file_id"])]
    assert len(on_pipes) and on_pipes["offset"].isna().all()


def test_samples_and_clock(tmp_path):
    script = until_sampled(tmp_path / "t", "cpu", 5)
    result = run_iotwin("trace", "-o", tmp_path / "t", "--interval", "50ms", "--", "sh", "-c", script)
    assert result.returncode == 0
    trace = Trace(tmp_path / "t")
    cpu = trace.samples("cpu")
    assert cpu is not None and len(cpu) >= 4
    assert np.allclose(cpu[["user", "system", "iowait", "idle"]].sum(axis=1), 1, atol=1e-5)
    assert cpu["job_cpus"].notna().all() and (cpu["job_cpus"] >= 0).all()
    assert trace.samples("memory") is not None and trace.samples("gpu") is None
    if Path("/proc/pressure/cpu").exists():
        pressure = trace.samples("pressure")
        assert pressure is not None and set(pressure["resource"]) == {"cpu", "memory", "io"}
        assert pressure["some"].between(0, 1).all()
    clock = trace.manifest.clock
    assert len(clock) >= 2 and all(pair.uncertainty_ns < 1_000_000 for pair in clock)


def test_samples_last_until_the_end_of_the_job(tmp_path):
    """A job shorter than the interval between samples, and what a longer one does after the last of them, is sampled too."""
    trace = python(tmp_path, "import time\nwhile time.process_time() < 0.7: pass")
    cpu = trace.samples("cpu")
    sampled_ns = (cpu["job_cpus"] * cpu["interval_ns"]).sum()
    assert trace.manifest.cost.job_cpu_ns - sampled_ns <= 0.1e9, "what is left is less than a tenth of an interval"
    assert (cpu["time_ns"] <= trace.manifest.end_ns).all()


def test_parts_of_steps_are_kept(tmp_path):
    code = """
import time
from iotwin.workloads.common.parts import Parts
parts = Parts(True, rank=1)
for step in (1, 2):
    with parts.measure("all_compute", step_num=step, epoch_num=3):
        time.sleep(0.02)
"""
    trace = python(tmp_path, f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + code)
    parts = trace.step_parts()
    assert parts["name"].astype(str).tolist() == ["all_compute"] * 2 and parts["step"].tolist() == [1, 2]
    assert set(parts["rank"]) == {1} and set(parts["epoch"]) == {3}
    assert (parts["duration_ns"] >= 20_000_000).all() and parts["start_ns"].is_monotonic_increasing
    assert parts["start_ns"].between(trace.manifest.start_ns, trace.manifest.end_ns).all()
    assert not len(trace.phases())


def test_mllog_lines_become_phases(tmp_path):
    code = """
import json, time
def line(kind, key, **metadata):
    now = time.time_ns()
    event = {"time_ms": now // 10**6, "time_ns": now, "event_type": kind, "key": key, "metadata": metadata}
    print(":::MLLOG", json.dumps(event), flush=True)
line("INTERVAL_START", "init"); line("INTERVAL_END", "init")
for epoch in (1, 2):
    line("INTERVAL_START", "epoch", epoch_num=epoch); time.sleep(0.05); line("INTERVAL_END", "epoch", epoch_num=epoch)
print(":::MLLOG {torn")
"""
    trace = python(tmp_path, code)
    phases = trace.phases()
    assert list(phases["phase"].astype(str)) == ["init", "epoch", "epoch"]
    assert phases["epoch"].tolist()[1:] == [1, 2]
    assert ((phases["end_ns"] - phases["start_ns"]).iloc[1:] >= 50_000_000).all()
    assert phases["start_ns"].between(trace.manifest.start_ns, trace.manifest.end_ns).all()
    assert any("torn" in note for note in trace.manifest.notes)


def test_dlio_lines_become_phases(tmp_path):
    code = """
import datetime, time
def line(text):
    print(f"[OUTPUT] {datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%S.%f} {text}", flush=True)
line("Starting epoch 1: 4 steps expected"); time.sleep(0.05); line("Ending epoch 1 - 4 steps completed in 0.05 s")
line("Starting saving checkpoint 1 after epoch 1"); line("Finished saving checkpoint 1 for epoch 1")
"""
    trace = python(tmp_path, code)
    phases = trace.phases()
    assert list(phases["phase"].astype(str)) == ["epoch", "checkpoint"]
    assert phases["epoch"].iloc[0] == 1
    assert phases["start_ns"].between(trace.manifest.start_ns, trace.manifest.end_ns).all()


def test_the_process_tree_filters_where_there_is_no_cgroup(tmp_path, calls_program, monkeypatch):
    from iotwin.tracing_tools.recorder import record_target as capture
    from iotwin.tracing_tools.targets.cgroup import JobCgroup

    monkeypatch.setattr(JobCgroup, "create", classmethod(lambda cls, parent: "this test has none"))
    target = tmp_path / "target"
    target.write_bytes(bytes(16384))
    loop = f"while True: open({str(target)!r}, 'rb').read()"
    neighbour = subprocess.Popen([sys.executable, "-c", loop])
    try:
        command = [str(calls_program), str(target), str(ROUNDS), str(tmp_path / "counts")]
        capture.trace_command(command, tmp_path / "t", capture.TraceOptions(forward_output=False))
    finally:
        neighbour.kill()
        neighbour.wait()
    trace = Trace(tmp_path / "t")
    events = on_path(trace, str(target))
    seen = events["op"].astype(str).replace({"openat": "open"}).value_counts().to_dict()
    assert own_counts(trace) == {key: seen.get(key, 0) for key in own_counts(trace)}
    assert neighbour.pid not in set(events["pid"])
    assert any("process tree" in note for note in trace.manifest.notes)


def test_the_cost_of_tracing_a_call_is_measured_by_calls_that_are_not_recorded(tmp_path):
    trace = python(tmp_path, "open('/etc/hostname').read()")
    manifest, paths = trace.manifest, trace.files()["path"]
    assert manifest.cost.transfer_ns and manifest.cost.call_ns
    assert not paths.str.startswith("/memfd:iotwin").any() and len(trace.processes()) == 1
    assert manifest.seen == manifest.events == len(trace.events_frame()) and not manifest.lost_events
