/* Records calls of CUDA's API by uprobes, one record per finished call.
 *
 * One pair of programs serves all functions: the cookie of an uprobe is the function's index in trace_store/raw/cuda_calls.py.
 * The map `functions` holds the positions of a function's size, stream and direction arguments. Of nested calls (the runtime API
 * calls the driver API), only the outermost is recorded. The ring buffer `mappers` reports processes that map executable code.
 * The loader then searches the mapped files for CUDA functions.
 */
#include "kernel_types.h"
#include "records.h"
#include "tasks.h"

char LICENSE[] SEC("license") = "GPL";

#define MAX_FUNCTIONS 256
#define MMAP 9
#define PROT_EXEC 4
#define NONE 255
#define STREAM_IN_CONFIGURATION 255
#define CONFIGURATION_STREAM 32 /* offset of the stream in cudaLaunchConfig_t and CUlaunchConfig */
#define NO_DIRECTION 0xFFFF
#define MEMCPY_DEFAULT 4 /* cudaMemcpyDefault; smaller kinds equal the trace's directions */
#define DIRECTION_DEFAULT 5

struct function { u8 size, rows, unit_bytes, stream, direction, fixed_direction, padding[2]; };

struct open_call { u64 start_ns, size_bytes, stream, stack; u16 function, direction; u32 depth; };
struct gpu_ledger { u64 seen, dropped; };

static u64 (*bpf_get_attach_cookie)(void *context) = (void *)174;

struct { MAP_UINT(type, BPF_MAP_TYPE_ARRAY); MAP_UINT(max_entries, MAX_FUNCTIONS); MAP_TYPE(key, u32); MAP_TYPE(value, struct function); } functions SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_TASK_STORAGE); MAP_UINT(map_flags, BPF_F_NO_PREALLOC); MAP_TYPE(key, int); MAP_TYPE(value, struct open_call); } open_calls SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_RINGBUF); MAP_UINT(max_entries, 1 << 22); } gpu_calls SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_RINGBUF); MAP_UINT(max_entries, 1 << 16); } mappers SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY); MAP_UINT(max_entries, 1); MAP_TYPE(key, u32); MAP_TYPE(value, struct gpu_ledger); } gpu_ledgers SEC(".maps");

/* Not needed here: the backend for system calls detects processes that left the cgroup, and the loader adds them to the tree. */
INLINE int has_left(struct task_struct *task)
{
	return is_in_tree(task->tgid);
}

/* The registers at a function's entry, as x86-64 kernels save them (struct pt_regs, arch/x86/include/uapi/asm/ptrace.h). */
enum { R9 = 8, R8 = 9, AX = 10, CX = 11, DX = 12, SI = 13, DI = 14, SP = 19 };

struct arguments { u64 value[6], stack; };

/* Reads are volatile, because the verifier requires constant offsets. */
INLINE void read_arguments(unsigned long *context, struct arguments *out)
{
	volatile unsigned long *regs = context;
	out->value[0] = regs[DI];
	out->value[1] = regs[SI];
	out->value[2] = regs[DX];
	out->value[3] = regs[CX];
	out->value[4] = regs[R8];
	out->value[5] = regs[R9];
	out->stack = regs[SP];
}

INLINE u64 argument(struct arguments *arguments, u32 number)
{
	u64 value = 0;
	if (!number)
		return 0;
	if (number <= 6)
		return arguments->value[number - 1];
	/* Further arguments are on the stack, above the return address. */
	bpf_probe_read_user(&value, sizeof(value), (void *)arguments->stack + 8 * (number - 6));
	return value;
}

INLINE u64 stream_of(struct arguments *arguments, struct function *function)
{
	u64 stream = 0;
	if (!function->stream)
		return ~0ULL;
	if (function->stream != STREAM_IN_CONFIGURATION)
		return argument(arguments, function->stream);
	bpf_probe_read_user(&stream, sizeof(stream), (void *)arguments->value[0] + CONFIGURATION_STREAM);
	return stream;
}

INLINE u16 direction_of(struct arguments *arguments, struct function *function)
{
	if (function->fixed_direction != NONE)
		return function->fixed_direction;
	if (!function->direction)
		return NO_DIRECTION;
	u32 kind = argument(arguments, function->direction);
	return kind < MEMCPY_DEFAULT ? kind : kind == MEMCPY_DEFAULT ? DIRECTION_DEFAULT : NO_DIRECTION;
}

SEC("uprobe")
int on_call(unsigned long *context)
{
	struct arguments read, *arguments = &read;
	struct task_struct *task = bpf_get_current_task_btf();
	u32 number = bpf_get_attach_cookie(context);
	struct function *function = bpf_map_lookup_elem(&functions, &number);
	if (!function || !is_traced(task))
		return 0;
	struct open_call *call = bpf_task_storage_get(&open_calls, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!call)
		return 0;
	read_arguments(context, arguments);
	/* If a call begins no deeper in the stack than the unfinished call, a longjmp has left the unfinished call. */
	if (call->depth && read.stack < call->stack) {
		call->depth++;
		return 0;
	}
	u64 size = argument(arguments, function->size) * function->unit_bytes;
	call->size_bytes = function->rows ? size * argument(arguments, function->rows) : size;
	call->stream = stream_of(arguments, function);
	call->direction = direction_of(arguments, function);
	call->function = number;
	call->stack = read.stack;
	call->depth = 1;
	call->start_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("uretprobe")
int on_return(unsigned long *context)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct open_call *call = bpf_task_storage_get(&open_calls, task, NULL, 0);
	u32 zero = 0;
	u64 now = bpf_ktime_get_ns();
	struct gpu_ledger *counts = bpf_map_lookup_elem(&gpu_ledgers, &zero);
	if (!call || !counts || !call->depth || --call->depth)
		return 0;
	counts->seen++;
	struct gpu_call *out = bpf_ringbuf_reserve(&gpu_calls, sizeof(*out), 0);
	if (!out) {
		counts->dropped++;
		return 0;
	}
	out->start_ns = call->start_ns;
	out->duration_ns = now - call->start_ns;
	out->size_bytes = call->size_bytes;
	out->stream = call->stream;
	out->pid = task->tgid;
	out->tid = task->pid;
	out->function = call->function;
	out->direction = call->direction;
	out->result = context[AX];
	bpf_ringbuf_submit(out, BPF_RB_NO_WAKEUP);
	return 0;
}

SEC("tp_btf/sys_enter")
int on_map(u64 *context)
{
	struct pt_regs *regs = (void *)context[0];
	if (context[1] != MMAP || !(regs->dx & PROT_EXEC) || (s32)regs->r8 < 0)
		return 0;
	struct task_struct *task = bpf_get_current_task_btf();
	u64 pid = task->tgid;
	if (is_traced(task))
		bpf_ringbuf_output(&mappers, &pid, sizeof(pid), BPF_RB_NO_WAKEUP);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int on_exec(u64 *context)
{
	struct task_struct *task = (void *)context[0];
	u64 pid = task->tgid;
	enter_by_exec(task);
	if (is_traced(task))
		bpf_ringbuf_output(&mappers, &pid, sizeof(pid), BPF_RB_NO_WAKEUP);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int on_fork(u64 *context)
{
	struct task_struct *parent = (void *)context[0], *child = (void *)context[1];
	if (child->pid == child->tgid && is_traced(parent))
		enter_by_fork(child->tgid);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int on_exit(u64 *context)
{
	struct task_struct *task = (void *)context[0];
	if (task->pid == task->tgid)
		leave_tree(task->tgid);
	return 0;
}
