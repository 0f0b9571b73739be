/* Block requests, charged to the cgroup that caused them: the one a request's first bio carries, not the task that issues it,
 * which may be a worker of the kernel's, or of nobody's concern.
 */
#pragma once
#include "arguments.h"
#include "call_kinds.h"
#include "files.h"
#include "kernel_types.h"
#include "outlets.h"
#include "records.h"
#include "tasks.h"

#define MAX_LEVELS 32
#define TASK_IS_KERNEL 0x00200000 /* PF_KTHREAD */
#define REQUEST_OP_MASK 255
#define IN_ROOT_CGROUP 1 /* id of the root cgroup of any hierarchy */

const volatile u64 block_cgroup SEC(".rodata.block") = 0; /* whose block requests are traced; 0: those that traced tasks issue */

struct { MAP_UINT(type, BPF_MAP_TYPE_HASH); MAP_UINT(max_entries, 16384); MAP_TYPE(key, u64); MAP_TYPE(value, struct block_record); } in_flight SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_RINGBUF); MAP_UINT(max_entries, 1 << 21); } blocks SEC(".maps");

/* Whether the cgroup, or one above it, is the job's; its own id is left in `id`. */
INLINE int is_charged(struct bio *bio, u64 *id)
{
	if (!bio || !bio->bi_blkg)
		return 0;
	struct cgroup_subsys_state *state = &bio->bi_blkg->blkcg->css;
	*id = state->cgroup->kn->id;
	for (int i = 0; i < MAX_LEVELS && state; i++) {
		if (state->cgroup->kn->id == block_cgroup)
			return 1;
		state = state->parent;
	}
	return 0;
}

/* The file of a request's first page; returns 0 when that is in no page cache: a direct read or write. */
INLINE int identify_page(struct bio *bio, struct identity *out)
{
	struct page *page = NULL;
	struct address_space *mapping = NULL;
	struct inode *inode = NULL;
	struct super_block *super = NULL;
	struct block_device *device = NULL; /* of the file system; none for shared memory, which may be a direct read's buffer */
	unsigned long head = 0;
	u16 mode = 0;
	KERNEL_READ(page, bio->bi_io_vec->bv_page);
	KERNEL_READ(head, page->compound_head);
	if (head & 1)
		page = (void *)(head - 1);
	KERNEL_READ(mapping, page->mapping);
	if (mapping && !((u64)mapping & 3)) { /* the low bits mark anonymous memory */
		KERNEL_READ(inode, mapping->host);
		KERNEL_READ(mode, inode->i_mode);
		KERNEL_READ(super, inode->i_sb);
		KERNEL_READ(device, super->s_bdev);
	}
	if (!device)
		return 0;
	if (mode >> 12 == 8) { /* else the file system's own blocks, which are cached under the device */
		KERNEL_READ(out->inode, inode->i_ino);
		KERNEL_READ(out->generation, inode->i_generation);
		KERNEL_READ(out->device, super->s_dev);
	}
	return 1;
}

/* The file of a request that `task` issues: of its page, else of the direct read or write being made. */
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

/* Whether the record is of the request that lies there now, and not of one that lay there before. */
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

/* The record of the request, if its issue was seen. One of an earlier request at the same place, whose completion was not seen,
 * is sent as it is: a kernel may pass over a program in an interrupt, here about one in a hundred on a busy disk.
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

SEC("tp_btf/block_rq_issue")
int on_block_issue(u64 *context)
{
	struct request *request = (void *)context[0];
	struct task_struct *task = bpf_get_current_task_btf();
	struct bio *bio = request->bio;
	struct block_record record = {};
	record_of(request);
	int charged = is_charged(bio, &record.cgroup);
	if (block_cgroup ? !charged && block_cgroup != IN_ROOT_CGROUP : !is_traced(task))
		return 0;
	u64 key = (u64)request;
	struct identity file = {};
	if (bio)
		identify_request(task, bio, &file);
	describe_request(request, &file, &record);
	record.issue_ns = bpf_ktime_get_ns();
	record.duration_ns = -1;
	record.pid = task->tgid;
	record.from_kernel = (task->flags & TASK_IS_KERNEL) != 0;
	bpf_probe_read_kernel(record.comm, sizeof(record.comm), task->comm);
	if (bpf_map_update_elem(&in_flight, &key, &record, 0))
		drop_block();
	return 0;
}

/* A request whose issue was not seen: who issued it is not known any more. */
INLINE void send_unissued(struct request *request)
{
	struct bio *bio = request->bio;
	struct block_record record = {};
	struct identity file = {};
	if (!block_cgroup || (!is_charged(bio, &record.cgroup) && block_cgroup != IN_ROOT_CGROUP))
		return;
	if (bio)
		identify_page(bio, &file);
	describe_request(request, &file, &record);
	record.issue_ns = request->io_start_time_ns ? request->io_start_time_ns : bpf_ktime_get_ns();
	record.duration_ns = bpf_ktime_get_ns() - record.issue_ns;
	send_block(&record);
}

SEC("tp_btf/block_rq_complete")
int on_block_complete(u64 *context)
{
	struct request *request = (void *)context[0];
	u64 key = (u64)request;
	if ((u32)context[2] < request->__data_len) /* the rest follows */
		return 0;
	struct block_record *record = record_of(request);
	if (!record) {
		send_unissued(request);
		return 0;
	}
	record->duration_ns = bpf_ktime_get_ns() - record->issue_ns;
	send_block(record);
	bpf_map_delete_elem(&in_flight, &key);
	return 0;
}
