"""Write files that substitute for a traced data set, with the same names and sizes, and the CSV file that lists them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from iotwin.common.errors import UsageError
from iotwin.common.files import write_whole
from iotwin.datagen.content import Content
from iotwin.datagen.data_set_files import Piece, PieceWriter
from iotwin.datagen.layouts import RecordedLayout, npy_header

_BLOCK_BYTES = 2 << 20  # the size of a huge page, so that the page cache holds the file in large pages
_LARGEST_BYTES = 256 << 20
_MOST_FILES = 4_000_000


def read_recipe(path: Path) -> RecordedLayout:
    """Return the data set that the CSV file at `path` lists, in the columns name and size_bytes.

    Raises UsageError if the file is missing, too large or has other content.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise UsageError(f"{path}: is larger than the {_LARGEST_BYTES >> 20} MiB that a list of files may have")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give the dataset.csv that iotwin twin wrote") from None
    import pyarrow as pa
    from pyarrow import csv

    types = csv.ConvertOptions(column_types={"name": pa.string(), "size_bytes": pa.int64()}, strings_can_be_null=False)
    try:
        table = csv.read_csv(path, parse_options=csv.ParseOptions(newlines_in_values=True), convert_options=types)
        if table.num_rows > _MOST_FILES:
            raise UsageError(f"{path}: lists {table.num_rows} files; a data set may have {_MOST_FILES}")
        names, sizes = table["name"].to_pylist(), table["size_bytes"].to_pylist()
    except (pa.ArrowException, KeyError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{path}: is not a list of files with the columns name, size_bytes ({reason})") from None
    if None in sizes:
        raise UsageError(f"{path}: line {sizes.index(None) + 2} has no size_bytes; give every file's size")
    return RecordedLayout(tuple(zip(names, sizes, strict=True)))


def write_recipe(path: Path, files: Sequence[tuple[str, int]]) -> None:
    """Write the CSV file that `read_recipe` reads. `files` are pairs (name, size in bytes)."""
    import pyarrow as pa
    from pyarrow import csv

    names, sizes = [name for name, _ in files], [size for _, size in files]
    table = pa.table({"name": pa.array(names, pa.string()), "size_bytes": pa.array(sizes, pa.int64())})
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink)
    write_whole(path, sink.getvalue().to_pybytes())


def write_file(
    layout: RecordedLayout, samples: int, seed: int, directory: Path, unit: int, written: Callable[[int], None]
) -> list[Piece]:
    """Write the file at index `unit` under a temporary name, and return its piece.

    The content is random. If the name ends in .npy, it begins with a valid .npy header.
    """
    name, size_bytes = layout.files[unit]
    content = Content(seed, unit, 1.0, 0.0)
    with PieceWriter(directory, name, written) as sink:
        header = _npy_header_within(size_bytes) if name.endswith(".npy") else b""
        sink.write(header)
        for begin in range(len(header), size_bytes, _BLOCK_BYTES):
            sink.write(content.take(min(_BLOCK_BYTES, size_bytes - begin)).data)
        return [sink.piece()]


def _npy_header_within(size_bytes: int) -> bytes:
    """Return the header of a .npy file of uint8 with `size_bytes` including the header; b"" if the file is too short for it."""
    header_bytes = len(npy_header(np.dtype(np.uint8).str, (size_bytes,)))
    return npy_header(np.dtype(np.uint8).str, (size_bytes - header_bytes,)) if size_bytes > header_bytes else b""
