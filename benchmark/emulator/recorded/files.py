"""Open the files of a recording, only below the data folder or the output folder."""

import os
import time
from collections import OrderedDict
from pathlib import Path

from iotwin.benchmark.emulator.checkpoints.own_files import OwnFiles
from iotwin.common.errors import IotwinError
from iotwin.common.paths_below import folder_of, open_beneath
from iotwin.common.units import format_size
from iotwin.trace_store.schema import FLAG_CREATE, FLAG_DIRECT, FLAG_TRUNCATE, FLAG_WRITABLE
from iotwin.workload_yaml.recording import RecordedFile

_MOST_FOLDERS = 256  # folders that are open at a time
_LONGEST_WAIT_S = 60.0  # longest wait for a file that another thread will create


class JobFiles:
    """Opens, renames and removes the files of a recording, by the files' indices.

    Indices from `first_copy` on are copies of data-set files. They lie in the folder `copies`.
    """

    def __init__(self, files: list[RecordedFile], data: Path, output: Path, first_copy: int, copies: Path) -> None:
        self._files, self._output = files, output
        self._folder_of = [output if file.written else data if index < first_copy else copies for index, file in enumerate(files)]
        self._folders: OrderedDict[tuple[Path, str], int] = OrderedDict()
        self._located: dict[tuple[int, bool], tuple[int, str]] = {}  # results of _locate, while all their folders are open

    def close(self) -> None:
        """Close all open folders. A later call opens them again."""
        for folder in self._folders.values():
            os.close(folder)
        self._folders.clear()
        self._located.clear()

    def claim(self) -> None:
        """Add the files that the replay writes to the note of emulators' files (see OwnFiles).

        Raises UsageError if one of these files exists and no emulator wrote it.
        """
        written = (file for file in self._files if file.written)
        names = sorted({name for file in written for name in (file.name, file.renamed_to or file.name)})
        if names:
            self._output.mkdir(parents=True, exist_ok=True)
            own = OwnFiles(self._output, 0)
            own.refuse_others(name for name in names if os.path.lexists(self._output / name))
            own.begin()
            for name in names:
                own.add(name)
            own.settle()

    def prepare(self) -> None:
        """Check that the data set exists, and create the files that the job found and changed, and all folders.

        Raises IotwinError, which names the file, if a file of the data set is missing.
        """
        self._output.mkdir(parents=True, exist_ok=True)
        for file, folder in zip(self._files, self._folder_of, strict=True):
            if file.written:
                self._make_folders(file)
            elif not (folder / file.name).is_file():
                raise IotwinError(f"{folder / file.name}: is not there; give the data set by dataset.data_folder")

    def _make_folders(self, file: RecordedFile) -> None:
        for name in {file.name, file.renamed_to or file.name}:
            with folder_of(self._output, name, make=True):
                pass
        if not file.made:  # a sparse file, since its content does not matter, and a stranger may have chosen its size
            descriptor = open_beneath(self._output, file.name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                os.ftruncate(descriptor, file.size_bytes)
            except OSError as error:
                size = format_size(file.size_bytes)
                raise IotwinError(f"{self._output / file.name} cannot be made {size} long: {error.strerror}") from None
            finally:
                os.close(descriptor)

    def open(self, index: int, renamed: bool, flags: int) -> int:
        """Return a descriptor of the file at `index`, opened with the FLAG_* bits `flags`. Wait until the file exists.

        `renamed`: open it by its last name.
        """
        file = self._files[index]
        wanted = os.O_RDWR if flags & FLAG_WRITABLE and file.written else os.O_RDONLY
        if file.written:
            wanted |= (os.O_CREAT if flags & FLAG_CREATE else 0) | (os.O_TRUNC if flags & FLAG_TRUNCATE else 0)
        folder, last = self._located.get((index, renamed)) or self._locate(index, renamed)
        tries = [wanted | os.O_DIRECT, wanted] if flags & FLAG_DIRECT else [wanted]
        deadline: float | None = None
        while True:
            for each in tries:
                try:
                    return os.open(last, each | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=folder)
                except FileNotFoundError:
                    deadline = deadline or time.monotonic() + _LONGEST_WAIT_S
                    if not file.written or time.monotonic() > deadline:
                        raise
                    time.sleep(0.001)
                except OSError:
                    if each is tries[-1]:
                        raise

    def rename(self, index: int, renamed: bool) -> None:
        """Rename the file at `index` to its last name."""
        folder, last = self._locate(index, renamed)
        new_folder, new_name = self._locate(index, renamed=True)
        os.rename(last, new_name, src_dir_fd=folder, dst_dir_fd=new_folder)

    def unlink(self, index: int, renamed: bool) -> None:
        """Remove the file at `index`, unless it belongs to the data set."""
        file = self._files[index]
        folder, last = self._locate(index, renamed)
        if file.written:
            os.unlink(last, dir_fd=folder)

    def _locate(self, index: int, renamed: bool) -> tuple[int, str]:
        file = self._files[index]
        name = file.renamed_to if renamed and file.renamed_to is not None else file.name
        above, _, last = name.rpartition("/")
        key = (self._folder_of[index], above)
        folder = self._folders.get(key)
        if folder is None:
            with folder_of(key[0], name) as (opened, _):
                folder = self._folders[key] = os.dup(opened)
            if len(self._folders) > _MOST_FOLDERS:
                os.close(self._folders.popitem(last=False)[1])
                self._located.clear()
        self._located[index, renamed] = folder, last
        return folder, last
