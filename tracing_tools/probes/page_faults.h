/* Reads through a memory map: the pages of a file that a fault maps, whether they were in the page cache or had to be read. */
#define PAGE_BYTES 4096

INLINE void send_fault(struct address_space *mapping, u64 first_page, u64 pages)
{
	struct task_struct *task = bpf_get_current_task_btf();
	if (!is_traced(task))
		return;
	struct inode *inode = mapping->host;
	struct identity file = {
		.inode = inode->i_ino, .device = inode->i_sb->s_dev, .generation = inode->i_generation, .flags = inode->i_mode >> 12,
	};
	struct event *event = reserve_event();
	if (!event)
		return;
	fill(event, task, PAGE_FAULT, &file);
	event->start_ns = bpf_ktime_get_ns();
	event->duration_ns = 0; /* nothing tells when the fault has been served */
	event->fd = -1;
	event->offset = first_page * PAGE_BYTES;
	event->requested = event->result = pages * PAGE_BYTES;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

SEC("tp_btf/mm_filemap_fault")
int on_fault(u64 *context)
{
	send_fault((void *)context[0], context[1], 1);
	return 0;
}

/* Pages around the one touched that are in the page cache already. */
SEC("tp_btf/mm_filemap_map_pages")
int on_map_pages(u64 *context)
{
	send_fault((void *)context[0], context[1], context[2] - context[1] + 1);
	return 0;
}
