/* Writes the same records as syscalls.bpf.c. libbcc compiles this file, so that neither clang nor libbpf need be installed.
 *
 * It uses no kernel headers but offsets (macros AT_...), which the loader takes from the running kernel's BTF. The loader also
 * defines FILE_SPAN and INODE_SPAN (bytes up to the end of the last field that is read), EVENTS_PAGES, NAMES_PAGES and the
 * constants of filter.h. bcc takes a single text, so the loader inserts the headers (tracing_tools/probes/__init__.py). bcc
 * supports neither bpf_loop nor functions that are not inlined, so a bounded loop walks paths.
 */
#include "call_kinds.h"
#include "filter.h"
#include "integers.h"
#include "open_flags.h"
#include "records.h"

#define MAX_PATH 4096
#define MAX_COMPONENTS 40
#define MAX_VECTORS 16
#define MAX_ARGUMENTS 1024
#define AT_CURRENT_DIRECTORY -100
#define MAP_ANONYMOUS 0x20
#define NO_WAKEUP 1

struct scratch {
	struct name name;
	char bytes[2 * MAX_PATH];
};

struct call {
	u64 start_ns;
	u64 traced_in; /* css_set of the task when the filter last accepted it; another one after a change of cgroup */
	struct identity file; /* only for close, after which the file cannot be found */
	u64 number;
};

struct ledger { u64 events_seen, events_dropped, names_seen, names_dropped, calls_missed; };

BPF_ARRAY(call_kinds, u8, MAX_CALLS);
BPF_TASK_STORAGE(calls, struct call);
BPF_HASH(tree, u32, u8, 65536);
BPF_HASH(strays, u32, u8, 65536); /* processes of the job that left its cgroup: STRAY or ENDED */
BPF_ARRAY(any_stray, u32, 1);
BPF_RINGBUF_OUTPUT(events, EVENTS_PAGES);
BPF_RINGBUF_OUTPUT(names, NAMES_PAGES);
BPF_PERCPU_ARRAY(ledgers, struct ledger, 1);
BPF_PERCPU_ARRAY(scratches, struct scratch, 1);

#define FIELD(type, object, offset) \
	({ \
		type value_ = 0; \
		bpf_probe_read_kernel(&value_, sizeof(value_), (void *)((u64)(object) + (offset))); \
		value_; \
	})

/* Reads a field by a plain load, which the verifier permits for a task and for what its fields point to. */
#define LOAD(type, task, offset) (*(type *)((char *)(task) + (offset)))
#define PART(type, parts, offset) (*(type *)((char *)(parts) + (offset)))

/* The registers of the arguments, as the kernel saves them on x86-64 (the middle of struct pt_regs). */
struct registers { u64 r10, r9, r8, ax, cx, dx, si, di; };
#define REGISTERS_OFFSET 56 /* after r15, r14, r13, r12, bp, bx, r11 */
#define REGISTER(regs, name) FIELD(u64, regs, REGISTERS_OFFSET + __builtin_offsetof(struct registers, name))

/* ---- functions that filter.h requires ---- */

INLINE u32 process_of(struct task_struct *task)
{
	return bpf_get_current_pid_tgid() >> 32;
}

INLINE u64 arguments_of(struct task_struct *task)
{
	return FIELD(u64, FIELD(u64, task, AT_TASK_MEMORY), AT_MEMORY_ARG_START);
}

INLINE int is_right_in_target(struct task_struct *task)
{
	return 0;
}

INLINE int is_in_tree(u32 process)
{
	return tree.lookup(&process) != NULL;
}

INLINE void enter_tree(u32 process)
{
	u8 one = 1;
	tree.update(&process, &one);
}

INLINE void leave_tree(u32 process)
{
	tree.delete(&process);
}

/* bcc can attach storage to the current task only. Therefore this map lists the processes that made a call before they left the
 * cgroup, and their forks. No process is looked up until one has left. */
INLINE void note_stray(u32 pid)
{
	int zero = 0;
	u32 one = 1;
	u8 stray = STRAY;
	any_stray.update(&zero, &one);
	strays.update(&pid, &stray);
}

INLINE int has_left(struct task_struct *task)
{
	int zero = 0;
	u32 pid = process_of(task);
	u32 *any = follows_job ? any_stray.lookup(&zero) : NULL;
	if (!any || !*any)
		return 0;
	u8 *state = strays.lookup(&pid);
	return state && *state == STRAY;
}

INLINE u64 file_at(void *task, s32 fd)
{
	void *table = LOAD(void *, LOAD(void *, task, AT_TASK_FILES), AT_FILES_TABLE);
	if (fd < 0 || (u32)fd >= LOAD(u32, table, AT_TABLE_MAX))
		return 0;
	return FIELD(u64, LOAD(u64, table, AT_TABLE_FILES), (u64)fd * 8);
}

INLINE void identify(u64 file, struct identity *out)
{
	if (!file)
		return;
	/* Each read of kernel memory has a fixed cost, so adjacent fields are read together. */
	u64 parts[FILE_SPAN / 8];
	bpf_probe_read_kernel(parts, sizeof(parts), (void *)file);
	u64 inode = PART(u64, parts, AT_FILE_INODE);
	u32 open_flags = PART(u32, parts, AT_FILE_FLAGS);
	out->position = PART(s64, parts, AT_FILE_POSITION);
	out->generation = FIELD(u32, inode, AT_INODE_GENERATION);
	u64 more[INODE_SPAN / 8];
	bpf_probe_read_kernel(more, sizeof(more), (void *)inode);
	out->inode = PART(u64, more, AT_INODE_NUMBER);
	out->device = FIELD(u32, PART(u64, more, AT_INODE_SUPER), AT_SUPER_DEVICE);
	out->flags = flags_of(PART(u16, more, AT_INODE_MODE), open_flags);
}

/* ---- paths: from the file's dentry up to the task's root, across mounts ---- */

INLINE void append_path(void *task, u64 path, struct scratch *scratch)
{
	u64 fs = FIELD(u64, task, AT_TASK_FS);
	u64 root_mount = FIELD(u64, fs, AT_FS_ROOT + AT_PATH_MOUNT), root_dentry = FIELD(u64, fs, AT_FS_ROOT + AT_PATH_DENTRY);
	u64 mount = FIELD(u64, path, AT_PATH_MOUNT), dentry = FIELD(u64, path, AT_PATH_DENTRY);
	for (int i = 0; i < MAX_COMPONENTS; i++) {
		if (dentry == root_dentry && mount == root_mount)
			return;
		u64 parent = FIELD(u64, dentry, AT_DENTRY_PARENT);
		if (dentry == FIELD(u64, mount, AT_VFSMOUNT_ROOT) || dentry == parent) {
			u64 inner = mount - AT_MOUNT_VFSMOUNT, above = FIELD(u64, inner, AT_MOUNT_PARENT);
			if (above == inner || !above)
				return;
			dentry = FIELD(u64, inner, AT_MOUNT_POINT);
			mount = above + AT_MOUNT_VFSMOUNT;
			continue;
		}
		u32 used = scratch->name.length;
		if (used > 2 * MAX_PATH - 256)
			return;
		long length = bpf_probe_read_kernel_str(&scratch->bytes[used], 256, (void *)FIELD(u64, dentry, AT_DENTRY_NAME));
		if (length <= 0)
			return;
		scratch->name.length = used + length;
		dentry = parent;
	}
}

INLINE struct scratch *take_scratch(u32 type, u64 time_ns)
{
	int zero = 0;
	struct scratch *scratch = scratches.lookup(&zero);
	struct ledger *counts = ledgers.lookup(&zero);
	if (!scratch || !counts)
		return NULL;
	u64 ids = bpf_get_current_pid_tgid();
	counts->names_seen++;
	__builtin_memset(&scratch->name, 0, sizeof(scratch->name));
	scratch->name.time_ns = time_ns;
	scratch->name.type = type;
	scratch->name.pid = ids >> 32;
	scratch->name.tid = ids;
	return scratch;
}

INLINE void send_name(struct scratch *scratch)
{
	int zero = 0;
	struct ledger *counts = ledgers.lookup(&zero);
	u64 size = sizeof(struct name) + scratch->name.length;
	if (size > sizeof(struct scratch))
		size = sizeof(struct name);
	if (names.ringbuf_output(scratch, size, NO_WAKEUP) && counts)
		counts->names_dropped++;
}

INLINE void send_opened(void *task, s32 fd, u64 start_ns)
{
	struct identity identity = {};
	struct scratch *scratch = take_scratch(NAME_OPENED, start_ns);
	if (!scratch)
		return;
	u64 file = file_at(task, fd), inode = FIELD(u64, file, AT_FILE_INODE);
	identify(file, &identity);
	scratch->name.size = FIELD(s64, inode, AT_INODE_SIZE);
	scratch->name.mode = FIELD(u16, inode, AT_INODE_MODE);
	scratch->name.inode = identity.inode;
	scratch->name.device = identity.device;
	scratch->name.generation = identity.generation;
	append_path(task, file + AT_FILE_PATH, scratch);
	send_name(scratch);
}

INLINE void send_given(void *task, s32 directory, u64 name, u64 start_ns, s64 result)
{
	struct scratch *scratch = take_scratch(NAME_GIVEN, start_ns);
	if (!scratch)
		return;
	scratch->name.result = result;
	long length = bpf_probe_read_user_str(scratch->bytes, MAX_PATH, (void *)name);
	if (length < 0 || length > MAX_PATH)
		length = 0;
	scratch->name.given_length = scratch->name.length = length;
	if (length && scratch->bytes[0] != '/') {
		u64 path = directory == AT_CURRENT_DIRECTORY ? FIELD(u64, task, AT_TASK_FS) + AT_FS_PWD
							     : file_at(task, directory) + AT_FILE_PATH;
		append_path(task, path, scratch);
	}
	send_name(scratch);
}

/* ---- one call ---- */

INLINE u64 vector_bytes(u64 vectors, u64 count)
{
	u64 total = 0;
	for (u32 i = 0; i < MAX_VECTORS; i++) {
		u64 length = 0;
		if (i >= count)
			break;
		bpf_probe_read_user(&length, sizeof(length), (void *)(vectors + i * 16 + 8));
		total += length;
	}
	return total;
}

INLINE void describe(struct event *event, struct registers *regs, u8 kind, struct identity *file)
{
	if (kind == READ_WRITE || kind == POSITIONED)
		event->requested = regs->dx;
	else if (kind == VECTOR || kind == POSITIONED_VECTOR)
		event->requested = vector_bytes(regs->si, regs->dx);
	if (kind == READ_WRITE || kind == VECTOR || (kind == POSITIONED_VECTOR && (s64)regs->r10 == -1))
		event->offset = position_before(file, event->result);
	else if (kind == POSITIONED || kind == POSITIONED_VECTOR)
		event->offset = regs->r10;
	if (kind == MAP) {
		event->requested = regs->si;
		event->offset = regs->r9;
	}
}

INLINE void send_given_names(void *task, struct registers *regs, u8 kind, u64 start_ns, s64 result)
{
	int relative = kind == OPEN_AT || kind == OPEN_AT2 || kind == NAME_AT || kind == RENAME_AT;
	send_given(task, relative ? (s32)regs->di : AT_CURRENT_DIRECTORY, relative ? regs->si : regs->di, start_ns, result);
	if (kind == RENAME || kind == RENAME_AT)
		send_given(task, relative ? (s32)regs->dx : AT_CURRENT_DIRECTORY, relative ? regs->r10 : regs->si, start_ns, result);
}

RAW_TRACEPOINT_PROBE(sys_enter)
{
	u64 regs = ctx->args[0];
	u32 number = ctx->args[1];
	u8 *kind = call_kinds.lookup(&number);
	if (!kind || *kind == NOT_TRACED)
		return 0;
	if (*kind == MAP && REGISTER(regs, r10) & MAP_ANONYMOUS)
		return 0;
	struct task_struct *task = bpf_get_current_task_btf();
	u64 cgroups = LOAD(u64, task, AT_TASK_CGROUPS);
	struct call *call = calls.task_storage_get(task, 0, 0);
	if (!call || call->traced_in != cgroups) {
		if (call && follows_job && !in_cgroup(task))
			note_stray(process_of(task));
		if (!is_traced(task))
			return 0;
		call = calls.task_storage_get(task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (!call) {
			int zero = 0;
			struct ledger *counts = ledgers.lookup(&zero);
			if (counts)
				counts->calls_missed++;
			return 0;
		}
		call->traced_in = cgroups;
	}
	call->number = number;
	if (*kind == CLOSE) {
		struct identity file = {};
		identify(file_at(task, REGISTER(regs, di)), &file);
		call->file = file;
	}
	call->start_ns = bpf_ktime_get_ns();
	return 0;
}

RAW_TRACEPOINT_PROBE(sys_exit)
{
	u64 context = ctx->args[0];
	s64 result = ctx->args[1];
	int zero = 0;
	void *task = bpf_get_current_task_btf();
	struct call *call = calls.task_storage_get(task, 0, 0);
	if (!call || !call->start_ns)
		return 0;
	u32 number = call->number;
	u8 *found = call_kinds.lookup(&number);
	struct ledger *counts = ledgers.lookup(&zero);
	if (!found || !counts)
		return 0;
	u8 kind = *found;
	u64 now = bpf_ktime_get_ns(), start = call->start_ns, ids = bpf_get_current_pid_tgid();
	call->start_ns = 0;
	counts->events_seen++;
	struct registers regs = {};
	bpf_probe_read_kernel(&regs, sizeof(regs), (void *)(context + REGISTERS_OFFSET));
	struct identity file = {};
	s32 fd = -1;
	if (kind <= CLOSE)
		fd = regs.di;
	else if (kind <= OPEN_AT2)
		fd = result >= 0 ? result : -1;
	else if (kind == MAP)
		fd = regs.r8;
	if (kind == CLOSE)
		file = call->file;
	else if (fd >= 0)
		identify(file_at(task, fd), &file);
	if (kind >= OPEN && kind <= RENAME_AT && kind != MAP) {
		if (kind <= OPEN_AT2 && result >= 0)
			send_opened(task, fd, start);
		else
			send_given_names(task, &regs, kind, start, result);
	}
	struct event *event = events.ringbuf_reserve(sizeof(struct event));
	if (!event) {
		counts->events_dropped++;
		return 0;
	}
	event->start_ns = start;
	event->duration_ns = now - start;
	event->result = result;
	event->offset = -1;
	event->requested = 0;
	event->inode = file.inode;
	event->pid = ids >> 32;
	event->tid = ids;
	event->device = file.device;
	event->generation = file.generation;
	event->fd = fd;
	event->call_flags_cpu = packed_call(number, file.flags, bpf_get_smp_processor_id());
	if (kind >= OPEN && kind <= OPEN_AT2)
		event->requested = open_flags_of(kind, regs.si, regs.dx);
	else
		describe(event, &regs, kind, &file);
	events.ringbuf_submit(event, NO_WAKEUP);
	return 0;
}

/* ---- process life ---- */

INLINE s32 namespace_pid(u64 task)
{
	u64 numbers = FIELD(u64, task, AT_TASK_PID_STRUCT);
	u32 level = FIELD(u32, numbers, AT_PID_LEVEL) & 31;
	return FIELD(s32, numbers, AT_PID_NUMBERS + level * 16); /* struct upid: 16 bytes */
}

RAW_TRACEPOINT_PROBE(sched_process_fork)
{
	u64 child = ctx->args[1];
	u32 pid = FIELD(u32, child, AT_TASK_TGID);
	struct task_struct *parent = bpf_get_current_task_btf();
	if (FIELD(u32, child, AT_TASK_PID) != pid || !is_traced(parent))
		return 0;
	if (follows_job && !in_cgroup(parent))
		note_stray(pid);
	enter_by_fork(pid);
	struct scratch *scratch = take_scratch(NAME_FORK, bpf_ktime_get_ns());
	if (!scratch)
		return 0;
	scratch->name.inode = bpf_get_current_cgroup_id();
	scratch->name.parent = scratch->name.pid;
	scratch->name.pid = scratch->name.tid = pid;
	scratch->name.result = namespace_pid(child);
	scratch->name.length = 16;
	bpf_probe_read_kernel(scratch->bytes, 16, (void *)(child + AT_TASK_COMM));
	send_name(scratch);
	return 0;
}

RAW_TRACEPOINT_PROBE(sched_process_exec)
{
	struct task_struct *task = bpf_get_current_task_btf();
	enter_by_exec(task);
	if (!is_traced(task))
		return 0;
	u64 first = arguments_of(task);
	struct scratch *scratch = take_scratch(NAME_EXEC, bpf_ktime_get_ns());
	if (!scratch)
		return 0;
	u64 length = FIELD(u64, FIELD(u64, task, AT_TASK_MEMORY), AT_MEMORY_ARG_END) - first;
	if (length > MAX_ARGUMENTS)
		length = MAX_ARGUMENTS;
	scratch->name.inode = bpf_get_current_cgroup_id();
	scratch->name.parent = FIELD(u32, FIELD(u64, task, AT_TASK_PARENT), AT_TASK_TGID);
	scratch->name.result = namespace_pid((u64)task);
	bpf_probe_read_user(scratch->bytes, length, (void *)first);
	scratch->name.length = length;
	send_name(scratch);
	return 0;
}

RAW_TRACEPOINT_PROBE(sched_process_exit)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u64 ids = bpf_get_current_pid_tgid();
	u32 pid = ids >> 32;
	u8 ended = ENDED;
	if (pid != (u32)ids || !is_traced(task))
		return 0;
	struct scratch *scratch = take_scratch(NAME_EXIT, bpf_ktime_get_ns());
	if (scratch) {
		scratch->name.inode = bpf_get_current_cgroup_id();
		scratch->name.parent = FIELD(u32, FIELD(u64, task, AT_TASK_PARENT), AT_TASK_TGID);
		scratch->name.result = FIELD(u32, task, AT_TASK_EXIT_CODE);
		scratch->name.length = 16;
		bpf_get_current_comm(scratch->bytes, 16);
		send_name(scratch);
	}
	leave_by_exit(task);
	if (follows_job && strays.lookup(&pid))
		strays.update(&pid, &ended);
	return 0;
}
