"""Compute the write calls by which PyTorch writes tensors, in torch.save's two formats and in distributed checkpoints.

All sizes are in bytes. The size of a pickle depends on names that a twin does not know, so it is estimated from the number of
tensors. Sources: PKZIP's application note; the records and the alignment of torch 2.13, as strace shows them; the buffers of
libstdc++'s basic_filebuf and of Python 3.11's io.BufferedWriter.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby

_ALIGNMENT = 64  # of each record's content within a file
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
PYTHON_BUFFER_BYTES = 4096  # a block of the file system

Runs = tuple[tuple[int, int], ...]  # (size of a write, number of consecutive writes of that size)


@cache
def zip_writes(stem: str, tensors: tuple[int, ...]) -> Runs:
    """Return the writes of ``torch.save(state, "<stem>.pt")``."""
    pieces = _zip_pieces(stem, _PICKLED_BYTES + _PICKLED_BYTES_EACH * len(tensors), tensors)
    return _runs(_through_filebuf(pieces))


@cache
def legacy_writes(tensors: tuple[int, ...]) -> Runs:
    """Return the writes of ``torch.save(state, path, _use_new_zipfile_serialization=False)``."""
    start = (_LEGACY_START_BYTES, _LEGACY_BYTES + _LEGACY_BYTES_EACH * len(tensors), _LEGACY_KEY_BYTES * len(tensors))
    each = (size for tensor in tensors for size in (_LENGTH_BYTES, tensor))  # these do not pass the buffer
    return _runs([*_through_python(start), *each])


@cache
def item_writes(tensors: tuple[int, ...]) -> Runs:
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
        if held + size > PYTHON_BUFFER_BYTES:
            if held:
                yield held
            held = 0
            if size > PYTHON_BUFFER_BYTES:
                yield size
                continue
        held += size
    if held:
        yield held


def _runs(sizes: Iterable[int]) -> Runs:
    return tuple((size, sum(1 for _ in own)) for size, own in groupby(sizes))
