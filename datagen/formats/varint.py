"""Whole numbers in base 128, as Protocol Buffers and Thrift have them."""


def varint(value: int) -> bytes:
    """Return a number from 0 on in base 128, lowest digit first; every byte but the last has its top bit set."""
    content = bytearray()
    while value >= 128:
        content.append(value & 127 | 128)
        value >>= 7
    return bytes([*content, value])
