"""Load a compiled eBPF object by libbpf.so.1, called through ctypes, so that no Python package need be installed."""

import ctypes
import functools
import os
from collections.abc import Collection
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError

_FUNCTIONS: dict[str, tuple[type | None, list[type]]] = {
    "bpf_object__open_file": (c_void_p, [c_char_p, c_void_p]),
    "bpf_object__load": (c_int, [c_void_p]),
    "bpf_object__close": (c_int, [c_void_p]),
    "bpf_object__find_map_by_name": (c_void_p, [c_void_p, c_char_p]),
    "bpf_object__next_program": (c_void_p, [c_void_p, c_void_p]),
    "bpf_object__find_program_by_name": (c_void_p, [c_void_p, c_char_p]),
    "bpf_program__set_autoload": (c_int, [c_void_p, ctypes.c_bool]),
    "bpf_program__autoload": (ctypes.c_bool, [c_void_p]),
    "btf__load_vmlinux_btf": (c_void_p, []),
    "btf__find_by_name_kind": (c_int, [c_void_p, c_char_p, ctypes.c_uint32]),
    "btf__free": (None, [c_void_p]),
    "bpf_map__fd": (c_int, [c_void_p]),
    "bpf_map__initial_value": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "bpf_map__set_max_entries": (c_int, [c_void_p, ctypes.c_uint32]),
    "bpf_map_lookup_elem": (c_int, [c_int, c_void_p, c_void_p]),
    "bpf_map_get_next_key": (c_int, [c_int, c_void_p, c_void_p]),
    "bpf_map_update_elem": (c_int, [c_int, c_void_p, c_void_p, c_uint64]),
    "bpf_program__attach": (c_void_p, [c_void_p]),
    "bpf_program__name": (c_char_p, [c_void_p]),
    "bpf_program__attach_uprobe_opts": (c_void_p, [c_void_p, c_int, c_char_p, c_size_t, c_void_p]),
    "bpf_link__destroy": (c_int, [c_void_p]),
    "libbpf_num_possible_cpus": (c_int, []),
    "libbpf_set_print": (c_void_p, [c_void_p]),
}
_TYPEDEF = 8  # BTF_KIND_TYPEDEF of include/uapi/linux/btf.h


class _UprobeOptions(ctypes.Structure):
    """The struct bpf_uprobe_opts of libbpf.h, up to the last field that this module uses."""

    _fields_ = (
        ("size", c_size_t),
        ("reference_counter", c_size_t),
        ("cookie", c_uint64),
        ("at_return", ctypes.c_bool),
        ("function", c_char_p),
    )


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError:
        raise IotwinError("libbpf.so.1 is not installed; install the package libbpf1") from None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    # Silence libbpf, which prints pages about a program that fails to load; BpfObject.load reports the kernel's error number.
    library.libbpf_set_print(None)
    return library


def libbpf_unavailable_reason() -> str | None:
    """Return why libbpf.so.1 cannot be loaded, None if it can."""
    try:
        _library()
    except IotwinError as error:
        return str(error)
    return None


def possible_cpus() -> int:
    """Return the number of CPUs that this machine can have, online or not. A per-CPU map has one entry for each of them."""
    return int(_library().libbpf_num_possible_cpus())


def missing_tracepoints(names: Collection[str]) -> list[str]:
    """Return the tracepoints among `names` that the running kernel's BTF does not list."""
    library = _library()
    types = library.btf__load_vmlinux_btf()
    if not types:
        raise IotwinError("the kernel's BTF (/sys/kernel/btf/vmlinux) cannot be read")
    try:
        return [name for name in names if library.btf__find_by_name_kind(types, f"btf_trace_{name}".encode(), _TYPEDEF) < 0]
    finally:
        library.btf__free(types)


class BpfObject:
    """An eBPF object file: set its constants, load it, attach its programs, use its maps. Closing it detaches all programs."""

    def __init__(self, path: Path) -> None:
        """Open the object file at `path`. Raises IotwinError if it is no eBPF object."""
        self._lib = _library()
        self._links: list[int] = []
        self._object: int | None = self._lib.bpf_object__open_file(os.fsencode(path), None)
        if not self._object or self._object > 2**63:  # libbpf 1.x returns NULL, older versions an error code as pointer
            raise IotwinError(f"{path} is not a loadable eBPF object: {os.strerror(ctypes.get_errno())}")

    def set_constants(self, section: str, values: bytes) -> None:
        """Set the ``const volatile`` variables of `section` to `values`, bytes in their C layout. Call this before `load`."""
        size = c_size_t()
        address = self._lib.bpf_map__initial_value(self._map(section), byref(size))
        if not address or len(values) != size.value:
            raise IotwinError(f"{section} of the eBPF object has {size.value} bytes, expected {len(values)}; compile it again")
        ctypes.memmove(address, values, len(values))

    def set_max_entries(self, name: str, entries: int) -> None:
        """Set the number of entries of the map `name`, or the bytes of the ring buffer. Call this before `load`."""
        self._lib.bpf_map__set_max_entries(self._map(name), entries)

    def leave_out(self, program: str) -> None:
        """Exclude the program called `program` from `load` and `attach`. Call this before `load`."""
        found = self._lib.bpf_object__find_program_by_name(self._object, program.encode())
        if not found or self._lib.bpf_program__set_autoload(found, False):
            raise IotwinError(f"the eBPF object has no program {program}; compile it again")

    def load(self) -> None:
        """Load maps and programs into the kernel. Raises IotwinError with the kernel's error if the kernel refuses them."""
        error = self._lib.bpf_object__load(self._object)
        if error:
            raise IotwinError(f"the kernel refused the eBPF programs: {os.strerror(abs(error))}")

    def attach(self, but: Collection[str] = ()) -> None:
        """Attach each loaded program to its tracepoint, except the programs named in `but`."""
        program: int | None = None
        while program := self._lib.bpf_object__next_program(self._object, program):
            if not self._lib.bpf_program__autoload(program) or self._lib.bpf_program__name(program).decode() in but:
                continue
            link = self._lib.bpf_program__attach(program)
            if not link:
                name = self._lib.bpf_program__name(program).decode()
                raise IotwinError(f"cannot attach the eBPF program {name}: {os.strerror(ctypes.get_errno())}")
            self._links.append(link)

    def attach_uprobe(self, program: str, path: Path, offset: int, cookie: int, at_return: bool) -> None:
        """Attach `program` to the function at `offset` in the file `path`, in all processes. The program can read `cookie`.

        `at_return`: run the program when the function returns, instead of when it begins. Raises IotwinError on failure.
        """
        found = self._lib.bpf_object__find_program_by_name(self._object, program.encode())
        options = _UprobeOptions(ctypes.sizeof(_UprobeOptions), 0, cookie, at_return, None)
        link = self._lib.bpf_program__attach_uprobe_opts(found, -1, os.fsencode(path), offset, byref(options)) if found else None
        if not link:
            raise IotwinError(f"cannot attach the eBPF program {program} to {path}: {os.strerror(ctypes.get_errno())}")
        self._links.append(link)

    def update(self, name: str, key: int, value: bytes) -> None:
        """Set one entry of the map `name`, whose keys have 32 bits."""
        key_c = ctypes.c_uint32(key)
        if self._lib.bpf_map_update_elem(self.map_fd(name), byref(key_c), value, 0):
            raise IotwinError(f"cannot update the eBPF map {name}: {os.strerror(ctypes.get_errno())}")

    def detach(self) -> None:
        """Detach every program. The maps remain readable until `close`."""
        while self._links:
            self._lib.bpf_link__destroy(self._links.pop())

    def close(self) -> None:
        """Detach every program and free programs and maps."""
        self.detach()
        if self._object:
            self._lib.bpf_object__close(self._object)
            self._object = None

    def map_fd(self, name: str) -> int:
        """Return the file descriptor of the map `name`, valid until `close`."""
        return int(self._lib.bpf_map__fd(self._map(name)))

    def items(self, name: str, key_bytes: int, value_bytes: int) -> list[tuple[bytes, bytes]]:
        """Return the (key, value) pairs of the hash map `name`, whose keys have `key_bytes` and values `value_bytes`."""
        fd, found, previous = self.map_fd(name), [], None
        key, value = ctypes.create_string_buffer(key_bytes), ctypes.create_string_buffer(value_bytes)
        while not self._lib.bpf_map_get_next_key(fd, previous, key):
            if not self._lib.bpf_map_lookup_elem(fd, key, value):
                found.append((key.raw, value.raw))
            previous = key.raw
        return found

    def per_cpu_sum(self, name: str, fields: int) -> NDArray[np.uint64]:
        """Return entry 0 of the per-CPU array `name`, `fields` 64-bit counters, summed over the CPUs; shape (fields,)."""
        cpus = possible_cpus()
        buffer = (c_uint64 * (fields * cpus))()
        key = ctypes.c_uint32(0)
        self._lib.bpf_map_lookup_elem(self.map_fd(name), byref(key), buffer)
        counters: NDArray[np.uint64] = np.frombuffer(bytes(buffer), np.uint64).reshape(cpus, fields).sum(axis=0, dtype=np.uint64)
        return counters

    def _map(self, name: str) -> int:
        found = self._lib.bpf_object__find_map_by_name(self._object, name.encode())
        if not found:
            raise IotwinError(f"the eBPF object has no map {name}; compile it again")
        return int(found)
