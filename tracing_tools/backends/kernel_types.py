"""Find the offsets of fields in the running kernel's structures by the kernel's BTF. Header files may belong to another kernel.

Documentation/bpf/btf.rst of the Linux source describes the layout of BTF.
"""

import struct
from pathlib import Path

from iotwin.common.errors import IotwinError

_BTF = Path("/sys/kernel/btf/vmlinux")
_MAGIC = 0xEB9F
_HEADER = struct.Struct("<HBBIIIII")
_TYPE = struct.Struct("<III")
_MEMBER = struct.Struct("<III")
_STRUCT, _UNION = 4, 5
# Number of bytes after the head of a type, by the type's kind: (bytes in any case, bytes per element).
_TAIL = {
    1: (4, 0), 3: (12, 0), _STRUCT: (0, 12), _UNION: (0, 12), 6: (0, 8), 13: (0, 8), 14: (4, 0), 15: (0, 12), 17: (4, 0),
    19: (0, 12),
}  # fmt: skip


class KernelTypes:
    """The layout of the running kernel's structures, from its BTF."""

    def __init__(self) -> None:
        """Index all types of the kernel. Raises IotwinError if the kernel has no BTF."""
        try:
            self._content = content = _BTF.read_bytes()
        except OSError:
            raise IotwinError(f"the kernel has no BTF ({_BTF}); it was built without CONFIG_DEBUG_INFO_BTF") from None
        magic, _, _, header_bytes, types, types_bytes, strings, _ = _HEADER.unpack_from(content)
        if magic != _MAGIC:
            raise IotwinError(f"{_BTF} is not BTF")
        self._strings = header_bytes + strings
        self._positions = [0]  # offset of each type in the BTF file; index: the type's id, 0 is void
        self._by_name: dict[int, int] = {}  # id of a structure, by the offset of its name in the strings
        position, end = header_bytes + types, header_bytes + types + types_bytes
        while position < end:
            name, info, _ = _TYPE.unpack_from(content, position)
            kind = info >> 24 & 31
            if kind == _STRUCT and name:
                self._by_name[name] = len(self._positions)
            self._positions.append(position)
            fixed, each = _TAIL.get(kind, (0, 0))
            position += _TYPE.size + fixed + each * (info & 0xFFFF)

    def offset(self, structure: str, field: str) -> int:
        """Return the byte offset of `field` in `structure`, even within unnamed members. Raises IotwinError if there is none."""
        text = self._content.find(b"\0%b\0" % structure.encode(), self._strings)  # BTF contains each string only once
        number = self._by_name.get(text + 1 - self._strings)
        found = None if number is None else self._offset_in(number, field)
        if found is None:
            raise IotwinError(f"the kernel has no field {field} in its struct {structure}, so these probes do not fit it")
        return found

    def _offset_in(self, number: int, field: str) -> int | None:
        position = self._positions[number]
        _, info, _ = _TYPE.unpack_from(self._content, position)
        for index in range(info & 0xFFFF):
            name, type_, offset = _MEMBER.unpack_from(self._content, position + _TYPE.size + index * _MEMBER.size)
            offset_bytes: int = (offset & 0xFFFFFF if info >> 31 else offset) // 8
            if name and self._text(name) == field:
                return offset_bytes
            if not name and type_ and _TYPE.unpack_from(self._content, self._positions[type_])[1] >> 24 & 31 in (_STRUCT, _UNION):
                within = self._offset_in(type_, field)
                if within is not None:
                    return offset_bytes + within
        return None

    def _text(self, offset: int) -> str:
        begin = self._strings + offset
        return self._content[begin : self._content.index(b"\0", begin)].decode()
