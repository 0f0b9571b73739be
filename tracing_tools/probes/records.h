/* The records that all probes write. trace_store/raw/records.py and backends/per_cpu_buffers.py define the same layouts;
 * tests/tracing_tools/probes/test_record_layout.py compares them field by field.
 *
 * In ring buffers, lanes and files, 8 bytes precede each record: its length, and a word that belongs to the ring buffer.
 */
#pragma once
#include "integers.h"

struct event {
	u64 start_ns, duration_ns;
	s64 result;
	s64 offset;    /* -1 if the call has none */
	u64 requested; /* request size in bytes; for opens, the open flags */
	u64 inode;
	u32 pid, tid, device, generation;
	s32 fd;
	u32 call_flags_cpu; /* see packed_call */
};

struct slot { u32 header, page; struct event event; };

/* The eBPF program writes head and busy, the reader writes tail. They are in different cache lines. */
struct lane { u64 head, busy, padding[6], tail, more_padding[7]; };

enum name_type { NAME_OPENED = 1, NAME_GIVEN, NAME_FORK, NAME_EXEC, NAME_EXIT };

/* Text follows the struct. NAME_OPENED: path components, leaf first, each ending in NUL. NAME_GIVEN: the name that the program
 * passed (given_length bytes), then, if it is relative, the components of its directory. NAME_FORK, NAME_EXIT: comm. NAME_EXEC:
 * the arguments, each ending in NUL. */
struct name {
	u64 time_ns; /* start of the call that opened the file or passed the name; time of a fork, exec or exit */
	u64 inode; /* inode of the opened file; for NAME_FORK, NAME_EXEC and NAME_EXIT the id of the process's cgroup */
	s64 size; /* size of the opened file in bytes */
	u32 type, pid, tid, device, generation, mode;
	s32 parent, result;
	u32 given_length, length; /* bytes of the name that the program passed; bytes of all text */
};

struct block_record {
	u64 queued_ns, issue_ns, duration_ns; /* duration is -1 if the request did not complete */
	u64 sector, cgroup, inode;
	u32 size_bytes, device, file_device, generation, pid, request_flags, from_kernel, padding;
	char comm[16];
};

struct gpu_call {
	u64 start_ns, duration_ns, size_bytes, stream; /* stream is all ones if the function has none */
	u32 pid, tid;
	u16 function, direction;
	s32 result;
};

enum { FLAG_DIRECT = 16, FLAG_APPEND = 32, FLAG_WRITABLE = 64 }; /* bits above those of the file type (S_IFMT >> 12) */
enum { OPEN_DIRECT = 00040000, OPEN_APPEND = 00002000, OPEN_ACCESS_MODE = 3 }; /* flags of open(2), x86-64 */

INLINE u32 flags_of(u16 mode, u32 open_flags)
{
	return mode >> 12 | (open_flags & OPEN_DIRECT ? FLAG_DIRECT : 0) | (open_flags & OPEN_APPEND ? FLAG_APPEND : 0)
		| (open_flags & OPEN_ACCESS_MODE ? FLAG_WRITABLE : 0);
}

/* The identity of a file (inode, device, generation), its offset, and its flags (see flags_of). */
struct identity { u64 inode; s64 position; u32 device, generation, flags; };

INLINE int has_position(u32 flags)
{
	u32 type = flags & 15;
	return type == 8 || type == 6; /* regular file, block device */
}

/* Returns the file's offset before a call that transferred `result` bytes. */
INLINE s64 position_before(struct identity *file, s64 result)
{
	if (!has_position(file->flags))
		return -1;
	return result > 0 ? file->position - result : file->position;
}

/* Packs the call's number (10 bits), the file's flags (8 bits) and the CPU (14 bits). */
INLINE u32 packed_call(u32 number, u32 flags, u32 cpu)
{
	return number | flags << 10 | cpu << 18;
}
