/* The kernel types and BPF helpers that the probes use, so that compiling requires no kernel headers, bpftool or libbpf headers.
 *
 * preserve_access_index makes every field access relocatable (CO-RE): at load time libbpf takes the real offsets from the running
 * kernel's BTF.
 */
#pragma once
#include "integers.h"

#define SEC(name) __attribute__((section(name), used))
/* A function that is not inlined: for long code that rarely runs. */
#define CALLED static __attribute__((noinline))
/* A function that the verifier checks only once, whatever the arguments. */
#define GLOBAL __attribute__((noinline))
#define NULL ((void *)0)
#define PAGE_BYTES 4096

#define MAP_UINT(name, value) int(*name)[value]
#define MAP_TYPE(name, value) typeof(value) *name

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum { BPF_F_MMAPABLE = 1024, BPF_F_NO_PREALLOC = 1, BPF_LOCAL_STORAGE_GET_F_CREATE = 1, BPF_RB_NO_WAKEUP = 1 };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct pt_regs { unsigned long di, si, dx, r10, r8, r9, ax, orig_ax; };
struct qstr { const unsigned char *name; };
struct block_device { u32 bd_dev; };
struct super_block { u32 s_dev; struct block_device *s_bdev; };
struct inode { u16 i_mode; struct super_block *i_sb; unsigned long i_ino; s64 i_size; u32 i_generation; };
struct dentry { struct dentry *d_parent; struct qstr d_name; };
struct vfsmount { struct dentry *mnt_root; };
struct mount { struct mount *mnt_parent; struct dentry *mnt_mountpoint; struct vfsmount mnt; };
struct path { struct vfsmount *mnt; struct dentry *dentry; };
struct file { struct path f_path; struct inode *f_inode; u32 f_flags; s64 f_pos; };
struct fdtable { u32 max_fds; struct file **fd; };
struct files_struct { struct fdtable *fdt; };
struct fs_struct { struct path root, pwd; };
struct mm_struct { unsigned long arg_start, arg_end; struct file *exe_file; };
struct seqcount { u32 sequence; };
struct mm_struct___counted { struct seqcount mm_lock_seq; }; /* from Linux 6.13 on; changes with every mmap and munmap */
struct upid { int nr; };
struct pid { u32 level; struct upid numbers[1]; };
struct kernfs_node { u64 id; };
struct cgroup_subsys_state { struct cgroup *cgroup; struct cgroup_subsys_state *parent; };
struct cgroup { struct cgroup_subsys_state self; struct kernfs_node *kn; };
struct css_set { struct cgroup *dfl_cgrp; struct cgroup_subsys_state *subsys[1]; };
struct task_struct {
	u32 flags;
	s32 pid, tgid;
	int exit_code;
	char comm[16];
	struct task_struct *real_parent;
	struct pid *thread_pid;
	struct mm_struct *mm;
	struct files_struct *files;
	struct fs_struct *fs;
	struct css_set *cgroups;
};
struct iovec { void *iov_base; unsigned long iov_len; };
struct vm_area_struct { unsigned long vm_start, vm_end, vm_pgoff; struct file *vm_file; };
struct address_space { struct inode *host; };
struct page { unsigned long compound_head; struct address_space *mapping; };
struct folio { struct address_space *mapping; unsigned long index; };
struct folio___counted { u32 _nr_pages; }; /* Linux 6.14 and later; earlier versions have one of the next two structs */
struct folio___named { u32 _folio_nr_pages; };
struct page___counted { u32 compound_nr; };
struct bio_vec { struct page *bv_page; u32 bv_len, bv_offset; };
struct bvec_iter { u32 bi_size, bi_idx, bi_bvec_done; };
struct blkcg { struct cgroup_subsys_state css; };
struct blkcg_gq { struct blkcg *blkcg; };
struct bio { struct bio *bi_next; struct bvec_iter bi_iter; struct blkcg_gq *bi_blkg; struct bio_vec *bi_io_vec; };
struct request { u32 cmd_flags, __data_len; u64 __sector, start_time_ns, io_start_time_ns; struct bio *bio; struct block_device *part; };
struct kiocb { s64 ki_pos; };
struct io_rw { struct kiocb kiocb; u64 addr; u32 len; };
struct io_sync { s64 len, off; int flags; };
struct io_close { int fd; };
struct io_cqe { s32 res; int fd; };
struct io_kiocb { struct file *file; u8 opcode; u32 flags; struct io_cqe cqe; };

#pragma clang attribute pop

/* libbpf replaces these values by those of the running kernel. */
enum pageflags { PG_dirty, PG_head };
enum cgroup_subsys_id { io_cgrp_id };

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*bpf_get_smp_processor_id)(void) = (void *)8;
static long (*bpf_probe_read_user)(void *to, u32 size, const void *from) = (void *)112;
static long (*bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*bpf_probe_read_user_str)(void *to, u32 size, const void *from) = (void *)114;
static long (*bpf_probe_read_kernel_str)(void *to, u32 size, const void *from) = (void *)115;
static u64 (*bpf_get_current_cgroup_id)(void) = (void *)80;
static u64 (*bpf_get_current_ancestor_cgroup_id)(int level) = (void *)123;
static long (*bpf_ringbuf_output)(void *ring, void *data, u64 size, u64 flags) = (void *)130;
static void *(*bpf_ringbuf_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*bpf_ringbuf_submit)(void *data, u64 flags) = (void *)132;
static void *(*bpf_task_storage_get)(void *map, struct task_struct *task, void *value, u64 flags) = (void *)156;
static struct task_struct *(*bpf_get_current_task_btf)(void) = (void *)158;
static long (*bpf_task_pt_regs)(struct task_struct *task) = (void *)175;
static long (*bpf_find_vma)(struct task_struct *task, u64 address, void *callback, void *context, u64 flags) = (void *)180;
static long (*bpf_loop)(u32 iterations, void *callback, void *context, u64 flags) = (void *)181;

/* Casts a kernel address to a typed pointer whose fields can be read by plain loads, even if they fault. Linux 6.2 and later. */
extern void *bpf_rdonly_cast(const void *object, u32 btf_id) __attribute__((section(".ksyms"), weak));

#define KERNEL_TYPE_ID(type) __builtin_btf_type_id(*(typeof(type) *)0, 1)
#define FIELD_EXISTS(field) __builtin_preserve_field_info(field, 2)
#define TYPE_SIZE(type) __builtin_preserve_type_info(*(typeof(type) *)0, 1)
#define ENUM_VALUE(type, value) __builtin_preserve_enum_value(*(typeof(type) *)value, 1)
#define FIELD_OFFSET(type, field) __builtin_preserve_field_info(((type *)0)->field, 0)
#define KERNEL_READ(to, from) bpf_probe_read_kernel(&(to), sizeof(to), &(from))
