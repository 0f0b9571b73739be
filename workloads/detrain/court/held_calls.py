"""Holds all system calls of a script's processes that change files, until this process lets each of them continue.

The kernel stops each of these calls before it does anything (seccomp with user notification, Linux 5.5). No privilege is
required, since a process may always restrict itself. Calls of C++ code are stopped as well.
"""

import ctypes
import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import NamedTuple

from iotwin.common.errors import IotwinError
from iotwin.trace_store.syscalls import NUMBER_OF_OP

# By system call: its `kind` in HeldCall, and the index of the argument that is the descriptor of the file.
_DESCRIPTOR_CALLS = {
    "write": ("write", 0), "pwrite64": ("write", 0), "writev": ("write", 0), "pwritev": ("write", 0), "pwritev2": ("write", 0),
    "sendfile": ("write", 0), "copy_file_range": ("write", 2), "ftruncate": ("truncate", 0),
    "fsync": ("fsync", 0), "fdatasync": ("fsync", 0),
}  # fmt: skip
# By system call: its kind, and per path two argument indices: that of its folder's descriptor (None: current folder), its own.
_NAMED_CALLS: dict[str, tuple[str, tuple[tuple[int | None, int], ...]]] = {
    "rename": ("rename", ((None, 0), (None, 1))),
    "renameat": ("rename", ((0, 1), (2, 3))),
    "renameat2": ("rename", ((0, 1), (2, 3))),
    "unlink": ("unlink", ((None, 0),)),
    "unlinkat": ("unlink", ((0, 1),)),
    "rmdir": ("unlink", ((None, 0),)),
    "truncate": ("truncate", ((None, 0),)),
}
_NAME_OF = {NUMBER_OF_OP[name]: name for name in (*_DESCRIPTOR_CALLS, *_NAMED_CALLS)}

_X86_64 = 0xC000003E  # include/uapi/linux/audit.h, AUDIT_ARCH_X86_64
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000  # include/uapi/linux/seccomp.h, SECCOMP_RET_*
_LOAD, _IF_EQUAL, _IF_GREATER, _RETURN = 0x20, 0x15, 0x25, 0x06  # instructions of classic BPF
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16  # offsets in struct seccomp_data
_SET_NO_NEW_PRIVILEGES = 38  # prctl(2)
_SECCOMP, _SET_FILTER = 317, 1  # seccomp(2)
_NEW_LISTENER, _ONLY_KILLED = 1 << 3, 1 << 5  # flags of seccomp; _ONLY_KILLED: only a fatal signal interrupts a held call
_RECEIVE, _ANSWER = 0xC0502100, 0xC0182101  # ioctl numbers SECCOMP_IOCTL_NOTIF_RECV and SECCOMP_IOCTL_NOTIF_SEND
_CALL = struct.Struct("=QIIiIQ6Q")  # struct seccomp_notif
_RESPONSE = struct.Struct("=QqiI")  # struct seccomp_notif_resp
_GO_ON = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE
_WORKING_DIRECTORY = 0xFFFFFF9C  # AT_FDCWD, of 32 bits
_LONGEST_PATH = 4096


class HeldCall(NamedTuple):
    """A call that waits to be executed. `kind`: write, truncate, fsync, rename or unlink; `paths`: two for a rename."""

    kind: str
    paths: tuple[Path, ...]
    token: int  # for `let_go`


def unavailable_reason() -> str | None:
    """Return why calls cannot be held on this machine, None if they can."""
    if os.uname().machine != "x86_64":
        return f"calls are held on x86-64 only; this machine is {os.uname().machine}"
    try:
        actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text()
    except OSError:
        actions = ""
    if "user_notif" not in actions:
        return "this kernel has no seccomp with user notification (Linux 5.5)"
    child = os.fork()  # a process cannot remove its filter, so a child tries
    if child == 0:
        try:
            hold_own_calls()
        except IotwinError:
            os._exit(1)
        os._exit(0)
    refused = os.waitpid(child, 0)[1]
    return "this process may not have its calls held, as in a container whose seccomp profile forbids it" if refused else None


def hold_own_calls() -> int:
    """Let the kernel hold all later calls of this process and its children that change files. Return a CallHolder's descriptor.

    Calls on standard input, output and error are never held. Raises IotwinError if the kernel refuses.
    """
    instructions = b"".join(struct.pack("=HBBI", *each) for each in _program())
    buffer = ctypes.create_string_buffer(instructions)

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))

    program = Program(len(instructions) // 8, ctypes.addressof(buffer))
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    for flags in (_NEW_LISTENER | _ONLY_KILLED, _NEW_LISTENER):  # _ONLY_KILLED exists since Linux 5.19
        listener = library.syscall(_SECCOMP, _SET_FILTER, flags, ctypes.byref(program))
        if listener >= 0:
            return int(listener)
    raise IotwinError(f"the kernel refused to hold calls of the script: {os.strerror(ctypes.get_errno())}")


def _program() -> list[tuple[int, int, int, int]]:
    """Return the seccomp filter: per instruction its code, lines to skip if true, lines to skip if false, and operand."""
    by_argument: dict[int, list[int]] = {}
    for name, (_, argument) in _DESCRIPTOR_CALLS.items():
        by_argument.setdefault(argument, []).append(NUMBER_OF_OP[name])
    named = [NUMBER_OF_OP[name] for name in _NAMED_CALLS]
    tests = [(_IF_EQUAL, number, "notify") for number in named]
    tests += [(_IF_EQUAL, number, f"argument {index}") for index, numbers in by_argument.items() for number in numbers]
    blocks: list[tuple[str, list[tuple[int, int, int, int]]]] = [("allow", [(_RETURN, 0, 0, _ALLOW)])]
    for index in by_argument:  # calls whose argument `index` is a descriptor are held if it is above 2
        check = [
            (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * index),
            (_IF_GREATER, 1, 0, 2),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _NOTIFY),
        ]
        blocks.append((f"argument {index}", check))
    blocks.append(("notify", [(_RETURN, 0, 0, _NOTIFY)]))
    head = [(_LOAD, 0, 0, _ARCHITECTURE_AT), (_IF_EQUAL, 1, 0, _X86_64), (_RETURN, 0, 0, _ALLOW), (_LOAD, 0, 0, _NUMBER_AT)]
    starts, line = {}, len(tests)
    for label, block in blocks:
        starts[label] = line
        line += len(block)
    jumps = [(code, starts[label] - at - 1, 0, number) for at, (code, number, label) in enumerate(tests)]
    return [*head, *jumps, *(each for _, block in blocks for each in block)]


class CallHolder:
    """Receives the held calls. `listener`: descriptor from `hold_own_calls`; `close` closes it."""

    def __init__(self, listener: int) -> None:
        self._listener = listener

    def fileno(self) -> int:
        """Return a descriptor that is readable if a call is held."""
        return self._listener

    def receive(self) -> HeldCall | None:
        """Return the call that has been held longest; wait if none is held. Returns None if its process died meanwhile."""
        buffer = bytearray(_CALL.size)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, buffer)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                return None
            raise
        token, thread, _, number, _, _, *arguments = _CALL.unpack(buffer)
        kind, paths = _files(thread, _NAME_OF[number], arguments)
        return HeldCall(kind, paths, token)

    def let_go(self, call: HeldCall) -> None:
        """Let the held call be executed."""
        try:
            fcntl.ioctl(self._listener, _ANSWER, bytearray(_RESPONSE.pack(call.token, 0, 0, _GO_ON)))
        except OSError as error:
            if error.errno != errno.ENOENT:  # ENOENT: the calling process died
                raise

    def close(self) -> None:
        """Close the listener. Calls that are held at that time, and later ones, fail with ENOSYS."""
        os.close(self._listener)


def _files(thread: int, name: str, arguments: list[int]) -> tuple[str, tuple[Path, ...]]:
    """Return the kind of a call and the paths of the files that it changes; no paths if the thread has ended."""
    try:
        if name in _DESCRIPTOR_CALLS:
            kind, index = _DESCRIPTOR_CALLS[name]
            return kind, (Path(f"/proc/{thread}/fd/{arguments[index] & 0x7FFFFFFF}").readlink(),)
        kind, names = _NAMED_CALLS[name]
        return kind, tuple(
            _folder(thread, None if at is None else arguments[at]) / _text(thread, arguments[index]) for at, index in names
        )
    except OSError:
        return "gone", ()


def _folder(thread: int, descriptor: int | None) -> Path:
    if descriptor is None or descriptor & 0xFFFFFFFF == _WORKING_DIRECTORY:
        return Path(f"/proc/{thread}/cwd").readlink()
    return Path(f"/proc/{thread}/fd/{descriptor & 0x7FFFFFFF}").readlink()


def _text(thread: int, address: int) -> str:
    """Read the path at an address of the memory of another process's thread."""
    with Path(f"/proc/{thread}/mem").open("rb", buffering=0) as memory:
        content = b""
        while b"\0" not in content and len(content) < _LONGEST_PATH:
            memory.seek(address + len(content))
            to_page_end = 4096 - (address + len(content)) % 4096  # the next page may be missing
            read = memory.read(to_page_end)
            if not read:
                break
            content += read
    return os.fsdecode(content.partition(b"\0")[0])
