"""Calls of CUDA's API, captured beside a backend by uprobes in whatever libraries and programs the job maps.

Libraries that the command will surely load are probed before it starts. All others, and those in containers, are found when a
traced process maps them, and probed within a few hundredths of a second: long before a framework that loads them makes
its first call.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np

from common.errors import IotwinError
from tracing_tools.backends import libbpf, task_filter
from tracing_tools.backends.bpf_object import BpfObject
from tracing_tools.backends.elf_symbols import function_offsets
from tracing_tools.backends.ring_buffer import RingBuffer
from tracing_tools.probes import compiled_probes
from tracing_tools.protocols import Backend, Ledger, Scope
from tracing_tools.trace.raw.cuda_calls import CUDA_CALLS, FUNCTION_OF_SYMBOL, packed_arguments
from tracing_tools.trace.raw.recording import Recording
from tracing_tools.trace.raw.records import GPU_CALL

_CALLS_BYTES, _MAPPERS_BYTES = 1 << 22, 1 << 16
_MAPPER = np.dtype([("header", "<u4"), ("page", "<u4"), ("pid", "<u8")])
_SETTLED_NS = 300_000_000  # a mapping that began is in /proc/PID/maps after this
_LIBRARIES = ("libcudart*.so*", "libcuda.so*")
_PACKAGES = ("nvidia/*/lib", "torch/lib")  # below site-packages, where wheels put CUDA's libraries


class WithGpuCalls:
    """A backend, and the calls of CUDA's API of the same tasks in gpu.parquet."""

    def __init__(self, backend: Backend, scope: Scope) -> None:
        """Load the programs; IotwinError when this machine cannot."""
        if reason := libbpf.unavailable_reason():
            raise IotwinError(reason)
        self._backend = backend
        self.name = backend.name
        self.probes = [*backend.probes, "uprobe and uretprobe of CUDA calls"]
        self._object: BpfObject | None = BpfObject(compiled_probes("cuda"))
        self._probed: dict[tuple[int, int], str] = {}  # (device, inode) -> path, of files that hold calls
        self._examined: set[tuple[int, int]] = set()
        self._due: dict[int, int] = {}  # pid -> when to look at its maps once more
        self._lost = self._seen = 0
        try:
            self._object.set_constants(task_filter.SECTION, task_filter.packed_constants(scope))
            self._object.load()
            for index, call in enumerate(CUDA_CALLS):
                self._object.update_bytes("functions", index, packed_arguments(call))
            self._calls = RingBuffer(self._object.map_fd("gpu_calls"), _CALLS_BYTES)
            self._mappers = RingBuffer(self._object.map_fd("mappers"), _MAPPERS_BYTES)
        except BaseException:
            self._object.close()
            raise

    def wrap(self, command: list[str], raw: Path) -> list[str]:
        """Probe the libraries that the command is known to load; return its command line as the backend has it."""
        for path in _foreseen(command):
            self._probe(path, path)
        return self._backend.wrap(command, raw)

    def start(self) -> None:
        """Attach what tells of mappings, look at what runs already, start the backend."""
        if self._object is not None:
            self._object.attach(but=("on_call", "on_return"))
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                self._look_at(int(process.name))
        self._backend.start()

    def follow(self, pid: int) -> None:
        """Follow `pid` here too."""
        if self._object is not None:
            self._object.update("tree", pid, 1)
        self._look_at(pid)
        self._backend.follow(pid)

    def strays(self) -> dict[int, bool]:
        """Return the backend's."""
        return self._backend.strays()

    def drain(self, recording: Recording) -> bool:
        """Probe what was mapped, take over the calls, drain the backend."""
        now = time.monotonic_ns()
        mappers = self._mappers.fixed_records(_MAPPER)
        pids = np.unique(mappers["pid"]).tolist()
        self._mappers.consume(mappers.nbytes)
        due = [pid for pid, when in self._due.items() if when <= now]
        self._due = {pid: when for pid, when in self._due.items() if when > now} | dict.fromkeys(pids, now + _SETTLED_NS)
        for pid in {*pids, *due}:
            self._look_at(pid)
        for pid, runs in self.strays().items():
            if runs and self._object is not None:
                self._object.update("tree", pid, 1)
        self._take(recording)
        return self._backend.drain(recording)

    def ledger(self) -> Ledger:
        """Return the backend's counts; calls that found no room are lost on top."""
        ledger = self._backend.ledger()
        self._count()
        return Ledger(ledger.seen, ledger.lost | ({"gpu_ring_full": self._lost} if self._lost else {}))

    def stop(self, recording: Recording | None) -> None:
        """Detach, take over what is left; say where calls were looked for."""
        if self._object is not None:
            self._object.detach()
            self._count()
            if recording is not None:
                self._take(recording)
                recording.manifest.notes += self._notes()
            self._calls.close()
            self._mappers.close()
            self._object.close()
            self._object = None
        self._backend.stop(recording)

    def _count(self) -> None:
        if self._object is not None:
            self._seen, self._lost = (int(count) for count in self._object.per_cpu_sum("gpu_ledgers", 2))

    def _notes(self) -> list[str]:
        if not self._probed:
            return ["no GPU calls: the job mapped no file that holds CUDA's functions"]
        if not self._seen:
            return [f"no GPU calls: the job made none of {', '.join(sorted(set(self._probed.values())))}"]
        return []

    def _take(self, recording: Recording) -> None:
        calls = self._calls.fixed_records(GPU_CALL)
        if len(calls):
            recording.append_gpu_calls(calls)
            self._calls.consume(calls.nbytes)

    def _look_at(self, pid: int) -> None:
        """Probe the files that `pid` has mapped as code, as far as they are new."""
        try:
            with Path(f"/proc/{pid}/maps").open("rb") as maps:
                lines = [line.split(None, 5) for line in maps]
        except OSError:
            return  # it has ended
        for fields in lines:
            if len(fields) == 6 and b"x" in fields[1] and fields[5].startswith(b"/"):
                path = os.fsdecode(fields[5].rstrip(b"\n"))
                # As the process sees it: it may be in a container.
                self._probe(Path(f"/proc/{pid}/root{path}"), Path(path))

    def _probe(self, path: Path, shown: Path) -> None:
        try:
            status = path.stat()
        except OSError:
            return  # deleted, or the process has ended
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
    """Return the program of `command`, the libraries that it is linked to, and CUDA's libraries where it would look for them."""
    program = shutil.which(command[0])
    if program is None:
        return []
    path = Path(program)
    found = [path, *_linked(path)]
    folders = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    for packages in path.parent.parent.glob("lib/python*/site-packages"):  # a virtual environment's
        folders += [folder for pattern in _PACKAGES for folder in packages.glob(pattern)]
    found += [library for folder in folders for pattern in _LIBRARIES for library in folder.glob(pattern)]
    return found


def _linked(program: Path) -> list[Path]:
    """Return the libraries that the dynamic loader would map for `program`; it lists them without running the program."""
    loader = Path("/lib64/ld-linux-x86-64.so.2")
    try:
        done = subprocess.run([str(loader), "--list", str(program)], capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return []
    paths = [path for line in done.stdout.splitlines() for path in line.split() if path.startswith("/")]
    return [Path(path) for path in paths]
