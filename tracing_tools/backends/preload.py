"""Capture without root, from inside the job: a small C library that LD_PRELOAD puts in front of libc.

Each thread appends records to a file of its own under raw/ (probes/preload.c), which is taken over while the job runs.
"""

import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

import numpy as np

from common.errors import IotwinError, UsageError
from tracing_tools.backends.unrecorded import not_recorded
from tracing_tools.probes import PRELOAD_SOURCE
from tracing_tools.protocols import Ledger, Scope
from tracing_tools.trace.raw.recording import Recording
from tracing_tools.trace.raw.records import EVENT, RING_HEADER_BYTES

_FLAGS = ["-O2", "-shared", "-fPIC"]
_TAKE_EVERY_NS = 200_000_000
_PROGRAM_INTERPRETER = 3  # PT_INTERP of elf(5)
_PIECE_ROWS = 1 << 18
_NOT_SEEN = (
    "captured by preload: calls of statically linked and setuid programs, and those that libc makes by itself "
    "(reads and writes of C's stdio), are not seen"
)


def unavailable_reason() -> str | None:
    """Return why this machine cannot capture this way, or None when it can."""
    if os.uname().machine != "x86_64":
        return f"the library is for x86-64; this machine is {os.uname().machine}"
    if shutil.which("cc") is None:
        return "no C compiler (cc) is installed; install the package gcc"
    return None


class PreloadBackend:
    """Captures by wrappers around libc's functions, in every dynamically linked program of the job."""

    name = "preload"

    def __init__(self, scope: Scope) -> None:
        """IotwinError when the scope has no command of ours: only what starts with the library can be seen."""
        if not scope.starts_command:
            raise IotwinError("preload traces only a command that it starts itself; containers and running processes need eBPF")
        self.probes = ["LD_PRELOAD"]
        self._notes = [_NOT_SEEN, *not_recorded("preload", scope, ("metadata", "mmap", "async", "block"))]
        self._directory: Path | None = None
        self._taken: dict[str, int] = {}  # bytes of each file that are in the recording
        self._due_ns = 0

    def wrap(self, command: list[str], raw: Path) -> list[str]:
        """Return the command line that runs `command` with the library; IotwinError when that cannot see it."""
        program = shutil.which(command[0])
        if program is None:
            raise UsageError(f"there is no command '{command[0]}'; check its name or give its path")
        if _is_static(Path(program)):
            raise IotwinError(f"{program} is statically linked, so preload cannot see its calls; take --backend strace")
        self._directory = raw / "preload"
        self._directory.mkdir()
        # Under sudo the job is another user, who must be able to write here; files of others stay theirs.
        self._directory.chmod(0o1777 if os.geteuid() == 0 else 0o700)
        lost = self._directory / "lost"
        lost.write_bytes(bytes(8))
        lost.chmod(0o666 if os.geteuid() == 0 else 0o600)
        library = self._directory / "preload.so"
        done = subprocess.run(
            ["cc", *_FLAGS, "-o", str(library), str(PRELOAD_SOURCE), "-ldl"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise IotwinError(
                f"cc cannot compile {PRELOAD_SOURCE.name}: {(done.stderr.strip() or 'no reason given').splitlines()[0]}"
            )
        libraries = ":".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))
        return ["env", f"LD_PRELOAD={libraries}", f"IOTWIN_PRELOAD={self._directory}", *command]

    def start(self) -> None:
        """Nothing to do: the library starts with the command."""

    def follow(self, pid: int) -> None:
        """Nothing to do: the library is inherited."""

    def strays(self) -> dict[int, bool]:
        """None: no cgroup tells the job's processes from others."""
        return {}

    def drain(self, recording: Recording) -> bool:
        """Take over what the threads have written, a few times a second."""
        now = time.monotonic_ns()
        if now >= self._due_ns:
            self._due_ns = now + _TAKE_EVERY_NS
            self._take(recording, to_the_end=False)
        return False

    def ledger(self) -> Ledger:
        """Return what the library could not write, for want of space."""
        try:
            content = (self._directory / "lost").read_bytes() if self._directory else bytes(8)
        except OSError:
            content = bytes(8)
        (lost,) = struct.unpack("<Q", content)
        return Ledger(None, {"no_space": lost} if lost else {})

    def stop(self, recording: Recording | None) -> None:
        """Take over what is left."""
        if recording is not None and self._directory is not None:
            self._take(recording, to_the_end=True)
            recording.manifest.notes.extend(self._notes)

    def _take(self, recording: Recording, to_the_end: bool) -> None:
        with os.scandir(self._directory) as entries:
            written = (entry for entry in entries if entry.name.endswith((".events", ".names")))
            # Under sudo the job is another user: what it may only link to is not ours to read for it.
            found = sorted(entry.path for entry in written if entry.is_file(follow_symlinks=False))
        for path in found:
            if path.endswith(".names"):
                self._take_names(path, recording)
            else:
                self._take_events(path, recording, to_the_end)

    def _take_names(self, path: str, recording: Recording) -> None:
        """Names are appended whole, by one write each."""
        with Path(path).open("rb") as file:
            file.seek(self._taken.get(path, 0))
            content = file.read()
        recording.append_names(content)
        self._taken[path] = self._taken.get(path, 0) + len(content)

    def _take_events(self, path: str, recording: Recording, to_the_end: bool) -> None:
        """Append the whole records; those still being written hold back what follows them until the end."""
        size = Path(path).stat().st_size // EVENT.itemsize
        while (first := self._taken.get(path, 0) // EVENT.itemsize) < size:
            piece = np.memmap(path, EVENT, "r", first * EVENT.itemsize, (min(size - first, _PIECE_ROWS),))
            whole = piece["header"] == EVENT.itemsize - RING_HEADER_BYTES
            rows = len(piece) if to_the_end or whole.all() else int(whole.argmin())
            if rows == 0:
                return
            recording.append_events(piece[:rows][whole[:rows]])
            self._taken[path] = (first + rows) * EVENT.itemsize


def _is_static(program: Path) -> bool:
    """Whether `program` is an ELF file without an interpreter (elf(5)); scripts and what cannot be read count as dynamic."""
    try:
        with program.open("rb") as file:
            header = file.read(64)
            if len(header) < 64 or header[:5] != b"\x7fELF\x02":
                return False
            offset = struct.unpack_from("<Q", header, 32)[0]
            entry_bytes, entries = struct.unpack_from("<HH", header, 54)
            file.seek(offset)
            table = file.read(entry_bytes * entries)
    except OSError:
        return False
    return all(struct.unpack_from("<I", table, i * entry_bytes)[0] != _PROGRAM_INTERPRETER for i in range(entries))
