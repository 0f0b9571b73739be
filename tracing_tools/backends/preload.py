"""Capture without root, from inside the job: a small C library that LD_PRELOAD puts in front of libc.

Each thread appends records to a file of its own under raw/ (probes/preload.c), which become one when the job has ended.
"""

import contextlib
import os
import re
import shutil
import stat
import struct
import subprocess
from pathlib import Path
from typing import BinaryIO

import numpy as np

from common.errors import IotwinError, UsageError
from common.foreign_files import open_foreign
from tracing_tools.backends.job_directory import make_job_directory, run_as_job
from tracing_tools.backends.unrecorded import not_recorded
from tracing_tools.probes import PRELOAD_SOURCE
from tracing_tools.protocols import Ledger, Scope
from tracing_tools.targets.held_folder import HeldFolder, remove_stale
from tracing_tools.trace.manifest import Manifest
from tracing_tools.trace.raw.converted import ConvertedRecords
from tracing_tools.trace.raw.recording import Recording
from tracing_tools.trace.raw.records import EVENT, RING_HEADER_BYTES

_FLAGS = ["-O2", "-shared", "-fPIC"]
_PROGRAM_INTERPRETER = 3  # PT_INTERP of elf(5)
_PIECE_ROWS = 1 << 18
_DIRECTORY, _LOST_FILE = "preload", "lost"  # in raw/
_PREFIX, _LIBRARY, _MODE = "iotwin-preload-", "preload.so", 0o755  # of the folder of a copy: the job may be another user's
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
        self._elsewhere: HeldFolder | None = None  # of the library, where it could not be loaded from raw/
        self._notes = [_NOT_SEEN, *not_recorded("preload", scope, ("metadata", "mmap", "async", "block"))]

    def wrap(self, command: list[str], raw: Path) -> list[str]:
        """Return the command line that runs `command` with the library; IotwinError when that cannot see it."""
        program = shutil.which(command[0])
        if program is None:
            raise UsageError(f"there is no command '{command[0]}'; check its name or give its path")
        if _is_static(Path(program)):
            raise IotwinError(f"{program} is statically linked, so preload cannot see its calls; take --backend strace")
        directory = make_job_directory(raw, _DIRECTORY)
        lost = directory / _LOST_FILE
        lost.write_bytes(bytes(8))
        lost.chmod(0o666 if os.geteuid() == 0 else 0o600)
        library = directory / _LIBRARY
        done = subprocess.run(
            ["cc", *_FLAGS, "-o", str(library), str(PRELOAD_SOURCE), "-ldl"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "TMPDIR": str(directory)},  # there may be no other place that takes a file
        )
        if done.returncode:
            raise IotwinError(
                f"cc cannot compile {PRELOAD_SOURCE.name}: {(done.stderr.strip() or 'no reason given').splitlines()[0]}"
            )
        library.chmod(0o755)  # whatever the umask: under sudo the job is another user
        libraries = ":".join(filter(None, (str(self._loadable(library)), os.environ.get("LD_PRELOAD"))))
        return ["env", f"LD_PRELOAD={libraries}", f"IOTWIN_PRELOAD={directory}", *command]

    def _loadable(self, library: Path) -> Path:
        """Return where the job can load the library from: not where a name has a space or a colon, or files run no code."""
        reason = _reason_against(library)
        if reason is None:
            return library
        self._elsewhere = HeldFolder(_PREFIX, _MODE)
        copy = Path(shutil.copy(library, self._elsewhere.path))
        if _reason_against(copy) is not None:
            self.stop(None)
            raise IotwinError(f"preload's library cannot be loaded from {library.parent}: {reason}; choose another place for -o")
        return copy

    def start(self) -> None:
        """Nothing to do: the library starts with the command."""

    def follow(self, pid: int) -> None:
        """Nothing to do: the library is inherited."""

    def strays(self) -> dict[int, bool]:
        """None: no cgroup tells the job's processes from others."""
        return {}

    def drain(self, recording: Recording) -> bool:
        """Nothing to do until the end: the threads write files of their own."""
        return False

    def ledger(self) -> Ledger:
        """What the library could not write is known when its files are read."""
        return Ledger()

    def stop(self, recording: Recording | None) -> None:
        """The library ends with the job; say what it does not see."""
        if self._elsewhere is not None:
            self._elsewhere.close()
        if recording is not None:
            recording.manifest.notes.extend(self._notes)


def remove_stale_copies() -> list[str]:
    """Remove the copies of the library that killed tracers of this user left, when no process of their jobs has them any more."""
    return remove_stale(_PREFIX, _MODE, _LIBRARY, _is_unused)


def _is_unused(library: Path, status: os.stat_result) -> bool:
    mapped = os.fsencode(f"/{library.parent.name}/{library.name}")
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            if mapped in maps.read_bytes():
                return False
    return stat.S_ISREG(status.st_mode)


def _reason_against(library: Path) -> str | None:
    """Return what the dynamic loader says against the library, in a process of the job's user; None when it loads it."""
    said = run_as_job(["true"], {"PATH": os.defpath, "LC_ALL": "C", "LD_PRELOAD": str(library)}).stderr.strip()
    reasons = re.findall(r"\(([^()]+)\)", said)
    return None if not said else reasons[0] if reasons else said.splitlines()[0]


def convert(raw: Path, manifest: Manifest) -> None:
    """Put what the threads wrote into one file of records, and count what had no space."""
    directory = raw / _DIRECTORY
    if not directory.is_dir():
        return
    with ConvertedRecords(raw) as made:
        for path in sorted(directory.iterdir()):
            if path.suffix == ".names":  # appended whole, by one write each
                with open_foreign(path, follow=False) as file:
                    made.append_names(file.read())
            elif path.suffix == ".events":
                with open_foreign(path, follow=False) as file:
                    _append_whole(file, made)
    with open_foreign(directory / _LOST_FILE, follow=False) as file:
        lost = int.from_bytes(file.read(8), "little")
    manifest.lost = {"no_space": lost} if lost else {}


def _append_whole(file: BinaryIO, made: ConvertedRecords) -> None:
    """Append the records of a thread but for one that it was writing when it was killed, and the space it had left."""
    rows = os.fstat(file.fileno()).st_size // EVENT.itemsize
    for first in range(0, rows, _PIECE_ROWS):
        piece = np.memmap(file, EVENT, "r", first * EVENT.itemsize, (min(rows - first, _PIECE_ROWS),))
        made.append_events(piece[piece["header"] == EVENT.itemsize - RING_HEADER_BYTES])


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
