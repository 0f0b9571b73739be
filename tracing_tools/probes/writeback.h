/* The pages of the page cache that the job has written, so that their writeback is attributed to the job, whoever issues it.
 *
 * The kernel charges writeback to cgroups only if both the memory and the io controller are in cgroup v2. Therefore the map
 * `written` holds a state for each page, set when a task makes the page dirty. A folio becomes dirty, and clean, as a whole.
 *
 * If the map is full, it drops the chunks of files that were written longest ago. pages_cleaned does not count pages that were
 * dropped before their writeback, and pages that are still dirty at the end.
 */
#pragma once
#include "files.h"
#include "kernel_types.h"
#include "outlets.h"
#include "tasks.h"

#define CHUNK_PAGES 128 /* 512 KiB of a file */
#define MAX_FOLIO_PAGES 1024
#define MAX_REQUEST_PIECES 8192
#define REGULAR_FILE 8
#define TASK_IS_KERNEL 0x00200000 /* PF_KTHREAD */

enum page_state { NOT_OURS, WRITTEN_BACK, DIRTY };

struct chunk { u64 inode, index; u32 device, generation; };
struct page_states { u64 cgroup; u8 of[CHUNK_PAGES]; }; /* cgroup: that of the last task that made a page of the chunk dirty */

struct { MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH); MAP_UINT(max_entries, 65536); MAP_TYPE(key, struct chunk); MAP_TYPE(value, struct page_states); } written SEC(".maps");
struct { MAP_UINT(type, BPF_MAP_TYPE_ARRAY); MAP_UINT(max_entries, 1); MAP_TYPE(key, u32); MAP_TYPE(value, struct page_states); } no_pages SEC(".maps");

/* Stores the file of a page of the page cache in `out`. Returns 0 if it is on no block device (shared memory, network). */
INLINE int identify_mapping(struct address_space *mapping, struct identity *out)
{
	struct inode *inode = NULL;
	struct super_block *super = NULL;
	struct block_device *device = NULL;
	u16 mode = 0;
	KERNEL_READ(inode, mapping->host);
	KERNEL_READ(mode, inode->i_mode);
	KERNEL_READ(super, inode->i_sb);
	KERNEL_READ(device, super->s_bdev);
	if (!device)
		return 0;
	if (mode >> 12 == REGULAR_FILE) { /* others are metadata of the file system, cached as the device's */
		KERNEL_READ(out->inode, inode->i_ino);
		KERNEL_READ(out->generation, inode->i_generation);
		KERNEL_READ(out->device, super->s_dev);
	}
	return 1;
}

/* Returns a bit of a page's flags, which are the first word of struct page. */
INLINE int has_flag(void *page, u64 bit)
{
	u64 flags = 0;
	bpf_probe_read_kernel(&flags, sizeof(flags), page);
	return flags >> bit & 1;
}

INLINE u32 pages_of(struct folio *folio)
{
	u32 pages = 0;
	struct page___counted *second = (void *)((u64)folio + TYPE_SIZE(struct page));
	if (!has_flag(folio, ENUM_VALUE(enum pageflags, PG_head)))
		return 1;
	if (FIELD_EXISTS(((struct folio___counted *)0)->_nr_pages))
		KERNEL_READ(pages, ((struct folio___counted *)folio)->_nr_pages);
	else if (FIELD_EXISTS(((struct folio___named *)0)->_folio_nr_pages))
		KERNEL_READ(pages, ((struct folio___named *)folio)->_folio_nr_pages);
	else if (FIELD_EXISTS(second->compound_nr))
		KERNEL_READ(pages, second->compound_nr);
	return pages;
}

/* ---- states ---- */

struct change { struct chunk chunk; u64 page, cgroup; u32 state; };

INLINE struct page_states *states_of(struct chunk *chunk, u64 page)
{
	chunk->index = page / CHUNK_PAGES;
	return bpf_map_lookup_elem(&written, chunk);
}

static long change_page(u64 number, struct change *change)
{
	u64 page = change->page + number;
	u32 zero = 0;
	struct ledger *counts = ledger();
	struct page_states *states = states_of(&change->chunk, page);
	if (!states && change->state == DIRTY) {
		struct page_states *none = bpf_map_lookup_elem(&no_pages, &zero);
		if (none)
			bpf_map_update_elem(&written, &change->chunk, none, 0);
		states = bpf_map_lookup_elem(&written, &change->chunk);
	}
	if (!counts || (!states && change->state != DIRTY))
		return 0;
	u8 before = states ? states->of[page % CHUNK_PAGES] : NOT_OURS;
	if (states)
		states->of[page % CHUNK_PAGES] = change->state;
	if (states && change->state == DIRTY)
		states->cgroup = change->cgroup;
	if (before != DIRTY && change->state == DIRTY)
		counts->pages_dirtied++;
	else if (before == DIRTY && change->state != DIRTY)
		counts->pages_cleaned++;
	return 0;
}

/* Sets the state of all pages of the folio. `cgroup` matters only for DIRTY. */
INLINE void change_folio(struct folio *folio, struct identity *file, u32 state, u64 cgroup)
{
	struct change change = { .state = state, .cgroup = cgroup };
	if (!file->inode)
		return;
	u32 pages = pages_of(folio);
	change.chunk.inode = file->inode;
	change.chunk.device = file->device;
	change.chunk.generation = file->generation;
	KERNEL_READ(change.page, folio->index);
	bpf_loop(pages < MAX_FOLIO_PAGES ? pages : MAX_FOLIO_PAGES, change_page, &change, 0);
}

/* Returns the id of the cgroup to which the kernel charges the task's own reads and writes. */
INLINE u64 charged_cgroup(struct task_struct *task)
{
	struct cgroup_subsys_state *state = NULL;
	u64 id = 0;
	bpf_probe_read_kernel(&state, sizeof(state), (void *)&task->cgroups->subsys[0] + 8 * ENUM_VALUE(enum cgroup_subsys_id, io_cgrp_id));
	struct cgroup *cgroup = NULL;
	struct kernfs_node *node = NULL;
	KERNEL_READ(cgroup, state->cgroup);
	KERNEL_READ(node, cgroup->kn);
	KERNEL_READ(id, node->id);
	return id;
}

SEC("tp_btf/writeback_dirty_folio")
int on_dirty(u64 *context)
{
	struct folio *folio = (void *)context[0];
	struct address_space *mapping = (void *)context[1];
	struct task_struct *task = bpf_get_current_task_btf();
	struct identity file = {};
	/* A kernel worker makes only those pages dirty that it failed to write. */
	if (!mapping || task->flags & TASK_IS_KERNEL || !identify_mapping(mapping, &file))
		return 0;
	if (is_traced(task))
		change_folio(folio, &file, DIRTY, charged_cgroup(task));
	else
		change_folio(folio, &file, NOT_OURS, 0);
	return 0;
}

/* Counts the dirty pages of a removed file as clean, since they never reach a device. */
SEC("tp_btf/mm_filemap_delete_from_page_cache")
int on_page_removal(u64 *context)
{
	struct folio *folio = (void *)context[0];
	struct address_space *mapping = NULL;
	struct identity file = {};
	KERNEL_READ(mapping, folio->mapping);
	if (identify_mapping(mapping, &file))
		change_folio(folio, &file, NOT_OURS, 0);
	return 0;
}

/* ---- requests ---- */

/* A walk through the pages of a write request: `left` bytes of `bio` remain, from byte `done` of its segment `segment`.
 * `file` and `cgroup` are those of the first page that the job made dirty. */
struct page_walk { struct bio *bio; u32 segment, done, left, only_new, ours_bytes; u64 cgroup; struct identity file; };

INLINE void enter_bio(struct page_walk *walk, struct bio *bio)
{
	walk->bio = bio;
	walk->segment = walk->done = walk->left = 0;
	if (!bio)
		return;
	KERNEL_READ(walk->segment, bio->bi_iter.bi_idx);
	KERNEL_READ(walk->done, bio->bi_iter.bi_bvec_done);
	KERNEL_READ(walk->left, bio->bi_iter.bi_size);
}

INLINE void enter_next_bio(struct page_walk *walk)
{
	struct bio *next = NULL;
	KERNEL_READ(next, walk->bio->bi_next);
	enter_bio(walk, next);
}

/* Counts `bytes` of a page if the job made the page dirty. If only_new, skips pages that an earlier request wrote back. */
INLINE void count_page(struct page_walk *walk, struct folio *folio, u32 number, u32 bytes, struct identity *file)
{
	struct chunk chunk = { .inode = file->inode, .device = file->device, .generation = file->generation };
	u64 page = 0;
	KERNEL_READ(page, folio->index);
	page += number;
	struct page_states *states = states_of(&chunk, page);
	if (!states)
		return;
	u8 state = states->of[page % CHUNK_PAGES];
	/* If the page was made dirty again after this request was issued, another request will write it. */
	int is_new = state == DIRTY && !has_flag(folio, ENUM_VALUE(enum pageflags, PG_dirty));
	if (state == NOT_OURS || (walk->only_new && !is_new))
		return;
	if (!walk->ours_bytes) {
		walk->file = *file;
		walk->cgroup = states->cgroup;
	}
	walk->ours_bytes += bytes;
	if (is_new)
		change_folio(folio, file, WRITTEN_BACK, 0);
}

/* Counts the part of a segment that lies in one folio, and advances the walk. */
static long take_piece(u64 number, struct page_walk *walk)
{
	struct bio_vec *vectors = NULL, *vector;
	struct page *page = NULL;
	struct address_space *mapping = NULL;
	struct identity file = {};
	u64 head = 0;
	u32 length = 0, offset = 0;
	if (!walk->bio)
		return 1;
	if (!walk->left) {
		enter_next_bio(walk);
		return 0;
	}
	KERNEL_READ(vectors, walk->bio->bi_io_vec);
	vector = (void *)((u64)vectors + walk->segment * TYPE_SIZE(struct bio_vec));
	KERNEL_READ(page, vector->bv_page);
	KERNEL_READ(length, vector->bv_len);
	KERNEL_READ(offset, vector->bv_offset);
	offset += walk->done;
	page = (void *)((u64)page + offset / PAGE_BYTES * TYPE_SIZE(struct page));
	KERNEL_READ(head, page->compound_head);
	struct folio *folio = head & 1 ? (void *)(head - 1) : (void *)page;
	KERNEL_READ(mapping, folio->mapping);
	u32 place = ((u64)page - (u64)folio) / TYPE_SIZE(struct page);
	u32 bytes = (pages_of(folio) - place) * PAGE_BYTES - offset % PAGE_BYTES;
	bytes = bytes < length - walk->done ? bytes : length - walk->done;
	bytes = bytes < walk->left ? bytes : walk->left;
	if (!mapping || (u64)mapping & 3 || !identify_mapping(mapping, &file) || !file.inode) { /* a direct write, or pages of no file */
		enter_next_bio(walk);
		return 0;
	}
	count_page(walk, folio, place, bytes, &file);
	walk->left -= bytes;
	walk->done += bytes;
	if (walk->done >= length) {
		walk->segment++;
		walk->done = 0;
	}
	return 0;
}

/* Walks through a write request and counts in walk->ours_bytes the bytes that the job made dirty. */
INLINE void walk_request(struct bio *bio, int only_new, struct page_walk *walk)
{
	walk->only_new = only_new;
	enter_bio(walk, bio);
	bpf_loop(MAX_REQUEST_PIECES, take_piece, walk, 0);
}
