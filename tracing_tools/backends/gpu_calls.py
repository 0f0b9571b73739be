"""Capture calls of CUDA's API in addition to a backend's calls, by uprobes in the libraries and programs that the job maps.

Libraries that the command is known to load get uprobes before the command starts. All others, including those in containers, get
uprobes a few hundredths of a second after a traced process maps them, long before a framework makes its first call.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np

from iotwin.common.errors import IotwinError
from iotwin.trace_store.raw.cuda_calls import CUDA_CALLS, FUNCTION_OF_SYMBOL, packed_arguments
from iotwin.trace_store.raw.record_files import Recording
from iotwin.trace_store.raw.records import GPU_CALL
from iotwin.tracing_tools.backend_base import Backend, Ledger, Scope
from iotwin.tracing_tools.backends import libbpf, task_filter
from iotwin.tracing_tools.backends.bpf_object import BpfObject
from iotwin.tracing_tools.backends.elf_symbols import function_offsets
from iotwin.tracing_tools.backends.ring_buffer import GPU_CALLS_BYTES, MAPPERS_BYTES, RingBuffer
from iotwin.tracing_tools.backends.task_filter import IN_TREE
from iotwin.tracing_tools.probes import compiled_probes
from iotwin.tracing_tools.targets.running_processes import running_pids

_MAPPER = np.dtype([("header", "<u4"), ("page", "<u4"), ("pid", "<u8")])
_SETTLED_NS = 300_000_000  # time from the begin of an mmap until /proc/PID/maps surely lists the mapping
_LIBRARIES = ("libcudart*.so*", "libcuda.so*")
_PACKAGES = ("nvidia/*/lib", "torch/lib")  # folders below site-packages in which wheels put CUDA's libraries


class WithGpuCalls(Backend):
    """A backend that wraps another one, and also records the calls that the same tasks make to CUDA's API."""

    def __init__(self, backend: Backend, scope: Scope) -> None:
        """Wrap `backend` and load the eBPF programs for CUDA calls. Raises IotwinError if this machine cannot load them."""
        super().__init__(scope)
        if reason := libbpf.unavailable_reason():
            raise IotwinError(reason)
        self._backend = backend
        self.name = backend.name
        self.probes = [*backend.probes, "uprobe and uretprobe of CUDA calls"]
        self._object: BpfObject | None = BpfObject(compiled_probes("cuda"))
        self._probed: dict[tuple[int, int], str] = {}  # paths of files that define CUDA functions, by (device, inode)
        self._examined: set[tuple[int, int]] = set()
        self._due: dict[int, int] = {}  # time in ns at which to read a process's maps once more, by pid
        self._lost = self._seen = 0
        try:
            self._object.set_constants(task_filter.SECTION, task_filter.packed_constants(scope))
            self._object.load()
            for index, call in enumerate(CUDA_CALLS):
                self._object.update("functions", index, packed_arguments(call))
            self._calls = RingBuffer(self._object.map_fd("gpu_calls"), GPU_CALLS_BYTES)
            self._mappers = RingBuffer(self._object.map_fd("mappers"), MAPPERS_BYTES)
        except BaseException:
            self._object.close()
            raise

    def wrap(self, command: list[str], raw: Path) -> list[str]:
        """Attach uprobes to the libraries that `command` is known to load. Return the wrapped backend's command line."""
        for path in _foreseen(command):
            self._probe(path, path)
        return self._backend.wrap(command, raw)

    def start(self) -> None:
        """Attach the programs that report mappings, attach uprobes for running processes, and start the wrapped backend."""
        if self._object is not None:
            self._object.attach(but=("on_call", "on_return"))
        for pid in running_pids():
            self._probe_mapped(pid)
        self._backend.start()

    def follow(self, pid: int) -> None:
        """Capture the CUDA calls of the process `pid`, and let the wrapped backend follow it."""
        if self._object is not None:
            self._object.update("tree", pid, IN_TREE)
        self._probe_mapped(pid)
        self._backend.follow(pid)

    def strays(self) -> dict[int, bool]:
        """Return the `strays` of the wrapped backend."""
        return self._backend.strays()

    def drain(self, recording: Recording) -> bool:
        """Attach uprobes to newly mapped files, move CUDA calls to `recording`, and drain the wrapped backend."""
        now = time.monotonic_ns()
        mappers = self._mappers.fixed_records(_MAPPER)
        pids = np.unique(mappers["pid"]).tolist()
        self._mappers.consume(mappers.nbytes)
        due = [pid for pid, when in self._due.items() if when <= now]
        self._due = {pid: when for pid, when in self._due.items() if when > now} | dict.fromkeys(pids, now + _SETTLED_NS)
        for pid in {*pids, *due}:
            self._probe_mapped(pid)
        for pid, runs in self.strays().items():
            if runs and self._object is not None:
                self._object.update("tree", pid, IN_TREE)
        self._move_calls(recording)
        return self._backend.drain(recording)

    def ledger(self) -> Ledger:
        """Return the wrapped backend's counts, plus the CUDA calls that were lost because the ring buffer was full."""
        ledger = self._backend.ledger()
        self._count()
        return Ledger(ledger.seen, ledger.lost | ({"gpu_ring_full": self._lost} if self._lost else {}))

    def stop(self, recording: Recording | None) -> None:
        """Detach the programs, stop the wrapped backend, and move the last CUDA calls, or a note that there were none."""
        if self._object is not None:
            self._object.detach()
            self._count()
            if recording is not None:
                self._move_calls(recording)
                recording.manifest.notes += self._no_calls_notes()
            self._calls.close()
            self._mappers.close()
            self._object.close()
            self._object = None
        self._backend.stop(recording)

    def _count(self) -> None:
        if self._object is not None:
            self._seen, self._lost = (int(count) for count in self._object.per_cpu_sum("gpu_ledgers", 2))

    def _no_calls_notes(self) -> list[str]:
        if not self._probed:
            return ["no GPU calls: the job mapped no file that holds CUDA's functions"]
        if not self._seen:
            return [f"no GPU calls: the job made none of {', '.join(sorted(set(self._probed.values())))}"]
        return []

    def _move_calls(self, recording: Recording) -> None:
        if self._calls.pending_bytes():  # if no call was made, gpu.parquet must not exist
            self._calls.move_records(GPU_CALL, recording.append_gpu_calls)

    def _probe_mapped(self, pid: int) -> None:
        try:
            with Path(f"/proc/{pid}/maps").open("rb") as maps:
                lines = [line.split(None, 5) for line in maps]
        except OSError:
            return  # the process has ended
        for fields in lines:
            if len(fields) == 6 and b"x" in fields[1] and fields[5].startswith(b"/"):
                path = os.fsdecode(fields[5].rstrip(b"\n"))
                # The process may be in a container, so its paths are relative to its root.
                self._probe(Path(f"/proc/{pid}/root{path}"), Path(path))

    def _probe(self, path: Path, shown: Path) -> None:
        try:
            status = path.stat()
        except OSError:
            return  # the file was deleted, or the process has ended
        key = status.st_dev, status.st_ino
        if key in self._examined or self._object is None:
            return
        self._examined.add(key)
        for symbol, offset in function_offsets(path, "cu").items():
            number = FUNCTION_OF_SYMBOL.get(symbol)
            if number is None:
                continue
            self._probed[key] = str(shown)
            self._object.attach_uprobe("on_return", path, offset, number, at_return=True)
            self._object.attach_uprobe("on_call", path, offset, number, at_return=False)


def _foreseen(command: list[str]) -> list[Path]:
    program = shutil.which(command[0])
    if program is None:
        return []
    path = Path(program)
    found = [path, *_linked(path)]
    folders = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    for packages in path.parent.parent.glob("lib/python*/site-packages"):  # the packages of a virtual environment
        folders += [folder for pattern in _PACKAGES for folder in packages.glob(pattern)]
    found += [library for folder in folders for pattern in _LIBRARIES for library in folder.glob(pattern)]
    return found


def _linked(program: Path) -> list[Path]:
    loader = Path("/lib64/ld-linux-x86-64.so.2")
    try:
        done = subprocess.run([str(loader), "--list", str(program)], capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return []
    paths = [path for line in done.stdout.splitlines() for path in line.split() if path.startswith("/")]
    return [Path(path) for path in paths]
