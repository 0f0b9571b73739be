/* Records the storage system calls of the traced tasks, one fixed-size record per finished call.
 *
 * Two programs see every call (sys_enter, sys_exit); a table set by the loader says which calls are wanted and how their
 * arguments read. A call costs a time stamp and a filter at entry; everything else is read at exit, from registers and
 * from the file, straight into a lane: a buffer of the CPU's own that the reader has mapped, so that a record costs no lock
 * and no call. What does not fit there goes into the ring buffer `events`, as do the records of the other programs (page
 * faults, asynchronous requests). Nobody is woken: the reader polls. Every record that fits nowhere is counted.
 *
 * `names` holds the rare records of variable size (paths at open, process life). Records say the order by their time stamps.
 *
 * The layouts of struct event and struct name have their mirror in tracing_tools/trace/records.py.
 */
#include "kernel_types.h"

char LICENSE[] SEC("license") = "GPL";

/* How a system call's arguments read; the loader fills call_kind[] by system call number. */
enum kind {
	NOT_TRACED, READ_WRITE, POSITIONED, VECTOR, POSITIONED_VECTOR, DESCRIPTOR, CLOSE, OPEN, OPEN_AT, CREATE, OPEN_AT2,
	MAP, NAME, NAME_AT, RENAME, RENAME_AT, WAIT, RANGE, ALLOCATE, LENGTH, SEND, COPY, MAPPED, AIO_SUBMIT, AIO_COLLECT,
};

#define MAX_CALLS 512
#define MAX_PATH 4096
#define MAX_COMPONENTS 128
#define MAX_VECTORS 16
#define MAX_ARGUMENTS 1024
#define O_DIRECT 00040000
#define O_APPEND 00002000
#define O_ACCESS_MODE 3
#define AT_CURRENT_DIRECTORY -100
#define MAP_ANONYMOUS 0x20
#define NO_ENTRY -2
#define PROGRAM -1 /* instead of a descriptor: the file that the process executes */
#define SPLICE 275 /* its system call number */

/* Operations that are no call of their own; mirrors OTHER_OPS in tracing_tools/trace/syscalls.py. */
enum other_op { PAGE_FAULT = 512, SENDFILE_TO, SPLICE_TO, COPY_FILE_RANGE_TO, URING = 520, AIO = 540 };

const volatile u8 call_kind[MAX_CALLS] = {};
const volatile u64 target_cgroup = 0; /* 0: filter by the pid tree instead */
const volatile s32 target_level = 0;  /* depth of target_cgroup in its hierarchy */
const volatile u32 entered_by_exec = 0; /* of the cgroup, only processes that executed a program in it, and their forks */
const volatile u32 tracer_pid = 0;    /* never traced, should it be in the cgroup itself */

const volatile u32 slots_per_cpu = 0;  /* of a lane; a power of two */
const volatile u64 block_cgroup = 0;  /* whose block requests are traced; 0: those that traced tasks issue */

struct event {
	u64 start_ns, duration_ns;
	s64 result;
	s64 offset;    /* -1: none */
	u64 requested; /* bytes; open flags for the open family */
	u64 inode;
	u32 pid, tid, device, generation;
	s32 fd;
	u32 call_flags_cpu; /* call number: 10 bits, flags: 8 bits, cpu: 14 bits */
};

/* In a lane an event lies as it lies in a ring buffer, whose header is left for the reader to fill in. */
struct slot { u64 header; struct event event; };
/* The program writes head and busy, the reader tail; a line of cache for each. */
struct lane { u64 head, busy, padding[6], tail, more_padding[7]; };

enum { FLAG_DIRECT = 16, FLAG_APPEND = 32, FLAG_WRITABLE = 64 }; /* above the 4 bits of the file type (S_IFMT >> 12) */

enum name_type { NAME_OPENED = 1, NAME_GIVEN, NAME_FORK, NAME_EXEC, NAME_EXIT };

struct name {
	u64 time_ns; /* start of the call that this belongs to */
	u64 inode; /* of the opened file; of a fork, exec or exit: the id of the process's cgroup */
	s64 size; /* of the opened file, bytes */
	u32 type, pid, tid, device, generation, mode;
	s32 parent, result;
	u32 given_length, length; /* bytes of the part as given, and of all that follows the struct */
};

/* What follows. NAME_OPENED: path components, leaf first, each ending in NUL. NAME_GIVEN: the name as the program gave it
 * (given_length bytes), then, if that is relative, the components of the directory it is relative to. NAME_FORK, NAME_EXIT:
 * comm. NAME_EXEC: the arguments, each ending in NUL. */
struct scratch {
	u32 busy, padding;
	struct name name;
	char bytes[2 * MAX_PATH];
};

struct call {
	u64 start_ns;
	u64 traced_in; /* the task's set of cgroups when the filter last let it through: nothing else takes it out of a cgroup */
	u64 inode; /* close and munmap only: the file is gone when the call has finished */
	u32 device, generation, flags, padding;
};

struct ledger { u64 events_seen, events_dropped, names_seen, names_dropped, calls_missed, blocks_dropped; };

struct { MAP_UINT(type, BPF_MAP_TYPE_TASK_STORAGE); MAP_UINT(map_flags, BPF_F_NO_PREALLOC); MAP_TYPE(key, int); MAP_TYPE(value, struct call); } calls SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_HASH); MAP_UINT(max_entries, 65536); MAP_TYPE(key, u32); MAP_TYPE(value, u8); } tree SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_ARRAY); MAP_UINT(map_flags, BPF_F_MMAPABLE); MAP_UINT(max_entries, 1); MAP_TYPE(key, u32); MAP_TYPE(value, struct lane); } lanes SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_ARRAY); MAP_UINT(map_flags, BPF_F_MMAPABLE); MAP_UINT(max_entries, 1); MAP_TYPE(key, u32); MAP_TYPE(value, struct slot); } slots SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_RINGBUF); MAP_UINT(max_entries, 1 << 24); } events SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_RINGBUF); MAP_UINT(max_entries, 1 << 22); } names SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY); MAP_UINT(max_entries, 1); MAP_TYPE(key, u32); MAP_TYPE(value, struct ledger); } ledgers SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY); MAP_UINT(max_entries, 1); MAP_TYPE(key, u32); MAP_TYPE(value, struct scratch); } scratches SEC(".maps");

INLINE int in_cgroup(struct task_struct *task)
{
	if (task->tgid == tracer_pid)
		return 0;
	/* Most tasks are in the cgroup itself, which takes no call to see. */
	return task->cgroups->dfl_cgrp->kn->id == target_cgroup || bpf_get_current_ancestor_cgroup_id(target_level) == target_cgroup;
}

/* A container runtime sets a container up from inside its cgroup: that is not the job's, so the tree begins at an exec. */
INLINE int is_traced(struct task_struct *task)
{
	if (target_cgroup && !in_cgroup(task))
		return 0;
	if (target_cgroup && !entered_by_exec)
		return 1;
	u32 pid = task->tgid;
	return bpf_map_lookup_elem(&tree, &pid) != NULL;
}

INLINE struct ledger *ledger(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(&ledgers, &zero);
}

INLINE struct file *file_at(struct task_struct *task, s32 fd)
{
	struct file *file = NULL;
	struct fdtable *table = task->files->fdt;
	if (fd < 0 || (u32)fd >= table->max_fds)
		return NULL;
	if (bpf_rdonly_cast) /* any kernel type that begins with a pointer makes the table's entry a plain load */
		return (struct file *)((struct path *)bpf_rdonly_cast(&table->fd[fd], KERNEL_TYPE_ID(struct path)))->mnt;
	bpf_probe_read_kernel(&file, sizeof(file), &table->fd[fd]);
	return file;
}

struct identity { u64 inode; s64 position; u32 device, generation, flags; };

INLINE u32 flags_of(u16 mode, u32 open_flags)
{
	return mode >> 12 | (open_flags & O_DIRECT ? FLAG_DIRECT : 0) | (open_flags & O_APPEND ? FLAG_APPEND : 0)
		| (open_flags & O_ACCESS_MODE ? FLAG_WRITABLE : 0);
}

INLINE void identify(struct file *file, struct identity *out)
{
	if (!file)
		return;
	if (bpf_rdonly_cast) {
		struct file *f = bpf_rdonly_cast(file, KERNEL_TYPE_ID(struct file));
		struct inode *inode = f->f_inode;
		out->inode = inode->i_ino;
		out->device = inode->i_sb->s_dev;
		out->generation = inode->i_generation;
		out->position = f->f_pos;
		out->flags = flags_of(inode->i_mode, f->f_flags);
		return;
	}
	struct inode *inode = NULL;
	struct super_block *super = NULL;
	u16 mode = 0;
	u32 open_flags = 0;
	KERNEL_READ(inode, file->f_inode);
	KERNEL_READ(super, inode->i_sb);
	KERNEL_READ(out->inode, inode->i_ino);
	KERNEL_READ(out->device, super->s_dev);
	KERNEL_READ(out->generation, inode->i_generation);
	KERNEL_READ(out->position, file->f_pos);
	KERNEL_READ(mode, inode->i_mode);
	KERNEL_READ(open_flags, file->f_flags);
	out->flags = flags_of(mode, open_flags);
}

INLINE int has_position(u32 flags)
{
	u32 type = flags & 15;
	return type == 8 || type == 6; /* regular file, block device */
}

/* ---- paths: from the file's dentry up to the task's root, across mounts ---- */

struct walk {
	struct dentry *dentry, *root_dentry;
	struct vfsmount *mount, *root_mount;
	struct scratch *scratch; /* components are appended to its bytes; its name.length says how many are used */
};

static long step_up(u32 index, struct walk *walk)
{
	struct dentry *mount_root = NULL, *parent = NULL;
	const unsigned char *name = NULL;
	if (walk->dentry == walk->root_dentry && walk->mount == walk->root_mount)
		return 1;
	KERNEL_READ(mount_root, walk->mount->mnt_root);
	KERNEL_READ(parent, walk->dentry->d_parent);
	if (walk->dentry == mount_root || walk->dentry == parent) {
		struct mount *mount = (void *)walk->mount - FIELD_OFFSET(struct mount, mnt), *above = NULL;
		KERNEL_READ(above, mount->mnt_parent);
		if (above == mount || !above)
			return 1;
		KERNEL_READ(walk->dentry, mount->mnt_mountpoint);
		walk->mount = (void *)above + FIELD_OFFSET(struct mount, mnt);
		return 0;
	}
	u32 used = walk->scratch->name.length;
	if (used > 2 * MAX_PATH - 256)
		return 1;
	KERNEL_READ(name, walk->dentry->d_name.name);
	long length = bpf_probe_read_kernel_str(&walk->scratch->bytes[used], 256, name);
	if (length <= 0)
		return 1;
	walk->scratch->name.length = used + length;
	walk->dentry = parent;
	return 0;
}

/* Appends the components of a path to the scratch's bytes. The verifier follows this loop because the state it carries from
 * one round to the next is in memory, where bounds are not tracked. */
INLINE void append_path(struct task_struct *task, struct dentry *dentry, struct vfsmount *mount, struct scratch *scratch)
{
	struct walk walk = {
		.dentry = dentry, .mount = mount, .scratch = scratch,
		.root_dentry = task->fs->root.dentry, .root_mount = task->fs->root.mnt,
	};
	bpf_loop(MAX_COMPONENTS, step_up, &walk, 0);
}

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

GLOBAL int send_opened(s32 fd, u64 start_ns)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct file *file = fd == PROGRAM ? task->mm->exe_file : file_at(task, fd);
	struct dentry *dentry = NULL;
	struct vfsmount *mount = NULL;
	struct inode *inode = NULL;
	struct identity identity = {};
	struct scratch *scratch = take_scratch(task, NAME_OPENED, start_ns);
	if (!scratch)
		return 0;
	identify(file, &identity);
	KERNEL_READ(dentry, file->f_path.dentry);
	KERNEL_READ(mount, file->f_path.mnt);
	KERNEL_READ(inode, file->f_inode);
	KERNEL_READ(scratch->name.size, inode->i_size);
	u16 mode = 0;
	KERNEL_READ(mode, inode->i_mode);
	scratch->name.mode = mode;
	scratch->name.inode = identity.inode;
	scratch->name.device = identity.device;
	scratch->name.generation = identity.generation;
	append_path(task, dentry, mount, scratch);
	send_name(scratch);
	return 0;
}

/* A name as the program gave it, and the directory it is relative to: for calls that fail, unlink and rename. */
CALLED int send_given(struct task_struct *task, s32 directory, const void *name, u64 start_ns, s64 result)
{
	struct dentry *dentry = NULL;
	struct vfsmount *mount = NULL;
	struct scratch *scratch = take_scratch(task, NAME_GIVEN, start_ns);
	if (!scratch)
		return 0;
	scratch->name.result = result;
	long length = bpf_probe_read_user_str(scratch->bytes, MAX_PATH, name);
	if (length < 0 || length > MAX_PATH)
		length = 0;
	scratch->name.given_length = scratch->name.length = length;
	if (length && scratch->bytes[0] != '/') {
		if (directory == AT_CURRENT_DIRECTORY) {
			dentry = task->fs->pwd.dentry;
			mount = task->fs->pwd.mnt;
		} else {
			struct file *file = file_at(task, directory);
			KERNEL_READ(dentry, file->f_path.dentry);
			KERNEL_READ(mount, file->f_path.mnt);
		}
		append_path(task, dentry, mount, scratch);
	}
	send_name(scratch);
	return 0;
}

/* ---- one call ---- */

INLINE u64 vector_bytes(const struct iovec *vectors, u64 count)
{
	u64 total = 0;
	for (u32 i = 0; i < MAX_VECTORS && i < count; i++) {
		unsigned long pair[2] = {};
		bpf_probe_read_user(pair, sizeof(pair), (const char *)vectors + i * sizeof(pair));
		total += pair[1];
	}
	return total;
}

INLINE s64 position_before(struct identity *file, s64 result)
{
	if (!has_position(file->flags))
		return -1;
	return result > 0 ? file->position - result : file->position;
}

/* Offset of a call that is told it through a pointer, which the call moves on by what it transferred. */
INLINE s64 offset_through(u64 pointer, struct identity *file, s64 result)
{
	s64 after = 0;
	if (!pointer)
		return position_before(file, result);
	bpf_probe_read_user(&after, sizeof(after), (void *)pointer);
	return result > 0 ? after - result : after;
}

INLINE void describe(struct event *event, struct pt_regs *regs, u8 kind, struct identity *file)
{
	switch (kind) {
	case READ_WRITE:
		event->requested = regs->dx;
		event->offset = position_before(file, event->result);
		break;
	case POSITIONED:
		event->requested = regs->dx;
		event->offset = regs->r10;
		break;
	case VECTOR:
		event->requested = vector_bytes((void *)regs->si, regs->dx);
		event->offset = position_before(file, event->result);
		break;
	case POSITIONED_VECTOR:
		event->requested = vector_bytes((void *)regs->si, regs->dx);
		event->offset = (s64)regs->r10 == -1 ? position_before(file, event->result) : regs->r10;
		break;
	case MAP:
		event->requested = regs->si;
		event->offset = regs->r9;
		break;
	case RANGE:
		event->offset = regs->si;
		event->requested = regs->dx;
		break;
	case ALLOCATE:
		event->offset = regs->dx;
		event->requested = regs->r10;
		break;
	case LENGTH:
	case MAPPED:
		event->requested = regs->si;
		break;
	case SEND:
		event->requested = regs->r10;
		event->offset = offset_through(regs->dx, file, event->result);
		break;
	case COPY:
		event->requested = regs->r8;
		event->offset = offset_through(regs->si, file, event->result);
		break;
	}
}

/* fstatat and its like with an empty path are about the descriptor itself. */
INLINE int has_empty_path(struct pt_regs *regs)
{
	char first = 0;
	bpf_probe_read_user(&first, sizeof(first), (void *)regs->si);
	return !first;
}

/* Descriptor the call works on, or -1. */
INLINE s32 descriptor_of(struct pt_regs *regs, u8 kind, s64 result)
{
	if (kind <= CLOSE)
		return regs->di;
	if (kind <= OPEN_AT2)
		return result >= 0 ? result : -1;
	if (kind == MAP)
		return regs->r8;
	if (kind == SEND)
		return regs->si;
	if (kind == NAME_AT)
		return has_empty_path(regs) ? (s32)regs->di : -1;
	return (kind >= RANGE && kind <= LENGTH) || kind == COPY ? (s32)regs->di : -1;
}

INLINE u64 open_flags_of(struct pt_regs *regs, u8 kind)
{
	u64 flags = 0;
	if (kind == OPEN)
		return regs->si;
	if (kind == OPEN_AT)
		return regs->dx;
	if (kind == CREATE)
		return 01101; /* O_CREAT | O_WRONLY | O_TRUNC, as creat(2) says */
	bpf_probe_read_user(&flags, sizeof(flags), (void *)regs->dx); /* first field of struct open_how */
	return flags;
}

GLOBAL int send_given_names(u32 kind, u64 start_ns, s64 result)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	s32 first_directory = AT_CURRENT_DIRECTORY, second_directory = AT_CURRENT_DIRECTORY;
	const void *first = (void *)regs->di, *second = NULL;
	if (kind == OPEN_AT || kind == OPEN_AT2 || kind == NAME_AT || kind == RENAME_AT) {
		first_directory = regs->di;
		first = (void *)regs->si;
	}
	if (kind == RENAME) {
		second = (void *)regs->si;
	} else if (kind == RENAME_AT) {
		second_directory = regs->dx;
		second = (void *)regs->r10;
	}
	send_given(task, first_directory, first, start_ns, result);
	if (second)
		send_given(task, second_directory, second, start_ns, result);
	return 0;
}

INLINE void fill(struct event *event, struct task_struct *task, u32 number, struct identity *file)
{
	event->offset = -1;
	event->requested = 0;
	event->inode = file->inode;
	event->pid = task->tgid;
	event->tid = task->pid;
	event->device = file->device;
	event->generation = file->generation;
	event->call_flags_cpu = number | file->flags << 10 | bpf_get_smp_processor_id() << 18;
}

/* Reserves a record in the ring buffer; the caller submits it. What does not fit is counted. */
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

INLINE void missed(void)
{
	struct ledger *counts = ledger();
	if (counts)
		counts->calls_missed++;
}

static long take_vma(struct task_struct *task, struct vm_area_struct *vma, struct identity *out)
{
	struct file *file = NULL;
	KERNEL_READ(file, vma->vm_file);
	identify(file, out);
	return 0;
}

/* What is gone when the call has finished; 0 for a call that is no matter of files. */
INLINE int note_file(struct call *call, struct task_struct *task, struct pt_regs *regs, u8 kind)
{
	struct identity file = {};
	if (kind == CLOSE) {
		identify(file_at(task, regs->di), &file);
	} else {
		long error = bpf_find_vma(task, regs->di, take_vma, &file, 0);
		if (error == NO_ENTRY || (!error && !file.inode)) /* nothing mapped there, or memory without a file */
			return 0;
	}
	call->inode = file.inode;
	call->device = file.device;
	call->generation = file.generation;
	call->flags = file.flags;
	return 1;
}

#include "async_io.h"

SEC("tp_btf/sys_enter")
int on_enter(u64 *context)
{
	struct pt_regs *regs = (void *)context[0];
	u64 number = context[1];
	if (number >= MAX_CALLS)
		return 0;
	u8 kind = call_kind[number];
	if (kind == NOT_TRACED)
		return 0;
	struct task_struct *task = bpf_get_current_task_btf();
	if (kind == MAP && (regs->r10 & MAP_ANONYMOUS))
		return 0;
	struct call *call = bpf_task_storage_get(&calls, task, NULL, 0);
	if (!call || call->traced_in != (u64)task->cgroups) { /* else it was let through before, which is cheaper to see */
		if (!is_traced(task))
			return 0;
		call = bpf_task_storage_get(&calls, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (!call) {
			missed();
			return 0;
		}
		call->traced_in = (u64)task->cgroups;
	}
	if ((kind == CLOSE || kind == MAPPED) && !note_file(call, task, regs, kind))
		return 0;
	u64 now = bpf_ktime_get_ns();
	call->start_ns = now;
	if (kind == AIO_SUBMIT)
		submit_aio(now);
	return 0;
}

struct finished { struct task_struct *task; struct pt_regs *regs; u64 start_ns, duration_ns; s64 result; u32 number; s32 fd; u8 kind; };

INLINE void fill_call(struct event *event, const struct finished *call, struct identity *file)
{
	fill(event, call->task, call->number, file);
	event->start_ns = call->start_ns;
	event->duration_ns = call->duration_ns;
	event->result = call->result;
	event->fd = call->fd;
	if (call->kind >= OPEN && call->kind <= OPEN_AT2)
		event->requested = open_flags_of(call->regs, call->kind);
	else
		describe(event, call->regs, call->kind, file);
}

/* The file of a call that has finished, left in `file`. */
INLINE void identify_call(const struct finished *call, const struct call *noted, struct identity *file)
{
	if (call->kind == CLOSE || call->kind == MAPPED) {
		file->inode = noted->inode;
		file->device = noted->device;
		file->generation = noted->generation;
		file->flags = noted->flags;
	} else if (call->fd >= 0) {
		identify(file_at(call->task, call->fd), file);
	}
}

/* What can happen at the end of a call, transfers apart: functions of their own to the verifier, which it reads once. They find
 * out about the call again.
 */
INLINE void look_up_call(struct finished *call, u64 start_ns, u64 duration_ns, s64 result)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	u64 number = regs->orig_ax & (MAX_CALLS - 1);
	u8 kind = call_kind[number];
	*call = (struct finished){ .task = task, .regs = regs, .start_ns = start_ns, .duration_ns = duration_ns, .result = result };
	call->number = number;
	call->kind = kind;
	call->fd = descriptor_of(regs, kind, result);
}

GLOBAL int send_by_ring(u64 start_ns, u64 duration_ns, s64 result)
{
	struct finished call;
	struct identity file = {};
	look_up_call(&call, start_ns, duration_ns, result);
	struct call *noted = bpf_task_storage_get(&calls, call.task, NULL, 0);
	if (!noted)
		return 0;
	identify_call(&call, noted, &file);
	struct event *event = reserve_event();
	if (!event)
		return 0;
	fill_call(event, &call, &file);
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return 0;
}

/* The row of the file that sendfile, splice or copy_file_range wrote to; the call's own row has the file it read. */
GLOBAL int send_target(u64 start_ns, u64 duration_ns, s64 result)
{
	struct finished call;
	struct identity file = {};
	look_up_call(&call, start_ns, duration_ns, result);
	struct pt_regs *regs = call.regs;
	int sends = call.kind == SEND;
	call.fd = sends ? regs->di : regs->dx;
	identify(file_at(call.task, call.fd), &file);
	struct event *event = reserve_event();
	if (!event)
		return 0;
	fill(event, call.task, sends ? SENDFILE_TO : call.number == SPLICE ? SPLICE_TO : COPY_FILE_RANGE_TO, &file);
	event->start_ns = start_ns;
	event->duration_ns = duration_ns;
	event->result = result;
	event->fd = call.fd;
	event->requested = sends ? regs->r10 : regs->r8;
	event->offset = sends ? position_before(&file, result) : offset_through(regs->r10, &file, result);
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return 0;
}

/* `busy` guards a lane against a program that interrupts this one on the same CPU: it takes the ring buffer instead. */
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

/* Lets the reader see the record. */
INLINE void give_slot(struct lane *lane)
{
	asm volatile("" ::: "memory"); /* x86 keeps the order of stores, so the compiler must */
	*(volatile u64 *)&lane->head = lane->head + 1;
	*(volatile u64 *)&lane->busy = 0;
}

/* The short way of the calls that come in millions: plain reads and writes of an open file. 0: the long way must be taken. */
INLINE int send_transfer(struct task_struct *task, struct pt_regs *regs, u32 number, u8 kind, u64 start_ns, u64 now, s64 result)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct lane *lane = bpf_map_lookup_elem(&lanes, &cpu);
	struct file *entry = file_at(task, regs->di);
	if (!bpf_rdonly_cast || !entry || !lane)
		return 0;
	struct file *file = bpf_rdonly_cast(entry, KERNEL_TYPE_ID(struct file));
	struct inode *inode = file->f_inode;
	struct event *event = take_slot(lane, cpu);
	if (!event)
		return 0;
	u32 flags = flags_of(inode->i_mode, file->f_flags);
	event->start_ns = start_ns;
	event->duration_ns = now - start_ns;
	event->result = result;
	if (kind == POSITIONED)
		event->offset = regs->r10;
	else if (has_position(flags))
		event->offset = result > 0 ? file->f_pos - result : file->f_pos;
	else
		event->offset = -1;
	event->requested = regs->dx;
	event->inode = inode->i_ino;
	event->pid = task->tgid;
	event->tid = task->pid;
	event->device = inode->i_sb->s_dev;
	event->generation = inode->i_generation;
	event->fd = regs->di;
	event->call_flags_cpu = number | flags << 10 | cpu << 18;
	give_slot(lane);
	return 1;
}

INLINE void send_call(const struct finished *call, struct identity *file)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct lane *lane = bpf_map_lookup_elem(&lanes, &cpu);
	struct event *event = lane ? take_slot(lane, cpu) : NULL;
	if (!event) {
		send_by_ring(call->start_ns, call->duration_ns, call->result);
		return;
	}
	fill_call(event, call, file);
	give_slot(lane);
}

/* The long way, for whatever call. */
GLOBAL int finish_call(u64 start_ns, u64 now, s64 result)
{
	struct finished call;
	struct identity file = {};
	look_up_call(&call, start_ns, now - start_ns, result);
	struct call *noted = bpf_task_storage_get(&calls, call.task, NULL, 0);
	if (!noted)
		return 0;
	identify_call(&call, noted, &file);
	u8 kind = call.kind;
	if (kind >= OPEN && kind <= RENAME_AT && kind != MAP) {
		if (kind <= OPEN_AT2 && result >= 0)
			send_opened(call.fd, start_ns);
		else if (call.fd < 0)
			send_given_names(kind, start_ns, result);
	}
	send_call(&call, &file);
	if (kind == SEND || kind == COPY)
		send_target(start_ns, now - start_ns, result);
	else if (kind == AIO_SUBMIT || kind == AIO_COLLECT)
		finish_aio(kind, now, result);
	return 0;
}

SEC("tp_btf/sys_exit")
int on_exit(u64 *context)
{
	struct pt_regs *regs = (void *)context[0];
	s64 result = context[1];
	u64 number = regs->orig_ax;
	if (number >= MAX_CALLS)
		return 0;
	u8 kind = call_kind[number];
	if (kind == NOT_TRACED)
		return 0;
	struct task_struct *task = bpf_get_current_task_btf();
	struct call *call = bpf_task_storage_get(&calls, task, NULL, 0);
	if (!call || !call->start_ns)
		return 0;
	u64 now = bpf_ktime_get_ns(), start = call->start_ns;
	call->start_ns = 0;
	if (kind > POSITIONED || !send_transfer(task, regs, number, kind, start, now, result))
		finish_call(start, now, result);
	return 0;
}

/* ---- process life ---- */

SEC("tp_btf/sched_process_fork")
int on_fork(u64 *context)
{
	struct task_struct *parent = (void *)context[0], *child = (void *)context[1];
	u32 pid = child->tgid;
	u8 one = 1;
	if (child->pid != child->tgid || !is_traced(parent))
		return 0;
	if (!target_cgroup || entered_by_exec)
		bpf_map_update_elem(&tree, &pid, &one, 0);
	struct scratch *scratch = take_scratch(parent, NAME_FORK, bpf_ktime_get_ns());
	if (!scratch)
		return 0;
	scratch->name.inode = bpf_get_current_cgroup_id();
	struct pid *numbers = child->thread_pid;
	u32 level = numbers->level & 31;
	scratch->name.pid = scratch->name.tid = pid;
	scratch->name.parent = parent->tgid;
	bpf_probe_read_kernel(&scratch->name.result, sizeof(s32), (void *)&numbers->numbers[0] + level * 16); /* struct upid: 16 bytes */
	scratch->name.length = sizeof(child->comm);
	bpf_probe_read_kernel(scratch->bytes, sizeof(child->comm), child->comm);
	send_name(scratch);
	return 0;
}

#define RUNTIME_ARGUMENTS 32
#define RUNC_INIT 0x756e6300696e6974ULL /* the end of "runc", a NUL, "init" */

/* runc executes itself once more, as `runc init`, and that may be within the cgroup already. */
INLINE int is_runtime(struct task_struct *task)
{
	char arguments[RUNTIME_ARGUMENTS] = {};
	u64 last = 0;
	bpf_probe_read_user(arguments, sizeof(arguments), (void *)task->mm->arg_start);
	for (int i = 0; i < RUNTIME_ARGUMENTS; i++) {
		last = last << 8 | (u8)arguments[i];
		if (last == RUNC_INIT)
			return 1;
	}
	return 0;
}

SEC("tp_btf/sched_process_exec")
int on_exec(u64 *context)
{
	struct task_struct *task = (void *)context[0];
	u32 pid = task->tgid;
	u8 one = 1;
	if (target_cgroup && entered_by_exec && in_cgroup(task) && !is_runtime(task))
		bpf_map_update_elem(&tree, &pid, &one, 0);
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
	struct pid *numbers = task->thread_pid;
	u32 level = numbers->level & 31;
	bpf_probe_read_kernel(&scratch->name.result, sizeof(s32), (void *)&numbers->numbers[0] + level * 16);
	bpf_probe_read_user(scratch->bytes, length, (void *)begin);
	scratch->name.length = length;
	send_name(scratch);
	send_opened(PROGRAM, now); /* by the kernel, so that no call tells its path */
	return 0;
}

SEC("tp_btf/sched_process_exit")
int on_process_exit(u64 *context)
{
	struct task_struct *task = (void *)context[0];
	u32 pid = task->tgid;
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
	if (!target_cgroup || entered_by_exec)
		bpf_map_delete_elem(&tree, &pid);
	return 0;
}

#include "page_faults.h"
#include "block.h"
