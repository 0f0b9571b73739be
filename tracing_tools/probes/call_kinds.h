/* How a system call's arguments read; mirrors class Kind in tracing_tools/trace/syscalls.py, by which the loader says it of each call. */
#pragma once

#define MAX_CALLS 512

enum kind {
	NOT_TRACED, READ_WRITE, POSITIONED, VECTOR, POSITIONED_VECTOR, DESCRIPTOR, CLOSE, OPEN, OPEN_AT, CREATE, OPEN_AT2,
	MAP, NAME, NAME_AT, RENAME, RENAME_AT, WAIT, RANGE, ALLOCATE, LENGTH, SEND, COPY, MAPPED, AIO_SUBMIT, AIO_COLLECT,
};

/* Operations that are no call of their own; mirrors OTHER_OPS in tracing_tools/trace/syscalls.py. */
enum other_op { PAGE_FAULT = 512, SENDFILE_TO, SPLICE_TO, COPY_FILE_RANGE_TO, URING = 520, AIO = 540 };
