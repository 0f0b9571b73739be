"""Find functions in an ELF file (layout: elf(5)) by its symbol tables. NumPy reads them, since libraries have 100 000 symbols."""

import mmap
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError
from iotwin.common.untrusted_files import open_foreign

_SECTION = np.dtype([
    ("name", "<u4"), ("type", "<u4"), ("flags", "<u8"), ("address", "<u8"), ("offset", "<u8"), ("size", "<u8"), ("link", "<u4"),
    ("info", "<u4"), ("alignment", "<u8"), ("entry_bytes", "<u8"),
])  # fmt: skip
_SEGMENT = np.dtype([
    ("type", "<u4"), ("flags", "<u4"), ("offset", "<u8"), ("address", "<u8"), ("physical", "<u8"), ("file_bytes", "<u8"),
    ("memory_bytes", "<u8"), ("alignment", "<u8"),
])  # fmt: skip
_SYMBOL = np.dtype([("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")])
_SYMBOL_TABLES = (2, 11)  # SHT_SYMTAB, SHT_DYNSYM
_LOAD, _FUNCTION = 1, 2  # PT_LOAD, STT_FUNC
_MAGIC_64_LITTLE = b"\x7fELF\x02\x01"


def function_offsets(path: Path, prefix: str) -> dict[str, int]:
    """Return, by name, the file offset of each function that the file `path` defines and whose name begins with `prefix`.

    Returns {} if the file is unreadable or no 64-bit ELF file.
    """
    try:
        with open_foreign(path) as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            if content[:6] != _MAGIC_64_LITTLE:
                return {}
            return _offsets(content, prefix.encode())
    except (IotwinError, OSError, ValueError, struct.error, IndexError):
        return {}


def _offsets(content: mmap.mmap, prefix: bytes) -> dict[str, int]:
    segments_at, sections_at = struct.unpack_from("<QQ", content, 32)
    segment_count, _, section_count = struct.unpack_from("<HHH", content, 56)
    segments = np.frombuffer(content[segments_at : segments_at + segment_count * _SEGMENT.itemsize], _SEGMENT)
    sections = np.frombuffer(content[sections_at : sections_at + section_count * _SECTION.itemsize], _SECTION)
    loaded = segments[segments["type"] == _LOAD]
    found: dict[str, int] = {}
    for table in sections[np.isin(sections["type"], _SYMBOL_TABLES)]:
        strings = sections[int(table["link"])]
        texts = content[int(strings["offset"]) : int(strings["offset"]) + int(strings["size"])]
        symbols = np.frombuffer(content[int(table["offset"]) : int(table["offset"]) + int(table["size"])], _SYMBOL)
        defined = symbols[((symbols["info"] & 15) == _FUNCTION) & (symbols["section"] != 0)]
        for symbol in defined[_begin_with(prefix, texts, defined["name"])]:
            name = texts[int(symbol["name"]) : texts.index(b"\0", int(symbol["name"]))].decode(errors="replace")
            offset = _offset_of(int(symbol["value"]), loaded)
            if offset is not None:
                found.setdefault(name, offset)
    return found


def _begin_with(prefix: bytes, texts: bytes, offsets: NDArray[np.uint32]) -> NDArray[np.bool_]:
    padded = np.frombuffer(texts + bytes(len(prefix)), np.uint8)
    columns = [padded[offsets.astype(np.int64) + i] == byte for i, byte in enumerate(prefix)]
    same: NDArray[np.bool_] = np.logical_and.reduce(columns)
    return same


def _offset_of(address: int, loaded: NDArray[np.void]) -> int | None:
    inside = loaded[(loaded["address"] <= address) & (address < loaded["address"] + loaded["file_bytes"])]
    return address - int(inside["address"][0]) + int(inside["offset"][0]) if len(inside) else None
