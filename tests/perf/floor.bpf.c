/* The least that a tracer by these two tracepoints can cost: programs that do nothing, and (in `clocks`) that read the clock. */
#define SEC(name) __attribute__((section(name), used))
typedef unsigned long long u64;

char LICENSE[] SEC("license") = "GPL";
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
u64 seen;

SEC("tp_btf/sys_enter")
int nothing_at_enter(u64 *context)
{
	return 0;
}

SEC("tp_btf/sys_exit")
int nothing_at_exit(u64 *context)
{
	return 0;
}

SEC("tp_btf/sys_enter")
int clock_at_enter(u64 *context)
{
	seen = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/sys_exit")
int clock_at_exit(u64 *context)
{
	seen = bpf_ktime_get_ns();
	return 0;
}
