/* The functions that filter.h requires, for CO-RE programs, which libbpf adapts to the running kernel. `has_left` is missing: the
 * including program defines it. The loader sets the constants (tracing_tools/backends/task_filter.py).
 */
#pragma once
#include "kernel_types.h"

const volatile u64 target_cgroup SEC(".rodata.filter") = 0;
const volatile s32 target_level SEC(".rodata.filter") = 0;
const volatile u32 entered_by_exec SEC(".rodata.filter") = 0;
const volatile u32 tracer_pid SEC(".rodata.filter") = 0;
const volatile u32 follows_job SEC(".rodata.filter") = 0; /* 1: still trace tasks, and their forks, after they leave the cgroup */

#include "filter.h"

struct { MAP_UINT(type, BPF_MAP_TYPE_HASH); MAP_UINT(max_entries, 65536); MAP_TYPE(key, u32); MAP_TYPE(value, u8); } tree SEC(".maps");

INLINE u32 process_of(struct task_struct *task)
{
	return task->tgid;
}

INLINE u64 arguments_of(struct task_struct *task)
{
	return task->mm->arg_start;
}

INLINE int is_right_in_target(struct task_struct *task)
{
	return task->cgroups->dfl_cgrp->kn->id == target_cgroup;
}

#define MAX_DEPTH 32

/* Returns 1 if the cgroup has the id `cgroup` or is below the cgroup with that id. */
INLINE int is_below(struct cgroup_subsys_state *state, u64 cgroup)
{
	for (int i = 0; i < MAX_DEPTH && state; i++) {
		if (state->cgroup->kn->id == cgroup)
			return 1;
		state = state->parent;
	}
	return 0;
}

INLINE int is_in_tree(u32 process)
{
	return bpf_map_lookup_elem(&tree, &process) != NULL;
}

INLINE void enter_tree(u32 process)
{
	u8 one = 1;
	bpf_map_update_elem(&tree, &process, &one, 0);
}

INLINE void leave_tree(u32 process)
{
	bpf_map_delete_elem(&tree, &process);
}
