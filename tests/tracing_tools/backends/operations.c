/* Makes one or a few calls of every kind that the trace knows besides plain reads and writes, on files of known sizes.
 *
 * usage: operations DIRECTORY; expects DIRECTORY/data of 1 MiB. Prints what this kernel or file system does not offer.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB (1 << 20)
static char *aligned;

static void metadata(void)
{
	struct stat s;
	struct statx sx;
	char entries[4096];
	int fd = open("meta", O_RDWR | O_CREAT, 0644), directory = open(".", O_RDONLY | O_DIRECTORY);
	syscall(SYS_stat, "meta", &s);
	syscall(SYS_lstat, "meta", &s);
	syscall(SYS_fstat, fd, &s);
	syscall(SYS_newfstatat, directory, "meta", &s, 0);
	syscall(SYS_newfstatat, fd, "", &s, AT_EMPTY_PATH);
	syscall(SYS_statx, AT_FDCWD, "meta", 0, STATX_SIZE, &sx);
	syscall(SYS_stat, "absent", &s);
	syscall(SYS_access, "meta", R_OK);
	syscall(SYS_faccessat, directory, "meta", R_OK);
	syscall(SYS_getdents64, directory, entries, sizeof(entries));
	syscall(SYS_mkdir, "made", 0755);
	syscall(SYS_rmdir, "made");
	syscall(SYS_mkdirat, directory, "made", 0755);
	syscall(SYS_unlinkat, directory, "made", AT_REMOVEDIR);
	syscall(SYS_ftruncate, fd, 12345);
	syscall(SYS_truncate, "meta", 100);
	syscall(SYS_fallocate, fd, 0, 4096, 8192);
	syscall(SYS_fadvise64, fd, 4096, 1000, POSIX_FADV_WILLNEED);
	syscall(SYS_lseek, fd, 77, SEEK_SET);
	syscall(SYS_sync_file_range, fd, 4096, 2000, 0);
	close(directory);
	close(fd);
}

static void copies(void)
{
	int from = open("data", O_RDONLY), to = open("copy", O_RDWR | O_CREAT, 0644), ends[2];
	loff_t at = 1000, target = 5000;
	if (copy_file_range(from, &at, to, &target, 3000, 0) != 3000)
		printf("no copy_file_range\n");
	off_t offset = 4096;
	lseek(to, 100, SEEK_SET);
	if (sendfile(to, from, &offset, 2048) != 2048)
		printf("no sendfile\n");
	if (pipe(ends))
		return;
	loff_t first = 8192, second = 9000;
	if (splice(from, &first, ends[1], NULL, 1500, 0) != 1500 || splice(ends[0], NULL, to, &second, 1500, 0) != 1500)
		printf("no splice\n");
	close(from);
	close(to);
}

static void maps(void)
{
	int fd = open("mapped", O_RDWR);
	if (fsync(fd) || read(fd, aligned, MIB) != MIB) /* clean and cached, so that every fault finds its pages there */
		printf("no memory map\n");
	volatile char *map = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	long sum = 0;
	for (int i = 0; i < MIB; i += 4096)
		sum += map[i];
	map[5] = (char)sum;
	msync((void *)map, MIB, MS_SYNC);
	munmap((void *)map, MIB);
	void *anonymous = mmap(NULL, MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(anonymous, MIB);
	close(fd);
}

static void libaio(int direct)
{
	aio_context_t context = 0;
	int fd = open("data", O_RDONLY | (direct ? O_DIRECT : 0)), out = open("aio", O_RDWR | O_CREAT | O_TRUNC, 0644);
	if (fd < 0 || syscall(SYS_io_setup, 8, &context)) {
		printf("no libaio\n");
		return;
	}
	struct iocb reads[3] = {0}, write = {0}, sync = {0}, *list[4] = {&reads[0], &reads[1], &reads[2], &write}, *then[1] = {&sync};
	for (int i = 0; i < 3; i++) {
		reads[i].aio_fildes = fd;
		reads[i].aio_lio_opcode = IOCB_CMD_PREAD;
		reads[i].aio_buf = (uintptr_t)(aligned + i * 8192);
		reads[i].aio_nbytes = 8192;
		reads[i].aio_offset = 65536 + i * 8192;
	}
	write.aio_fildes = out;
	write.aio_lio_opcode = IOCB_CMD_PWRITE;
	write.aio_buf = (uintptr_t)aligned;
	write.aio_nbytes = 500;
	write.aio_offset = 20;
	sync.aio_fildes = out;
	sync.aio_lio_opcode = IOCB_CMD_FSYNC;
	struct io_event events[4];
	syscall(SYS_io_submit, context, 4, list);
	syscall(SYS_io_getevents, context, 4, 4, events, NULL);
	if (syscall(SYS_io_submit, context, 1, then) == 1)
		syscall(SYS_io_getevents, context, 1, 1, events, NULL);
	syscall(SYS_io_destroy, context);
	close(fd);
	close(out);
}

/* ---- io_uring without a library: one request after the other ---- */

struct ring {
	int fd;
	unsigned *tail, *mask, *array, *completed, *collected;
	struct io_uring_sqe *requests;
	struct io_uring_cqe *results;
	unsigned result_mask;
};

static int set_up(struct ring *ring)
{
	struct io_uring_params p = {0};
	ring->fd = syscall(SYS_io_uring_setup, 8, &p);
	if (ring->fd < 0)
		return -1;
	char *queue = mmap(NULL, p.sq_off.array + p.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
	char *done = mmap(NULL, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd,
			  IORING_OFF_CQ_RING);
	ring->requests = mmap(NULL, p.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQES);
	ring->tail = (unsigned *)(queue + p.sq_off.tail);
	ring->mask = (unsigned *)(queue + p.sq_off.ring_mask);
	ring->array = (unsigned *)(queue + p.sq_off.array);
	ring->collected = (unsigned *)(done + p.cq_off.head);
	ring->completed = (unsigned *)(done + p.cq_off.tail);
	ring->results = (struct io_uring_cqe *)(done + p.cq_off.cqes);
	ring->result_mask = *(unsigned *)(done + p.cq_off.ring_mask);
	return 0;
}

static int request(struct ring *ring, struct io_uring_sqe sqe)
{
	unsigned index = *ring->tail & *ring->mask;
	ring->requests[index] = sqe;
	ring->array[index] = index;
	__atomic_store_n(ring->tail, *ring->tail + 1, __ATOMIC_RELEASE);
	syscall(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0);
	int result = ring->results[*ring->collected & ring->result_mask].res;
	__atomic_store_n(ring->collected, *ring->collected + 1, __ATOMIC_RELEASE);
	return result;
}

static void uring(int direct)
{
	struct ring ring;
	if (set_up(&ring)) {
		printf("no io_uring\n");
		return;
	}
	int fd = open("data", O_RDONLY | (direct ? O_DIRECT : 0));
	struct io_uring_sqe s = {.opcode = IORING_OP_OPENAT, .fd = AT_FDCWD, .addr = (uintptr_t)"uring", .len = 0644,
				 .open_flags = O_RDWR | O_CREAT | O_TRUNC};
	int out = request(&ring, s);
	for (int i = 0; i < 5; i++)
		request(&ring, (struct io_uring_sqe){.opcode = IORING_OP_READ, .fd = fd, .addr = (uintptr_t)aligned, .len = 4096, .off = 131072 + i * 4096});
	request(&ring, (struct io_uring_sqe){.opcode = IORING_OP_WRITE, .fd = out, .addr = (uintptr_t)aligned, .len = 700, .off = 30});
	request(&ring, (struct io_uring_sqe){.opcode = IORING_OP_WRITE, .fd = out, .addr = (uintptr_t)aligned, .len = 70, .off = -1});
	request(&ring, (struct io_uring_sqe){.opcode = IORING_OP_FSYNC, .fd = out});
	request(&ring, (struct io_uring_sqe){.opcode = IORING_OP_FSYNC, .fd = out, .fsync_flags = IORING_FSYNC_DATASYNC});
	request(&ring, (struct io_uring_sqe){.opcode = IORING_OP_READ, .fd = 999, .addr = (uintptr_t)aligned, .len = 4096});
	request(&ring, (struct io_uring_sqe){.opcode = IORING_OP_CLOSE, .fd = out});
	close(fd);
	close(ring.fd);
}

int main(int argc, char **argv)
{
	if (argc < 2 || chdir(argv[1]))
		return 1;
	aligned = aligned_alloc(4096, MIB);
	memset(aligned, 1, MIB);
	int direct = open("data", O_RDONLY | O_DIRECT);
	if (direct < 0)
		printf("no O_DIRECT\n");
	else if (pread(direct, aligned, 4096, 8192) != 4096)
		return 1;
	close(direct);
	metadata();
	copies();
	maps();
	libaio(direct >= 0);
	uring(direct >= 0);
	return 0;
}
