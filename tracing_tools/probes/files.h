/* Find the file of a descriptor and the file's identity. */
#pragma once
#include "kernel_types.h"
#include "records.h"

INLINE struct file *file_at(struct task_struct *task, s32 fd)
{
	struct file *file = NULL;
	struct fdtable *table = task->files->fdt;
	if (fd < 0 || (u32)fd >= table->max_fds)
		return NULL;
	if (bpf_rdonly_cast) /* the struct begins with a pointer, as the table's entries do */
		return (struct file *)((struct path *)bpf_rdonly_cast(&table->fd[fd], KERNEL_TYPE_ID(struct path)))->mnt;
	bpf_probe_read_kernel(&file, sizeof(file), &table->fd[fd]);
	return file;
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
