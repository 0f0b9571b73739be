/* Send the names that were passed to calls, and the paths of opened files, found from the dentry up to the task's root. */
#pragma once
#include "call_kinds.h"
#include "files.h"
#include "kernel_types.h"
#include "outlets.h"

#define MAX_COMPONENTS 128
#define AT_CURRENT_DIRECTORY -100
#define PROGRAM -1 /* in place of a descriptor: the file that the process executes */

struct walk {
	struct dentry *dentry, *root_dentry;
	struct vfsmount *mount, *root_mount;
	struct scratch *scratch; /* receives the components; scratch->name.length is the number of bytes used */
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

/* Appends the components of a path to scratch->bytes. The verifier accepts the loop because its state is in memory, where the
 * verifier tracks no bounds. */
INLINE void append_path(struct task_struct *task, struct dentry *dentry, struct vfsmount *mount, struct scratch *scratch)
{
	struct walk walk = {
		.dentry = dentry, .mount = mount, .scratch = scratch,
		.root_dentry = task->fs->root.dentry, .root_mount = task->fs->root.mnt,
	};
	bpf_loop(MAX_COMPONENTS, step_up, &walk, 0);
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

/* Sends the name that a program passed to a failed open, unlink or rename, and the directory to which the name is relative. */
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
