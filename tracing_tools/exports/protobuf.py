"""Encode many Protocol Buffers messages at once, one per row of a table, without Python code per row.

A Part encodes some fields of all messages: a matrix of bytes, one row per message, and a mask of the bytes that belong to the
message. Parts are joined horizontally. The length of a message is the sum of its mask. The encoding is the masked bytes in row
order. Source: https://protobuf.dev/programming-guides/encoding/.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Part = tuple[NDArray[np.uint8], NDArray[np.bool_]]  # (bytes, mask), both of shape (rows, width)

_VARINT, _FIXED64, _LENGTH = 0, 1, 2
_MAX_VARINT_BYTES = 10


def _varint(values: NDArray[np.uint64]) -> Part:
    highest = int(values.max(initial=0))
    width = min(max(-(-highest.bit_length() // 7), 1), _MAX_VARINT_BYTES)
    rest = values[:, None] >> (np.arange(width, dtype=np.uint64) * np.uint64(7))
    there = rest > 0
    there[:, 0] = True
    content = (rest & np.uint64(127)).astype(np.uint8)
    content[:, :-1] |= there[:, 1:].astype(np.uint8) << 7  # bit 7: more bytes follow
    return content, there


def constant(content: bytes, rows: int) -> Part:
    """Return a Part of `rows` messages, each with the encoded fields `content`."""
    return np.tile(np.frombuffer(content, np.uint8), (rows, 1)), np.ones((rows, len(content)), bool)


def _tag(number: int, wire_type: int, rows: int) -> Part:
    return constant(joined(_varint(np.array([number << 3 | wire_type], np.uint64))), rows)


def _side_by_side(parts: list[Part], present: NDArray[np.bool_] | None) -> Part:
    there = np.hstack([part[1] for part in parts])
    return np.hstack([part[0] for part in parts]), there if present is None else there & present[:, None]


def integers(number: int, values: ArrayLike, present: NDArray[np.bool_] | None = None) -> Part:
    """Return a Part with the field `number`: `values`, shape (rows,), as int64, uint64 or enum.

    A row has the field only if `present` is None or True for the row.
    """
    column = np.asarray(values).astype(np.int64).view(np.uint64)
    return _side_by_side([_tag(number, _VARINT, len(column)), _varint(column)], present)


def doubles(number: int, values: ArrayLike) -> Part:
    """Return a Part with the field `number`: `values`, shape (rows,), as double."""
    column = np.asarray(values, "<f8")
    content = column.view(np.uint8).reshape(len(column), 8)
    return _side_by_side([_tag(number, _FIXED64, len(column)), (content, np.ones(content.shape, bool))], None)


def messages(number: int, parts: list[Part], present: NDArray[np.bool_] | None = None) -> Part:
    """Return a Part with the field `number`: a message that consists of `parts`.

    A row has the field only if `present` is None or True for the row.
    """
    content, there = _side_by_side(parts, None)
    lengths = _varint(there.sum(axis=1, dtype=np.uint64))
    return _side_by_side([_tag(number, _LENGTH, len(content)), lengths, (content, there)], present)


def joined(part: Part) -> bytes:
    """Return the encodings of all rows of `part`, one after another."""
    content, there = part
    return content[there].tobytes()


def integer(number: int, value: int) -> bytes:
    """Return the encoding of the integer `value` as field `number`."""
    return joined(integers(number, [value]))


def text(number: int, value: str | bytes) -> bytes:
    """Return the encoding of one field whose `value` is a text or an encoded message."""
    content = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
    return joined(_tag(number, _LENGTH, 1)) + joined(_varint(np.array([len(content)], np.uint64))) + content


def texts(number: int, values: list[str], present: NDArray[np.bool_] | None = None) -> Part:
    """Return a Part with the field `number`: `values`, one text per row.

    A row has the field only if `present` is None or True for the row.
    """
    encoded = [value.encode("utf-8", "surrogatepass") for value in values]
    lengths = np.array([len(value) for value in encoded], np.uint64)
    width = max(1, int(lengths.max(initial=0)))
    content = np.array(encoded, f"S{width}").view(np.uint8).reshape(len(encoded), width)
    there = np.arange(width) < lengths[:, None]
    return _side_by_side([_tag(number, _LENGTH, len(encoded)), _varint(lengths), (content, there)], present)


def delimited(parts: list[Part]) -> Part:
    """Return a Part with a message of `parts` in each row, preceded by the message's length, as in a stream of messages."""
    content, there = _side_by_side(parts, None)
    return _side_by_side([_varint(there.sum(axis=1, dtype=np.uint64)), (content, there)], None)
