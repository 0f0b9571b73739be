/* Block requests of the job: requests whose first bio is charged to the job's cgroup, and the writeback of pages that the job
 * made dirty. The issuing task is irrelevant: it may be a kernel worker, or any task that wakes the device's queue.
 */
#pragma once
#include "arguments.h"
#include "call_kinds.h"
#include "files.h"
#include "kernel_types.h"
#include "outlets.h"
#include "records.h"
#include "tasks.h"
#include "writeback.h"

#define REQUEST_OP_MASK 255
#define REQUEST_WRITE 1
#define IN_ROOT_CGROUP 1 /* id of the root cgroup of any hierarchy */

const volatile u64 block_cgroup SEC(".rodata.block") = 0; /* trace requests charged to this cgroup; if 0, requests that traced tasks issue */

struct { MAP_UINT(type, BPF_MAP_TYPE_HASH); MAP_UINT(max_entries, 16384); MAP_TYPE(key, u64); MAP_TYPE(value, struct block_record); } in_flight SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_RINGBUF); MAP_UINT(max_entries, 1 << 21); } blocks SEC(".maps");
/* Memory for an unfinished record, too large for the stack: a program and its callbacks have 512 bytes of stack in all. */
struct { MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY); MAP_UINT(max_entries, 2); MAP_TYPE(key, u32); MAP_TYPE(value, struct block_record); } drafts SEC(".maps");

/* Returns an empty record. An interrupt may run the second program during the first, so each program has a separate record. */
INLINE struct block_record *new_record(u32 program)
{
	struct block_record *record = bpf_map_lookup_elem(&drafts, &program);
	if (record)
		*record = (struct block_record){};
	return record;
}

/* Returns 1 if the bio's cgroup is block_cgroup or below it. Stores the id of the bio's cgroup in `id`. */
INLINE int is_charged(struct bio *bio, u64 *id)
{
	if (!bio || !bio->bi_blkg)
		return 0;
	struct cgroup_subsys_state *state = &bio->bi_blkg->blkcg->css;
	*id = state->cgroup->kn->id;
	return is_below(state, block_cgroup);
}

/* Stores the file of a request's first page in `out`. Returns 0 if the page is not in the page cache, as with direct I/O. */
INLINE int identify_page(struct bio *bio, struct identity *out)
{
	struct page *page = NULL;
	struct address_space *mapping = NULL;
	unsigned long head = 0;
	KERNEL_READ(page, bio->bi_io_vec->bv_page);
	KERNEL_READ(head, page->compound_head);
	if (head & 1)
		page = (void *)(head - 1);
	KERNEL_READ(mapping, page->mapping);
	return mapping && !((u64)mapping & 3) /* the low bits mark anonymous memory */ && identify_mapping(mapping, out);
}

/* Stores the file of a request that `task` issues: that of the first page, else that of the task's current direct transfer. */
INLINE void identify_request(struct task_struct *task, struct bio *bio, struct identity *out)
{
	if (identify_page(bio, out))
		return;
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	u64 number = regs->orig_ax;
	struct identity file = {};
	if (number >= MAX_CALLS || call_kind[number] == NOT_TRACED || call_kind[number] > POSITIONED_VECTOR || !is_traced(task))
		return;
	identify(file_at(task, regs->di), &file);
	if (file.flags & FLAG_DIRECT)
		*out = file;
}

INLINE void describe_request(struct request *request, struct identity *file, struct block_record *record)
{
	record->queued_ns = request->start_time_ns;
	record->sector = request->__sector;
	record->size_bytes = request->__data_len;
	record->device = request->part ? request->part->bd_dev : 0;
	record->inode = file->inode;
	record->file_device = file->device;
	record->generation = file->generation;
	record->request_flags = request->cmd_flags;
}

/* Limits the record to the job's share of a request that other tasks caused, too. */
INLINE void describe_share(struct page_walk *walk, struct block_record *record)
{
	record->size_bytes = walk->ours_bytes;
	record->cgroup = walk->cgroup;
}

/* Returns 1 if the record belongs to `request` and not to an earlier request at the same address. */
INLINE int is_of(struct block_record *record, struct request *request)
{
	return record->queued_ns ? record->queued_ns == request->start_time_ns : record->sector == request->__sector;
}

INLINE void drop_block(void)
{
	struct ledger *counts = ledger();
	if (counts)
		counts->blocks_dropped++;
}

INLINE void send_block(struct block_record *record)
{
	if (bpf_ringbuf_output(&blocks, record, sizeof(*record), BPF_RB_NO_WAKEUP))
		drop_block();
}

/* Returns the record of the request, NULL if its issue was missed. Sends the record of an earlier request at the same address as
 * incomplete: kernels may skip a program in an interrupt, so that about one completion in a hundred is missed on a busy disk.
 */
INLINE struct block_record *record_of(struct request *request)
{
	u64 key = (u64)request;
	struct block_record *record = bpf_map_lookup_elem(&in_flight, &key);
	if (!record || is_of(record, request))
		return record;
	send_block(record);
	bpf_map_delete_elem(&in_flight, &key);
	return NULL;
}

/* Returns 1 if the job caused the whole request. Reads by a container runtime before an exec in the job's cgroup do not count. */
INLINE int is_of_job(struct task_struct *task, struct bio *bio, u64 *cgroup)
{
	int charged = is_charged(bio, cgroup);
	if (!block_cgroup)
		return is_traced(task);
	if (entered_by_exec && in_cgroup(task) && !is_traced(task))
		return 0;
	return charged || block_cgroup == IN_ROOT_CGROUP;
}

INLINE int writes(struct request *request)
{
	return (request->cmd_flags & REQUEST_OP_MASK) == REQUEST_WRITE;
}

SEC("tp_btf/block_rq_issue")
int on_block_issue(u64 *context)
{
	struct request *request = (void *)context[0];
	struct task_struct *task = bpf_get_current_task_btf();
	struct bio *bio = request->bio;
	struct block_record *record = new_record(0);
	struct page_walk walk = {};
	if (!record)
		return 0;
	record_of(request);
	if (writes(request))
		walk_request(bio, 0, &walk);
	int is_all_ours = is_of_job(task, bio, &record->cgroup);
	if (!is_all_ours && !walk.ours_bytes)
		return 0;
	u64 key = (u64)request;
	if (bio && !walk.ours_bytes)
		identify_request(task, bio, &walk.file);
	describe_request(request, &walk.file, record);
	if (!is_all_ours)
		describe_share(&walk, record);
	record->issue_ns = bpf_ktime_get_ns();
	record->duration_ns = -1;
	record->pid = task->tgid;
	record->from_kernel = (task->flags & TASK_IS_KERNEL) != 0;
	bpf_probe_read_kernel(record->comm, sizeof(record->comm), task->comm);
	if (bpf_map_update_elem(&in_flight, &key, record, 0))
		drop_block();
	return 0;
}

/* Sends the record of a completed request whose issue was missed, so that the issuing task is unknown. */
INLINE void send_unissued(struct request *request)
{
	struct bio *bio = request->bio;
	struct block_record *record = new_record(1);
	struct page_walk walk = {};
	if (!record)
		return;
	if (writes(request))
		walk_request(bio, 1, &walk);
	int is_all_ours = block_cgroup && (is_charged(bio, &record->cgroup) || block_cgroup == IN_ROOT_CGROUP);
	if (!is_all_ours && !walk.ours_bytes)
		return;
	if (bio && !walk.ours_bytes)
		identify_page(bio, &walk.file);
	describe_request(request, &walk.file, record);
	if (!is_all_ours)
		describe_share(&walk, record);
	record->issue_ns = request->io_start_time_ns ? request->io_start_time_ns : bpf_ktime_get_ns();
	record->duration_ns = bpf_ktime_get_ns() - record->issue_ns;
	send_block(record);
}

/* Sends the record of a completed request. Returns 0 if the issue of the request was missed. */
INLINE int send_completed(struct request *request)
{
	u64 key = (u64)request;
	struct block_record *record = record_of(request);
	if (!record)
		return 0;
	record->duration_ns = bpf_ktime_get_ns() - record->issue_ns;
	send_block(record);
	bpf_map_delete_elem(&in_flight, &key);
	return 1;
}

INLINE int is_partial_completion(u64 *context, struct request *request)
{
	return (u32)context[2] < request->__data_len;
}

SEC("tp_btf/block_rq_complete")
int on_block_complete(u64 *context)
{
	struct request *request = (void *)context[0];
	if (!is_partial_completion(context, request) && !send_completed(request))
		send_unissued(request);
	return 0;
}

/* Runs after on_block_complete, which the kernel skips if the interrupt came while on_block_complete ran on that CPU. */
SEC("tp_btf/block_rq_complete")
int on_skipped_complete(u64 *context)
{
	struct request *request = (void *)context[0];
	if (!is_partial_completion(context, request))
		send_completed(request);
	return 0;
}
