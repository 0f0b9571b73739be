"""Traces of several hosts as one: aligned, told apart, nothing lost."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.common.errors import IotwinError, UsageError
from iotwin.trace_store.clocks import between_hosts
from iotwin.trace_store.manifest import ClockPair, read_manifest, write_manifest
from iotwin.trace_store.merge import PIDS_PER_HOST, merge_traces
from iotwin.trace_store.reader import Trace
from tests.conftest import PATIENCE_S, ROOT
from tests.processes import call
from tests.synthetic import SECOND, Job, write_job

BOOTED = 1_700_000_000 * SECOND


def host_trace(path: Path, name: str, boot_ns: int, **job) -> Trace:
    """A synthetic trace of a host that was booted at the UNIX time `boot_ns`."""
    write_job(path, Job(**job))
    manifest = read_manifest(path)
    manifest.host.hostname = name
    ends = manifest.start_ns, manifest.end_ns
    manifest.clock = [ClockPair(time_ns, boot_ns + time_ns, 100) for time_ns in ends]
    manifest.notes = ["a note"]
    write_manifest(path, manifest)
    return Trace(path)


def test_two_hosts_on_the_clock_of_the_first(tmp_path):
    # The second was booted 7 s later, so that its clock shows 7 s less at the same moment.
    first = host_trace(tmp_path / "a", "node0", BOOTED, seed=1, parts=True)
    second = host_trace(tmp_path / "b", "node1", BOOTED + 7 * SECOND, seed=2, parts=True)
    merge_traces([first, second], tmp_path / "set")
    merged = Trace(tmp_path / "set")
    events = merged.events_frame()
    assert len(events) == len(first.events_frame()) + len(second.events_frame())
    assert events["start_ns"].is_monotonic_increasing
    on_second = events["pid"] >= PIDS_PER_HOST
    for trace, part, shift in ((first, events[~on_second], 0), (second, events[on_second], 7 * SECOND)):
        original = trace.events_frame()
        assert (part["start_ns"].to_numpy() - original["start_ns"].to_numpy() == shift).all()
        assert (part["op"].astype(str).to_numpy() == original["op"].astype(str).to_numpy()).all()
        paths = [
            frame.files()["path"].to_numpy()[ids["file_id"].dropna().astype(int)]
            for frame, ids in ((merged, part), (trace, original))
        ]
        assert (paths[0] == paths[1]).all()
    processes = merged.processes()
    assert set(processes["host"]) == {"node0", "node1"} and processes["pid"].is_unique
    assert (merged.files()["file_id"] == np.arange(len(merged.files()))).all()
    steps = [trace.step_parts()["start_ns"].tolist() for trace in (first, second)]
    assert merged.step_parts()["start_ns"].tolist() == sorted(steps[0] + [start_ns + 7 * SECOND for start_ns in steps[1]])
    assert len(merged.phases()) == len(first.phases()) + len(second.phases())
    hosts = merged.manifest.hosts
    assert [host.shift_ns for host in hosts] == [0, 7 * SECOND] and [host.uncertainty_ns for host in hosts] == [100, 200]
    assert merged.manifest.notes == ["node0: a note", "node1: a note"]
    wall_ns = merged.manifest.end_ns - merged.manifest.start_ns
    assert merged.manifest.cost.wall_ns == wall_ns > 0
    assert merged.manifest.cost.events_per_s == pytest.approx(len(events) / (wall_ns / SECOND), abs=0.05)
    assert merged.manifest.counts == {op: 2 * n for op, n in first.manifest.counts.items()}


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
    traces = [host_trace(tmp_path / str(i), "same", BOOTED + i * SECOND, seed=i) for i in range(3)]
    whole = Trace.events
    monkeypatch.setattr(Trace, "events", lambda trace: whole(trace, batch_rows=7))
    merge_traces(traces, tmp_path / "set")
    monkeypatch.undo()
    merged = Trace(tmp_path / "set")
    assert merged.events_frame()["start_ns"].is_monotonic_increasing
    assert merged.manifest.events == sum(trace.manifest.events for trace in traces)
    assert {host.name for host in merged.manifest.hosts} == {"same", "same-2", "same-3"}


def test_what_cannot_be_merged(tmp_path):
    trace = host_trace(tmp_path / "a", "node0", BOOTED)
    with pytest.raises(UsageError, match="2 to"):
        merge_traces([trace], tmp_path / "set")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="other files"):
        merge_traces([trace, trace], tmp_path / "full")
    blind = host_trace(tmp_path / "b", "node1", BOOTED)
    blind.manifest.clock = []
    with pytest.raises(IotwinError, match="no reading of the clocks"):
        merge_traces([trace, blind], tmp_path / "set")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "full"]
    result = call("merge", tmp_path / "a", tmp_path / "none", "-o", tmp_path / "set")
    assert result.returncode == 1 and "no such trace" in result.stderr


@pytest.mark.root
def test_two_hosts_as_namespaces_of_one_machine(tmp_path):
    """Each with its own host name, processes and network, one `iotwin trace` in each; both write the same moments."""
    code = "import time\nfor _ in range(20): open('/etc/hostname').read(); print(time.time_ns(), flush=True); time.sleep(0.05)"
    hosts = []
    for name in ("node0", "node1"):
        inner = f'hostname {name}; exec "$@"'
        command = ["unshare", "--uts", "--net", "--pid", "--fork", "--mount-proc", "sh", "-c", inner, "sh"]
        trace = [sys.executable, "-m", "iotwin", "trace", "-o", tmp_path / name, "--quiet", "--", sys.executable, "-c", code]
        hosts.append(subprocess.Popen([*command, *map(str, trace)], env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}))
    assert [host.wait(timeout=PATIENCE_S) for host in hosts] == [0, 0]
    result = call("merge", tmp_path / "node0", tmp_path / "node1", "-o", tmp_path / "set")
    assert result.returncode == 0, result.stderr
    merged = Trace(tmp_path / "set")
    assert [host.name for host in merged.manifest.hosts] == ["node0", "node1"]
    # One machine, one clock: the shift is what the readings leave uncertain.
    assert all(abs(host.shift_ns) <= max(host.uncertainty_ns, 10_000) for host in merged.manifest.hosts)
    files, events = merged.files(), merged.events_frame()
    for name in ("node0", "node1"):
        mine = files[(files["host"] == name) & (files["path"] == "/etc/hostname")]["file_id"]
        opened = events[(events["op"] == "openat") & events["file_id"].isin(mine)]["start_ns"].to_numpy()
        wall = np.loadtxt(merged.path / "logs" / f"{name}.stdout", dtype=np.int64)
        clock = merged.manifest.clock[0]
        assert len(opened) == 20
        assert (opened + clock.realtime_ns - clock.monotonic_ns <= wall + 1_000_000).all()


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
        trace.manifest.status, trace.manifest.exit_status, trace.manifest.workload = status, end, label
    made = merge_traces(traces, tmp_path / "set")
    assert (made.status, made.exit_status, made.workload) == expected
