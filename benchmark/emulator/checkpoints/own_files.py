"""Which files of a checkpoint folder an emulator wrote: a note beside them lists every one, and nothing else is ever touched.

The name is in the note before the file is made, so that a kill leaves no file that is not noted. It gets there through shared
memory: a system call for it would be one that the emulated job does not make.
"""

import json
import mmap
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from common.beneath import open_beneath, stays_within
from common.errors import IotwinError, UsageError

_NAME = "iotwin-emulated.txt"
_TEXT = b"The checkpoints in this folder were written by iotwin emulate: random bytes, no model. These are its files:\n"
_ROOM_BYTES = 16 << 10  # on disk from the start: a full disk must not turn up while names are written
_LARGEST_BYTES = 64 << 20


class OwnFiles:
    """The names, relative to `folder`, of what emulators wrote there; rank 0 and every other rank have a note of their own."""

    def __init__(self, folder: Path, rank: int) -> None:
        """Read the notes; UsageError when something else has the name of one."""
        self._folder, self._rank = folder, rank
        self._names: set[str] = set()
        self._length = 0
        self._memory: mmap.mmap | None = None
        self._lock = threading.Lock()
        self._note = _NAME if rank == 0 else _NAME.replace(".", f"-{rank}.")
        for name in self._notes():
            self._read(name)

    def __contains__(self, name: str) -> bool:
        """Whether an emulator wrote the file `name`."""
        return name in self._names

    def refuse_others(self, names: Iterable[str]) -> None:
        """Raise UsageError if one of `names`, which are there, is a file that no emulator wrote."""
        for name in names:
            if name not in self:  # when the notes were read; another rank may have made it since, and noted it before
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
        """Make this rank's note; OSError when it cannot be."""
        os.close(open_beneath(self._folder, self._note, os.O_RDWR | os.O_CREAT))
        if not self._length:
            self._append(_TEXT)

    def add(self, name: str) -> None:
        """Note that the file `name` is about to be made; IotwinError when the disk has no room for that."""
        with self._lock:
            if name not in self._names:
                self._append(json.dumps(name, ensure_ascii=False).encode() + b"\n")
                self._names.add(name)

    def settle(self) -> None:
        """Close the note and give back its room for names that were not needed."""
        with self._lock:
            self._memory = None
            with self._opened() as descriptor:
                os.ftruncate(descriptor, self._length)

    def _notes(self) -> list[str]:
        return sorted(path.name for path in self._folder.glob(_NAME.replace(".", "*.")) if _is_note(path.name))

    def _read(self, note: str) -> None:
        with os.fdopen(open_beneath(self._folder, note, os.O_RDONLY), "rb") as file:
            content = file.read(_LARGEST_BYTES + 1).rstrip(b"\0")
        if len(content) < len(_TEXT) and _TEXT.startswith(content):  # another rank is at its first line
            return
        if not content.startswith(_TEXT):
            # Also the note of an emulator of before, which listed nothing.
            raise UsageError(
                f"{self._folder / note}: is no list of files that an emulator wrote; remove it and the checkpoints it was for, "
                "or change checkpoint.checkpoint_folder"
            )
        whole = content.rpartition(b"\n")[0] + b"\n"  # a kill may have torn the last line
        for line in whole[len(_TEXT) :].splitlines():
            try:
                name = json.loads(line)
            except (ValueError, RecursionError):
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
            with suppress(OSError):  # on a file system that maps nothing each name costs calls
                self._memory = mmap.mmap(descriptor, size_bytes)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        descriptor = open_beneath(self._folder, self._note, os.O_RDWR)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _is_note(name: str) -> bool:
    """Whether `name` is a note's: iotwin-emulated.txt, or iotwin-emulated-3.txt of rank 3."""
    middle = name.removeprefix("iotwin-emulated").removesuffix(".txt")
    return not middle or (middle[0] == "-" and middle[1:].isdecimal())
