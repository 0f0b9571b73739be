/* The call that a task is in, kept with the task. That a task has one also tells that it was let through by the filter, or forked by
 * one that was: so those are known that leave the job's cgroup.
 */
#pragma once
#include "kernel_types.h"
#include "tasks.h"

struct call {
	u64 start_ns;
	u64 traced_in; /* the task's set of cgroups when the filter last let it through: it changes with each of its cgroups */
	u64 inode; /* close and munmap only: the file is gone when the call has finished */
	u32 device, generation, flags, padding;
};

struct { MAP_UINT(type, BPF_MAP_TYPE_TASK_STORAGE); MAP_UINT(map_flags, BPF_F_NO_PREALLOC); MAP_TYPE(key, int); MAP_TYPE(value, struct call); } calls SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_HASH); MAP_UINT(max_entries, 65536); MAP_TYPE(key, u32); MAP_TYPE(value, u8); } strays SEC(".maps"); /* processes of the job that were seen outside its cgroup: STRAY or ENDED */

INLINE void note_stray(u32 pid)
{
	u8 stray = STRAY;
	bpf_map_update_elem(&strays, &pid, &stray, 0);
}

/* Whether a task outside the cgroup is the job's: it was let through, or forked by one that was, before it left. Tasks of others
 * have no such storage, so that this is all that following costs them. */
INLINE int has_left(struct task_struct *task)
{
	if (!follows_job || !bpf_task_storage_get(&calls, task, NULL, 0))
		return 0;
	note_stray(task->tgid);
	return 1;
}

