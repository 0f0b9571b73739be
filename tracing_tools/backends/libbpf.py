"""The default backend: libbpf loads compiled eBPF programs (CO-RE), whose buffers are read in bulk."""

import struct
from collections.abc import Callable, Collection

import numpy as np

from iotwin.common.errors import IotwinError
from iotwin.trace_store.raw.record_files import Recording
from iotwin.trace_store.raw.records import BLOCK, EVENT, RING_HEADER_BYTES
from iotwin.trace_store.syscalls import calls_of
from iotwin.tracing_tools.backend_base import Backend, Ledger, Scope
from iotwin.tracing_tools.backends import task_filter
from iotwin.tracing_tools.backends.bpf_object import BpfObject, libbpf_unavailable_reason, missing_tracepoints, possible_cpus
from iotwin.tracing_tools.backends.kernel_support import ebpf_unavailable_reason
from iotwin.tracing_tools.backends.per_cpu_buffers import LaneBuffers
from iotwin.tracing_tools.backends.ring_buffer import BLOCKS_BYTES, EVENTS_BYTES, NAMES_BYTES, RingBuffer
from iotwin.tracing_tools.probes import compiled_probes
from iotwin.tracing_tools.targets.block_cgroup import BlockCgroup

_MAX_CALLS = 512  # MAX_CALLS of call_kinds.h
_LEDGER_FIELDS = 8
_PAGE_BYTES = 4096
# From writeback.h: sizes of struct chunk and struct page_states, offset of page_states.states, DIRTY of enum page_state.
_CHUNK_BYTES, _STATES_BYTES, _STATES_AT, _DIRTY = 24, 136, 8, b"\2"

# Tracepoints of the eBPF programs that only one group of --detail needs, by group and program.
_OPTIONAL = {
    "mmap": {
        "on_user_fault": "page_fault_user",
        "on_kernel_fault": "page_fault_kernel",
        "on_fault": "mm_filemap_fault",
        "on_map_pages": "mm_filemap_map_pages",
        "on_last_fault": "sched_process_exit",
    },
    "async": {"on_uring_submit": "io_uring_submit_req", "on_uring_complete": "io_uring_complete"},
    "block": {
        "on_block_issue": "block_rq_issue",
        "on_block_complete": "block_rq_complete",
        "on_skipped_complete": "block_rq_complete",
        "on_dirty": "writeback_dirty_folio",
        "on_page_removal": "mm_filemap_delete_from_page_cache",
    },
}


def unavailable_reason() -> str | None:
    """Return why libbpf cannot capture on this machine, None if it should work."""
    return ebpf_unavailable_reason() or libbpf_unavailable_reason()


_UNSEEN = {
    "mmap": "reads through memory maps are not recorded",
    "async": "requests through io_uring are not recorded",
    "block": "block requests are not recorded",
}


def _constants(scope: Scope, slots: int, block_cgroup_id: int) -> dict[str, bytes]:
    """Return the values of the constants of syscalls.bpf.c as bytes in their C layout, by section of the object file.

    tasks.h, arguments.h, outlets.h and block.h declare the constants.
    """
    kinds = bytearray(_MAX_CALLS)
    for number, kind in calls_of(scope.detail).values():
        kinds[number] = kind
    return {
        task_filter.SECTION: task_filter.packed_constants(scope),
        ".rodata.calls": bytes(kinds),
        ".rodata.outlets": struct.pack("<I", slots),
        ".rodata.block": struct.pack("<Q", block_cgroup_id),
    }


class LibbpfBackend(Backend):
    """Captures by tracepoints at the entry and exit of system calls. The kernel filters calls by cgroup or process tree."""

    name = "libbpf"

    def __init__(self, scope: Scope, buffer_bytes: int = EVENTS_BYTES) -> None:
        """Load the eBPF programs for `scope`. `buffer_bytes`: size of the event ring buffer, a power of two."""
        super().__init__(scope)
        self.probes = ["tp_btf/sys_enter", "tp_btf/sys_exit", "tp_btf/sched_process_{fork,exec,exit}"]
        self._buffer_bytes = buffer_bytes
        self._ledger = Ledger()
        self._strays: dict[int, bool] = {}
        self._unwritten_bytes = 0  # bytes written to files that still exist, without a recorded block request
        self._is_complete = False  # True if the recording has all its records, although calls are still traced
        self._records_blocks = "block" in scope.detail
        self._block_cgroup = BlockCgroup(scope.cgroup_id if self._records_blocks else 0)
        cpus = possible_cpus()
        slots = 1 << max(buffer_bytes // EVENT.itemsize // cpus, 1).bit_length() - 1
        self._object: BpfObject | None = BpfObject(compiled_probes())
        try:
            for section, values in _constants(scope, slots, self._block_cgroup.cgroup_id).items():
                self._object.set_constants(section, values)
            for name, entries in (("events", buffer_bytes), ("lanes", cpus), ("slots", cpus * slots)):
                self._object.set_max_entries(name, entries)
            if not self._records_blocks:
                self._object.set_max_entries("written", 1)
            elif not self._block_cgroup.cgroup_id:
                self._notes.append(
                    "the kernel charges the job's cgroup with no block requests, as the io controller is not on for it: "
                    "reads and direct writes are recorded if one of the job's own processes issues them"
                )
            self._choose_programs(scope.detail)
            self._object.load()
            self._events = RingBuffer(self._object.map_fd("events"), buffer_bytes)
            self._names = RingBuffer(self._object.map_fd("names"), NAMES_BYTES)
            self._blocks = RingBuffer(self._object.map_fd("blocks"), BLOCKS_BYTES)
            self._lanes = LaneBuffers(self._object.map_fd("lanes"), self._object.map_fd("slots"), cpus, slots)
        except BaseException:
            self._object.close()
            self._block_cgroup.remove()
            raise

    def _choose_programs(self, detail: Collection[str]) -> None:
        points = {point for group in detail for point in _OPTIONAL.get(group, {}).values()}
        missing = set(missing_tracepoints(points)) if points else set()
        for group, programs in _OPTIONAL.items():
            lacking = [point for point in programs.values() if point in missing]
            if group in detail and lacking:
                self._notes.append(f"this kernel has no tracepoint {', '.join(lacking)}: {_UNSEEN[group]}")
            if group in detail and not lacking:
                self.probes += [f"tp_btf/{point}" for point in dict.fromkeys(programs.values())]
                continue
            for program in programs:
                self._loaded().leave_out(program)

    def start(self) -> None:
        """Attach the eBPF programs to their tracepoints."""
        self._loaded().attach()

    def follow(self, pid: int) -> None:
        """Add `pid` to the process tree by which the kernel filters calls if there is no cgroup."""
        self._loaded().update("tree", pid, task_filter.IN_TREE)
        self._block_cgroup.add(pid)

    def strays(self) -> dict[int, bool]:
        """Return the captured processes that left the job's cgroup, as {pid: True if it still runs}."""
        if self._object is not None:
            states = self._object.items("strays", key_bytes=4, value_bytes=1)
            self._strays = {int.from_bytes(pid, "little"): state[0] == task_filter.STRAY for pid, state in states}
        return self._strays

    def drain(self, recording: Recording) -> bool:
        """Move the records of all buffers to `recording`. Return True if the space for events was a quarter full."""
        self._names.move_names(recording.append_names)
        if self._records_blocks:
            self._blocks.move_records(BLOCK, recording.append_blocks)
        moved_bytes = self._events.move_records(EVENT, recording.append_events)
        for records in self._lanes.take():
            recording.append_events(records)
            moved_bytes += records.nbytes
        return moved_bytes * 4 > self._buffer_bytes

    def ledger(self) -> Ledger:
        """Return the eBPF programs' counts of seen and lost events."""
        if self._object is not None:
            counters = (int(n) for n in self._object.per_cpu_sum("ledgers", _LEDGER_FIELDS))
            seen, dropped, _, names_dropped, missed, blocks_dropped, dirtied, cleaned = counters
            lost = {
                "ring_full": dropped,
                "entry_missed": missed,
                "names_ring_full": names_dropped,
                "blocks_ring_full": blocks_dropped,
            }
            self._unwritten_bytes = (dirtied - cleaned) * _PAGE_BYTES
            # A call that was missed at its entry is not counted at its exit, so it is added to `seen` and to `lost`.
            self._ledger = Ledger(self._lanes.sent() + seen + missed, {source: count for source, count in lost.items() if count})
        return self._ledger

    def work_unrecorded(self, recording: Recording, work: Callable[[], None]) -> None:
        """Move the last records to `recording`. Then call `work` while calls are still traced, but no longer recorded."""
        self._move_last(recording)
        self._is_complete = True
        work()

    def _move_last(self, recording: Recording | None) -> None:
        if self._is_complete:
            return
        while recording is not None and self._has_pending():
            self.drain(recording)
        self.ledger()
        self.strays()

    def stop(self, recording: Recording | None) -> None:
        """Detach the eBPF programs, move the last records to `recording`, unload the programs."""
        if self._object is None:
            return
        probes = self._object
        probes.detach()
        self._move_last(recording)
        if recording is not None:
            self._move_unfinished_blocks(recording)
            self._notes += self._unwritten_notes()
        super().stop(recording)
        for buffer in (self._events, self._names, self._blocks, self._lanes):
            buffer.close()
        probes.close()
        self._object = None
        self._block_cgroup.remove()

    def _move_unfinished_blocks(self, recording: Recording) -> None:
        if self._records_blocks:
            requests = self._loaded().items("in_flight", 8, BLOCK.itemsize - RING_HEADER_BYTES)
            content = b"".join(bytes(RING_HEADER_BYTES) + record for _, record in requests)
            recording.append_blocks(np.frombuffer(content, BLOCK))

    def _unwritten_notes(self) -> list[str]:
        if not self._unwritten_bytes:
            return []
        chunks = self._loaded().items("written", _CHUNK_BYTES, _STATES_BYTES)
        states = b"".join(chunk[_STATES_AT:] for _, chunk in chunks)
        cached_bytes = min(states.count(_DIRTY) * _PAGE_BYTES, self._unwritten_bytes)
        forgotten_bytes = self._unwritten_bytes - cached_bytes
        notes = []
        if cached_bytes:
            notes.append(
                f"{cached_bytes} bytes that the job wrote were still in the page cache when the recording ended: "
                "block.parquet has no request for them"
            )
        if forgotten_bytes:
            notes.append(
                f"{forgotten_bytes} bytes that the job wrote are missing from block.parquet: it wrote more files, or parts of "
                "them, at once than are followed into writeback"
            )
        return notes

    def _has_pending(self) -> bool:
        rings = (self._events, self._names, self._blocks)
        return any(ring.pending_bytes() for ring in rings) or bool(self._lanes.pending())

    def _loaded(self) -> BpfObject:
        if self._object is None:
            raise IotwinError("the eBPF programs are not loaded")
        return self._object
