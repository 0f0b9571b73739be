"""Varints: whole numbers in base 128, as in Protocol Buffers and Thrift."""


def varint(value: int) -> bytes:
    """Encode `value`, at least 0, in base 128, lowest digit first. Every byte but the last has its top bit set."""
    content = bytearray()
    while value >= 128:
        content.append(value & 127 | 128)
        value >>= 7
    return bytes([*content, value])
