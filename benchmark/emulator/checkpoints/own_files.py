"""Notes, in a checkpoint folder, that list the files which emulators wrote there. Emulators change no other files.

A name is written to the note before its file is created, so that every file is listed even if the process is killed. The note
is mapped into memory, because the emulated job makes no system calls for it.
"""

import glob
import json
import mmap
import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.paths_below import open_beneath, stays_within
from iotwin.common.untrusted_files import decode_foreign
from iotwin.workload_yaml.checkpoint_names import WORDS, numbers_in

_NAME = "iotwin-emulated.txt"  # name of rank 0's note; that of rank 3 is iotwin-emulated-3.txt
_NOTE = re.compile(r"iotwin-emulated(-[0-9]+)?\.txt")
_TEXT = b"The checkpoints in this folder were written by iotwin emulate: random bytes, no model. These are its files:\n"
_ROOM_BYTES = 16 << 10  # allocated in advance: a write to mapped memory on a full disk would kill the process
_LARGEST_BYTES = 64 << 20


class OwnFiles:
    """The names, relative to `folder`, of the files that emulators wrote there. Each rank has a separate note."""

    def __init__(self, folder: Path, rank: int) -> None:
        """Read the notes of all ranks. Raises UsageError if a file with a note's name is not a note."""
        self._folder, self._rank = folder, rank
        self._names: set[str] = set()
        self._length = 0
        self._memory: mmap.mmap | None = None
        self._lock = threading.Lock()
        self._note = _NAME if rank == 0 else _NAME.replace(".", f"-{rank}.")
        for name in self._notes():
            self._read(name)

    def __contains__(self, name: str) -> bool:
        """True if an emulator wrote the file `name`."""
        return name in self._names

    def refuse_others(self, names: Iterable[str]) -> None:
        """Raise UsageError if no emulator wrote one of the existing files `names`."""
        for name in names:
            if name not in self:  # another rank may have noted and created it since the notes were read
                for note in self._notes():
                    if note != self._note:
                        self._read(note)
            if name not in self:
                raise UsageError(
                    f"{self._folder / name}: exists, and no emulator wrote it; change checkpoint.checkpoint_folder to spare it"
                )

    def below(self, folder: str) -> list[str]:
        """Return the names of the files in the folder `folder`."""
        return [name for name in self._names if name.startswith(f"{folder}/")]

    def begin(self) -> None:
        """Create this rank's note. Raises OSError on failure."""
        os.close(open_beneath(self._folder, self._note, os.O_RDWR | os.O_CREAT))
        if not self._length:
            self._append(_TEXT)

    def add(self, name: str) -> None:
        """Add `name` to the note before the file is created. Raises IotwinError if the disk is full."""
        with self._lock:
            if name not in self._names:
                self._append(json.dumps(name, ensure_ascii=False).encode() + b"\n")
                self._names.add(name)

    def settle(self) -> None:
        """Close the note and free its unused space on disk."""
        with self._lock:
            self._memory = None
            with self._opened() as descriptor:
                os.ftruncate(descriptor, self._length)

    def _notes(self) -> list[str]:
        return sorted(path.name for path in self._folder.glob(_NAME.replace(".", "*.")) if _NOTE.fullmatch(path.name))

    def _read(self, note: str) -> None:
        with os.fdopen(open_beneath(self._folder, note, os.O_RDONLY), "rb") as file:
            content = file.read(_LARGEST_BYTES + 1).rstrip(b"\0")
        if len(content) < len(_TEXT) and _TEXT.startswith(content):  # another rank is writing the first line
            return
        if not content.startswith(_TEXT):
            # This may also be the note of an old emulator, which listed no files.
            raise UsageError(
                f"{self._folder / note}: is no list of files that an emulator wrote; remove it and the checkpoints it was for, "
                "or change checkpoint.checkpoint_folder"
            )
        whole = content.rpartition(b"\n")[0] + b"\n"  # a kill may have torn the last line
        for line in whole[len(_TEXT) :].splitlines():
            try:
                name = decode_foreign(line, object, note)
            except IotwinError:
                continue
            if isinstance(name, str) and stays_within(name):
                self._names.add(name)
        if note == self._note:
            self._length = len(whole)

    def _append(self, line: bytes) -> None:
        try:
            if self._memory is None or self._length + len(line) > len(self._memory):
                self._make_room(self._length + len(line) + _ROOM_BYTES)
            if self._memory is None:
                with self._opened() as descriptor:
                    os.pwrite(descriptor, line, self._length)
            else:
                self._memory[self._length : self._length + len(line)] = line
        except OSError as error:
            raise IotwinError(
                f"{self._folder / self._note}: cannot be written: {error.strerror}; change checkpoint.checkpoint_folder"
            ) from None
        self._length += len(line)

    def _make_room(self, size_bytes: int) -> None:
        with self._opened() as descriptor:
            os.posix_fallocate(descriptor, 0, size_bytes)
            with suppress(OSError):  # some file systems do not support mmap; then `_append` calls pwrite
                self._memory = mmap.mmap(descriptor, size_bytes)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        descriptor = open_beneath(self._folder, self._note, os.O_RDWR)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def claim(folder: Path, note: int, patterns: Iterable[str], checkpoints: Iterable[str]) -> OwnFiles:
    """Create the note with the index `note` in `folder`, and return the files that emulators wrote there.

    Raises UsageError if a file that matches one of `patterns` exists and no emulator wrote it. Also raises it if one of the
    existing folders `checkpoints` is a link or has no file of an emulator.
    """
    own = OwnFiles(folder, note)
    own.refuse_others(name for name in checkpoints if (folder / name).is_symlink() or not own.below(name))
    own.refuse_others(name for name, _ in existing_files(folder, patterns))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        own.begin()
    except OSError as error:
        raise IotwinError(f"{folder}: cannot be written: {error.strerror}; change checkpoint.checkpoint_folder") from None
    return own


def existing_files(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield (name, (epoch, step)) for each file in `folder` that matches a pattern in `names`, including dangling links.

    '{epoch}' and '{step}' in a pattern match any number. Without them, the epoch is 1 and the step is 0.
    """
    for name in names:
        pattern = glob.escape(name)  # a glob, since it is unknown which epochs and steps will have checkpoints
        for word in WORDS:
            pattern = pattern.replace(f"{{{word}}}", "*")
        for found in glob.iglob(pattern, root_dir=folder):  # noqa: PTH207 - pathlib omits dangling links
            if (number := numbers_in(found, name)) is not None:
                yield found, number
