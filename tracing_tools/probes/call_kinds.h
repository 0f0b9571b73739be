/* The layout of a system call's arguments; mirrors class Kind of trace_store/syscalls.py. The loader sets each call's kind. */
#pragma once

#define MAX_CALLS 512

enum kind {
	NOT_TRACED, READ_WRITE, POSITIONED, VECTOR, POSITIONED_VECTOR, DESCRIPTOR, CLOSE, OPEN, OPEN_AT, CREATE, OPEN_AT2,
	MAP, NAME, NAME_AT, RENAME, RENAME_AT, WAIT, RANGE, ALLOCATE, LENGTH, SEND, COPY, MAPPED, AIO_SUBMIT, AIO_COLLECT,
};

/* Operations that are not system calls; mirrors OTHER_OPS of trace_store/syscalls.py. */
enum other_op { PAGE_FAULT = 512, SENDFILE_TO, SPLICE_TO, COPY_FILE_RANGE_TO, URING = 520, AIO = 540 };
