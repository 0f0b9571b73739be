"""Capture by bcc: libbcc compiles syscalls.bcc.c on this machine, so neither clang nor libbpf need be installed.

By itself, bcc searches for kernel headers, and uses even the headers of another kernel. Therefore this module writes small
headers for bcc, and reads the offsets of fields from the kernel's BTF. Any Python can import Debian's module bcc, since that
module needs only ctypes.
"""

import ctypes
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from iotwin.common.errors import IotwinError
from iotwin.common.files import scratch_folder, temporary_directory, write_whole
from iotwin.trace_store.raw.record_files import Recording
from iotwin.trace_store.raw.records import EVENT
from iotwin.trace_store.syscalls import Kind, calls_of
from iotwin.tracing_tools.backend_base import Backend, Ledger, Scope
from iotwin.tracing_tools.backends import task_filter
from iotwin.tracing_tools.backends.kernel_support import ebpf_unavailable_reason
from iotwin.tracing_tools.backends.kernel_types import KernelTypes
from iotwin.tracing_tools.backends.ring_buffer import EVENTS_BYTES, NAMES_BYTES, RingBuffer
from iotwin.tracing_tools.probes import BCC_SOURCE, text_with_headers

_MODULE_FOLDERS = ("/usr/lib/python3/dist-packages", "/usr/lib/python3/site-packages")
_PAGE_BYTES = 4096
_TRACEPOINTS = (b"sys_enter", b"sys_exit", b"sched_process_fork", b"sched_process_exec", b"sched_process_exit")
_TRACED_KINDS = range(Kind.READ_WRITE, Kind.WAIT + 1)  # the kinds that syscalls.bcc.c implements

# Fields of the kernel that the eBPF program reads: (name of the macro for the field's offset, structure, field).
_FIELDS = (
    ("TASK_FILES", "task_struct", "files"), ("TASK_FS", "task_struct", "fs"), ("TASK_MEMORY", "task_struct", "mm"),
    ("TASK_PARENT", "task_struct", "real_parent"), ("TASK_PID", "task_struct", "pid"), ("TASK_TGID", "task_struct", "tgid"),
    ("TASK_COMM", "task_struct", "comm"), ("TASK_EXIT_CODE", "task_struct", "exit_code"),
    ("TASK_CGROUPS", "task_struct", "cgroups"), ("TASK_PID_STRUCT", "task_struct", "thread_pid"),
    ("PID_LEVEL", "pid", "level"), ("PID_NUMBERS", "pid", "numbers"),
    ("FILES_TABLE", "files_struct", "fdt"), ("TABLE_MAX", "fdtable", "max_fds"), ("TABLE_FILES", "fdtable", "fd"),
    ("FILE_INODE", "file", "f_inode"), ("FILE_FLAGS", "file", "f_flags"), ("FILE_POSITION", "file", "f_pos"),
    ("FILE_PATH", "file", "f_path"), ("INODE_NUMBER", "inode", "i_ino"), ("INODE_SUPER", "inode", "i_sb"),
    ("INODE_GENERATION", "inode", "i_generation"), ("INODE_MODE", "inode", "i_mode"), ("INODE_SIZE", "inode", "i_size"),
    ("SUPER_DEVICE", "super_block", "s_dev"), ("FS_ROOT", "fs_struct", "root"), ("FS_PWD", "fs_struct", "pwd"),
    ("PATH_MOUNT", "path", "mnt"), ("PATH_DENTRY", "path", "dentry"), ("DENTRY_PARENT", "dentry", "d_parent"),
    ("VFSMOUNT_ROOT", "vfsmount", "mnt_root"), ("MOUNT_VFSMOUNT", "mount", "mnt"), ("MOUNT_PARENT", "mount", "mnt_parent"),
    ("MOUNT_POINT", "mount", "mnt_mountpoint"), ("MEMORY_ARG_START", "mm_struct", "arg_start"),
    ("MEMORY_ARG_END", "mm_struct", "arg_end"),
)  # fmt: skip

_READ_TOGETHER = {
    "FILE": ("FILE_INODE", "FILE_FLAGS", "FILE_POSITION"),
    "INODE": ("INODE_NUMBER", "INODE_SUPER", "INODE_MODE"),
}

# Headers that replace those which libbcc always includes. They define only the types that libbcc's own headers require.
_INTEGERS = """#pragma once
typedef signed char __s8; typedef unsigned char __u8; typedef short __s16; typedef unsigned short __u16;
typedef int __s32; typedef unsigned int __u32; typedef long long __s64; typedef unsigned long long __u64;
typedef __s8 s8; typedef __u8 u8; typedef __s16 s16; typedef __u16 u16; typedef __s32 s32; typedef __u32 u32;
typedef __s64 s64; typedef __u64 u64; typedef __u16 __be16; typedef __u32 __be32; typedef __u64 __be64; typedef __u32 __wsum;
typedef __u16 __sum16; typedef __u16 __le16; typedef __u32 __le32; typedef __u64 __le64; typedef unsigned long size_t, uintptr_t;
typedef _Bool bool;
#define __aligned_u64 __u64 __attribute__((aligned(8)))
#define NULL ((void *)0)
struct pt_regs { unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, fl, sp, ss; };
"""
_EMPTY_HEADERS = (
    "generated/autoconf.h", "linux/bpf_common.h", "uapi/linux/bpf_common.h", "uapi/linux/if_packet.h", "uapi/linux/if_ether.h",
    "uapi/linux/ptrace.h", "linux/log2.h",
)  # fmt: skip
_HEADERS = dict.fromkeys(_EMPTY_HEADERS, "") | {
    "linux/kconfig.h": "#define CONFIG_BPF_SYSCALL 1\n#include <linux/types.h>\n",
    "linux/types.h": _INTEGERS,
    "uapi/linux/bpf.h": "#include </virtual/include/bcc/bpf.h>\n",
    "uapi/linux/types.h": _INTEGERS,
    "linux/version.h": "#define LINUX_VERSION_CODE 0\n#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))\n",
    "asm/page.h": f"#define PAGE_SHIFT 12\n#define PAGE_SIZE {_PAGE_BYTES}UL\n",
}


def unavailable_reason() -> str | None:
    """Return why bcc cannot capture on this machine, None if it should work."""
    if reason := ebpf_unavailable_reason():
        return reason
    try:
        _module()
    except IotwinError as error:
        return str(error)
    return None


def _module() -> ModuleType:
    """Return the module bcc that the system's package installed. PyPI's bcc is another project."""
    if "bcc" in sys.modules:
        return sys.modules["bcc"]
    for folder in _MODULE_FOLDERS:
        source = Path(folder) / "bcc" / "__init__.py"
        if not source.exists():
            continue
        spec = importlib.util.spec_from_file_location("bcc", source, submodule_search_locations=[str(source.parent)])
        if spec is None or spec.loader is None:
            continue
        module = importlib.util.module_from_spec(spec)
        sys.modules["bcc"] = module
        try:
            # RTLD_DEEPBIND: libbcc must call its own LLVM. If TensorFlow is loaded, it would call TensorFlow's LLVM, and crash.
            ctypes.CDLL("libbcc.so.0", mode=os.RTLD_NOW | os.RTLD_DEEPBIND)
            spec.loader.exec_module(module)
        except (ImportError, OSError) as error:
            del sys.modules["bcc"]
            raise IotwinError(f"the module bcc cannot be imported ({error}); install the package python3-bpfcc again") from None
        return module
    raise IotwinError("the Python module bcc is not installed; install the package python3-bpfcc (PyPI's bcc is another project)")


class BccBackend(Backend):
    """Captures by raw tracepoints at the entry and exit of system calls. The kernel filters calls by cgroup or process tree."""

    name = "bcc"
    unrecorded_groups = ("mmap", "async", "block")

    def __init__(self, scope: Scope, buffer_bytes: int = EVENTS_BYTES) -> None:
        """Compile and load the eBPF program for `scope`. `buffer_bytes`: size of the event ring buffer, a power of two."""
        super().__init__(scope)
        self.probes = ["raw_tp/sys_enter", "raw_tp/sys_exit", "raw_tp/sched_process_{fork,exec,exit}"]
        self._buffer_bytes = buffer_bytes
        self._ledger = Ledger()
        self._strays: dict[int, bool] = {}
        module, types = _module(), KernelTypes()
        values: dict[str, int] = {f"AT_{macro}": types.offset(structure, field) for macro, structure, field in _FIELDS}
        values["AT_DENTRY_NAME"] = types.offset("dentry", "d_name") + types.offset("qstr", "name")
        for structure in ("FILE", "INODE"):
            within = [values[f"AT_{macro}"] for macro in _READ_TOGETHER[structure]]
            values[f"{structure}_SPAN"] = max(within) // 8 * 8 + 8
        values |= task_filter.constants(scope)
        values |= {"EVENTS_PAGES": buffer_bytes // _PAGE_BYTES, "NAMES_PAGES": NAMES_BYTES // _PAGE_BYTES}
        self._program: Any = _compile(module, [f"-D{name}={value}" for name, value in values.items()])
        for number, kind in calls_of(scope.detail).values():
            if kind in _TRACED_KINDS:
                self._program[b"call_kinds"][ctypes.c_int(number)] = ctypes.c_ubyte(kind)
        self._events = RingBuffer(self._program[b"events"].map_fd, buffer_bytes)
        self._names = RingBuffer(self._program[b"names"].map_fd, NAMES_BYTES)

    def follow(self, pid: int) -> None:
        """Add `pid` to the process tree by which the kernel filters calls if there is no cgroup."""
        self._program[b"tree"][ctypes.c_uint(pid)] = ctypes.c_ubyte(1)

    def strays(self) -> dict[int, bool]:
        """Return the captured processes that left the job's cgroup, as {pid: True if it still runs}."""
        if self._program is not None:
            self._strays = {pid.value: state.value == task_filter.STRAY for pid, state in self._program[b"strays"].items()}
        return self._strays

    def drain(self, recording: Recording) -> bool:
        """Move the records of both ring buffers to `recording`. Return True if the event buffer was a quarter full."""
        self._names.move_names(recording.append_names)
        return self._events.move_records(EVENT, recording.append_events) * 4 > self._buffer_bytes

    def ledger(self) -> Ledger:
        """Return the eBPF program's counts of seen and lost events, summed over the CPUs."""
        if self._program is not None:
            counts = self._program[b"ledgers"][ctypes.c_int(0)]
            missed = sum(count.calls_missed for count in counts)
            lost = {
                "ring_full": sum(count.events_dropped for count in counts),
                "entry_missed": missed,
                "names_ring_full": sum(count.names_dropped for count in counts),
            }
            seen = sum(count.events_seen for count in counts) + missed
            self._ledger = Ledger(seen, {source: count for source, count in lost.items() if count})
        return self._ledger

    def stop(self, recording: Recording | None) -> None:
        """Detach the probes, move the last records to `recording`, unload the eBPF program."""
        if self._program is None:
            return
        for point in _TRACEPOINTS:
            self._program.detach_raw_tracepoint(point)
        while recording is not None and (self._events.pending_bytes() or self._names.pending_bytes()):
            self.drain(recording)
        super().stop(recording)
        self.ledger()
        self.strays()
        self._events.close()
        self._names.close()
        self._program.cleanup()
        self._program = None


def _compile(module: ModuleType, constants: list[str]) -> Any:
    own_stderr = os.dup(2)
    directory = temporary_directory()
    with scratch_folder() as tree, tempfile.TemporaryFile(dir=directory) as messages:
        for name, content in _HEADERS.items():
            write_whole(tree / "include" / name, content.encode(), below=tree)
        try:
            os.environ["BCC_KERNEL_SOURCE"] = str(tree)
            os.dup2(messages.fileno(), 2)  # libbcc prints pages of errors; iotwin reports the first error only
            return module.BPF(text=text_with_headers(BCC_SOURCE).encode(), cflags=[*constants, "-Wno-everything"])
        except Exception as error:  # bcc raises plain Exception
            messages.seek(0)
            lines = [line for line in messages.read().decode(errors="replace").splitlines() if "error" in line.lower()]
            raise IotwinError(f"bcc cannot load its program: {lines[0] if lines else error}") from None
        finally:
            os.dup2(own_stderr, 2)
            os.close(own_stderr)
            os.environ.pop("BCC_KERNEL_SOURCE", None)
