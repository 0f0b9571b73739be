"""The default backend: an eBPF program (CO-RE) loaded by libbpf, its ring buffers taken over in bulk."""

import os
import struct
from pathlib import Path

from tracing_tools.backends.base import Ledger, Scope
from tracing_tools.backends.bpf_object import BpfObject, libbpf_available
from tracing_tools.backends.ring_buffer import RingBuffer
from tracing_tools.probes import compiled_probes
from tracing_tools.trace.errors import IotwinError
from tracing_tools.trace.recording import Recording
from tracing_tools.trace.records import EVENT
from tracing_tools.trace.syscalls import CALLS

_MAX_CALLS = 512  # call_kind[] of syscalls.bpf.c
_NAMES_BYTES = 1 << 22
_LEDGER_FIELDS = 5


def unavailable_reason() -> str | None:
    """Return why this machine cannot capture this way, or None when nothing speaks against trying."""
    if os.uname().machine != "x86_64":
        return f"the probes read x86-64 registers; this machine is {os.uname().machine}"
    if os.geteuid() != 0:
        return "loading eBPF needs root; run under sudo"
    if not Path("/sys/kernel/btf/vmlinux").exists():
        return "the kernel has no BTF (/sys/kernel/btf/vmlinux); it was built without CONFIG_DEBUG_INFO_BTF"
    if not libbpf_available():
        return "libbpf.so.1 is not installed; install the package libbpf1"
    return None


def _packed(scope: Scope) -> bytes:
    """Return the scope as the constants of syscalls.bpf.c, in order of declaration."""
    return struct.pack("<QiII", scope.cgroup_id, scope.cgroup_level, scope.entered_by_exec, os.getpid())


class LibbpfBackend:
    """Captures by tracepoints on system call entry and exit, filtered in the kernel by cgroup or process tree."""

    name = "libbpf"

    def __init__(self, scope: Scope, buffer_bytes: int = 1 << 24) -> None:
        """Load the programs for the tasks of `scope`; `buffer_bytes` is the size of the event ring buffer, a power of two."""
        self.probes = ["tp_btf/sys_enter", "tp_btf/sys_exit", "tp_btf/sched_process_{fork,exec,exit}"]
        self._buffer_bytes = buffer_bytes
        self._ledger = Ledger()
        kinds = bytearray(_MAX_CALLS)
        for number, kind in CALLS.values():
            kinds[number] = kind
        self._object: BpfObject | None = BpfObject(compiled_probes())
        try:
            self._object.set_constants(bytes(kinds) + _packed(scope))
            self._object.set_max_entries("events", buffer_bytes)
            self._object.load()
            self._events = RingBuffer(self._object.map_fd("events"), buffer_bytes)
            self._names = RingBuffer(self._object.map_fd("names"), _NAMES_BYTES)
        except BaseException:
            self._object.close()
            raise

    def wrap(self, command: list[str], raw: Path) -> list[str]:
        """Return the command as it is."""
        return command

    def start(self) -> None:
        """Attach the programs."""
        self._loaded().attach()

    def follow(self, pid: int) -> None:
        """Enter `pid` into the process tree, which is what filters when there is no cgroup."""
        self._loaded().update("tree", pid, 1)

    def drain(self, recording: Recording) -> bool:
        """Take over both ring buffers; more is due at once when a quarter of the event buffer was full."""
        names = self._names.variable_records()
        if len(names):
            recording.append_names(names.data)
            self._names.consume(len(names))
        events = self._events.fixed_records(EVENT)
        if len(events):
            recording.append_events(events)
            self._events.consume(events.nbytes)
        return bool(events.nbytes * 4 > self._buffer_bytes)

    def ledger(self) -> Ledger:
        """Return the programs' own counts."""
        if self._object is not None:
            seen, dropped, _, names_dropped, missed = (int(n) for n in self._object.per_cpu_sum("ledgers", _LEDGER_FIELDS))
            # A call missed at entry was never seen at exit: it adds to both sides.
            lost = {"ring_full": dropped, "entry_missed": missed, "names_ring_full": names_dropped}
            self._ledger = Ledger(seen + missed, {source: count for source, count in lost.items() if count})
        return self._ledger

    def stop(self, recording: Recording | None) -> None:
        """Detach, take over what is left, unload."""
        if self._object is None:
            return
        probes = self._object
        probes.detach()
        while recording is not None and (self._events.pending_bytes() or self._names.pending_bytes()):
            self.drain(recording)
        self.ledger()
        self._events.close()
        self._names.close()
        probes.close()
        self._object = None

    def _loaded(self) -> BpfObject:
        if self._object is None:
            raise IotwinError("the eBPF programs are not loaded")
        return self._object
