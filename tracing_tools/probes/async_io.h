/* Asynchronous requests: io_uring by its tracepoints, libaio by the calls that submit and collect requests.
 *
 * The map `pending` stores the event of a request from its submission to its completion. A request of io_uring completes when
 * the kernel posts its result. A request of libaio completes when the job collects it, as no tracepoint reports it earlier.
 */
#pragma once
#include "arguments.h"
#include "call_kinds.h"
#include "files.h"
#include "kernel_types.h"
#include "outlets.h"
#include "paths.h"
#include "records.h"
#include "tasks.h"

#define MAX_REQUESTS 4096
#define REQUEST_HAS_FIXED_FILE 1

struct request_key { u64 address, owner; }; /* io_uring: address of the kernel's request, 0; libaio: address of the iocb, pid */
struct { MAP_UINT(type, BPF_MAP_TYPE_HASH); MAP_UINT(max_entries, 16384); MAP_TYPE(key, struct request_key); MAP_TYPE(value, struct event); } pending SEC(".maps");

INLINE void wait_for(u64 address, u64 owner, struct event *event)
{
	struct request_key key = { address, owner };
	if (bpf_map_update_elem(&pending, &key, event, 0))
		missed();
}

/* ---- io_uring ---- */

/* Returns the number of the operation with this opcode (include/uapi/linux/io_uring.h), 0 if the operation uses no file. */
INLINE u32 uring_op(struct io_kiocb *request)
{
	int flags = 0;
	switch (request->opcode) {
	case 1: case 4: case 22: /* READV, READ_FIXED, READ */
		return URING;
	case 2: case 5: case 23:
		return URING + 1;
	case 3:
		KERNEL_READ(flags, ((struct io_sync *)request)->flags);
		return flags & 1 ? URING + 3 : URING + 2; /* IORING_FSYNC_DATASYNC */
	case 18: case 28: /* OPENAT, OPENAT2 */
		return URING + 4;
	case 19:
		return URING + 5;
	case 8:
		return URING + 6;
	case 17:
		return URING + 7;
	}
	return 0;
}

SEC("tp_btf/io_uring_submit_req")
int on_uring_submit(u64 *context)
{
	struct io_kiocb *request = (void *)context[0];
	struct task_struct *task = bpf_get_current_task_btf();
	u32 op = uring_op(request), length = 0;
	if (!op || !is_traced(task))
		return 0;
	struct identity file = {};
	struct event event = {};
	event.fd = -1;
	if (op == URING + 5) { /* a close, after which the descriptor has no file */
		KERNEL_READ(event.fd, ((struct io_close *)request)->fd);
		identify(file_at(task, event.fd), &file);
	} else if (op != URING + 4 && !(request->flags & REQUEST_HAS_FIXED_FILE)) {
		event.fd = request->cqe.fd;
	}
	fill(&event, task, op, &file);
	event.start_ns = bpf_ktime_get_ns();
	if (op <= URING + 1) {
		struct io_rw *rw = (struct io_rw *)request;
		u64 address = 0;
		KERNEL_READ(event.offset, rw->kiocb.ki_pos);
		KERNEL_READ(length, rw->len);
		KERNEL_READ(address, rw->addr);
		event.requested = request->opcode <= 2 ? vector_bytes((void *)address, length) : length;
	} else if (op >= URING + 6) {
		KERNEL_READ(event.offset, ((struct io_sync *)request)->off);
		KERNEL_READ(event.requested, ((struct io_sync *)request)->len);
	}
	wait_for((u64)request, 0, &event);
	return 0;
}

SEC("tp_btf/io_uring_complete")
int on_uring_complete(u64 *context)
{
	struct io_kiocb *request = (void *)context[1];
	struct request_key key = { (u64)request, 0 };
	struct event *waiting = bpf_map_lookup_elem(&pending, &key);
	if (!waiting)
		return 0;
	struct task_struct *task = bpf_get_current_task_btf();
	struct identity file = {};
	struct file *kernel_file = NULL;
	struct event event = *waiting;
	u32 op = event.call_flags_cpu & 1023;
	bpf_map_delete_elem(&pending, &key);
	KERNEL_READ(event.result, request->cqe.res);
	event.result = (s32)event.result;
	event.duration_ns = bpf_ktime_get_ns() - event.start_ns;
	if (op == URING + 4) {
		if (event.result >= 0 && task->tgid == event.pid) {
			event.fd = event.result;
			kernel_file = file_at(task, event.fd);
			send_opened(event.fd, event.start_ns);
		}
	} else if (op != URING + 5) {
		KERNEL_READ(kernel_file, request->file);
	}
	if (kernel_file) {
		identify(kernel_file, &file);
		event.inode = file.inode;
		event.device = file.device;
		event.generation = file.generation;
		event.call_flags_cpu |= file.flags << 10;
		if (op <= URING + 1 && event.offset == -1)
			event.offset = position_before(&file, event.result);
	}
	struct event *out = reserve_event();
	if (out) {
		*out = event;
		bpf_ringbuf_submit(out, BPF_RB_NO_WAKEUP);
	}
	return 0;
}

/* ---- libaio ---- */

struct iocb { /* include/uapi/linux/aio_abi.h */
	u64 data;
	u32 key, rw_flags;
	u16 opcode, priority;
	s32 fd;
	u64 buffer, size;
	s64 offset;
};
struct io_event { u64 data, request; s64 result, result2; };

struct aio_batch { u64 array, now, first; };

INLINE u32 aio_op(u16 opcode)
{
	switch (opcode) {
	case 0: case 7: /* PREAD, PREADV */
		return AIO;
	case 1: case 8:
		return AIO + 1;
	case 2:
		return AIO + 2;
	case 3:
		return AIO + 3;
	}
	return 0;
}

static long submit_one(u32 i, struct aio_batch *batch)
{
	u64 address = 0;
	struct iocb request = {};
	struct identity file = {};
	struct event event = {};
	struct task_struct *task = bpf_get_current_task_btf();
	bpf_probe_read_user(&address, sizeof(address), (u64 *)batch->array + i);
	if (bpf_probe_read_user(&request, sizeof(request), (void *)address))
		return 1;
	u32 op = aio_op(request.opcode);
	if (!op)
		return 0;
	identify(file_at(task, request.fd), &file);
	fill(&event, task, op, &file);
	event.start_ns = batch->now;
	event.fd = request.fd;
	if (op <= AIO + 1) {
		event.offset = request.offset;
		event.requested = request.opcode >= 7 ? vector_bytes((void *)request.buffer, request.size) : request.size;
	}
	wait_for(address, task->tgid, &event);
	return 0;
}

/* Runs at the entry of io_submit, as another thread may collect requests before it returns. finish_aio removes refused ones. */
GLOBAL int submit_aio(u64 now)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	struct aio_batch batch = { .array = regs->dx, .now = now };
	u64 count = regs->si;
	bpf_loop(count < MAX_REQUESTS ? count : MAX_REQUESTS, submit_one, &batch, 0);
	return 0;
}

static long remove_one(u32 i, struct aio_batch *batch)
{
	struct request_key key = { 0, bpf_get_current_task_btf()->tgid };
	bpf_probe_read_user(&key.address, sizeof(key.address), (u64 *)batch->array + batch->first + i);
	bpf_map_delete_elem(&pending, &key);
	return 0;
}

static long collect_one(u32 i, struct aio_batch *batch)
{
	struct io_event collected = {};
	bpf_probe_read_user(&collected, sizeof(collected), (struct io_event *)batch->array + i);
	struct request_key key = { collected.request, bpf_get_current_task_btf()->tgid };
	struct event *waiting = bpf_map_lookup_elem(&pending, &key);
	if (!waiting)
		return 0;
	struct event *out = reserve_event();
	if (out) {
		*out = *waiting;
		out->result = collected.result;
		out->duration_ns = batch->now - out->start_ns;
		bpf_ringbuf_submit(out, BPF_RB_NO_WAKEUP);
	}
	bpf_map_delete_elem(&pending, &key);
	return 0;
}

GLOBAL int finish_aio(u32 kind, u64 now, s64 result)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	struct aio_batch batch = { .now = now, .first = result > 0 ? result : 0 };
	if (kind == AIO_COLLECT) {
		batch.array = regs->r10;
		bpf_loop(result < 0 ? 0 : result < MAX_REQUESTS ? result : MAX_REQUESTS, collect_one, &batch, 0);
		return 0;
	}
	u64 refused = regs->si - batch.first;
	batch.array = regs->dx;
	if (regs->si > batch.first)
		bpf_loop(refused < MAX_REQUESTS ? refused : MAX_REQUESTS, remove_one, &batch, 0);
	return 0;
}
