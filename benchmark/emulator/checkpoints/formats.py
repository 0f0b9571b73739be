"""Convert the planned files of a checkpoint to another format with the same tensors.

zip and legacy are the formats of torch.save. dcp is torch.distributed.checkpoint: a folder with files of each rank and the
file `.metadata`, which lists their contents. slots are those of PCcheck (Strati et al., ASPLOS 2025): each rank maps one file
and overwrites its slots in turns.
"""

from collections.abc import Callable, Sequence
from heapq import heapreplace
from itertools import chain
from operator import itemgetter
from pathlib import PurePosixPath

from msgspec.structs import replace

from iotwin.benchmark.emulator.checkpoints.planned import PlannedFile
from iotwin.benchmark.emulator.checkpoints.streams import PYTHON_BUFFER_BYTES, item_writes, legacy_writes, zip_writes

_LEAST_TENSOR_BYTES = 1024  # writes of at least this size count as tensors, smaller ones as headers
_METADATA = ".metadata"
_METADATA_BYTES, _METADATA_BYTES_EACH = 491, 221  # its size, constant and per tensor, as measured with torch 2.13

Files = Sequence[PlannedFile]
FilesOf = Callable[[int], Files]  # of a rank


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
            return [_stream(file, zip_writes(PurePosixPath(file.name).stem, _tensors(file))) for file in mine] + others
        case "legacy":
            return [_stream(file, legacy_writes(_tensors(file))) for file in mine] + others
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
        found += [_synced(f"{folder}/__{rank}_{number}.distcp", item_writes(bucket)) for number, bucket in enumerate(buckets)]
    for folder in of_all[rank]:
        if rank == min(other for other in of_all if folder in of_all[other]):
            items = sum(len(own.get(folder, ())) for own in of_all.values())
            size = _METADATA_BYTES + _METADATA_BYTES_EACH * items
            metadata = _synced(f"{folder}/{_METADATA}", ((size, 1),))
            found.append(replace(metadata, rename=True, commits=True, synced_early=size <= PYTHON_BUFFER_BYTES))
    return found


def _synced(name: str, writes: Sequence[tuple[int, int]]) -> PlannedFile:
    return PlannedFile(name, list(writes), fsync=True)


def _by_folder(files: Files) -> dict[str, tuple[int, ...]]:
    """Return the sizes of a rank's tensors by folder: the file's own folder, or one with the file's name if it is in none."""
    found: dict[str, tuple[int, ...]] = {}
    for file in files:
        path = PurePosixPath(file.name)
        folder = str(path.parent if len(path.parts) > 1 else path.with_suffix(""))
        if _changes(file, "dcp"):
            found[folder] = found.get(folder, ()) + _tensors(file)
    return found


def _buckets(tensors: tuple[int, ...], threads: int) -> list[tuple[int, ...]]:
    """Return the tensors of each thread. The largest remaining tensor is assigned to the thread with the fewest bytes so far."""
    if threads == 1:
        return [tensors]
    least: list[tuple[int, int, list[int]]] = [(0, number, []) for number in range(min(threads, len(tensors)))]
    for size in sorted(tensors, reverse=True):
        total, number, bucket = least[0]
        bucket.append(size)
        heapreplace(least, (total + size, number, bucket))
    return [tuple(bucket) for _, _, bucket in sorted(least, key=itemgetter(1))]
