"""The binary records that a recorder appends to files, and that `finish` converts to tables.

The types mirror struct event, name, block_record and gpu_call of tracing_tools/probes/records.h, little endian (x86-64). Files
have the format of a BPF ring buffer, so that recording is one copy. A header of 8 bytes precedes each record: its length with
busy and discard bits, and its page offset.
"""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

RING_HEADER_BYTES = 8
_LENGTH_MASK, _DISCARDED = (1 << 30) - 1, 1 << 30  # bits of the header's first word

EVENT = np.dtype([
    ("header", "<u4"), ("page", "<u4"),
    ("start_ns", "<i8"), ("duration_ns", "<i8"), ("result", "<i8"), ("offset", "<i8"), ("requested", "<u8"), ("inode", "<u8"),
    ("pid", "<u4"), ("tid", "<u4"), ("device", "<u4"), ("generation", "<u4"), ("fd", "<i4"), ("call_flags_cpu", "<u4"),
])  # fmt: skip

BLOCK = np.dtype([
    ("header", "<u4"), ("page", "<u4"),
    ("queued_ns", "<i8"), ("issue_ns", "<i8"), ("duration_ns", "<i8"), ("sector", "<u8"), ("cgroup", "<u8"), ("inode", "<u8"),
    ("size_bytes", "<u4"), ("device", "<u4"), ("file_device", "<u4"), ("generation", "<u4"), ("pid", "<u4"),
    ("request_flags", "<u4"), ("from_kernel", "<u4"), ("padding", "<u4"), ("comm", "S16"),
])  # fmt: skip

NAME_HEAD = np.dtype([
    ("header", "<u4"), ("page", "<u4"),
    ("time_ns", "<i8"), ("inode", "<u8"), ("size", "<i8"),
    ("type", "<u4"), ("pid", "<u4"), ("tid", "<u4"), ("device", "<u4"), ("generation", "<u4"), ("mode", "<u4"),
    ("parent", "<i4"), ("result", "<i4"), ("given_length", "<u4"), ("length", "<u4"),
])  # fmt: skip

GPU_CALL = np.dtype([
    ("header", "<u4"), ("page", "<u4"),
    ("start_ns", "<i8"), ("duration_ns", "<i8"), ("size_bytes", "<i8"), ("stream", "<u8"), ("pid", "<u4"), ("tid", "<u4"),
    ("function", "<u2"), ("direction", "<u2"), ("result", "<i4"),
])  # fmt: skip

_NAME_STRUCT = struct.Struct("<IIqQqIIIIIIiiII")  # as NAME_HEAD; faster for single records

LAST_NS = 1 << 62  # the largest valid time, duration or size
FILE_TYPE_MASK = 15  # S_IFMT >> 12
RAW_FLAG_DIRECT, RAW_FLAG_APPEND, RAW_FLAG_WRITABLE = 16, 32, 64
TYPE_PIPE, TYPE_CHARACTER, TYPE_DIRECTORY, TYPE_BLOCK, TYPE_REGULAR, TYPE_SOCKET = 1, 2, 4, 6, 8, 12

NAME_OPENED, NAME_GIVEN, NAME_FORK, NAME_EXEC, NAME_EXIT = 1, 2, 3, 4, 5
LIFE_TYPES = (NAME_FORK, NAME_EXEC, NAME_EXIT)
NAME_INHERITED = 6  # a file that was open when the trace began; /proc, the source, does not report its generation


def pack_call(number: int, flags: int = 0, cpu: int = 0) -> int:
    """Return the field call_flags_cpu of an event, which packs the operation's number, the file's flags and the CPU."""
    return number | flags << 10 | cpu << 18


@dataclass(slots=True)
class NameRecord:
    """The path of an opened file, a path that a program passed to a call, or a fork, exec or exit."""

    time_ns: int
    type: int
    pid: int
    tid: int
    parent: int = 0  # pid of the parent, for fork, exec and exit
    result: int = 0  # NAME_GIVEN: result of the call; fork, exec: pid in the process's namespace; exit: wait status
    inode: int = 0
    device: int = 0
    generation: int = 0
    mode: int = 0
    size: int = 0
    text: bytes = b""  # file: absolute path; exec: arguments, separated by NUL; fork, exit: name of the process (comm)


def _join(components: bytes) -> bytes:
    return b"/" + b"/".join(reversed([part for part in components.split(b"\0") if part]))


def _text(type_: int, data: bytes, given_length: int) -> bytes:
    if type_ == NAME_OPENED:
        return _join(data)
    if type_ == NAME_INHERITED:
        return data
    if type_ == NAME_GIVEN:
        given = data[:given_length].split(b"\0")[0]
        return given if given.startswith(b"/") else _join(data[given_length:]).rstrip(b"/") + b"/" + given
    return data.rstrip(b"\0") if type_ == NAME_EXEC else data.split(b"\0")[0]


def read_names(content: bytes | mmap.mmap) -> Iterator[NameRecord]:
    """Yield the name records in `content`, without discarded records and a cut-off last record."""
    position = 0
    while position + NAME_HEAD.itemsize <= len(content):
        head = _NAME_STRUCT.unpack_from(content, position)
        header, _, time_ns, inode, file_size, type_, pid, tid, device, generation, mode, parent, result, given_length, length = (
            head
        )
        size = header & _LENGTH_MASK
        end = position + RING_HEADER_BYTES + size
        if end > len(content) or size < NAME_HEAD.itemsize - RING_HEADER_BYTES:
            return
        is_whole = 0 <= time_ns <= LAST_NS and max(pid, tid) < 1 << 31 and inode < 1 << 63 and abs(file_size) <= LAST_NS
        if not header & _DISCARDED and is_whole:
            begin = position + NAME_HEAD.itemsize
            text = _text(type_, content[begin : begin + length], given_length)
            yield NameRecord(time_ns, type_, pid, tid, parent, result, inode, device, generation, mode, file_size, text)
        position += RING_HEADER_BYTES + (size + 7) // 8 * 8


def whole_names(content: bytes) -> int:
    """Return how many bytes of `content` are complete name records, without a cut-off or unfinished last record."""
    position = 0
    while position + NAME_HEAD.itemsize <= len(content):
        size = int.from_bytes(content[position : position + 4], "little") & _LENGTH_MASK
        end = position + RING_HEADER_BYTES + (size + 7) // 8 * 8
        if end > len(content) or size < NAME_HEAD.itemsize - RING_HEADER_BYTES:
            break
        position = end
    return position


def pack_name(record: NameRecord) -> bytes:
    """Return `record` as bytes that `read_names` reads, for backends that receive no records from the kernel."""
    content = record.text
    if record.type == NAME_OPENED:
        content = b"".join(part + b"\0" for part in reversed(record.text.split(b"/")) if part)
    head = np.zeros(1, NAME_HEAD)
    for field in ("time_ns", "type", "pid", "tid", "parent", "result", "inode", "device", "generation", "mode", "size"):
        head[field] = getattr(record, field)
    head["length"] = head["given_length"] = len(content)
    head["header"] = NAME_HEAD.itemsize - RING_HEADER_BYTES + len(content)
    return head.tobytes() + content + bytes(-len(content) % 8)
