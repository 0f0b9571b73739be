"""Read from object stores and other file systems that fsspec supports."""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from iotwin.benchmark.emulator.readers.access import OpenFile, check_within, damaged
from iotwin.common.errors import IotwinError, UsageError, in_one_line, nearest
from iotwin.workload_yaml import Storage

if TYPE_CHECKING:
    from fsspec.spec import AbstractFileSystem


_S3_OPTIONS = {"access_key_id": "key", "secret_access_key": "secret", "endpoint_url": "endpoint_url"}  # s3fs's names by DLIO's
# The last three options have no effect.
_S3_MORE = ("region", "s3_force_path_style", "s3_max_attempts", "storage_library", "uri_scheme", "prefetch_workers")


def _one_line(url: str) -> AbstractContextManager[None]:
    """Turn any exception of the block, which reads from `url`, into an IotwinError of one line."""
    return in_one_line(f"{url}: cannot be read", "check the name, storage.storage_options and the network")


class RemoteOpener:
    """Opens files `protocol://path`. Each read is one request, or several of at most `transfer_bytes` if given."""

    def __init__(self, protocol: str, options: Mapping[str, object], transfer_bytes: int | None = None) -> None:
        self._protocol, self._transfer_bytes = protocol, transfer_bytes
        self.options = dict(options)

    def file_system(self) -> "AbstractFileSystem":
        """Return fsspec's file system. fsspec caches it, and creates a new one in a forked process."""
        try:
            import fsspec

            return fsspec.filesystem(self._protocol, **self.options)
        except (ImportError, ValueError) as error:
            raise IotwinError(f"{self._protocol}://: {error}; install it with: pip install 'iotwin[s3]'") from None

    def __call__(self, path: str) -> "RemoteFile":
        """Return the file at the URL `path`."""
        return RemoteFile(self.file_system(), path, self._transfer_bytes)


class RemoteFile(OpenFile):
    """An object in a store. Nothing is open between its reads."""

    def __init__(self, files: "AbstractFileSystem", path: str, transfer_bytes: int | None) -> None:
        self._files, self._path, self._transfer_bytes = files, path, transfer_bytes
        with _one_line(path):
            self.size_bytes = int(files.size(path))

    def read(self, offset: int, size_bytes: int) -> memoryview:
        check_within(self._path, self.size_bytes, offset, size_bytes)
        step = self._transfer_bytes or max(1, size_bytes)
        with _one_line(self._path):
            parts = [
                self._files.cat_file(self._path, start=start, end=min(start + step, offset + size_bytes))
                for start in range(offset, offset + size_bytes, step)
            ]
        content = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(content) < size_bytes:
            raise damaged(self._path, f"gave {len(content)} bytes of {size_bytes}")
        return memoryview(content)

    def __exit__(self, *exception: object) -> None:
        """Do nothing, since nothing is open."""


class RemoteFolder:
    """A prefix in an object store, or a folder in another file system that fsspec supports."""

    def __init__(self, url: str, opener: RemoteOpener) -> None:
        self.path, self._opener = url, opener
        self.options: Mapping[str, object] = opener.options

    def exists(self) -> bool:
        with _one_line(self.path):
            return bool(self._opener.file_system().exists(self.path))

    def below(self, name: str) -> "RemoteFolder":
        return RemoteFolder(f"{self.path}/{name}", self._opener)

    def names(self, pattern: re.Pattern[str], first_only: bool = False) -> list[str]:
        files = self._opener.file_system()
        with _one_line(self.path):
            if not files.exists(self.path):
                return []
            found: list[dict[str, Any]] = files.ls(self.path, detail=True)
        names = (entry["name"].rpartition("/")[2] for entry in found if entry["type"] == "file")
        return sorted(name for name in names if pattern.fullmatch(name))

    def size_bytes(self, path: str) -> int:
        return self._opener(path).size_bytes


def remote_opener(storage: Storage, protocol: str, transfer_bytes: int | None) -> RemoteOpener:
    """Return the opener of objects of `protocol`, with the options of `storage`."""
    return RemoteOpener(protocol, _options(protocol, storage.storage_options), transfer_bytes)


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
