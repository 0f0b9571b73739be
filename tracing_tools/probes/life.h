/* The life of processes: forks, executed programs, exits, and moves out of the job's cgroup. */
#pragma once
#include "calls.h"
#include "kernel_types.h"
#include "outlets.h"
#include "paths.h"
#include "tasks.h"

#define MAX_ARGUMENTS 1024

/* As in_cgroup, but for any task, not only the current one. */
INLINE int is_below_target(struct task_struct *task)
{
	return is_below(&task->cgroups->dfl_cgrp->self, target_cgroup);
}

/* Returns the pid of the task in its own pid namespace. */
INLINE s32 namespace_pid(struct task_struct *task)
{
	struct pid *numbers = task->thread_pid;
	u32 level = numbers->level & 31;
	s32 pid = 0;
	bpf_probe_read_kernel(&pid, sizeof(pid), (void *)&numbers->numbers[0] + level * 16); /* struct upid: 16 bytes */
	return pid;
}

/* Without this program, a process that sleeps while it is moved out of the cgroup would be unknown until its next call. */
SEC("tp_btf/cgroup_attach_task")
int on_move(u64 *context)
{
	struct task_struct *task = (void *)context[2];
	if (follows_job && bpf_task_storage_get(&calls, task, NULL, 0) && !is_below_target(task))
		note_stray(task->tgid);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int on_fork(u64 *context)
{
	struct task_struct *parent = (void *)context[0], *child = (void *)context[1];
	u32 pid = child->tgid;
	int is_thread = child->pid != child->tgid;
	if ((is_thread && !follows_job) || !is_traced(parent))
		return 0;
	if (follows_job) { /* the child may be in another cgroup before its first call */
		bpf_task_storage_get(&calls, child, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (!is_below_target(child))
			note_stray(pid);
	}
	if (is_thread)
		return 0;
	enter_by_fork(pid);
	struct scratch *scratch = take_scratch(parent, NAME_FORK, bpf_ktime_get_ns());
	if (!scratch)
		return 0;
	scratch->name.inode = bpf_get_current_cgroup_id();
	scratch->name.pid = scratch->name.tid = pid;
	scratch->name.parent = parent->tgid;
	scratch->name.result = namespace_pid(child);
	scratch->name.length = sizeof(child->comm);
	bpf_probe_read_kernel(scratch->bytes, sizeof(child->comm), child->comm);
	send_name(scratch);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int on_exec(u64 *context)
{
	struct task_struct *task = (void *)context[0];
	enter_by_exec(task);
	if (!is_traced(task))
		return 0;
	u64 now = bpf_ktime_get_ns();
	struct scratch *scratch = take_scratch(task, NAME_EXEC, now);
	if (!scratch)
		return 0;
	u64 begin = task->mm->arg_start, length = task->mm->arg_end - begin;
	if (length > MAX_ARGUMENTS)
		length = MAX_ARGUMENTS;
	scratch->name.inode = bpf_get_current_cgroup_id();
	scratch->name.parent = task->real_parent->tgid;
	scratch->name.result = namespace_pid(task);
	bpf_probe_read_user(scratch->bytes, length, (void *)begin);
	scratch->name.length = length;
	send_name(scratch);
	send_opened(PROGRAM, now); /* the kernel opened the program, without a system call */
	return 0;
}

SEC("tp_btf/sched_process_exit")
int on_process_exit(u64 *context)
{
	struct task_struct *task = (void *)context[0];
	u32 pid = task->tgid;
	u8 ended = ENDED;
	if (task->pid != task->tgid || !is_traced(task))
		return 0;
	struct scratch *scratch = take_scratch(task, NAME_EXIT, bpf_ktime_get_ns());
	if (scratch) {
		scratch->name.parent = task->real_parent->tgid;
		scratch->name.inode = bpf_get_current_cgroup_id();
		scratch->name.result = task->exit_code;
		scratch->name.length = sizeof(task->comm);
		bpf_probe_read_kernel(scratch->bytes, sizeof(task->comm), task->comm);
		send_name(scratch);
	}
	leave_by_exit(task);
	if (follows_job && bpf_map_lookup_elem(&strays, &pid))
		bpf_map_update_elem(&strays, &pid, &ended, 0);
	return 0;
}
