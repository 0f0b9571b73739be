/* The buffers to which programs write records (lanes and ring buffers), and the counts of events seen and lost.
 *
 * A lane is a buffer of one CPU that the reader has mapped, so that writing a record takes no lock and no helper call. The ring
 * buffer `events` receives records if a lane is full, `names` the rare records of variable size. The reader polls the buffers.
 */
#pragma once
#include "files.h"
#include "kernel_types.h"
#include "records.h"

#define MAX_PATH 4096

const volatile u32 slots_per_cpu SEC(".rodata.outlets") = 0; /* records per lane; a power of two */

/* Memory for one name record, which is too large for the stack. */
struct scratch {
	u32 busy, padding;
	struct name name;
	char bytes[2 * MAX_PATH];
};

struct ledger { u64 events_seen, events_dropped, names_seen, names_dropped, calls_missed, blocks_dropped, pages_dirtied, pages_cleaned; };

struct { MAP_UINT(type, BPF_MAP_TYPE_ARRAY); MAP_UINT(map_flags, BPF_F_MMAPABLE); MAP_UINT(max_entries, 1); MAP_TYPE(key, u32); MAP_TYPE(value, struct lane); } lanes SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_ARRAY); MAP_UINT(map_flags, BPF_F_MMAPABLE); MAP_UINT(max_entries, 1); MAP_TYPE(key, u32); MAP_TYPE(value, struct slot); } slots SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_RINGBUF); MAP_UINT(max_entries, 1 << 24); } events SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_RINGBUF); MAP_UINT(max_entries, 1 << 22); } names SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY); MAP_UINT(max_entries, 1); MAP_TYPE(key, u32); MAP_TYPE(value, struct ledger); } ledgers SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY); MAP_UINT(max_entries, 1); MAP_TYPE(key, u32); MAP_TYPE(value, struct scratch); } scratches SEC(".maps");

INLINE struct ledger *ledger(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(&ledgers, &zero);
}

INLINE void missed(void)
{
	struct ledger *counts = ledger();
	if (counts)
		counts->calls_missed++;
}

/* ---- events ---- */

INLINE void fill(struct event *event, struct task_struct *task, u32 number, struct identity *file)
{
	event->offset = -1;
	event->requested = 0;
	event->inode = file->inode;
	event->pid = task->tgid;
	event->tid = task->pid;
	event->device = file->device;
	event->generation = file->generation;
	event->call_flags_cpu = packed_call(number, file->flags, bpf_get_smp_processor_id());
}

/* Returns a new record in the ring buffer, which the caller must submit. If the buffer is full, counts a loss, returns NULL. */
INLINE struct event *reserve_event(void)
{
	struct ledger *counts = ledger();
	if (!counts)
		return NULL;
	counts->events_seen++;
	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event)
		counts->events_dropped++;
	return event;
}

/* Returns a slot of the lane, NULL if it is full. While `busy`, a program that interrupts this program uses the ring buffer. */
INLINE struct event *take_slot(struct lane *lane, u32 cpu)
{
	u64 head = lane->head;
	if (lane->busy)
		return NULL;
	*(volatile u64 *)&lane->busy = 1;
	u32 index = cpu * slots_per_cpu + (head & (slots_per_cpu - 1));
	struct slot *slot = head - *(volatile u64 *)&lane->tail < slots_per_cpu ? bpf_map_lookup_elem(&slots, &index) : NULL;
	if (slot)
		return &slot->event;
	*(volatile u64 *)&lane->busy = 0;
	return NULL;
}

/* Makes the record in the slot visible to the reader. */
INLINE void give_slot(struct lane *lane)
{
	asm volatile("" ::: "memory"); /* the compiler must not reorder stores; x86 does not */
	*(volatile u64 *)&lane->head = lane->head + 1;
	*(volatile u64 *)&lane->busy = 0;
}

/* ---- names ---- */

INLINE struct scratch *take_scratch(struct task_struct *task, u32 type, u64 time_ns)
{
	u32 zero = 0;
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &zero);
	struct ledger *counts = ledger();
	if (!scratch || !counts)
		return NULL;
	counts->names_seen++;
	if (scratch->busy) {
		counts->names_dropped++;
		return NULL;
	}
	scratch->busy = 1;
	__builtin_memset(&scratch->name, 0, sizeof(scratch->name));
	scratch->name.time_ns = time_ns;
	scratch->name.type = type;
	scratch->name.pid = task->tgid;
	scratch->name.tid = task->pid;
	return scratch;
}

INLINE void send_name(struct scratch *scratch)
{
	u64 size = sizeof(struct name) + scratch->name.length;
	struct ledger *counts = ledger();
	if (size > sizeof(struct name) + sizeof(scratch->bytes))
		size = sizeof(struct name);
	if (bpf_ringbuf_output(&names, &scratch->name, size, BPF_RB_NO_WAKEUP) && counts)
		counts->names_dropped++;
	scratch->busy = 0;
}
