"""Traces of several hosts as one: aligned, told apart, nothing lost."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.common.errors import UsageError
from iotwin.trace_store.clocks import between_hosts
from iotwin.trace_store.hosts.merge import merge_traces
from iotwin.trace_store.hosts.shifts import estimate_shifts
from iotwin.trace_store.manifest import ClockPair, read_manifest, write_manifest
from iotwin.trace_store.parquet_tables import TraceTables
from iotwin.trace_store.reader import Trace
from tests.conftest import PATIENCE_S, ROOT
from tests.processes import call
from tests.synthetic import SECOND, Job, write_job

BOOTED = 1_700_000_000 * SECOND


def host_trace(path: Path, name: str, boot_ns: int, **job) -> Path:
    """A synthetic trace of a host that was booted at the UNIX time `boot_ns`."""
    write_job(path, Job(log_phases=False, **job))
    manifest = read_manifest(path)
    manifest.host.hostname = name
    ends = manifest.start_ns, manifest.end_ns
    manifest.clock = [ClockPair(time_ns, boot_ns + time_ns, 100) for time_ns in ends]
    manifest.notes = ["a note"]
    write_manifest(path, manifest)
    return path


def test_two_hosts_on_the_clock_of_the_first(tmp_path):
    # The second was booted 7 s later, so that its clock shows 7 s less at the same moment.
    first = host_trace(tmp_path / "a", "node0", BOOTED, seed=1)
    second = host_trace(tmp_path / "b", "node1", BOOTED + 7 * SECOND, seed=2)
    merge_traces([first, second], tmp_path / "set")
    merged = Trace(tmp_path / "set")
    starts = [Trace(path).events_frame()["start_ns"] + shift for path, shift in ((first, 0), (second, 7 * SECOND))]
    assert merged.events_frame()["start_ns"].tolist() == sorted([*starts[0], *starts[1]])
    hosts = merged.manifest.hosts
    assert [host.shift_ns for host in hosts] == [0, 7 * SECOND] and [host.uncertainty_ns for host in hosts] == [0, None]
    assert merged.manifest.notes == ["node0: a note", "node1: a note"]
    wall_ns = merged.manifest.end_ns - merged.manifest.start_ns
    assert merged.manifest.cost.wall_ns == wall_ns > 0
    assert merged.manifest.cost.events_per_s == pytest.approx(merged.manifest.events / (wall_ns / SECOND), abs=0.05)
    assert merged.manifest.counts == {op: 2 * n for op, n in read_manifest(first).counts.items()}


@given(st.integers(-(10**15), 10**15), st.floats(-100, 100), st.integers(2, 20))
def test_a_drifting_clock_is_followed(offset, drift_ppm, count):
    """A host whose wall clock drifts against its monotonic one, as NTP makes it: wall times meet."""
    ticks = np.arange(count) * 10 * SECOND
    own = [ClockPair(int(t), BOOTED + int(t) + round(t * drift_ppm / 1e6), 50) for t in ticks]
    reference = [ClockPair(offset + int(t), BOOTED + int(t), 50) for t in ticks]
    shifted = between_hosts(own, reference)(ticks[:-1])
    expected = offset + ticks[:-1] + np.rint(ticks[:-1] * drift_ppm / 1e6)
    assert np.abs(shifted - expected).max() <= 2


def test_batches_are_merged_in_order_whatever_their_size(tmp_path, monkeypatch):
    paths = [host_trace(tmp_path / str(i), "same", BOOTED + i * SECOND, seed=i) for i in range(3)]
    whole = TraceTables.events
    monkeypatch.setattr(TraceTables, "events", lambda trace, columns, where, rows: whole(trace, columns, where, 7))
    merge_traces(paths, tmp_path / "set")
    monkeypatch.undo()
    merged = Trace(tmp_path / "set")
    assert merged.events_frame()["start_ns"].is_monotonic_increasing
    assert merged.manifest.events == sum(read_manifest(path).events for path in paths)
    assert {host.name for host in merged.manifest.hosts} == {"same", "same-2", "same-3"}


def test_what_cannot_be_merged(tmp_path):
    trace = host_trace(tmp_path / "a", "node0", BOOTED)
    with pytest.raises(UsageError, match="2 to"):
        merge_traces([trace], tmp_path / "set")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="other files"):
        merge_traces([trace, trace], tmp_path / "full")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "full"]
    result = call("merge", tmp_path / "a", tmp_path / "none", "-o", tmp_path / "set")
    assert result.returncode == 2 and "no such trace" in result.stderr


_PEERS = """import os, socket, sys, time
if sys.argv[1] == "node0":
    peer, _ = socket.create_server(("10.9.9.1", 4000)).accept()
else:
    while True:
        try:
            peer = socket.create_connection(("10.9.9.1", 4000))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
for _ in range(20):
    open("/etc/hostname").read()
    print(time.time_ns(), flush=True)
    os.write(peer.fileno(), b"x" * 100)
    os.read(peer.fileno(), 100)
    time.sleep(0.05)
"""


@pytest.mark.root
@pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip of iproute2")
def test_two_hosts_as_namespaces_of_one_machine(tmp_path):
    """Each with its own host name and processes, one `iotwin trace` in each; both write the same moments, and talk by TCP."""
    traces = []
    for name in ("node0", "node1"):
        trace = [sys.executable, "-m", "iotwin", "trace", "-o", tmp_path / name, "--quiet", "--"]
        job = [sys.executable, "-c", _PEERS, name]
        inner = f'hostname {name}; exec "$@"'
        command = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "sh", "-c", inner, "sh", *trace, *job]
        traces.append(shlex.join(map(str, command)))
    network = "ip link set lo up; ip address add 10.9.9.1/32 dev lo"
    line = f"{network}; {traces[0]} & first=$!; {traces[1]} && wait $first"
    environment = {"PATH": "/usr/sbin:/sbin:/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    subprocess.run(["unshare", "--net", "sh", "-c", line], env=environment, timeout=PATIENCE_S, check=True)
    result = call("merge", tmp_path / "node0", tmp_path / "node1", "-o", tmp_path / "set")
    assert result.returncode == 0, result.stderr
    merged = Trace(tmp_path / "set")
    assert [host.name for host in merged.manifest.hosts] == ["node0", "node1"]
    assert [host.how for host in merged.manifest.hosts] == ["one clock"] * 2
    assert all(abs(host.shift_ns) <= 1000 for host in merged.manifest.hosts)
    files, events = merged.files(), merged.events_frame()
    for name in ("node0", "node1"):
        mine = files[(files["host"] == name) & (files["path"] == "/etc/hostname")]["file_id"]
        opened = events[(events["op"] == "openat") & events["file_id"].isin(mine)]["start_ns"].to_numpy()
        wall = np.loadtxt(merged.path / "logs" / f"{name}.stdout", dtype=np.int64)
        clock = merged.manifest.clock[0]
        assert len(opened) == 20
        assert (opened + clock.realtime_ns - clock.monotonic_ns <= wall + 1_000_000).all()
    # Without what shows that they share a clock, the connection bounds the shift, whose true value is 0.
    apart = [TraceTables(tmp_path / name) for name in ("node0", "node1")]
    for trace in apart:
        trace.manifest.host.boot_id, trace.manifest.clock = "", []
    shift = estimate_shifts(apart)[1]
    assert shift.how == "sockets" and abs(shift.at(apart[1].manifest.start_ns)) <= shift.error_ns
    written = {path.partition(" ")[2].partition("->")[0] for path in files[files["kind"] == "socket"]["path"]}
    assert "10.9.9.1:4000" in written


@pytest.mark.parametrize(
    ("statuses", "ends", "labels", "expected"),
    [
        (("complete", "complete"), (0, 0), ("x", "x"), ("complete", 0, "x")),
        (("complete", "recovered"), (0, 3), ("x", "y"), ("recovered", 3, None)),
        (("recovered", "recovered"), (None, None), (None, None), ("recovered", None, None)),
    ],
)
def test_a_merge_is_as_whole_and_as_well_as_all_its_traces(tmp_path, statuses, ends, labels, expected):
    traces = [host_trace(tmp_path / name, name, BOOTED) for name in "ab"]
    for trace, status, end, label in zip(traces, statuses, ends, labels, strict=True):
        manifest = read_manifest(trace)
        manifest.status, manifest.exit_status, manifest.workload = status, end, label
        write_manifest(trace, manifest)
    made = merge_traces(traces, tmp_path / "set")
    assert (made.status, made.exit_status, made.workload) == expected
