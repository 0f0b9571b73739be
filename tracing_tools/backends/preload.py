"""Capture without root, from inside the job: LD_PRELOAD loads a small C library (probes/preload.c) before libc.

Each thread of the job appends records to a separate file under raw/. After the job, the files are joined.
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

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import open_new, write_whole
from iotwin.common.untrusted_files import open_foreign
from iotwin.trace_store.manifest import Manifest
from iotwin.trace_store.raw.converted_records import ConvertedRecords
from iotwin.trace_store.raw.record_files import Recording
from iotwin.trace_store.raw.records import EVENT, RING_HEADER_BYTES
from iotwin.tracing_tools.backend_base import Backend, Scope
from iotwin.tracing_tools.backends.job_directory import make_job_directory, run_as_job
from iotwin.tracing_tools.probes import PRELOAD_SOURCE
from iotwin.tracing_tools.targets.temporary_folders import HeldFolder, remove_stale

_FLAGS = ["-O2", "-shared", "-fPIC"]
_PROGRAM_INTERPRETER = 3  # PT_INTERP of elf(5)
_PIECE_ROWS = 1 << 18
_DIRECTORY, _LOST_FILE = "preload", "lost"  # a folder in raw/, and a file in it
_PREFIX, _LIBRARY, _MODE = "iotwin-preload-", "preload.so", 0o755  # 0755, as the job may run as another user
_NOT_SEEN = (
    "captured by preload: calls of statically linked and setuid programs, and those that libc makes by itself "
    "(reads and writes of C's stdio), are not seen"
)


def unavailable_reason() -> str | None:
    """Return why LD_PRELOAD cannot capture on this machine, None if it can."""
    if os.uname().machine != "x86_64":
        return f"the library is for x86-64; this machine is {os.uname().machine}"
    if shutil.which("cc") is None:
        return "no C compiler (cc) is installed; install the package gcc"
    return None


class PreloadBackend(Backend):
    """Captures by wrappers around libc's functions, in every dynamically linked program of the job."""

    name = "preload"
    needs_command = True  # the library must be loaded when a program starts
    unrecorded_groups = ("metadata", "mmap", "async", "block")

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self.probes = ["LD_PRELOAD"]
        self._environment: list[str] = []  # words of env(1), set by the first `wrap`
        self._elsewhere: HeldFolder | None = None  # folder with a copy of the library, if the job cannot load it from raw/
        self._notes.insert(0, _NOT_SEEN)

    def wrap(self, command: list[str], raw: Path) -> list[str]:
        """Return the command line that runs `command` with the library. Raises IotwinError if `command` cannot load it."""
        program = shutil.which(command[0])
        if program is None:
            raise UsageError(f"there is no command '{command[0]}'; check its name or give its path")
        if _is_static(Path(program)):
            raise IotwinError(f"{program} is statically linked, so preload cannot see its calls; take --backend strace")
        if not self._environment:
            self._environment = self._made_library(raw)
        return ["env", *self._environment, *command]

    def _made_library(self, raw: Path) -> list[str]:
        """Compile the library in `raw`, and return the variables that load it as words of env(1)."""
        directory = make_job_directory(raw, _DIRECTORY)
        lost = directory / _LOST_FILE
        with open_new(lost) as counter:
            counter.write(bytes(8))
        lost.chmod(0o666 if os.geteuid() == 0 else 0o600)
        library = directory / _LIBRARY
        done = subprocess.run(
            ["cc", *_FLAGS, "-o", str(library), str(PRELOAD_SOURCE), "-ldl"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "TMPDIR": str(directory)},  # the only directory that is surely writable
        )
        if done.returncode:
            raise IotwinError(
                f"cc cannot compile {PRELOAD_SOURCE.name}: {(done.stderr.strip() or 'no reason given').splitlines()[0]}"
            )
        library.chmod(0o755)  # despite the umask, as under sudo another user runs the job
        libraries = ":".join(filter(None, (str(self._loadable(library)), os.environ.get("LD_PRELOAD"))))
        return [f"LD_PRELOAD={libraries}", f"IOTWIN_PRELOAD={directory}"]

    def _loadable(self, library: Path) -> Path:
        """Return `library`, or the path of a copy if `library` has blanks or colons in its path or is on a noexec mount."""
        reason = _reason_against(library)
        if reason is None:
            return library
        self._elsewhere = HeldFolder(_PREFIX, _MODE)
        copy = self._elsewhere.path / library.name
        write_whole(copy, library.read_bytes())
        copy.chmod(0o755)
        if _reason_against(copy) is not None:
            self.stop(None)
            raise IotwinError(f"preload's library cannot be loaded from {library.parent}: {reason}; choose another place for -o")
        return copy

    def stop(self, recording: Recording | None) -> None:
        """Remove the copy of the library, if there is one. The job itself records, so recording ended with the job."""
        if self._elsewhere is not None:
            self._elsewhere.close()
        super().stop(recording)


def remove_stale_copies() -> list[str]:
    """Remove copies of the library that killed tracers of this user left and that no process has mapped. Return their names."""
    return remove_stale(_PREFIX, _MODE, _LIBRARY, _is_unused)


def _is_unused(library: Path, status: os.stat_result) -> bool:
    mapped = os.fsencode(f"/{library.parent.name}/{library.name}")
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            if mapped in maps.read_bytes():
                return False
    return stat.S_ISREG(status.st_mode)


def _reason_against(library: Path) -> str | None:
    """Return the dynamic loader's error if a process of the job's user cannot load `library`, None if it can."""
    errors = run_as_job(["true"], {"PATH": os.defpath, "LC_ALL": "C", "LD_PRELOAD": str(library)}).stderr.strip()
    reasons = re.findall(r"\(([^()]+)\)", errors)
    return None if not errors else reasons[0] if reasons else errors.splitlines()[0]


def convert(raw: Path, manifest: Manifest) -> None:
    """Join the threads' records in one file. Set the losses in `manifest` to the number of records that found no space."""
    directory = raw / _DIRECTORY
    if not directory.is_dir():
        return
    with ConvertedRecords(raw) as made:
        for path in sorted(directory.iterdir()):
            if path.suffix == ".names":  # a name record is one write, so it is never cut off
                with open_foreign(path, follow=False) as file:
                    made.append_names(file.read())
            elif path.suffix == ".events":
                with open_foreign(path, follow=False) as file:
                    _append_whole(file, made)
    with open_foreign(directory / _LOST_FILE, follow=False) as file:
        lost = int.from_bytes(file.read(8), "little")
    manifest.lost = {"no_space": lost} if lost else {}


def _append_whole(file: BinaryIO, made: ConvertedRecords) -> None:
    """Append the records in a thread's `file` to `made`, without unused space and without a last record that a kill cut off."""
    rows = os.fstat(file.fileno()).st_size // EVENT.itemsize
    for first in range(0, rows, _PIECE_ROWS):
        piece = np.memmap(file, EVENT, "r", first * EVENT.itemsize, (min(rows - first, _PIECE_ROWS),))
        made.append_events(piece[piece["header"] == EVENT.itemsize - RING_HEADER_BYTES])


def _is_static(program: Path) -> bool:
    try:
        with open_foreign(program) as file:
            header = file.read(64)
            if len(header) < 64 or header[:5] != b"\x7fELF\x02":
                return False
            offset = struct.unpack_from("<Q", header, 32)[0]
            entry_bytes, entries = struct.unpack_from("<HH", header, 54)
            file.seek(offset)
            table = file.read(entry_bytes * entries)
    except (IotwinError, OSError):
        return False
    return all(struct.unpack_from("<I", table, i * entry_bytes)[0] != _PROGRAM_INTERPRETER for i in range(entries))
