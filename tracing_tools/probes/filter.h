/* The filter of all kernel programs, which decides which tasks are traced.
 *
 * The job is a cgroup (target_cgroup, at the depth target_level of its hierarchy) or, if target_cgroup is 0, a tree of processes.
 * A container's cgroup first contains the container runtime. With entered_by_exec, therefore, only processes that executed a
 * program in the cgroup, and their forks, belong to the job; the tree lists them. tracer_pid is never traced.
 *
 * The including program defines these constants, and the functions below for the current task.
 */
#pragma once
#include "integers.h"

struct task_struct;

INLINE u32 process_of(struct task_struct *task);
INLINE u64 arguments_of(struct task_struct *task); /* address of the task's command line */
INLINE int is_right_in_target(struct task_struct *task); /* 1 if in the target cgroup, not below it; 0 if that is slow to check */
INLINE int has_left(struct task_struct *task); /* 1 if the task is of the job and has left its cgroup */
INLINE int is_in_tree(u32 process);
INLINE void enter_tree(u32 process);
INLINE void leave_tree(u32 process);

enum stray_state { STRAY = 1, ENDED }; /* state of a process of the job that left its cgroup */

INLINE int in_cgroup(struct task_struct *task)
{
	if (process_of(task) == tracer_pid)
		return 0;
	/* First without a helper call, as most tasks are in the cgroup itself. */
	return is_right_in_target(task) || bpf_get_current_ancestor_cgroup_id(target_level) == target_cgroup;
}

INLINE int is_traced(struct task_struct *task)
{
	if (target_cgroup && !in_cgroup(task))
		return has_left(task);
	if (target_cgroup && !entered_by_exec)
		return 1;
	return is_in_tree(process_of(task));
}

/* ---- changes of the tree ---- */

INLINE int tree_decides(void)
{
	return !target_cgroup || entered_by_exec;
}

/* Adds the child of a traced task to the tree. */
INLINE void enter_by_fork(u32 child)
{
	if (tree_decides())
		enter_tree(child);
}

#define RUNTIME_ARGUMENTS 32
#define RUNC_INIT 0x756e6300696e6974ULL /* the end of "runc", a NUL, "init" */

/* Returns 1 if the task executes `runc init`: runc executes itself again, possibly after it entered the cgroup. */
INLINE int is_runtime(struct task_struct *task)
{
	char arguments[RUNTIME_ARGUMENTS] = {};
	u64 last = 0;
	bpf_probe_read_user(arguments, sizeof(arguments), (void *)arguments_of(task));
#pragma unroll
	for (int i = 0; i < RUNTIME_ARGUMENTS; i++) {
		last = last << 8 | (u8)arguments[i];
		if (last == RUNC_INIT)
			return 1;
	}
	return 0;
}

INLINE void enter_by_exec(struct task_struct *task)
{
	if (target_cgroup && entered_by_exec && in_cgroup(task) && !is_runtime(task))
		enter_tree(process_of(task));
}

INLINE void leave_by_exit(struct task_struct *task)
{
	if (tree_decides())
		leave_tree(process_of(task));
}
