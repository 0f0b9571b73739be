"""Grow a real data set by copies of its cases, shards or rows under new names.

Grown data sets have layouts, too, so that `iotwin.datagen.generate.generate` plans, writes and resumes them.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.units import format_size
from iotwin.common.untrusted_files import open_foreign
from iotwin.datagen.augment import changed_planes, line_blocks, moved_words, shuffled_lines, shuffled_rows, volume_change
from iotwin.datagen.copying import copy_file
from iotwin.datagen.data_set_files import Piece, PieceWriter
from iotwin.datagen.layouts import BertLayout, DlrmLayout, PlannedPiece, Unet3dLayout, npy_header
from iotwin.datagen.random_numbers import AUGMENT, bulk_stream

_BLOCK_ROWS = 1 << 14


class SourceFile(NamedTuple):
    """A file of the data set to grow."""

    name: str
    size_bytes: int


class ScaledFiles(msgspec.Struct, frozen=True):
    """The layout of copies of groups of files: unet3d's cases, bert's shards, dlrm's text files. A sample is a copy of a group.

    Copy n is a copy of group n modulo the number of groups. All copies of a group but the first are changed if `augment`. The
    files `once` are copied only once.
    """

    source: str  # directory
    kind: str
    groups: tuple[tuple[SourceFile, ...], ...]
    once: tuple[SourceFile, ...]
    augment: bool

    workload: ClassVar[str] = "scaled"
    samples_per_file: ClassVar[int] = 1
    exact: ClassVar[bool] = False  # sizes are not exact, since inserted and deleted words change them

    def names(self, samples: int, index: int) -> tuple[str, ...]:
        """Return the names of the files in copy number `index` of the groups. `samples`: number of all copies."""
        if self.kind == "unet3d":
            return Unet3dLayout.case_names(index)
        return (f"part-{index:05d}-of-{samples:05d}",) if self.kind == "bert" else (f"day_{index}",)

    def unit_pieces(self, samples: int, seed: int, unit: int) -> list[PlannedPiece]:
        """Return the files of one unit of work.

        Units 0 to `samples` - 1 are the copies. Each unit after them is a file that is copied only once (`self.once`).
        """
        if unit >= samples:
            return [PlannedPiece(*self.once[unit - samples])]
        group = self.groups[unit % len(self.groups)]
        return [PlannedPiece(name, file.size_bytes) for name, file in zip(self.names(samples, unit), group, strict=True)]

    def unit_bytes(self, samples: int, seed: int) -> NDArray[np.int64]:
        copies = np.resize(self._group_bytes(), samples)
        return np.concatenate([copies, np.array([file.size_bytes for file in self.once], np.int64)])

    def file_count(self, samples: int) -> int:
        return samples * len(self.groups[0]) + len(self.once)

    def samples_within(self, size_bytes: int, seed: int) -> int:
        """Return how many copies fit into `size_bytes`. Raises UsageError if the source itself does not fit."""
        groups = self._group_bytes()
        left_bytes = size_bytes - sum(file.size_bytes for file in self.once)
        _refuse_less(self.source, int(groups.sum()), left_bytes)
        rounds, rest_bytes = divmod(left_bytes, int(groups.sum()))
        return int(rounds) * len(groups) + int(np.searchsorted(np.cumsum(groups), rest_bytes, side="right"))

    def _group_bytes(self) -> NDArray[np.int64]:
        return np.array([sum(file.size_bytes for file in group) for group in self.groups], np.int64)


class ScaledRows(msgspec.Struct, frozen=True):
    """The layout of dlrm's binary training file with its rows repeated. A sample is a row.

    Values of repeated rows are shuffled if `augment`. The files `once`, of test samples and of counts, are copied only once.
    """

    source: str  # directory
    rows: int  # number of rows of the source's training file
    once: tuple[SourceFile, ...]
    augment: bool

    workload: ClassVar[str] = "scaled"
    samples_per_file: ClassVar[int] = 1
    exact: ClassVar[bool] = True

    def unit_pieces(self, samples: int, seed: int, unit: int) -> list[PlannedPiece]:
        """Return the piece with the rows of unit `unit`. The units after the last rows are the files `once`."""
        units = -(-samples // DlrmLayout.UNIT_SAMPLES)
        if unit >= units:
            return [PlannedPiece(*self.once[unit - units])]
        return [DlrmLayout.rows_piece(DlrmLayout.TRAIN_NAME, samples, unit)]

    def unit_bytes(self, samples: int, seed: int) -> NDArray[np.int64]:
        once = np.array([file.size_bytes for file in self.once], np.int64)
        return np.concatenate([DlrmLayout.piece_bytes(samples), once])

    def file_count(self, samples: int) -> int:
        return 1 + len(self.once)

    def samples_within(self, size_bytes: int, seed: int) -> int:
        """Return how many rows fit into `size_bytes`. Raises UsageError if the source itself does not fit."""
        left_bytes = size_bytes - sum(file.size_bytes for file in self.once)
        _refuse_less(self.source, self.rows * DlrmLayout.SAMPLE_BYTES, left_bytes)
        return left_bytes // DlrmLayout.SAMPLE_BYTES


def _refuse_less(source: str, has_bytes: int, wanted_bytes: int) -> None:
    if wanted_bytes < has_bytes:
        raise UsageError(f"{source} is larger than that already ({format_size(has_bytes)}); ask for more")


def scaled_layout(workload: str, source: Path, augment: bool = False) -> ScaledFiles | ScaledRows:
    """Return the layout that grows the data set of `workload` in the directory `source`. Raises IotwinError if there is none."""
    if not source.is_dir():
        raise UsageError(f"{source}: no such directory; name the one that holds the {workload} data set")
    source = source.resolve()
    groups: list[tuple[Path, ...]]
    once: list[Path] = []
    if workload == "unet3d":
        groups = [(case.image, case.mask) for case in Unet3dLayout.discover(source)]
    elif workload == "bert":
        groups = [(path,) for path in sorted(source.glob("part-*-of-*"))]
        once = [path for path in (source / BertLayout.EVALUATION_NAME,) if path.exists()]
        if augment and groups and _is_binary(groups[0][0]):
            raise UsageError(f"{groups[0][0]} is no text, so its words cannot be moved; grow it without augmentation")
    elif (source / DlrmLayout.TRAIN_NAME).exists():
        return _scaled_rows(source, augment)
    else:
        days = (path for path in source.glob("day_*") if path.name[4:].isdecimal())
        groups = [(path,) for path in sorted(days, key=lambda path: int(path.name[4:]))]
    if not groups:
        names = "part-NNNNN-of-NNNNN" if workload == "bert" else f"{DlrmLayout.TRAIN_NAME} and no day_N"
        raise IotwinError(f"{source} holds no {names}; name the directory of a {workload} data set")
    sources = tuple(tuple(_source_file(path) for path in group) for group in groups)
    return ScaledFiles(str(source), workload, sources, tuple(map(_source_file, once)), augment)


def _is_binary(path: Path) -> bool:
    with open_foreign(path) as file:
        return b"\0" in file.read(4096)


def _scaled_rows(source: Path, augment: bool) -> ScaledRows:
    size_bytes = (source / DlrmLayout.TRAIN_NAME).stat().st_size
    if not size_bytes or size_bytes % DlrmLayout.SAMPLE_BYTES:
        raise IotwinError(
            f"{source / DlrmLayout.TRAIN_NAME} has {size_bytes} bytes, not rows of {DlrmLayout.SAMPLE_BYTES}; is it whole?"
        )
    once = (source / name for name in (DlrmLayout.TEST_NAME, DlrmLayout.COUNTS_NAME))
    found = tuple(_source_file(path) for path in once if path.exists())
    return ScaledRows(str(source), size_bytes // DlrmLayout.SAMPLE_BYTES, found, augment)


def _source_file(path: Path) -> SourceFile:
    size_bytes = path.stat().st_size
    if not size_bytes:
        raise IotwinError(f"{path} is empty; remove it or make it whole")
    return SourceFile(path.name, size_bytes)


def write_copy(
    layout: ScaledFiles, samples: int, seed: int, directory: Path, unit: int, written: Callable[[int], None]
) -> list[Piece]:
    """Write the files that belong to unit `unit` under temporary names, and return their pieces."""
    if unit >= samples:
        return [_copy_once(layout, layout.once[unit - samples], directory, written)]
    group = layout.groups[unit % len(layout.groups)]
    names, sources = layout.names(samples, unit), [Path(layout.source) / file.name for file in group]
    if not layout.augment or unit < len(layout.groups):
        return [
            copy_file(source, file.size_bytes, directory, name, written)
            for source, file, name in zip(sources, group, names, strict=True)
        ]
    stream = bulk_stream(seed, unit, AUGMENT)
    if layout.kind == "unet3d":
        return _write_changed_case(sources, names, stream, directory, written)
    with PieceWriter(directory, names[0], written) as file, open_foreign(sources[0]) as lines:
        for block in line_blocks(lines):
            changed = moved_words(block, stream) if layout.kind == "bert" else shuffled_lines(block, stream, sources[0])
            file.write(changed.data)
        return [file.piece()]


def _copy_once(layout: ScaledFiles | ScaledRows, file: SourceFile, directory: Path, written: Callable[[int], None]) -> Piece:
    return copy_file(Path(layout.source) / file.name, file.size_bytes, directory, file.name, written)


def _write_changed_case(
    sources: list[Path], names: tuple[str, ...], stream: np.random.SFC64, directory: Path, written: Callable[[int], None]
) -> list[Piece]:
    change = volume_change(stream)
    pieces = []
    for source, name, is_image in zip(sources, names, (True, False), strict=True):
        volume = _volume(source)
        with PieceWriter(directory, name, written) as file:
            file.write(npy_header(volume.dtype.str, volume.shape))
            for plane in changed_planes(volume[0], change, is_image):
                file.write(plane.data)
            pieces.append(file.piece())
    return pieces


def _volume(path: Path) -> NDArray[np.generic]:
    try:
        volume: NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError):
        raise IotwinError(f"{path} is not a numpy array; make it whole or remove its case") from None
    if volume.ndim != 4 or len(volume) != 1:
        raise IotwinError(f"{path} has the shape {volume.shape} instead of (1, D, H, W); remove its case")
    return volume


def write_rows(
    layout: ScaledRows, samples: int, seed: int, directory: Path, unit: int, written: Callable[[int], None]
) -> list[Piece]:
    """Write the rows that belong to unit `unit`, or one of the files that are copied once, and return its piece."""
    (planned,) = layout.unit_pieces(samples, seed, unit)
    if planned.name != DlrmLayout.TRAIN_NAME:
        (file,) = (file for file in layout.once if file.name == planned.name)
        return [_copy_once(layout, file, directory, written)]
    stream = bulk_stream(seed, unit, AUGMENT)
    rows = _source_rows(Path(layout.source) / DlrmLayout.TRAIN_NAME)
    if len(rows) != layout.rows:
        raise IotwinError(f"{layout.source}: {planned.name} changed its size; scale again when nothing writes to it")
    first = planned.offset // DlrmLayout.SAMPLE_BYTES
    with PieceWriter(directory, planned.name, written, planned.offset) as sink:
        for start, count in _runs(first, planned.size_bytes // DlrmLayout.SAMPLE_BYTES, layout.rows):
            block = rows[start % layout.rows :][:count]
            sink.write(
                np.ascontiguousarray(shuffled_rows(block, stream) if layout.augment and start >= layout.rows else block).data
            )
        return [sink.piece()]


@lru_cache(maxsize=1)
def _source_rows(path: Path) -> NDArray[np.int32]:
    rows: NDArray[np.int32] = np.memmap(path, DlrmLayout.DTYPE, "r").reshape(-1, DlrmLayout.COLUMNS)
    return rows


def _runs(first: int, count: int, source_rows: int) -> Iterator[tuple[int, int]]:
    """Yield (first row, number of rows) of blocks that together have `count` rows from row `first` on.

    Rows count on through all copies of the source. No block crosses the end of a copy, which has `source_rows` rows.
    """
    end = first + count
    while first < end:
        step = min(_BLOCK_ROWS, end - first, source_rows - first % source_rows)
        yield first, step
        first += step
