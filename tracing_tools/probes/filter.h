/* Which task is traced: decided here for every program that runs in the kernel.
 *
 * The job is a cgroup (target_cgroup, at the depth target_level of its hierarchy) or, if that is 0, a tree of processes. Of a cgroup
 * that a container runtime sets up from inside, only the processes that executed a program there, and their forks, are the job's
 * (entered_by_exec): then the tree is asked too. tracer_pid is never traced, should it be in the cgroup itself.
 *
 * Whoever includes this has these constants, and the functions below; all are asked of the current task only.
 */
#pragma once
#include "integers.h"

struct task_struct;

INLINE u32 process_of(struct task_struct *task);
INLINE u64 arguments_of(struct task_struct *task); /* address of its command line */
INLINE int is_right_in_target(struct task_struct *task); /* in the target cgroup itself; may be 0 where that is no cheaper to see */
INLINE int has_left(struct task_struct *task); /* of a task outside the cgroup, whether it is the job's all the same */
INLINE int is_in_tree(u32 process);
INLINE void enter_tree(u32 process);
INLINE void leave_tree(u32 process);

enum stray_state { STRAY = 1, ENDED }; /* of a process of the job that was seen outside its cgroup */

INLINE int in_cgroup(struct task_struct *task)
{
	if (process_of(task) == tracer_pid)
		return 0;
	/* Most tasks are in the cgroup itself, which takes no call to see. */
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

/* ---- the tree's own life ---- */

INLINE int tree_decides(void)
{
	return !target_cgroup || entered_by_exec;
}

/* Of a fork by a traced task: the child's process is the job's too. */
INLINE void enter_by_fork(u32 child)
{
	if (tree_decides())
		enter_tree(child);
}

#define RUNTIME_ARGUMENTS 32
#define RUNC_INIT 0x756e6300696e6974ULL /* the end of "runc", a NUL, "init" */

/* runc executes itself once more, as `runc init`, and that may be within the cgroup already. */
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
