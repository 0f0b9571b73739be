"""Every way to capture gives the same rows of the same program, and says what it cannot do."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from iotwin.common.errors import IotwinError, UsageError
from iotwin.trace_store.manifest import Host, Manifest, Target
from iotwin.trace_store.raw.record_files import Recording
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.schema import FLAG_DIRECT
from iotwin.trace_store.syscalls import Kind, calls_of
from iotwin.tracing_tools.backend_base import Scope
from iotwin.tracing_tools.backends import bcc, bpftrace, preload
from iotwin.tracing_tools.backends.choose_backend import BACKEND_NAMES, unavailable_reason
from iotwin.tracing_tools.backends.kernel_types import KernelTypes
from iotwin.tracing_tools.backends.tracefs import with_tracefs
from iotwin.tracing_tools.probes import BPFTRACE_EVENTS
from tests.conftest import PATIENCE_S, ROOT, compile_c, run_iotwin, small_disk
from tests.processes import call, children, left_behind, name_of, start, wait_for

pytestmark = pytest.mark.root
ROUNDS = 3


def record(directory: Path, backend: str, *command: str | Path) -> Trace:
    if reason := unavailable_reason(backend):
        pytest.skip(f"no {backend} here: {reason}")
    result = call("trace", "-o", directory / backend, "--backend", backend, "--quiet", "--", *command)
    assert result.returncode == 0, result.stderr
    return Trace(directory / backend)


def on_file(trace: Trace, path: Path):
    files, events = trace.files(), trace.events_frame()
    return events[events["file_id"].isin(files.loc[files["path"] == str(path), "file_id"])]


def rows_by_thread(trace: Trace, path: Path) -> list[tuple]:
    """The rows of each thread in its order; threads in an order of their own, as they interleave differently in each run."""
    rows = on_file(trace, path)
    columns = rows[["op", "offset", "requested", "result"]].copy()  # descriptors depend on what other threads hold
    columns["op"] = columns["op"].astype(str)
    columns.loc[columns["op"].isin(["mmap", "openat"]), "result"] = 0  # an address; a number that other threads' files shift
    columns[["offset", "requested"]] = columns[["offset", "requested"]].fillna(-1)
    return sorted(tuple(map(tuple, group.astype(str).to_numpy())) for _, group in columns.groupby(rows["tid"]))


@pytest.fixture(scope="module")
def reference(tmp_path_factory, calls_program):
    directory = tmp_path_factory.mktemp("reference")
    target = directory / "target"
    target.write_bytes(bytes(16384))
    return record(directory, "libbpf", calls_program, target, str(ROUNDS), directory / "counts"), directory


@pytest.mark.parametrize("backend", [name for name in BACKEND_NAMES if name != "libbpf"])
def test_backends_agree_row_by_row(tmp_path, calls_program, reference, backend):
    expected, directory = reference
    target = tmp_path / "target"
    target.write_bytes(bytes(16384))
    trace = record(tmp_path, backend, calls_program, target, str(ROUNDS), tmp_path / "counts")
    rows = rows_by_thread(trace, target)
    assert rows == rows_by_thread(expected, directory / "target")
    assert sum(map(len, rows)) == 6 * ROUNDS * 10
    status, row = target.stat(), trace.files().set_index("path").loc[str(target)]
    assert (row["inode"], row["device"], row["size_bytes"]) == (status.st_ino, status.st_dev, status.st_size)
    assert trace.manifest.lost_events == 0
    # Each call within the run, and none longer than all of it; the sum over the fsyncs, which wait for the disk, is no nonsense.
    events, manifest = trace.events_frame(), trace.manifest
    assert (events["start_ns"] >= manifest.start_ns).all()
    assert ((events["start_ns"] + events["duration_ns"]) <= manifest.end_ns).all()
    assert (on_file(trace, target)["duration_ns"] > 0).all()
    # Asked for by default, and libbpf's alone: nobody may take its absence for there being none.
    assert any("does not record" in note and "io_uring and libaio" in note for note in manifest.notes)
    processes = trace.processes()
    assert len(processes) == 3 and (processes["exit_status"] == 0).all()
    assert processes["ppid"].iloc[1:].tolist() == [processes["pid"].iloc[0]] * 2


# A read into whose pipe nothing comes for a while. Tells instants before it, within it, before what it waits for, and after each.
_WAITING = """
import os, time
r, w = os.pipe()
reader, before = os.getpid(), time.monotonic_ns()
if os.fork() == 0:
    while open(f"/proc/{reader}/stat").read().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.01)
    within = time.monotonic_ns()
    time.sleep(0.1)
    os.write(w, b"%333d" % within + b"%333d" % time.monotonic_ns())
    os._exit(0)
told = os.read(r, 777)
read = time.monotonic_ns()
os.wait()
print(before, *told.decode().split(), read, time.monotonic_ns())
"""
_CLOCKS_NS = 1_000_000  # strace's times are of another clock


@pytest.mark.parametrize("backend", BACKEND_NAMES)
def test_durations_are_the_calls_own(tmp_path, backend):
    trace = record(tmp_path, backend, sys.executable, "-c", _WAITING)
    before, within, writing, read, end = map(int, (trace.path / "logs" / "stdout").read_text().split())
    events = trace.events_frame().assign(end_ns=lambda frame: frame["start_ns"] + frame["duration_ns"])
    reader = events[(events["op"] == "read") & (events["requested"] == 777)].iloc[0]
    writer = events[(events["op"] == "write") & (events["requested"] == 666)].iloc[0]
    early, late = -_CLOCKS_NS, _CLOCKS_NS
    assert before + early <= reader["start_ns"] <= within + late and writing + early <= reader["end_ns"] <= read + late
    assert writing + early <= writer["start_ns"] and writer["end_ns"] <= end + late


@pytest.mark.parametrize("backend", BACKEND_NAMES)
def test_a_write_past_the_page_cache_is_told_from_one_through_it(tmp_path, backend):
    """On one descriptor, which fcntl(2) switches."""
    target = tmp_path / "target"
    code = f"""
import fcntl, mmap, os
fd = os.open({str(target)!r}, os.O_WRONLY | os.O_CREAT)
flags = fcntl.fcntl(fd, fcntl.F_GETFL)
os.write(fd, b"x" * 4096)
fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
os.write(fd, mmap.mmap(-1, 4096))
fcntl.fcntl(fd, fcntl.F_SETFL, flags)
os.write(fd, b"x" * 100)
"""
    rows = on_file(record(tmp_path, backend, sys.executable, "-c", code), target)
    writes = rows[rows["op"] == "write"]
    assert writes["result"].tolist() == [4096, 4096, 100]
    assert (writes["flags"] & FLAG_DIRECT).tolist() == [0, FLAG_DIRECT, 0]


# ---- bcc ----


def test_bcc_sees_paths_and_names(tmp_path):
    """Paths across mounts, names with a line break, names given to calls that fail: without bpf_loop and kernel headers."""
    (tmp_path / "real").mkdir()
    (tmp_path / "seen").mkdir()
    (tmp_path / "real" / "new\nline").write_text("content")
    code = "import os\nfor name in ('seen/new\\nline', 'deep/' + 'd/' * 20 + 'leaf'): os.close(os.open(name, 0))\n"
    code += "try: os.open('absent', 0)\nexcept OSError: pass"
    (tmp_path / "deep" / Path("d/" * 20)).mkdir(parents=True)
    (tmp_path / "deep" / Path("d/" * 20) / "leaf").touch()
    script = f'mount --bind {tmp_path}/real {tmp_path}/seen && cd {tmp_path} && "$1" -c "$2"'
    trace = record(tmp_path, "bcc", "unshare", "--mount", "sh", "-c", script, "sh", sys.executable, code)
    paths = set(trace.files()["path"])
    assert {f"{tmp_path}/seen/new\nline", f"{tmp_path}/deep/{'d/' * 20}leaf", f"{tmp_path}/absent"} <= paths


def test_bcc_counts_what_its_ring_cannot_hold(tmp_path):
    if reason := bcc.unavailable_reason():
        pytest.skip(f"no bcc here: {reason}")
    backend = bcc.BccBackend(Scope(), buffer_bytes=4096)
    with Recording(tmp_path / "t", Manifest("recording", "bcc", Host("h", "k", 1, 1, "x86_64"), Target([]))) as recording:
        backend.start()
        job = subprocess.Popen(
            ["sh", "-c", "read go; head -c 1000000 /dev/zero | dd bs=1000 of=/dev/null"], stdin=subprocess.PIPE
        )
        backend.follow(job.pid)
        job.communicate(b"go\n")
        backend.stop(recording)
        ledger = backend.ledger()
        assert ledger.lost["ring_full"] > 0
        assert ledger.seen == recording.events_written + ledger.lost["ring_full"]


def test_bcc_leaves_no_headers_behind(tmp_path, monkeypatch):
    if reason := bcc.unavailable_reason():
        pytest.skip(f"no bcc here: {reason}")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    broken = tmp_path / "broken.c"
    broken.write_text("int this is no C")
    monkeypatch.setattr(bcc, "BCC_SOURCE", broken)
    with pytest.raises(IotwinError, match=r"bcc cannot load its program: .*error"):
        bcc.BccBackend(Scope(cgroup_id=1))
    assert list(tmp_path.iterdir()) == [broken]
    assert "BCC_KERNEL_SOURCE" not in os.environ


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_bcc_compiles_in_a_process_that_holds_tensorflow():
    """TensorFlow gives its LLVM to all who look for one, and bcc's compiler crashed in it."""
    if reason := bcc.unavailable_reason():
        pytest.skip(f"no bcc here: {reason}")
    code = "import tensorflow\nfrom iotwin.tracing_tools.backends import choose_backend as c\nprint(c.unavailable_reason('bcc'))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.splitlines()[-1:]) == (0, ["None"]), result.stderr


def test_fields_are_where_bpftool_finds_them():
    """Offsets from our own reading of BTF, against those in the structures that bpftool prints from it."""
    if shutil.which("bpftool") is None:
        pytest.skip("bpftool is not installed")
    types = KernelTypes()
    dump = subprocess.run(
        ["bpftool", "btf", "dump", "file", "/sys/kernel/btf/vmlinux"], capture_output=True, text=True, check=True
    ).stdout
    for structure, field in (("task_struct", "files"), ("task_struct", "comm"), ("inode", "i_ino"), ("mm_struct", "arg_start")):
        members = dump.partition(f"STRUCT '{structure}' ")[2].partition("\n[")[0]
        found = [line for line in members.splitlines() if f"'{field}' " in line]
        if found:  # mm_struct's are within a part without a name
            assert int(found[0].partition("bits_offset=")[2].split()[0]) == types.offset(structure, field) * 8
    with pytest.raises(IotwinError, match="no field nonsense"):
        types.offset("inode", "nonsense")


# ---- preload ----


def test_preload_survives_processes_of_every_kind(tmp_path):
    """Threads, fork, spawn and forkserver, exec through a shell: the bytes written and read are all there, each once."""
    (tmp_path / "job.py").write_text(f"""
import multiprocessing, os, subprocess, threading
def work(i):
    with open(f"{tmp_path}/x{{i}}-{{os.getpid()}}-{{threading.get_ident()}}", "wb", buffering=0) as file:
        for _ in range(20):
            file.write(b"x" * 1000)
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        jobs = [multiprocessing.get_context(method).Process(target=work, args=(i,)) for i in range(2)]
        [job.start() for job in jobs]
        [job.join() for job in jobs]
    threads = [threading.Thread(target=work, args=(i,)) for i in range(20)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    subprocess.run("head -c 100000 {tmp_path}/x* > {tmp_path}/all", shell=True, check=True)
    os._exit(0)
""")
    trace = record(tmp_path, "preload", sys.executable, tmp_path / "job.py")
    files, events = trace.files(), trace.events_frame()
    mine = files[files["path"].str.startswith(f"{tmp_path}/x")]
    moved = events[events["file_id"].isin(mine["file_id"])].groupby("op", observed=True)["result"].sum()
    assert len(mine) == 26 and moved["write"] == moved["read"] == 26 * 20_000
    processes = trace.processes()
    assert set(processes["comm"]) >= {"sh", "head"}
    assert processes["exit_status"].dropna().eq(0).all()


def test_preload_refuses_what_it_cannot_see(tmp_path):
    (tmp_path / "p.c").write_text("int main(void) { return 0; }")
    program = compile_c(tmp_path / "static", tmp_path / "p.c", options=["-static"])
    result = call("trace", "-o", tmp_path / "t", "--backend", "preload", "--", program)
    assert result.returncode == 1 and "statically linked" in result.stderr and "--backend strace" in result.stderr
    assert not (tmp_path / "t").exists()
    with pytest.raises(IotwinError, match="only a command that it starts itself"):
        preload.PreloadBackend(Scope(starts_command=False))
    with pytest.raises(UsageError, match="no command 'no-such-program'"):
        preload.PreloadBackend(Scope()).wrap(["no-such-program"], tmp_path)


def test_preload_says_what_it_misses(tmp_path):
    trace = record(tmp_path, "preload", "true")
    assert any("statically linked" in note for note in trace.manifest.notes)


def test_preload_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no C compiler" in (preload.unavailable_reason() or "")


def test_preload_counts_what_a_full_disk_loses(tmp_path):
    """The job's own writes go elsewhere and all succeed; the records that found no room are counted."""
    with small_disk(tmp_path / "small", 1500 << 10) as small:
        code = "import os\nfd = os.open('/dev/null', os.O_WRONLY)\nfor _ in range(50000): os.write(fd, b'x')\nprint('whole')"
        command = [sys.executable, "-c", code]
        result = run_iotwin("trace", "-o", small / "t", "--backend", "preload", "--", *command)
        assert "whole" in result.stdout  # the job ended as it would have
        # What is left may just fit: then the trace is whole but for what it says is lost.
        assert result.returncode == 0 or "No space left on device" in result.stderr.splitlines()[-1]
        shutil.copytree(small / "t", tmp_path / "t")
    if result.returncode != 0:
        recovered = run_iotwin("recover", tmp_path / "t")
        assert recovered.returncode == 0, recovered.stderr
    manifest = Trace(tmp_path / "t").manifest
    assert manifest.lost_events > 0 and manifest.events + manifest.lost_events >= 50000


def test_preload_as_another_user(open_path):
    """Under sudo the job is the invoking user: it must be able to write its records, and owns the trace."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SUDO_UID": "65534", "SUDO_GID": "65534"}
    result = run_iotwin(
        "trace", "-o", open_path / "t", "--backend", "preload", "--quiet", "--", "cat", "/etc/hostname", env=environment
    )
    assert result.returncode == 0, result.stderr
    assert "/etc/hostname" in set(Trace(open_path / "t").files()["path"])


# ---- bpftrace ----


def test_bpftrace_is_not_deceived_by_names(tmp_path):
    """A job that writes what looks like the script's lines into a path forges no event; paths are as libbpf has them."""
    name = "x\n12 1 0 5 5 5 1 1 0 3 0 0 0 0 0 0 7 7 7 33188 0"
    (tmp_path / name).write_text("content")
    code = f"import os; os.chdir({str(tmp_path)!r}); os.close(os.open({name!r}, 0))\n"
    code += "try: os.open('absent\\n0 1 2', 0)\nexcept OSError: pass\nos.rename('a', 'b')"
    (tmp_path / "a").touch()
    trace = record(tmp_path, "bpftrace", sys.executable, "-c", code)
    files = trace.files()
    assert {f"{tmp_path}/{name}", f"{tmp_path}/absent\n0 1 2"} <= set(files["path"])
    assert files.set_index("path").loc[f"{tmp_path}/a", "renamed_to"] == f"{tmp_path}/b"
    assert trace.manifest.lost_events == 0 and trace.manifest.seen == trace.manifest.events
    assert 5 not in set(trace.events_frame()["pid"])


def test_bpftrace_scripts_work_from_the_shell(tmp_path, calls_program):
    """The summary counts in the kernel what the program counts itself."""
    if reason := bpftrace.unavailable_reason():
        pytest.skip(f"no bpftrace here: {reason}")
    target = tmp_path / "target"
    target.write_bytes(bytes(16384))
    script = f'read go; exec "{calls_program}" "{target}" 5 "{tmp_path}/counts"'
    job = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    out = tmp_path / "out"
    with out.open("wb") as file:
        command = ["bpftrace", "-B", "line", str(ROOT / "tracing_tools" / "probes" / "io_summary.bt"), str(job.pid)]
        summary = subprocess.Popen(with_tracefs(command), stdout=file, stderr=subprocess.STDOUT)
        while b"counting" not in out.read_bytes():
            assert summary.poll() is None, out.read_text()
            time.sleep(0.05)
        job.communicate(b"go\n")
        summary.wait(PATIENCE_S)
    text = out.read_text()
    assert "@calls[pwrite64]: 30" in text and "@bytes[pwrite64]: 30000" in text
    assert "@file_bytes[pwrite64, target]: 30000" in text


_MOUNTED = "mount -t tracefs tracefs /sys/kernel/tracing"
_NOT_MOUNTED = "umount --lazy /sys/kernel/tracing; umount --lazy /sys/kernel/debug/tracing; umount --lazy /sys/kernel/debug"


def with_mounts(mounts: str, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `command` in a mount namespace of its own, after the shell commands `mounts`."""
    script = f'{{ {mounts}; }} 2>/dev/null; exec "$@"'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *command], capture_output=True, text=True, check=False, env=environment
    )


@pytest.mark.parametrize(("mounts", "seen"), [(_MOUNTED, "1"), (_NOT_MOUNTED, "0")])
def test_bpftrace_traces_with_and_without_tracefs(tmp_path, mounts, seen):
    """What is missing is mounted for bpftrace alone: the job sees the machine's mounts as they are."""
    if reason := bpftrace.unavailable_reason():
        pytest.skip(f"no bpftrace here: {reason}")
    trace = [sys.executable, "-m", "iotwin", "trace", "--backend", "bpftrace", "--quiet", "-o", tmp_path / "t", "--"]
    done = with_mounts(mounts, *trace, "sh", "-c", "grep -c ' /sys/kernel/tracing tracefs ' /proc/mounts; true")
    assert done.returncode == 0, done.stderr
    recorded = Trace(tmp_path / "t")
    assert (recorded.path / "logs" / "stdout").read_text().strip() == seen
    assert any(path.endswith("/mounts") for path in recorded.files()["path"])
    assert recorded.manifest.lost_events == 0 and recorded.manifest.events > 0


def test_bpftrace_is_not_promised_where_tracefs_cannot_be_mounted():
    if reason := bpftrace.unavailable_reason():
        pytest.skip(f"no bpftrace here: {reason}")
    code = "from iotwin.tracing_tools.backends import bpftrace; print(bpftrace.unavailable_reason())"
    unprivileged = ["setpriv", "--inh-caps=-sys_admin", "--bounding-set=-sys_admin", sys.executable, "-c", code]
    done = with_mounts(_NOT_MOUNTED, *unprivileged)
    assert "tracefs is not mounted" in done.stdout and "mount -t tracefs tracefs /sys/kernel/tracing" in done.stdout, done.stderr
    assert with_mounts(_MOUNTED, *unprivileged).stdout.strip() == "None"


def test_bpftrace_knows_the_calls_of_the_data_group():
    found = dict(re.findall(r"@kind\[(\d+)\] = (\d+)", BPFTRACE_EVENTS.read_text()))
    simple = {str(number): str(int(kind)) for number, kind in calls_of(("data",)).values() if kind <= Kind.WAIT}
    assert found.items() <= simple.items()
    assert len(found) >= 29


def test_bpftrace_ends_with_a_killed_tracer(tmp_path):
    if reason := bpftrace.unavailable_reason():
        pytest.skip(f"no bpftrace here: {reason}")
    command = ["trace", "-o", tmp_path / "t", "--backend", "bpftrace", "--quiet", "--", "sleep", "600"]
    tracer = start(*command, stdout=None, stderr=None)
    started: dict[str, int] = {}

    def both() -> bool:
        assert tracer.poll() is None
        started.update({name_of(pid): pid for pid in children(tracer.pid)})
        return {"bpftrace", "sleep"} <= started.keys()

    wait_for(both, "bpftrace and, once the probes are attached, the job")
    tracer.kill()
    tracer.wait()
    wait_for(lambda: _has_ended(started["bpftrace"]), "the end of bpftrace")
    os.kill(started["sleep"], signal.SIGKILL)
    record(tmp_path, "libbpf", "true")  # the next trace removes what the killed one left
    assert not left_behind()


def _has_ended(pid: int) -> bool:
    try:
        return "(zombie)" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def test_bpftrace_says_why_it_cannot(tmp_path, monkeypatch):
    if reason := bpftrace.unavailable_reason():
        pytest.skip(f"no bpftrace here: {reason}")
    broken = tmp_path / "broken.bt"
    broken.write_text("tracepoint:no:such { }")
    monkeypatch.setattr(bpftrace, "BPFTRACE_EVENTS", broken)
    backend = bpftrace.BpftraceBackend(Scope())
    backend.wrap(["true"], tmp_path)
    with pytest.raises(IotwinError, match=r"bpftrace cannot attach the probes: .*"):
        backend.follow(os.getpid())
    with pytest.raises(IotwinError, match="only a command that it starts itself"):
        bpftrace.BpftraceBackend(Scope(starts_command=False))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "bpftrace is not installed" in (bpftrace.unavailable_reason() or "")
