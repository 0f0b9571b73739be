"""Read from object stores and other file systems that fsspec supports."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Self

from iotwin.benchmark.emulator.readers.access import check_within, damaged
from iotwin.common.errors import IotwinError, in_one_line

if TYPE_CHECKING:
    from fsspec.spec import AbstractFileSystem


def one_line(url: str) -> AbstractContextManager[None]:
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


class RemoteFile:
    """An object in a store. Nothing is open between its reads."""

    def __init__(self, files: "AbstractFileSystem", path: str, transfer_bytes: int | None) -> None:
        self._files, self._path, self._transfer_bytes = files, path, transfer_bytes
        with one_line(path):
            self.size_bytes = int(files.size(path))

    def read(self, offset: int, size_bytes: int) -> memoryview:
        check_within(self._path, self.size_bytes, offset, size_bytes)
        step = self._transfer_bytes or max(1, size_bytes)
        with one_line(self._path):
            parts = [
                self._files.cat_file(self._path, start=start, end=min(start + step, offset + size_bytes))
                for start in range(offset, offset + size_bytes, step)
            ]
        content = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(content) < size_bytes:
            raise damaged(self._path, f"gave {len(content)} bytes of {size_bytes}")
        return memoryview(content)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Do nothing, since nothing is open."""
