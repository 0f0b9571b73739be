"""Generate data sets in object stores and other file systems that fsspec supports, as `s3://bucket/prefix`.

Object stores cannot rename or append. So workers write files to a local staging directory, which also holds the journal. Whole
files are uploaded one by one, and the manifest last. If the command is killed, it can resume from the staging directory.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from iotwin.common.errors import IotwinError, in_one_line
from iotwin.common.files import cache_folder, make_folder, new_folder, struct_json, temporary_directory
from iotwin.common.progress import note
from iotwin.common.removal import remove_entry, remove_file, remove_own
from iotwin.datagen.data_set_files import Piece, Publisher, read_open_piece
from iotwin.datagen.generate import REPLACING, Existing, Plan, check_space, finished_units, plan, whole, write_units
from iotwin.datagen.layouts import Layout
from iotwin.datagen.manifest import (
    MANIFEST_NAME,
    DataSetManifest,
    Request,
    decode_manifest,
    read_journal,
    start_journal,
)
from iotwin.datagen.verify import compare

if TYPE_CHECKING:
    from fsspec.spec import AbstractFileSystem


class ObjectStore(NamedTuple):
    """A prefix in an object store, or a folder in another file system of fsspec."""

    url: str
    files: "AbstractFileSystem"
    prefix: str

    def path(self, name: str) -> str:
        """Return the path in the store of the file `name` of the data set."""
        return f"{self.prefix}/{name}"

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of every object below the prefix, by its name relative to the prefix."""
        with _one_line(self.url):
            self.files.invalidate_cache()
            found = self.files.find(self.prefix, detail=True)
        return {path.removeprefix(f"{self.prefix}/"): int(entry["size"]) for path, entry in found.items()}

    def manifest(self) -> DataSetManifest:
        """Return the manifest of the data set in the store. Raises IotwinError if there is none or iotwin did not write it."""
        if MANIFEST_NAME not in self.sizes():
            raise IotwinError(f"{self.url} is not a finished iotwin data set: it has no {MANIFEST_NAME}")
        with _one_line(self.url):
            content: bytes = self.files.cat_file(self.path(MANIFEST_NAME))
        return decode_manifest(content, f"{self.url}/{MANIFEST_NAME}")


def _one_line(url: str) -> AbstractContextManager[None]:
    return in_one_line(url, "is it reachable and writable?")


def open_store(url: str, options: Mapping[str, object] | None = None) -> ObjectStore:
    """Open the store at `url` with fsspec's `options`. Raises IotwinError if a package for its protocol is missing."""
    try:
        from fsspec.core import url_to_fs

        files, prefix = url_to_fs(url, **(options or {}))
    except ImportError as error:
        raise IotwinError(f"{url}: {error}; install it with: pip install 'iotwin[s3]'") from None
    except ValueError as error:
        raise IotwinError(f"{url}: {error}; write for example s3://bucket/prefix") from None
    return ObjectStore(url.rstrip("/"), files, prefix.rstrip("/"))


class _Uploader(Publisher):
    """Publishes each file by uploading it, and removes it from the staging directory."""

    def __init__(self, staging: Path, store: ObjectStore) -> None:
        super().__init__(staging)
        self._store, self._sizes = store, store.sizes()

    def publish(self, partial: Path, name: str) -> None:
        """Upload the local file `partial` as `name`, and remove the local file."""
        with _one_line(self._store.url):
            path = self._store.path(name)
            self._store.files.makedirs(path.rpartition("/")[0], exist_ok=True)  # has no effect in an object store
            self._store.files.put_file(str(partial), path)
        remove_file(partial)

    def final_bytes(self, name: str) -> int | None:
        """Return the size in bytes that the object `name` had when the run began; None if it did not exist then."""
        return self._sizes.get(name)


def generate(
    layout: Layout,
    url: str,
    *,
    samples: int | None = None,
    size_bytes: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    existing: Existing = "refuse",
    options: Mapping[str, object] | None = None,
) -> DataSetManifest:
    """Write a data set to `url`, and return its manifest. Arguments and errors are as in datagen.generate.generate."""
    planned = plan(layout, samples=samples, size_bytes=size_bytes, seed=seed)
    store = open_store(url, options)
    staging = _staging(store.url)
    if finished := _prepare(store, staging, planned.request, existing):
        return finished
    check_space(staging, _staged_bytes(planned, workers or len(os.sched_getaffinity(0))))
    uploader = _Uploader(staging, store)
    done = finished_units(planned, staging, uploader)
    write_units(planned, staging, uploader, done, workers)
    manifest = whole(planned, done)
    with _one_line(url):
        store.files.pipe_file(store.path(MANIFEST_NAME), struct_json(manifest))
    remove_entry(staging)
    return manifest


def _staging(url: str) -> Path:
    """Return the staging directory for `url`, below $XDG_CACHE_HOME or ~/.cache.

    A run resumes from the files there, so nobody else may write there. Raises IotwinError if the directory is a link, belongs
    to another user, or grants permissions to others.
    """
    base = cache_folder()
    try:
        make_folder(base.parent, mode=0o700)
    except OSError:  # the user's home directory does not exist
        base = Path(temporary_directory()) / f"iotwin-{os.geteuid()}"
    staging = base / f"upload-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
    for directory in (base, staging):
        try:
            if directory == base:
                make_folder(directory, mode=0o700)
            found = directory.lstat()
        except FileNotFoundError:  # no unfinished upload yet
            return staging
        except OSError as error:
            raise IotwinError(
                f"{directory}: {error.strerror}; set XDG_CACHE_HOME to a directory for unfinished uploads"
            ) from None
        # `base` also holds other caches of iotwin, which other users may read, but not write.
        forbidden = 0o022 if directory == base else 0o077
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & forbidden:
            raise IotwinError(
                f"{directory} must be a directory of yours that nobody else can write, as files are staged there; remove it, or "
                "set XDG_CACHE_HOME to another place"
            )
    return staging


def _staged_bytes(planned: Plan, workers: int) -> int:
    """Return the approximate peak of bytes in the staging directory: one unit per worker, or a file that several units write."""
    largest = int(np.argmax(planned.unit_bytes))
    shared = max(piece.file_bytes or 0 for piece in planned.pieces(largest))
    return max(shared, min(planned.size_bytes, (workers + 1) * int(planned.unit_bytes[largest])))


def _prepare(store: ObjectStore, staging: Path, request: Request, existing: Existing) -> DataSetManifest | None:
    """Prepare the store and `staging` for `request`. Return its manifest if the store already holds that data set, else None."""
    names = store.sizes()
    if MANIFEST_NAME in names and existing != "replace":
        manifest = store.manifest()
        if manifest.request == request:
            note(f"{store.url} already holds this data set; check it with iotwin generate --verify")
            return manifest
        if existing == "refuse":
            raise IotwinError(f"{store.url} already holds another data set; choose another prefix or replace it ({REPLACING})")
    unfinished, done = read_journal(staging)
    if unfinished == request and existing != "replace":
        return None
    if names and existing == "refuse":
        raise IotwinError(
            f"{store.url} holds files that are not this data set's; choose an empty prefix or go ahead all the same ({REPLACING})"
        )
    ours = {MANIFEST_NAME}
    if existing == "replace":
        ours |= {piece.name for pieces in done.values() for piece in pieces}
        if MANIFEST_NAME in names:
            ours |= {piece.name for piece in store.manifest().pieces}
    with _one_line(store.url):
        for name in sorted(ours & names.keys()):
            store.files.rm_file(store.path(name))
    remove_own(staging)
    new_folder(staging, mode=0o700)  # raises if anything could not be removed
    start_journal(staging, request)
    return None


def remove_data_set(url: str, options: Mapping[str, object] | None = None) -> None:
    """Remove the objects that the manifest at `url` lists, and the manifest, but no other objects."""
    store = open_store(url, options)
    names = {MANIFEST_NAME, *(piece.name for piece in store.manifest().pieces)}
    with _one_line(store.url):
        for name in sorted(names & store.sizes().keys()):
            store.files.rm_file(store.path(name))


def verify(url: str, workers: int | None = None) -> DataSetManifest:
    """Read the whole data set at `url` and return its manifest. Raises IotwinError if the data differ from the manifest."""
    store = open_store(url)
    return compare(store.url, store.manifest(), store.sizes().get, partial(_read_piece, url), workers)


def _read_piece(url: str, pieces: list[Piece], index: int, read: Callable[[int], None]) -> list[Piece]:
    store, piece = open_store(url), pieces[index]
    with _one_line(url), store.files.open(store.path(piece.name), "rb") as file:
        return [read_open_piece(file, piece.name, piece.offset, piece.size_bytes, read)]
