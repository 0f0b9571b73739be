"""Write the files of one unit of work, each by the writer of its format."""

from collections.abc import Callable
from pathlib import Path

from iotwin.datagen.content import Content
from iotwin.datagen.data_set_files import Piece
from iotwin.datagen.formats.arrays import write_bin, write_indexed, write_npy, write_npz
from iotwin.datagen.formats.csv import write_csv
from iotwin.datagen.formats.examples import write_tfrecord
from iotwin.datagen.formats.file_to_write import File
from iotwin.datagen.formats.hdf5 import write_hdf5
from iotwin.datagen.formats.images import write_jpeg, write_png
from iotwin.datagen.formats.tables import write_parquet
from iotwin.datagen.layouts import FormatLayout


def write_files(
    layout: FormatLayout, samples: int, seed: int, directory: Path, unit: int, written: Callable[[int], None]
) -> list[Piece]:
    """Write the files that belong to unit `unit`, and their index files, under temporary names. Return their pieces."""
    sizes = layout.record_sizes(samples, seed)
    pieces: list[Piece] = []
    for index in layout.unit_files(samples, unit):
        content = Content(seed, index, layout.entropy, layout.dedup)
        shape = layout.record_shape(int(sizes[index]))
        names = layout.file_name(samples, index), layout.index_names(samples, index)
        pieces += _WRITERS[layout.format](File(layout, directory, *names, shape, content, written))
    return pieces


_WRITERS: dict[str, Callable[[File], list[Piece]]] = {
    "bin": write_bin, "npy": write_npy, "npz": write_npz, "hdf5": write_hdf5, "tfrecord": write_tfrecord, "csv": write_csv,
    "parquet": write_parquet, "jpeg": write_jpeg, "png": write_png,
    "indexed_binary": write_indexed, "mmap_indexed_binary": write_indexed,
}  # fmt: skip
