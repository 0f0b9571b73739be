"""Shifts between hosts' clocks: whatever the evidence and the drift, the true shift is within the stated bound."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.trace_store import schema
from iotwin.trace_store.clocks import interpolated
from iotwin.trace_store.hosts.shifts import ShiftBounds, estimate_shifts
from iotwin.trace_store.hosts.socket_order import socket_orders
from iotwin.trace_store.manifest import ClockPair, Host, Manifest, Target
from iotwin.trace_store.raw import record_files, wall_clock_error

SECOND = 1_000_000_000
MS = 1_000_000
SPAN = 60 * SECOND
EPOCH = 1_700_000_000 * SECOND


@dataclass
class Simulated:
    """A host with its own clock, as estimate_shifts reads a trace. True time counts from 0 in ns."""

    name: str
    offset_ns: int = 0
    drifts_ppm: list[float] = field(default_factory=lambda: [0.0])  # of equal parts of the trace
    wall_error_ns: int = 0
    max_error_ns: int | None = None
    calls: list[tuple] = field(default_factory=list)  # (true start, true end, op, socket, bytes)
    phases: list[tuple] = field(default_factory=list)  # (name, true begin, true end, step)
    sockets: list[str] = field(default_factory=list)
    lost: int = 0

    def at(self, time_ns):
        """The host's CLOCK_MONOTONIC at a true time."""
        edges = np.linspace(-SPAN, 2 * SPAN, len(self.drifts_ppm) + 1)
        gained = np.concatenate([[0], np.cumsum(np.diff(edges) * np.array(self.drifts_ppm) / 1e6)])
        return np.rint(np.asarray(time_ns) + np.interp(time_ns, edges, gained)).astype(np.int64) + self.offset_ns

    @property
    def manifest(self) -> Manifest:
        clock = [
            ClockPair(int(self.at(time)), EPOCH + time + self.wall_error_ns, 100, self.max_error_ns)
            for time in range(0, SPAN + 1, 10 * SECOND)
        ]
        ends = int(self.at(0)), int(self.at(SPAN))
        lost = {"ring_full": self.lost} if self.lost else {}
        made = Manifest(
            "complete", "synthetic", Host(self.name, "", 1, 1, ""), Target(), start_ns=ends[0], end_ns=ends[1], lost=lost
        )
        made.clock = clock
        return made

    def rows(self, name: str, expected: pa.Schema) -> pa.Table | None:
        if name == "files":
            rows = [{"file_id": i, "path": path, "kind": "socket"} for i, path in enumerate(self.sockets)]
        else:
            rows = [
                {"phase": phase, "start_ns": int(self.at(begin)), "end_ns": int(self.at(end)), "rank": 0, "step": step}
                for phase, begin, end, step in self.phases
            ]
        return pa.Table.from_pylist(rows, schema=expected)

    def events(self, columns, where):
        calls = sorted((int(self.at(begin)), int(self.at(end)), *rest) for begin, end, *rest in self.calls)
        rows = [
            {"start_ns": begin, "duration_ns": end - begin, "op": op, "file_id": socket, "result": size}
            for begin, end, op, socket, size in calls
        ]
        table = pa.Table.from_pylist(rows, schema=pa.schema([schema.EVENTS.field(name) for name in columns]))
        return table.filter(where).to_batches()


def connect(a: Simulated, b: Simulated, number: int, rng: np.random.Generator, every_ns: int = SECOND) -> None:
    """Have two hosts send one another a message about every `every_ns`."""
    ports = f"10.0.0.1:{number}", f"10.0.0.2:{number}"
    for host, own, peer in ((a, *ports), (b, *reversed(ports))):
        host.sockets.append(f"socket:[{number}] {own}->{peer}")
    for writer, reader in ((a, b), (b, a)):
        for begin in np.arange(0, SPAN, every_ns) + rng.integers(0, every_ns // 2):
            took, size = int(rng.integers(20_000, 500_000)), int(rng.integers(1, 9000))
            writer.calls.append((int(begin), int(begin) + 5000, "write", len(writer.sockets) - 1, size))
            reader.calls.append((int(begin) - 1000, int(begin) + took, "read", len(reader.sockets) - 1, size))


def step(hosts: list[Simulated], rng: np.random.Generator) -> None:
    """Have all hosts log 50 steps of about a second, each of which no host ends before all have begun it."""
    for number in range(50):
        begins = number * SECOND + rng.integers(0, 300 * MS, len(hosts))
        for host, begin in zip(hosts, begins, strict=True):
            host.phases.append(("step", int(begin), int(begins.max() + rng.integers(0, 300 * MS)), number))


def worst(hosts: list[Simulated], found) -> list[float]:
    """The largest error of each host's moved times as a share of the stated bound."""
    times = np.linspace(0, SPAN, 500).astype(np.int64)
    shares = []
    for host, shift in zip(hosts, found, strict=True):
        own = host.at(times)
        moved = own + interpolated(own, *np.array(shift.knots).T)
        shares.append(float(np.abs(moved - hosts[0].at(times)).max()) / max(shift.error_ns, 1))
    return shares


drift = st.lists(st.floats(-400, 400), min_size=1, max_size=6)


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-(10**14), 10**14), drift, st.integers(-250, 250)), min_size=7, max_size=7),
    st.sampled_from(["sockets", "chain", "collectives", "ntp", "all"]),
    st.integers(0, 1000),
)
def test_the_true_shift_of_eight_hosts_is_within_the_bound(clocks, source, seed):
    rng = np.random.default_rng(seed)
    hosts = [Simulated("node0", drifts_ppm=[seed % 300])]
    for index, (offset, drifts, wall) in enumerate(clocks, 1):
        hosts.append(Simulated(f"node{index}", offset, drifts, wall * MS))
    if source in ("ntp", "all"):
        for host in hosts:
            host.max_error_ns = abs(host.wall_error_ns) + MS
    if source in ("sockets", "chain", "all"):
        for index in range(1, 8):
            connect(hosts[index - 1 if source == "chain" else 0], hosts[index], index, rng)
    if source in ("collectives", "all"):
        step(hosts, rng)
    found = estimate_shifts(hosts)
    assert [each.how for each in found[1:]] == [{"chain": "sockets", "all": "sockets"}.get(source, source)] * 7
    assert max(worst(hosts, found)[1:]) <= 1 and worst(hosts, found)[0] == 0
    if source in ("sockets", "all"):
        assert max(each.error_ns for each in found) < 3 * MS


def test_frequent_messages_bound_the_error_below_a_millisecond():
    rng = np.random.default_rng(3)
    hosts = [Simulated("node0"), Simulated("node1", 10**13, [40.0], 250 * MS)]
    connect(*hosts, 1, rng, 100 * MS)
    (_, shift) = estimate_shifts(hosts)
    assert shift.how == "sockets" and 100_000 < shift.error_ns < MS and worst(hosts, [shift, shift])[1] <= 1
    hosts[1].drifts_ppm = [0.0]
    (_, shift) = estimate_shifts(hosts)
    assert len(shift.knots) == 1  # without drift, a constant shift lies between the bounds


def test_a_false_wall_clock_is_named_and_dropped():
    hosts = [Simulated("node0", max_error_ns=MS), Simulated("node1", 5 * SECOND, wall_error_ns=250 * MS, max_error_ns=MS)]
    connect(*hosts, 1, np.random.default_rng(1))
    step(hosts, np.random.default_rng(2))
    (_, shift) = estimate_shifts(hosts)
    assert "its wall clock contradicts sockets by 24" in shift.note and worst(hosts, [shift, shift])[1] <= 1


def test_sockets_that_contradict_one_another_are_dropped():
    hosts = [Simulated("node0", max_error_ns=MS), Simulated("node1", drifts_ppm=[5000.0], max_error_ns=400 * MS)]
    connect(*hosts, 1, np.random.default_rng(1))
    (_, shift) = estimate_shifts(hosts)
    assert shift.how in ("ntp", "none") and shift.note.startswith("its sockets contradict one another")


def test_clocks_that_differ_by_more_than_a_phase():
    hosts = [Simulated("node0"), Simulated("node1", 5 * SECOND, wall_error_ns=-40 * SECOND)]
    step(hosts, np.random.default_rng(1))
    (_, shift) = estimate_shifts(hosts)
    assert shift.how == "collectives" and shift.error_ns < SECOND and worst(hosts, [shift, shift])[1] <= 1


def test_without_evidence_the_error_is_unknown():
    hosts = [Simulated("node0"), Simulated("node1", 7 * SECOND, wall_error_ns=3 * MS)]
    (first, second) = estimate_shifts(hosts)
    assert (first.error_ns, second.error_ns, second.how) == (0, None, "none")
    assert second.knots[0][1] == pytest.approx(-7 * SECOND + 3 * MS, abs=10)
    assert estimate_shifts([]) == []


def test_two_traces_of_one_boot_share_a_clock():
    hosts = [Simulated("node0"), Simulated("node0")]
    assert estimate_shifts(hosts)[1].how == "one clock"
    hosts[1].offset_ns = 5 * MS  # of another boot
    assert estimate_shifts(hosts)[1].how == "none"


@pytest.mark.parametrize("change", ["fewer bytes", "lost", "loopback", "used again", "one end"])
def test_only_connections_whose_ends_were_recorded_whole_count(change):
    hosts = [Simulated("node0"), Simulated("node1")]
    connect(*hosts, 1, np.random.default_rng(1))
    assert set(socket_orders(hosts)) == {(0, 1), (1, 0)}
    if change == "fewer bytes":
        hosts[0].calls = [call for call in hosts[0].calls if call[2] != "read"][:-1] + [
            c for c in hosts[0].calls if c[2] == "read"
        ][:-1]
    elif change == "lost":
        hosts[1].lost = 3
    elif change == "loopback":
        for host in hosts:
            host.sockets = [path.replace("10.0.0.", "127.0.0.") for path in host.sockets]
    elif change == "used again":
        hosts[0].sockets.append(hosts[0].sockets[0])
    else:
        hosts[1].sockets = ["socket:[1]"]
    assert socket_orders(hosts) == {}


@pytest.mark.parametrize(
    ("status", "largest", "estimated", "expected"),
    [(0x2001, 5000, 40, (5_000_000, 40_000)), (0x40, 16_000_000, 16_000_000, None), (0x2001, 0, 0, None)],
)
def test_bounds_of_the_time_daemon(monkeypatch, status, largest, estimated, expected):
    class Library:
        @staticmethod
        def adjtimex(reference) -> int:
            state = reference._obj
            state.status, state.maxerror, state.esterror = status, largest, estimated
            return 0

    monkeypatch.setattr(wall_clock_error.ctypes, "CDLL", lambda name: Library())
    assert wall_clock_error.wall_clock_error() == expected
    monkeypatch.setattr(record_files, "_CLOCK_READINGS", 1)
    reading = record_files.read_clocks()
    assert (reading.max_error_ns, reading.estimated_error_ns) == (expected or (None, None))


def test_the_kernel_answers():
    found = wall_clock_error.wall_clock_error()
    assert found is None or 0 < found[1] <= 16 * SECOND


def test_the_bound_holds_between_messages_too():
    """Halfway between two messages at which the shift is known, it can be off by what 0.1 % make of the time to either."""
    bounds = ShiftBounds(0, np.array([0, 10 * SECOND]), np.zeros(2), np.zeros(2))
    assert bounds.shift("sockets", "").error_ns == pytest.approx(5 * MS, abs=10)
