"""Folders of data sets, in a local file system or in an object store."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, overload

from iotwin.benchmark.emulator.readers import local_opener
from iotwin.benchmark.emulator.readers.access import Opener
from iotwin.benchmark.emulator.readers.remote import RemoteOpener, one_line
from iotwin.common.errors import IotwinError, UsageError, nearest
from iotwin.datagen.layouts import FormatLayout
from iotwin.workload_yaml import Config

Paths = tuple[str, ...]  # the files of one sample, or of one run of samples, in the order they are read

_PROTOCOLS = {"s3": "s3", "s3dlio": "s3"}
_S3_OPTIONS = {"access_key_id": "key", "secret_access_key": "secret", "endpoint_url": "endpoint_url"}  # s3fs's names by DLIO's
# The last three options have no effect.
_S3_MORE = ("region", "s3_force_path_style", "s3_max_attempts", "storage_library", "uri_scheme", "prefetch_workers")


class Folder(Protocol):
    """Interface of a folder with a data set's files."""

    path: str
    options: Mapping[str, object]  # fsspec's options for its file system

    def exists(self) -> bool:
        """Return whether the folder exists."""

    def below(self, name: str) -> "Folder":
        """Return the folder `name` in this folder."""

    def names(self, pattern: re.Pattern[str], first_only: bool = False) -> list[str]:
        """Return the sorted names of the files in this folder that match `pattern` as a whole.

        `first_only`: return at most one, the first one that the file system lists.
        """

    def size_bytes(self, path: str) -> int:
        """Return the size of the file `path` in bytes. Raises IotwinError, which names the file, if it does not exist."""


class _LocalFolder:
    def __init__(self, path: str) -> None:
        self.path = path
        self.options: Mapping[str, object] = {}

    def exists(self) -> bool:
        return Path(self.path).is_dir()

    def below(self, name: str) -> "_LocalFolder":
        return _LocalFolder(f"{self.path}/{name}")

    def names(self, pattern: re.Pattern[str], first_only: bool = False) -> list[str]:
        found = []
        if self.exists():
            with os.scandir(self.path) as entries:
                for entry in entries:
                    if pattern.fullmatch(entry.name) and entry.is_file():
                        found.append(entry.name)
                        if first_only:
                            break
        return sorted(found)

    def size_bytes(self, path: str) -> int:
        try:
            return Path(path).stat().st_size
        except OSError as error:
            raise IotwinError(f"{path}: {error.strerror}; generate the data set again") from None


class RemoteFolder:
    """A prefix in an object store, or a folder in another file system that fsspec supports."""

    def __init__(self, url: str, opener: RemoteOpener) -> None:
        self.path, self._opener = url, opener
        self.options: Mapping[str, object] = opener.options

    def exists(self) -> bool:
        """Return whether an object exists below the prefix."""
        with one_line(self.path):
            return bool(self._opener.file_system().exists(self.path))

    def below(self, name: str) -> "RemoteFolder":
        """Return the folder `name` below the prefix."""
        return RemoteFolder(f"{self.path}/{name}", self._opener)

    def names(self, pattern: re.Pattern[str], first_only: bool = False) -> list[str]:
        """Return the sorted names of the objects directly below the prefix that match `pattern` as a whole."""
        files = self._opener.file_system()
        with one_line(self.path):
            if not files.exists(self.path):
                return []
            found: list[dict[str, Any]] = files.ls(self.path, detail=True)
        names = (entry["name"].rpartition("/")[2] for entry in found if entry["type"] == "file")
        return sorted(name for name in names if pattern.fullmatch(name))

    def size_bytes(self, path: str) -> int:
        """Return the bytes of the object at `path`. Raises IotwinError, which names the object, if it does not exist."""
        return self._opener(path).size_bytes


def open_folder(config: Config) -> tuple[Folder, Opener]:
    """Return the workload's data folder and the opener of its files. Raises UsageError if the storage is not supported."""
    storage, folder = config.storage, config.dataset.data_folder
    folder = folder.rstrip("/") or folder[:1]  # '' stands for storage_root itself, as in DLIO
    protocol, separator, _ = folder.partition("://")
    kind = storage.storage_type
    if not separator and kind in ("local_fs", "parallel_fs", "direct_fs"):
        path = str(Path(storage.storage_root) / folder) if storage.storage_root not in ("", "./", ".") else folder or "."
        return _LocalFolder(path), local_opener(config)
    if not separator:
        if kind not in _PROTOCOLS:
            raise UsageError(f"storage.storage_type: '{kind}' is not supported; use local_fs or s3, or a URL in data_folder")
        protocol = _PROTOCOLS[kind]
        root = storage.storage_root.removeprefix(f"{protocol}://").strip("/.")
        folder = f"{protocol}://{'/'.join(filter(None, (root, folder.strip('/'))))}"
    opener = remote_opener(config, protocol)
    return RemoteFolder(folder, opener), opener


def remote_opener(config: Config, protocol: str) -> RemoteOpener:
    """Return the opener of objects of `protocol`, with the workload's storage options."""
    return RemoteOpener(protocol, _options(protocol, config.storage.storage_options), config.reader.transfer_size)


def _options(protocol: str, options: Mapping[str, object]) -> dict[str, object]:
    """Return the storage options, for S3 with DLIO's names replaced by s3fs's. Other file systems receive them unchanged."""
    if protocol != "s3":
        return dict(options)
    known = [*_S3_OPTIONS, *_S3_MORE]
    for name in options:
        if name not in known:
            raise UsageError(f"storage.storage_options.{name}: unknown{nearest(name, known)}; known: {', '.join(known)}")
    found = {ours: options[name] for name, ours in _S3_OPTIONS.items() if options.get(name) is not None}
    if region := options.get("region"):
        found["client_kwargs"] = {"region_name": region}
    configured: dict[str, object] = {}
    if str(options.get("s3_force_path_style", False)).lower() == "true":  # DLIO has it as text
        configured["s3"] = {"addressing_style": "path"}
    if attempts := options.get("s3_max_attempts"):
        configured["retries"] = {"max_attempts": _whole(attempts, "s3_max_attempts")}
    return {**found, "config_kwargs": configured} if configured else found


def _whole(value: object, name: str) -> int:
    if not str(value).isdecimal():
        raise UsageError(f"storage.storage_options.{name}: '{value}' is no number")
    return int(str(value))


class NamedFiles(Sequence[Paths]):
    """The files `indices` of a layout with `samples` samples. Names follow from indices, so a million files take no memory."""

    def __init__(self, folder: str, layout: FormatLayout, samples: int, indices: range) -> None:
        self._folder, self._layout, self._samples, self._indices = folder, layout, samples, indices

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, number: int) -> Paths: ...

    @overload
    def __getitem__(self, number: slice) -> "NamedFiles": ...

    def __getitem__(self, number: int | slice) -> "Paths | NamedFiles":
        """Return the paths of the file at index `number`, or the files of a slice."""
        if isinstance(number, slice):
            return NamedFiles(self._folder, self._layout, self._samples, self._indices[number])
        return (f"{self._folder}/{self._layout.file_name(self._samples, self._indices[number])}",)
