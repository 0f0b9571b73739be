"""Convert the planned files of a checkpoint to another format with the same tensors.

zip and legacy are the formats of torch.save. dcp is torch.distributed.checkpoint: a folder with files of each rank and the
file `.metadata`, which lists their contents. slots is PCcheck's format (Strati et al., ASPLOS 2025): each rank maps one file into
memory and overwrites the slots of the file in turns.

All sizes are in bytes. The size of a pickle depends on names that a twin does not know, so it is estimated from the number of
tensors. Sources: PKZIP's application note; the records and the alignment of torch 2.13, as strace shows them; the buffers of
libstdc++'s basic_filebuf and of Python 3.11's io.BufferedWriter.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from heapq import heapreplace
from itertools import chain, groupby
from operator import itemgetter
from pathlib import PurePosixPath

from msgspec.structs import replace

from iotwin.benchmark.emulator.checkpoints.one_file import PlannedFile

_LEAST_TENSOR_BYTES = 1024  # writes of at least this size count as tensors, smaller ones as headers
_METADATA = ".metadata"
_METADATA_BYTES, _METADATA_BYTES_EACH = 491, 221  # size of .metadata: constant part, and part per tensor, of torch 2.13
_ALIGNMENT = 64  # the content of each record begins at a multiple of this offset in the file
_LOCAL_HEADER, _DESCRIPTOR, _CENTRAL_HEADER, _END = 30, 16, 46, 98  # _END: zip64's end record and locator, zip's end record
_LEAST_EXTRA = 4  # tag and length of the field that pads a header to the alignment
_BEFORE = ((".format_version", 1), (".storage_alignment", 2), ("byteorder", 6))  # records before the tensors
_AFTER = (("version", 2), (".data/serialization_id", 40))  # records after the tensors
_PICKLED_BYTES, _PICKLED_BYTES_EACH = 80, 85  # pickle: constant part, and part per tensor with a name of ten letters
_ITEM_PICKLED_BYTES = 156  # pickle of one tensor without a name
_LEGACY_START_BYTES = 137  # versions, and sizes of the machine's numbers
_LEGACY_BYTES, _LEGACY_BYTES_EACH, _LEGACY_KEY_BYTES = 80, 95, 21  # list of the tensors; then the order of their content
_LENGTH_BYTES = 8  # length before each tensor of the legacy format
_CPP_BUFFER_BYTES, _CPP_PASSES_BYTES = 8191, 1024  # a piece of 1024 bytes or more is written together with the buffer's content
_PYTHON_BUFFER_BYTES = 4096  # a block of the file system

Runs = tuple[tuple[int, int], ...]  # (size of a write, number of consecutive writes of that size)
FilesOf = Callable[[int], list[PlannedFile]]  # the planned files of a rank, by its index


def as_format(name: str, files_of: FilesOf, rank: int, ranks: int, threads: int) -> list[PlannedFile]:
    """Return the files that `rank` of `ranks` writes in the format `name` instead of `files_of(rank)`.

    Files without tensors, and files that have the format already, remain unchanged. In a distributed checkpoint, each of
    `threads` threads writes a separate file.
    """
    own = files_of(rank)
    others = [file for file in own if not _changes(file, name) and (name == "dcp" or not _lists_items(file))]
    mine = [file for file in own if _changes(file, name)]
    match name:
        case "zip":
            return [_stream(file, _zip_writes(PurePosixPath(file.name).stem, _tensors(file))) for file in mine] + others
        case "legacy":
            return [_stream(file, _legacy_writes(_tensors(file))) for file in mine] + others
        case "dcp":
            return _distributed(files_of, rank, ranks, threads) + others
    tensors = tuple(chain.from_iterable(map(_tensors, mine)))
    slot = PlannedFile(f"slots-{rank}", [(size, 1) for size in tensors], fsync=True, slots=True)
    return [slot, *others] if tensors else others


def _changes(file: PlannedFile, name: str) -> bool:
    return file.format != name and bool(_tensors(file)) and not _lists_items(file)


def _lists_items(file: PlannedFile) -> bool:
    """True if the file holds only the metadata of a distributed checkpoint."""
    return file.format == "dcp" and PurePosixPath(file.name).name == _METADATA


def _tensors(file: PlannedFile) -> tuple[int, ...]:
    return tuple(size for size in file.sizes() if size >= _LEAST_TENSOR_BYTES)


def _stream(file: PlannedFile, writes: Sequence[tuple[int, int]]) -> PlannedFile:
    return replace(file, write_sizes=list(writes), read_back=[], direct=False)


def _distributed(files_of: FilesOf, rank: int, ranks: int, threads: int) -> list[PlannedFile]:
    """Return the files of `rank` as distributed checkpoints: its tensor files in each folder, and the folder's metadata file."""
    of_all = {other: _by_folder(files_of(other)) for other in range(ranks)}
    found = []
    for folder, tensors in of_all[rank].items():
        buckets = _buckets(tensors, threads)
        found += [_synced(f"{folder}/__{rank}_{number}.distcp", _item_writes(bucket)) for number, bucket in enumerate(buckets)]
    for folder in of_all[rank]:
        if rank == min(other for other in of_all if folder in of_all[other]):
            items = sum(len(own.get(folder, ())) for own in of_all.values())
            size = _METADATA_BYTES + _METADATA_BYTES_EACH * items
            metadata = _synced(f"{folder}/{_METADATA}", ((size, 1),))
            found.append(replace(metadata, rename=True, commits=True, synced_early=size <= _PYTHON_BUFFER_BYTES))
    return found


def _synced(name: str, writes: Sequence[tuple[int, int]]) -> PlannedFile:
    return PlannedFile(name, list(writes), fsync=True)


def _by_folder(files: Sequence[PlannedFile]) -> dict[str, tuple[int, ...]]:
    """Return the sizes of a rank's tensors by folder: the file's own folder, or one with the file's name if it is in none."""
    found: dict[str, tuple[int, ...]] = {}
    for file in files:
        path = PurePosixPath(file.name)
        folder = str(path.parent if len(path.parts) > 1 else path.with_suffix(""))
        if _changes(file, "dcp"):
            found[folder] = found.get(folder, ()) + _tensors(file)
    return found


def _buckets(tensors: tuple[int, ...], threads: int) -> list[tuple[int, ...]]:
    """Return the tensors (sizes in bytes) of each thread.

    The largest remaining tensor goes to the thread with the fewest bytes.
    """
    if threads == 1:
        return [tensors]
    least: list[tuple[int, int, list[int]]] = [(0, number, []) for number in range(min(threads, len(tensors)))]
    for size in sorted(tensors, reverse=True):
        total, number, bucket = least[0]
        bucket.append(size)
        heapreplace(least, (total + size, number, bucket))
    return [tuple(bucket) for _, _, bucket in sorted(least, key=itemgetter(1))]


@cache
def _zip_writes(stem: str, tensors: tuple[int, ...]) -> Runs:
    """Return the writes of ``torch.save(state, "<stem>.pt")``."""
    pieces = _zip_pieces(stem, _PICKLED_BYTES + _PICKLED_BYTES_EACH * len(tensors), tensors)
    return _runs(_through_filebuf(pieces))


@cache
def _legacy_writes(tensors: tuple[int, ...]) -> Runs:
    """Return the writes of ``torch.save(state, path, _use_new_zipfile_serialization=False)``."""
    start = (_LEGACY_START_BYTES, _LEGACY_BYTES + _LEGACY_BYTES_EACH * len(tensors), _LEGACY_KEY_BYTES * len(tensors))
    each = (size for tensor in tensors for size in (_LENGTH_BYTES, tensor))  # each is a separate write, without a buffer
    return _runs([*_through_python(start), *each])


@cache
def _item_writes(tensors: tuple[int, ...]) -> Runs:
    """Return the writes of ``torch.distributed.checkpoint`` for the items of one file, each of which is a separate archive."""
    items = (_through_python(_zip_pieces("archive", _ITEM_PICKLED_BYTES, (tensor,))) for tensor in tensors)
    return _runs(size for item in items for size in item)


def _zip_pieces(stem: str, pickle_bytes: int, tensors: Sequence[int]) -> Iterator[int]:
    """Yield the sizes of the pieces that PyTorch passes to its buffer.

    They are the header, content and descriptor of each record, then the archive's central directory and its end.
    """
    data = tuple((f"data/{number}", size) for number, size in enumerate(tensors))
    at_bytes = central_bytes = 0
    for name, size in (("data.pkl", pickle_bytes), *_BEFORE, *data, *_AFTER):
        name_bytes = len(f"{stem}/{name}".encode())
        header = _LOCAL_HEADER + name_bytes + _LEAST_EXTRA
        header += -(at_bytes + header) % _ALIGNMENT
        yield from (header, size, _DESCRIPTOR)
        at_bytes += header + size + _DESCRIPTOR
        central_bytes += _CENTRAL_HEADER + name_bytes
    yield from (central_bytes, _END)


def _through_filebuf(pieces: Iterable[int]) -> Iterator[int]:
    """Yield the writes of a std::ofstream. A large piece is written by one call together with the small ones before it."""
    held = 0
    for size in pieces:
        if size >= min(_CPP_PASSES_BYTES, _CPP_BUFFER_BYTES - held):
            yield held + size
            held = 0
        else:
            held += size
    if held:
        yield held


def _through_python(pieces: Iterable[int]) -> Iterator[int]:
    """Yield the writes of an io.BufferedWriter. A piece that is larger than the buffer is written by a separate call."""
    held = 0
    for size in pieces:
        if held + size > _PYTHON_BUFFER_BYTES:
            if held:
                yield held
            held = 0
            if size > _PYTHON_BUFFER_BYTES:
                yield size
                continue
        held += size
    if held:
        yield held


def _runs(sizes: Iterable[int]) -> Runs:
    return tuple((size, sum(1 for _ in own)) for size, own in groupby(sizes))
