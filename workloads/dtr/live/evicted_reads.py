"""Ends the process with one line if it reads an evicted tensor of a CPU that the runtime cannot bring back first."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIGSEGV
from typing import Any

_C = ctypes.CDLL(None)
_SA_SIGINFO = 4
# The processor reports no address for such a read, as no valid address has this form. Other wild pointers look the same.
_SI_KERNEL, _CODE_AT = 0x80, 8
_ADDRESS_AT = 16  # offset in siginfo_t, as is _CODE_AT
_TEXT = (
    "iotwin: a tensor was read after its eviction, by a thread that started before the memory budget or by code outside "
    "PyTorch; call session.pin(tensor) first\n"
)


class _SignalAction(ctypes.Structure):
    """`struct sigaction` of the C library, on 64-bit processors."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


@contextmanager
def explained_reads(nowhere: int, furthest: int) -> Iterator[None]:
    """While the block runs, explain the reads of evicted tensors, which lie from the address `nowhere` to `furthest`.

    Python's own signal handlers run between its instructions, which a thread that reads such an address never reaches again.
    """
    old = _SignalAction()

    def explain(_number: int, info: int, _context: int) -> None:
        code = ctypes.c_int.from_address(info + _CODE_AT).value
        address = ctypes.c_uint64.from_address(info + _ADDRESS_AT).value
        if nowhere <= address < furthest or (code == _SI_KERNEL and not address):
            os.write(2, _TEXT.encode())
            os._exit(1)
        _C.sigaction(SIGSEGV, ctypes.byref(old), None)  # the thread reads the address again when this function returns

    called: Any = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(explain)
    action = _SignalAction(handler=ctypes.cast(called, ctypes.c_void_p).value, flags=_SA_SIGINFO)
    _C.sigaction(SIGSEGV, ctypes.byref(action), ctypes.byref(old))
    try:
        yield
    finally:
        _C.sigaction(SIGSEGV, ctypes.byref(old), None)
