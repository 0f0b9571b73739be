/* Records the storage system calls of the traced tasks, one fixed-size record per finished call.
 *
 * Two programs run at every call (sys_enter, sys_exit). The table call_kind, which the loader fills, selects the traced calls and
 * the kinds of their arguments. At entry, only the filter runs and the time is read. The rest is read at exit, from registers and
 * from the file, into a lane (outlets.h). Start times determine the order of records.
 *
 * The programs for page faults, asynchronous requests and block requests are loaded only if chosen, and write to ring buffers.
 */
#include "arguments.h"
#include "call_kinds.h"
#include "calls.h"
#include "files.h"
#include "kernel_types.h"
#include "outlets.h"
#include "paths.h"
#include "records.h"
#include "tasks.h"

#include "async_io.h"
#include "block.h"
#include "life.h"
#include "page_faults.h"

char LICENSE[] SEC("license") = "GPL";

#define MAP_ANONYMOUS 0x20
#define NO_ENTRY -2
#define SPLICE 275 /* the number of the system call splice */

static long take_vma(struct task_struct *task, struct vm_area_struct *vma, struct identity *out)
{
	struct file *file = NULL;
	KERNEL_READ(file, vma->vm_file);
	identify(file, out);
	return 0;
}

/* Stores the file of a close or munmap, which cannot be found after the call. Returns 0 if the call has no file. */
INLINE int note_file(struct call *call, struct task_struct *task, struct pt_regs *regs, u8 kind)
{
	struct identity file = {};
	if (kind == CLOSE) {
		identify(file_at(task, regs->di), &file);
	} else {
		long error = bpf_find_vma(task, regs->di, take_vma, &file, 0);
		if (error == NO_ENTRY || (!error && !file.inode)) /* nothing is mapped, or memory without a file */
			return 0;
	}
	call->file = file;
	return 1;
}

SEC("tp_btf/sys_enter")
int on_enter(u64 *context)
{
	struct pt_regs *regs = (void *)context[0];
	u64 number = context[1];
	if (number >= MAX_CALLS)
		return 0;
	u8 kind = call_kind[number];
	if (kind == NOT_TRACED)
		return 0;
	struct task_struct *task = bpf_get_current_task_btf();
	if (kind == MAP && (regs->r10 & MAP_ANONYMOUS))
		return 0;
	struct call *call = bpf_task_storage_get(&calls, task, NULL, 0);
	if (!call || call->traced_in != (u64)task->cgroups) { /* the filter has not accepted this task before */
		if (follows_job && !call && !in_cgroup(task)) /* as has_left, without its second lookup of the storage */
			return 0;
		if (!is_traced(task))
			return 0;
		call = bpf_task_storage_get(&calls, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (!call) {
			missed();
			return 0;
		}
		call->traced_in = (u64)task->cgroups;
	}
	if ((kind == CLOSE || kind == MAPPED) && !note_file(call, task, regs, kind))
		return 0;
	u64 now = bpf_ktime_get_ns();
	call->start_ns = now;
	if (kind == AIO_SUBMIT)
		submit_aio(now);
	return 0;
}

struct finished { struct task_struct *task; struct pt_regs *regs; u64 start_ns, duration_ns; s64 result; u32 number; s32 fd; u8 kind; };

INLINE void fill_call(struct event *event, const struct finished *call, struct identity *file)
{
	fill(event, call->task, call->number, file);
	event->start_ns = call->start_ns;
	event->duration_ns = call->duration_ns;
	event->result = call->result;
	event->fd = call->fd;
	if (call->kind >= OPEN && call->kind <= OPEN_AT2)
		event->requested = open_flags_of(call->kind, call->regs->si, call->regs->dx);
	else
		describe(event, call->regs, call->kind, file);
}

/* Stores the file of a finished call in `file`. */
INLINE void identify_call(const struct finished *call, const struct call *noted, struct identity *file)
{
	if (call->kind == CLOSE || call->kind == MAPPED)
		*file = noted->file;
	else if (call->fd >= 0)
		identify(file_at(call->task, call->fd), file);
}

/* Looks up the current call again, for GLOBAL functions, which the verifier checks for any arguments, so without pointers. */
INLINE void look_up_call(struct finished *call, u64 start_ns, u64 duration_ns, s64 result)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	u64 number = regs->orig_ax & (MAX_CALLS - 1);
	u8 kind = call_kind[number];
	*call = (struct finished){ .task = task, .regs = regs, .start_ns = start_ns, .duration_ns = duration_ns, .result = result };
	call->number = number;
	call->kind = kind;
	call->fd = descriptor_of(regs, kind, result);
}

GLOBAL int send_by_ring(u64 start_ns, u64 duration_ns, s64 result)
{
	struct finished call;
	struct identity file = {};
	look_up_call(&call, start_ns, duration_ns, result);
	struct call *noted = bpf_task_storage_get(&calls, call.task, NULL, 0);
	if (!noted)
		return 0;
	identify_call(&call, noted, &file);
	struct event *event = reserve_event();
	if (!event)
		return 0;
	fill_call(event, &call, &file);
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return 0;
}

/* Sends the second event of sendfile, splice or copy_file_range, for the written file. The first event is for the read file. */
GLOBAL int send_target(u64 start_ns, u64 duration_ns, s64 result)
{
	struct finished call;
	struct identity file = {};
	look_up_call(&call, start_ns, duration_ns, result);
	struct pt_regs *regs = call.regs;
	int sends = call.kind == SEND;
	call.fd = sends ? regs->di : regs->dx;
	identify(file_at(call.task, call.fd), &file);
	struct event *event = reserve_event();
	if (!event)
		return 0;
	fill(event, call.task, sends ? SENDFILE_TO : call.number == SPLICE ? SPLICE_TO : COPY_FILE_RANGE_TO, &file);
	event->start_ns = start_ns;
	event->duration_ns = duration_ns;
	event->result = result;
	event->fd = call.fd;
	event->requested = sends ? regs->r10 : regs->r8;
	event->offset = sends ? position_before(&file, result) : offset_through(regs->r10, &file, result);
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return 0;
}

/* Records the most frequent calls, reads and writes of an open file, fast. Returns 0 if finish_call must record the call. */
INLINE int send_transfer(struct task_struct *task, struct pt_regs *regs, u32 number, u8 kind, u64 start_ns, u64 now, s64 result)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct lane *lane = bpf_map_lookup_elem(&lanes, &cpu);
	struct file *entry = file_at(task, regs->di);
	if (!bpf_rdonly_cast || !entry || !lane)
		return 0;
	struct file *file = bpf_rdonly_cast(entry, KERNEL_TYPE_ID(struct file));
	struct inode *inode = file->f_inode;
	struct event *event = take_slot(lane, cpu);
	if (!event)
		return 0;
	u32 flags = flags_of(inode->i_mode, file->f_flags);
	event->start_ns = start_ns;
	event->duration_ns = now - start_ns;
	event->result = result;
	if (kind == POSITIONED)
		event->offset = regs->r10;
	else if (has_position(flags))
		event->offset = result > 0 ? file->f_pos - result : file->f_pos;
	else
		event->offset = -1;
	event->requested = regs->dx;
	event->inode = inode->i_ino;
	event->pid = task->tgid;
	event->tid = task->pid;
	event->device = inode->i_sb->s_dev;
	event->generation = inode->i_generation;
	event->fd = regs->di;
	event->call_flags_cpu = packed_call(number, flags, cpu);
	give_slot(lane);
	return 1;
}

INLINE void send_call(const struct finished *call, struct identity *file)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct lane *lane = bpf_map_lookup_elem(&lanes, &cpu);
	struct event *event = lane ? take_slot(lane, cpu) : NULL;
	if (!event) {
		send_by_ring(call->start_ns, call->duration_ns, call->result);
		return;
	}
	fill_call(event, call, file);
	give_slot(lane);
}

GLOBAL int finish_call(u64 start_ns, u64 now, s64 result)
{
	struct finished call;
	struct identity file = {};
	look_up_call(&call, start_ns, now - start_ns, result);
	struct call *noted = bpf_task_storage_get(&calls, call.task, NULL, 0);
	if (!noted)
		return 0;
	identify_call(&call, noted, &file);
	u8 kind = call.kind;
	if (kind >= OPEN && kind <= RENAME_AT && kind != MAP) {
		if (kind <= OPEN_AT2 && result >= 0)
			send_opened(call.fd, start_ns);
		else if (call.fd < 0)
			send_given_names(kind, start_ns, result);
	}
	send_call(&call, &file);
	if (kind == SEND || kind == COPY)
		send_target(start_ns, now - start_ns, result);
	else if (kind == AIO_SUBMIT || kind == AIO_COLLECT)
		finish_aio(kind, now, result);
	return 0;
}

SEC("tp_btf/sys_exit")
int on_exit(u64 *context)
{
	struct pt_regs *regs = (void *)context[0];
	s64 result = context[1];
	u64 number = regs->orig_ax;
	if (number >= MAX_CALLS)
		return 0;
	u8 kind = call_kind[number];
	if (kind == NOT_TRACED)
		return 0;
	struct task_struct *task = bpf_get_current_task_btf();
	struct call *call = bpf_task_storage_get(&calls, task, NULL, 0);
	if (!call || !call->start_ns)
		return 0;
	u64 now = bpf_ktime_get_ns(), start = call->start_ns;
	call->start_ns = 0;
	if (kind > POSITIONED || !send_transfer(task, regs, number, kind, start, now, result))
		finish_call(start, now, result);
	return 0;
}
