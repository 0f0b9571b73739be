"""The trace schema: all tables, their columns and units.

Times are CLOCK_MONOTONIC nanoseconds, offsets and sizes are bytes, results are the system call's return value (-errno on
failure). docs/trace-format.md describes the same for readers outside Python.
"""

import pyarrow as pa

SCHEMA_VERSION = 1

_label = pa.dictionary(pa.int16(), pa.string())

EVENTS = pa.schema(
    [
        ("start_ns", pa.int64()),
        ("duration_ns", pa.int64()),
        ("op", _label),  # the system call's name: read, pread64, openat, ...
        ("pid", pa.int32()),
        ("tid", pa.int32()),
        ("file_id", pa.int32()),  # row of files.parquet; null if the call has no file
        ("fd", pa.int32()),  # -1 when the call has none
        ("offset", pa.int64()),  # null for pipes, sockets and calls without a position
        ("requested", pa.int64()),  # request size in bytes; null for calls without a size
        ("result", pa.int64()),
        ("flags", pa.int32()),  # bits of the FLAG_* constants below
        ("cpu", pa.int16()),
    ]
)

FLAG_DIRECT = 1  # the file is open with O_DIRECT
FLAG_APPEND = 2  # the file is open with O_APPEND
FLAG_CREATE = 4  # an open with O_CREAT
FLAG_TRUNCATE = 8  # an open with O_TRUNC
FLAG_WRITABLE = 16  # the file is open for writing

FILES = pa.schema(
    [
        ("file_id", pa.int32()),
        ("device", pa.int64()),  # as os.stat().st_dev
        ("inode", pa.int64()),
        ("generation", pa.int64()),  # differs between two files that had the same inode number
        ("path", pa.string()),  # absolute, as the job sees it at the first open; bytes that are not UTF-8 appear as \xNN
        ("renamed_to", pa.string()),  # its last path if the job renamed it; null otherwise
        ("container", pa.string()),
        ("size_bytes", pa.int64()),  # at the first open; null if unknown
        ("kind", _label),  # one of FILE_KINDS
        ("host", pa.string()),  # in a merged trace; null otherwise
    ]
)

FILE_KINDS = (
    "dataset", "checkpoint", "log", "library", "temporary", "directory", "pipe", "socket", "device", "system", "missing", "other",
)  # fmt: skip

PROCESSES = pa.schema(
    [
        ("pid", pa.int32()),
        ("ppid", pa.int32()),
        ("namespace_pid", pa.int32()),
        ("comm", pa.string()),
        ("command_line", pa.string()),
        ("role", _label),  # one of PROCESS_ROLES
        ("start_ns", pa.int64()),  # null when it ran before the trace began
        ("exit_ns", pa.int64()),  # null when it outlived the trace
        ("exit_status", pa.int32()),  # 0-255, or -signal
        ("container", pa.string()),
        ("host", pa.string()),  # in a merged trace; null otherwise
    ]
)

PROCESS_ROLES = ("rank", "loader", "helper")

BLOCK = pa.schema(
    [
        ("queued_ns", pa.int64()),  # when the request was queued; null if unknown
        ("issue_ns", pa.int64()),  # when it was issued to the driver
        ("duration_ns", pa.int64()),  # from issue to completion; null if the completion was not seen
        ("op", _label),  # one of BLOCK_OPS
        ("device", pa.int64()),  # as os.stat().st_rdev of the device
        ("sector", pa.int64()),  # of 512 bytes
        ("size_bytes", pa.int64()),
        ("flags", pa.int32()),  # bits of the BLOCK_* constants below
        ("cgroup", pa.int64()),  # id of the cgroup that caused the request
        ("origin", _label),  # one of BLOCK_ORIGINS
        ("pid", pa.int32()),  # of the task that issued it, which need not be the task that caused it; null if unknown
        ("comm", pa.string()),
        ("file_id", pa.int32()),  # row of files.parquet; null if unknown, and for the file system's own blocks
    ]
)

BLOCK_OPS = ("read", "write", "flush", "discard", "other")
BLOCK_ORIGINS = ("task", "kernel")  # issued by a process, or by the kernel on its behalf (writeback, kworker)
BLOCK_SYNC, BLOCK_META, BLOCK_FUA, BLOCK_READAHEAD = 1, 2, 4, 8

GPU = pa.schema(
    [
        ("start_ns", pa.int64()),
        ("duration_ns", pa.int64()),
        ("kind", _label),  # one of GPU_KINDS
        ("device", pa.int32()),  # null when not known
        ("stream", pa.int64()),  # null when not known
        ("size_bytes", pa.int64()),  # copies, sets and allocations; null otherwise
        ("direction", _label),  # of a copy, one of COPY_DIRECTIONS; null otherwise
        ("pid", pa.int32()),
        ("tid", pa.int32()),
        ("name", pa.dictionary(pa.int32(), pa.string())),  # of the API call or kernel
        ("source", _label),  # uprobe, kineto or tensorflow
    ]
)

# launch, memcpy, memset, malloc, free, sync: a call of the API on the CPU; kernel, copy, set: work on the device
GPU_KINDS = ("launch", "memcpy", "memset", "malloc", "free", "sync", "kernel", "copy", "set", "other")
COPY_DIRECTIONS = ("host_to_host", "host_to_device", "device_to_host", "device_to_device", "peer", "default")

PHASES = pa.schema(
    [
        ("phase", _label),  # one of PHASE_NAMES
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("rank", pa.int32()),
        ("epoch", pa.int32()),
        ("step", pa.int32()),
    ]
)

# init: before training; epoch: one training epoch without its evaluation and checkpoint; block: several training steps
PHASE_NAMES = ("init", "epoch", "block", "evaluation", "checkpoint", "step")

# The parts of steps and checkpoints that instrumented jobs log; they may overlap with one another and with phases.
PARTS = pa.schema(
    [
        ("name", _label),  # as the job logs it: load_batch_mem, all_compute, ...
        ("start_ns", pa.int64()),
        ("duration_ns", pa.int64()),
        ("rank", pa.int32()),
        ("epoch", pa.int32()),
        ("step", pa.int32()),
    ]
)

CPU_SAMPLES = pa.schema(
    [
        ("time_ns", pa.int64()),  # end of the interval
        ("interval_ns", pa.int64()),
        ("user", pa.float32()),  # user .. idle: share of all CPUs, 0..1
        ("system", pa.float32()),
        ("iowait", pa.float32()),
        ("idle", pa.float32()),
        ("job_cpus", pa.float32()),  # CPU time of the traced job / interval_ns; null if unknown
    ]
)

MEMORY_SAMPLES = pa.schema(
    [
        ("time_ns", pa.int64()),
        ("available_bytes", pa.int64()),
        ("page_cache_bytes", pa.int64()),
        ("dirty_bytes", pa.int64()),
    ]
)

DISK_SAMPLES = pa.schema(
    [
        ("time_ns", pa.int64()),
        ("interval_ns", pa.int64()),
        ("device", pa.string()),
        ("read_bytes", pa.int64()),  # within the interval
        ("written_bytes", pa.int64()),
        ("reads", pa.int64()),
        ("writes", pa.int64()),
        ("busy", pa.float32()),  # share of the interval with a request in flight, 0..1
    ]
)

GPU_SAMPLES = pa.schema(
    [
        ("time_ns", pa.int64()),
        ("device", pa.int32()),
        ("sm_percent", pa.float32()),
        ("memory_percent", pa.float32()),
        ("memory_used_bytes", pa.int64()),
    ]
)

GPU_PROCESS_SAMPLES = pa.schema(
    [
        ("time_ns", pa.int64()),
        ("device", pa.int32()),
        ("pid", pa.int32()),
        ("sm_percent", pa.float32()),  # sm .. dec: the columns of nvidia-smi pmon; null if the driver does not report it
        ("mem_percent", pa.float32()),
        ("enc_percent", pa.float32()),
        ("dec_percent", pa.float32()),
        ("memory_used_bytes", pa.int64()),
        ("command", pa.string()),
    ]
)

PRESSURE_SAMPLES = pa.schema(
    [
        ("time_ns", pa.int64()),
        ("interval_ns", pa.int64()),
        ("resource", pa.string()),  # cpu, memory or io
        ("some", pa.float32()),  # share of the interval in which some task waited for it, 0..1
        ("full", pa.float32()),  # share in which all tasks waited for it; null if the kernel does not report it
    ]
)

# All tables but the events, by the names of their files.
TABLES = {"files": FILES, "processes": PROCESSES, "phases": PHASES, "parts": PARTS, "block": BLOCK, "gpu": GPU}

SAMPLES = {
    "cpu": CPU_SAMPLES,
    "memory": MEMORY_SAMPLES,
    "disk": DISK_SAMPLES,
    "gpu": GPU_SAMPLES,
    "gpu_process": GPU_PROCESS_SAMPLES,
    "pressure": PRESSURE_SAMPLES,
}

# Groups of operations by meaning. Some operations are no system calls: page faults, requests through io_uring and libaio, writes
# to the target of a copy. docs/trace-format.md describes them.
READ_OPS = (
    "read", "pread64", "readv", "preadv", "preadv2", "sendfile", "splice", "copy_file_range", "page_fault", "io_uring_read",
    "aio_read",
)  # fmt: skip
WRITE_OPS = (
    "write", "pwrite64", "writev", "pwritev", "pwritev2", "sendfile_to", "splice_to", "copy_file_range_to", "io_uring_write",
    "aio_write",
)  # fmt: skip
OPEN_OPS = ("open", "openat", "openat2", "creat", "io_uring_openat")
SYNC_OPS = (
    "fsync", "fdatasync", "sync", "syncfs", "msync", "sync_file_range", "io_uring_fsync", "io_uring_fdatasync",
    "io_uring_sync_file_range", "aio_fsync", "aio_fdatasync",
)  # fmt: skip
CLOSE_OPS = ("close", "io_uring_close")
MAP_OPS = ("mmap",)
NAME_OPS = ("unlink", "unlinkat", "rename", "renameat", "renameat2")
WAIT_OPS = ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait")
METADATA_OPS = (
    "stat", "fstat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "readlink", "readlinkat", "getdents",
    "getdents64", "mkdir", "mkdirat", "rmdir", "truncate", "ftruncate", "fallocate", "io_uring_fallocate", "fadvise64",
    "readahead", "lseek", "munmap",
)  # fmt: skip
SUBMIT_OPS = ("io_submit", "io_getevents", "io_pgetevents", "io_uring_enter")
OP_GROUPS = {
    "read": READ_OPS, "write": WRITE_OPS, "open": OPEN_OPS, "sync": SYNC_OPS,
    "close": CLOSE_OPS, "map": MAP_OPS, "name": NAME_OPS, "wait": WAIT_OPS, "metadata": METADATA_OPS, "submit": SUBMIT_OPS,
}  # fmt: skip
GROUP_OF_OP = {op: group for group, ops in OP_GROUPS.items() for op in ops}
