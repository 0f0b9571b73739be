/* The system call that a task executes, in task-local storage. Only tasks that the filter accepted, and their children, have this
 * storage. So a task of the job is recognised even after it has left the job's cgroup.
 */
#pragma once
#include "kernel_types.h"
#include "records.h"
#include "tasks.h"

struct call {
	u64 start_ns;
	u64 traced_in; /* css_set of the task when the filter last accepted it; another one after a change of cgroup */
	struct identity file; /* only for close and munmap, after which the file cannot be found */
};

struct { MAP_UINT(type, BPF_MAP_TYPE_TASK_STORAGE); MAP_UINT(map_flags, BPF_F_NO_PREALLOC); MAP_TYPE(key, int); MAP_TYPE(value, struct call); } calls SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_HASH); MAP_UINT(max_entries, 65536); MAP_TYPE(key, u32); MAP_TYPE(value, u8); } strays SEC(".maps"); /* processes of the job that left its cgroup: STRAY or ENDED */

INLINE void note_stray(u32 pid)
{
	u8 stray = STRAY;
	bpf_map_update_elem(&strays, &pid, &stray, 0);
}

/* Returns 1 if a task outside the cgroup belongs to the job, as the filter accepted it or its parent before. */
INLINE int has_left(struct task_struct *task)
{
	if (!follows_job || !bpf_task_storage_get(&calls, task, NULL, 0))
		return 0;
	note_stray(task->tgid);
	return 1;
}
