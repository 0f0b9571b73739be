"""The default backend: an eBPF program (CO-RE) loaded by libbpf, its ring buffers taken over in bulk."""

import struct
from collections.abc import Collection
from pathlib import Path

import numpy as np

from common.errors import IotwinError
from tracing_tools.backends import task_filter
from tracing_tools.backends.bpf_object import BpfObject, libbpf_available, missing_tracepoints, possible_cpus
from tracing_tools.backends.kernel_support import ebpf_unavailable_reason
from tracing_tools.backends.lanes import Lanes
from tracing_tools.backends.ring_buffer import RingBuffer
from tracing_tools.probes import compiled_probes
from tracing_tools.protocols import Ledger, Scope
from tracing_tools.targets.block_cgroup import BlockCgroup
from tracing_tools.trace.raw.recording import Recording
from tracing_tools.trace.raw.records import BLOCK, EVENT, RING_HEADER_BYTES
from tracing_tools.trace.syscalls import calls_of

_MAX_CALLS = 512  # of call_kinds.h
_NAMES_BYTES = 1 << 22
_BLOCKS_BYTES = 1 << 21
_LEDGER_FIELDS = 6

# The programs that only a group of operations needs: group to program to its tracepoint.
_OPTIONAL = {
    "mmap": {
        "on_user_fault": "page_fault_user",
        "on_kernel_fault": "page_fault_kernel",
        "on_fault": "mm_filemap_fault",
        "on_map_pages": "mm_filemap_map_pages",
        "on_last_fault": "sched_process_exit",
    },
    "async": {"on_uring_submit": "io_uring_submit_req", "on_uring_complete": "io_uring_complete"},
    "block": {"on_block_issue": "block_rq_issue", "on_block_complete": "block_rq_complete"},
}


def unavailable_reason() -> str | None:
    """Return why this machine cannot capture this way, or None if it should work."""
    if reason := ebpf_unavailable_reason():
        return reason
    if not libbpf_available():
        return "libbpf.so.1 is not installed; install the package libbpf1"
    return None


_UNSEEN = {
    "mmap": "reads through memory maps are not recorded",
    "async": "requests through io_uring are not recorded",
    "block": "block requests are not recorded",
}


def _constants(scope: Scope, slots: int, block_cgroup_id: int) -> dict[str, bytes]:
    """Return the constants of syscalls.bpf.c by section: of tasks.h, arguments.h, outlets.h and block.h."""
    kinds = bytearray(_MAX_CALLS)
    for number, kind in calls_of(scope.detail).values():
        kinds[number] = kind
    return {
        task_filter.SECTION: task_filter.packed_constants(scope),
        ".rodata.calls": bytes(kinds),
        ".rodata.outlets": struct.pack("<I", slots),
        ".rodata.block": struct.pack("<Q", block_cgroup_id),
    }


class LibbpfBackend:
    """Captures by tracepoints on system call entry and exit, filtered in the kernel by cgroup or process tree."""

    name = "libbpf"

    def __init__(self, scope: Scope, buffer_bytes: int = 1 << 24) -> None:
        """Load the programs for the tasks of `scope`; `buffer_bytes` is the size of the event ring buffer, a power of two."""
        self.probes = ["tp_btf/sys_enter", "tp_btf/sys_exit", "tp_btf/sched_process_{fork,exec,exit}"]
        self._notes: list[str] = []
        self._buffer_bytes = buffer_bytes
        self._ledger = Ledger()
        self._strays: dict[int, bool] = {}
        self._block_cgroup = BlockCgroup(scope.cgroup_id) if "block" in scope.detail else None
        cpus = possible_cpus() if libbpf_available() else 1
        slots = 1 << max(buffer_bytes // EVENT.itemsize // cpus, 1).bit_length() - 1
        self._object: BpfObject | None = BpfObject(compiled_probes())
        try:
            for section, values in _constants(scope, slots, self._charged_cgroup_id(scope)).items():
                self._object.set_constants(section, values)
            for name, entries in (("events", buffer_bytes), ("lanes", cpus), ("slots", cpus * slots)):
                self._object.set_max_entries(name, entries)
            self._choose_programs(scope.detail)
            self._object.load()
            self._events = RingBuffer(self._object.map_fd("events"), buffer_bytes)
            self._names = RingBuffer(self._object.map_fd("names"), _NAMES_BYTES)
            self._blocks = RingBuffer(self._object.map_fd("blocks"), _BLOCKS_BYTES)
            self._lanes = Lanes(self._object.map_fd("lanes"), self._object.map_fd("slots"), cpus, slots)
        except BaseException:
            self._object.close()
            self._remove_block_cgroup()
            raise

    def _charged_cgroup_id(self, scope: Scope) -> int:
        if self._block_cgroup is None:
            return 0
        if not self._block_cgroup.cgroup_id:
            self._notes.append(
                "block requests are those that the job's own processes issue, as the io controller is not on for its cgroup: "
                "what the kernel writes back later is not seen"
            )
        return self._block_cgroup.cgroup_id

    def _choose_programs(self, detail: Collection[str]) -> None:
        """Leave out the programs of groups that were not chosen, and of tracepoints that this kernel does not have."""
        points = {point for group in detail for point in _OPTIONAL.get(group, {}).values()}
        missing = set(missing_tracepoints(points)) if points else set()
        for group, programs in _OPTIONAL.items():
            lacking = [point for point in programs.values() if point in missing]
            if group in detail and lacking:
                self._notes.append(f"this kernel has no tracepoint {', '.join(lacking)}: {_UNSEEN[group]}")
            for program, point in programs.items():
                if group in detail and not lacking:
                    self.probes.append(f"tp_btf/{point}")
                else:
                    self._loaded().leave_out(program)

    def wrap(self, command: list[str], raw: Path) -> list[str]:
        """Return the command as it is."""
        return command

    def start(self) -> None:
        """Attach the programs."""
        self._loaded().attach()

    def follow(self, pid: int) -> None:
        """Enter `pid` into the process tree, which is what filters when there is no cgroup."""
        self._loaded().update("tree", pid, 1)
        if self._block_cgroup is not None:
            self._block_cgroup.add(pid)

    def strays(self) -> dict[int, bool]:
        """Return the processes of the job that were seen outside its cgroup, and whether each still runs."""
        if self._object is not None:
            self._strays = {pid: state == task_filter.STRAY for pid, state in self._object.bytes_by_number("strays")}
        return self._strays

    def drain(self, recording: Recording) -> bool:
        """Take over what the buffers hold; more is due at once when a quarter of the space for events was full."""
        names = self._names.variable_records()
        if len(names):
            recording.append_names(names.data)
            self._names.consume(len(names))
        if self._block_cgroup is not None:
            blocks = self._blocks.fixed_records(BLOCK)
            recording.append_blocks(blocks)
            self._blocks.consume(blocks.nbytes)
        events = self._events.fixed_records(EVENT)
        taken_bytes = events.nbytes
        if len(events):
            recording.append_events(events)
            self._events.consume(events.nbytes)
        for records in self._lanes.take():
            recording.append_events(records)
            taken_bytes += records.nbytes
        return bool(taken_bytes * 4 > self._buffer_bytes)

    def ledger(self) -> Ledger:
        """Return the programs' own counts."""
        if self._object is not None:
            counters = (int(n) for n in self._object.per_cpu_sum("ledgers", _LEDGER_FIELDS))
            seen, dropped, _, names_dropped, missed, blocks_dropped = counters
            lost = {
                "ring_full": dropped,
                "entry_missed": missed,
                "names_ring_full": names_dropped,
                "blocks_ring_full": blocks_dropped,
            }
            # A call missed at entry was never seen at exit: it adds to both sides.
            self._ledger = Ledger(self._lanes.sent() + seen + missed, {source: count for source, count in lost.items() if count})
        return self._ledger

    def stop(self, recording: Recording | None) -> None:
        """Detach, take over what is left, unload."""
        if self._object is None:
            return
        probes = self._object
        probes.detach()
        while recording is not None and self._has_pending():
            self.drain(recording)
        if recording is not None:
            recording.manifest.notes += self._notes
            self._take_unfinished_blocks(recording)
        self.ledger()
        self.strays()
        for buffer in (self._events, self._names, self._blocks, self._lanes):
            buffer.close()
        probes.close()
        self._object = None
        self._remove_block_cgroup()

    def _take_unfinished_blocks(self, recording: Recording) -> None:
        """Record the requests that no completion was seen of."""
        if self._block_cgroup is None:
            return
        records = self._loaded().values("in_flight", BLOCK.itemsize - RING_HEADER_BYTES)
        content = b"".join(bytes(RING_HEADER_BYTES) + record for record in records)
        recording.append_blocks(np.frombuffer(content, BLOCK))

    def _remove_block_cgroup(self) -> None:
        if self._block_cgroup is not None:
            self._block_cgroup.remove()

    def _has_pending(self) -> bool:
        rings = (self._events, self._names, self._blocks)
        return any(ring.pending_bytes() for ring in rings) or bool(self._lanes.pending())

    def _loaded(self) -> BpfObject:
        if self._object is None:
            raise IotwinError("the eBPF programs are not loaded")
        return self._object
