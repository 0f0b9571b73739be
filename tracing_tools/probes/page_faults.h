/* Page faults on mapped files: one record per fault that the kernel counts, with the pages that the kernel mapped for the fault.
 *
 * exceptions:page_fault_* report each fault, but not its outcome. filemap:* report the pages, but miss faults that map a large
 * folio, and sometimes report a fault twice. So a fault is stored until the task's next fault, and filemap:* add its pages.
 */
#pragma once
#include "call_kinds.h"
#include "files.h"
#include "kernel_types.h"
#include "outlets.h"
#include "records.h"
#include "tasks.h"

#define KNOWN_AREAS 8 /* a power of two */

/* A mapped area, cached as finding it takes longer than a fault. It is valid while the maps' sequence number is `sequence`. */
struct area { u64 start, end, first_page; struct identity file; u32 sequence, has_file; };

struct fault {
	struct identity file;
	u64 start_ns, first_page, pages;
	u32 is_pending;
	struct area known[KNOWN_AREAS];
};
struct { MAP_UINT(type, BPF_MAP_TYPE_TASK_STORAGE); MAP_UINT(map_flags, BPF_F_NO_PREALLOC); MAP_TYPE(key, int); MAP_TYPE(value, struct fault); } faults SEC(".maps");

INLINE void send_fault(struct task_struct *task, struct identity *file, u64 start_ns, u64 first_page, u64 pages)
{
	struct event *event = reserve_event();
	if (!event)
		return;
	fill(event, task, PAGE_FAULT, file);
	event->start_ns = start_ns;
	event->duration_ns = 0; /* no tracepoint reports the end of a fault */
	event->fd = -1;
	event->offset = first_page * PAGE_BYTES;
	event->requested = event->result = pages * PAGE_BYTES;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

INLINE void send_kept(struct task_struct *task, struct fault *fault)
{
	if (!fault->is_pending)
		return;
	struct identity file = fault->file;
	fault->is_pending = 0;
	send_fault(task, &file, fault->start_ns, fault->first_page, fault->pages);
}

static long take_area(struct task_struct *task, struct vm_area_struct *vma, struct area **taken)
{
	struct area *area = *taken;
	struct file *file = vma->vm_file;
	struct identity found = {};
	if (!area)
		return 0;
	if (file)
		identify(file, &found);
	area->start = vma->vm_start;
	area->end = vma->vm_end;
	area->first_page = vma->vm_pgoff;
	area->file = found;
	area->has_file = file != NULL;
	return 0;
}

/* Returns the sequence number of the task's maps, 0 while they change (the number is odd) or if the kernel has no number. */
INLINE u32 maps_sequence(struct task_struct *task)
{
	struct mm_struct___counted *mm = (void *)task->mm;
	u32 sequence = 0;
	if (FIELD_EXISTS(mm->mm_lock_seq))
		KERNEL_READ(sequence, mm->mm_lock_seq.sequence);
	return sequence & 1 ? 0 : sequence;
}

INLINE void begin(u64 address)
{
	struct task_struct *task = bpf_get_current_task_btf();
	if ((s64)address < 0 || !is_traced(task)) /* the kernel's own addresses */
		return;
	struct fault *fault = bpf_task_storage_get(&faults, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!fault)
		return;
	send_kept(task, fault);
	struct area *area = &fault->known[(address >> 26) & (KNOWN_AREAS - 1)];
	u32 sequence = maps_sequence(task);
	if (!sequence || area->sequence != sequence || address < area->start || address >= area->end) {
		area->start = area->end = 0;
		area->sequence = sequence;
		bpf_find_vma(task, address, take_area, &area, 0);
	}
	if (!area->has_file || address < area->start || address >= area->end)
		return;
	fault->file = area->file;
	fault->first_page = area->first_page + (address - area->start) / PAGE_BYTES;
	fault->pages = 1;
	fault->start_ns = bpf_ktime_get_ns();
	fault->is_pending = 1;
}

SEC("tp_btf/page_fault_user")
int on_user_fault(u64 *context)
{
	begin(context[0]);
	return 0;
}

/* A fault in the kernel, which accesses the task's memory, as in a write() of mapped bytes. */
SEC("tp_btf/page_fault_kernel")
int on_kernel_fault(u64 *context)
{
	begin(context[0]);
	return 0;
}

/* Adds pages to the pending fault. If no fault is pending (MAP_POPULATE, madvise), sends a fault for the pages. */
INLINE void add_pages(struct address_space *mapping, u64 first_page, u64 pages)
{
	struct task_struct *task = bpf_get_current_task_btf();
	if (!is_traced(task))
		return;
	struct inode *inode = mapping->host;
	struct fault *fault = bpf_task_storage_get(&faults, task, NULL, 0);
	if (fault && fault->is_pending && fault->file.inode == inode->i_ino && fault->file.device == inode->i_sb->s_dev) {
		if (pages > 1 && first_page <= fault->first_page && fault->first_page < first_page + pages) {
			fault->first_page = first_page;
			fault->pages = pages;
		}
		return;
	}
	struct identity file = {
		.inode = inode->i_ino, .device = inode->i_sb->s_dev, .generation = inode->i_generation, .flags = inode->i_mode >> 12,
	};
	send_fault(task, &file, bpf_ktime_get_ns(), first_page, pages);
}

SEC("tp_btf/mm_filemap_fault")
int on_fault(u64 *context)
{
	add_pages((void *)context[0], context[1], 1);
	return 0;
}

/* The kernel also mapped pages near the touched page that were already in the page cache. */
SEC("tp_btf/mm_filemap_map_pages")
int on_map_pages(u64 *context)
{
	add_pages((void *)context[0], context[1], context[2] - context[1] + 1);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int on_last_fault(u64 *context)
{
	struct task_struct *task = (void *)context[0];
	struct fault *fault = bpf_task_storage_get(&faults, task, NULL, 0);
	if (fault)
		send_kept(task, fault);
	return 0;
}
