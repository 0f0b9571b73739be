"""The trace schema: all tables, their columns and units.

Times are CLOCK_MONOTONIC nanoseconds, offsets and sizes are bytes, results are the system call's return value (-errno on
failure). docs/trace-format.md describes the schema for readers of traces.
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
        ("fd", pa.int32()),  # -1 if the call has no descriptor
        ("offset", pa.int64()),  # null for pipes, sockets and calls without an offset
        ("requested", pa.int64()),  # request size in bytes; null for calls without a size
        ("result", pa.int64()),
        ("flags", pa.int32()),  # bits of the FLAG_* constants below
        ("cpu", pa.int16()),
    ]
)

FLAG_DIRECT = 1  # the file is open with O_DIRECT
FLAG_APPEND = 2  # the file is open with O_APPEND
FLAG_CREATE = 4  # the call opens a file with O_CREAT
FLAG_TRUNCATE = 8  # the call opens a file with O_TRUNC
FLAG_WRITABLE = 16  # the file is open for writing

FILES = pa.schema(
    [
        ("file_id", pa.int32()),
        ("device", pa.int64()),  # st_dev of stat(2)
        ("inode", pa.int64()),
        ("generation", pa.int64()),  # differs between two files that had the same inode number
        ("path", pa.string()),  # absolute, as the job sees it at the first open; bytes that are not UTF-8 appear as \xNN
        ("renamed_to", pa.string()),  # last path of a file that the job renamed; null otherwise
        ("container", pa.string()),
        ("size_bytes", pa.int64()),  # size at the first open; null if unknown
        ("kind", _label),  # one of FILE_KINDS
        ("host", pa.string()),  # name of the host in a merged trace; null otherwise
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
        ("start_ns", pa.int64()),  # null if the process started before the trace
        ("exit_ns", pa.int64()),  # null if the process ran longer than the trace
        ("exit_status", pa.int32()),  # 0..255, or -signal if a signal killed the process
        ("container", pa.string()),
        ("host", pa.string()),  # name of the host in a merged trace; null otherwise
    ]
)

PROCESS_ROLES = ("rank", "loader", "helper")

BLOCK = pa.schema(
    [
        ("queued_ns", pa.int64()),  # when the request was queued; null if unknown
        ("issue_ns", pa.int64()),  # when the request was issued to the driver
        ("duration_ns", pa.int64()),  # time from issue to completion; null if the completion was not recorded
        ("op", _label),  # one of BLOCK_OPS
        ("device", pa.int64()),  # st_rdev of the device file, from stat(2)
        ("sector", pa.int64()),  # offset on the device in units of 512 bytes
        ("size_bytes", pa.int64()),
        ("flags", pa.int32()),  # bits of the BLOCK_* constants below
        ("cgroup", pa.int64()),  # id of the cgroup that caused the request
        ("origin", _label),  # one of BLOCK_ORIGINS
        ("pid", pa.int32()),  # task that issued the request, which need not be the task that caused it; null if unknown
        ("comm", pa.string()),
        ("file_id", pa.int32()),  # row of files.parquet; null if unknown or for the file system's own blocks
    ]
)

BLOCK_OPS = ("read", "write", "flush", "discard", "other")
BLOCK_ORIGINS = ("task", "kernel")  # who issued the request: a process, or the kernel for it (writeback, kworker)
BLOCK_SYNC, BLOCK_META, BLOCK_FUA, BLOCK_READAHEAD = 1, 2, 4, 8

GPU = pa.schema(
    [
        ("start_ns", pa.int64()),
        ("duration_ns", pa.int64()),
        ("kind", _label),  # one of GPU_KINDS
        ("device", pa.int32()),  # index of the device; null if unknown
        ("stream", pa.int64()),  # null if unknown
        ("size_bytes", pa.int64()),  # bytes copied, set or allocated; null for other kinds
        ("direction", _label),  # one of COPY_DIRECTIONS for copies; null for other kinds
        ("pid", pa.int32()),
        ("tid", pa.int32()),
        ("name", pa.dictionary(pa.int32(), pa.string())),  # name of the API call or of the kernel
        ("source", _label),  # what recorded the row: uprobe, kineto or tensorflow
    ]
)

# launch, memcpy, memset, malloc, free and sync are calls of the API on the CPU; kernel, copy and set are work on the device.
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

# init is the time before training, epoch excludes the epoch's evaluation and checkpoint, block is several training steps.
PHASE_NAMES = ("init", "epoch", "block", "evaluation", "checkpoint", "step")

# The parts of steps and checkpoints that instrumented jobs log; they may overlap with one another and with phases.
PARTS = pa.schema(
    [
        ("name", _label),  # the name that the job logs: load_batch_mem, all_compute, ...
        ("start_ns", pa.int64()),
        ("duration_ns", pa.int64()),
        ("rank", pa.int32()),
        ("epoch", pa.int32()),
        ("step", pa.int32()),  # the minibatch, of a pipeline
        ("stage", pa.int32()),  # stage of a pipeline; also for pipelines only: version
        ("version", pa.int32()),  # version of the weights that the pass uses
    ]
)
ADDED = {"stage", "version"}  # columns that earlier versions of iotwin did not write; they are null in such traces

# The jumps of an emulated run's virtual clock. A time of the other tables is virtual: real time plus what was skipped before it.
CLOCK = pa.schema(
    [
        ("real_ns", pa.int64()),  # real time of the jump
        ("skipped_ns", pa.int64()),  # sum of this jump and those before it
    ]
)

CPU_SAMPLES = pa.schema(
    [
        ("time_ns", pa.int64()),  # end of the sampled interval
        ("interval_ns", pa.int64()),
        ("user", pa.float32()),  # user, system, iowait, idle: share of the time of all CPUs, 0..1
        ("system", pa.float32()),
        ("iowait", pa.float32()),
        ("idle", pa.float32()),
        ("job_cpus", pa.float32()),  # CPU time of the traced job divided by interval_ns; null if unknown
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
        ("read_bytes", pa.int64()),  # bytes read within the interval
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
        ("sm_percent", pa.float32()),  # sm, mem, enc, dec: columns of nvidia-smi pmon; null if the driver does not report them
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
        ("some", pa.float32()),  # share of the interval in which some task waited for the resource, 0..1
        ("full", pa.float32()),  # share in which all tasks waited for the resource; null if the kernel does not report it
    ]
)

# All tables except events, by the name of their Parquet file.
TABLES = {"files": FILES, "processes": PROCESSES, "phases": PHASES, "parts": PARTS, "block": BLOCK, "gpu": GPU, "clock": CLOCK}

SAMPLES = {
    "cpu": CPU_SAMPLES,
    "memory": MEMORY_SAMPLES,
    "disk": DISK_SAMPLES,
    "gpu": GPU_SAMPLES,
    "gpu_process": GPU_PROCESS_SAMPLES,
    "pressure": PRESSURE_SAMPLES,
}

# Groups of operations by meaning. Some operations are not system calls: page faults, requests through io_uring and libaio, writes
# to the target of a copy (see docs/trace-format.md).
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
    "read": READ_OPS, "write": WRITE_OPS, "open": OPEN_OPS, "close": CLOSE_OPS,
    "sync": SYNC_OPS, "map": MAP_OPS, "name": NAME_OPS, "wait": WAIT_OPS, "metadata": METADATA_OPS, "submit": SUBMIT_OPS,
}  # fmt: skip
GROUP_OF_OP = {op: group for group, ops in OP_GROUPS.items() for op in ops}
