/* Records the storage calls that a program makes through the C library, inside the program, without root or kernel support.
 *
 * LD_PRELOAD loads this library before libc. Each wrapper makes the real call and appends a record (struct event of records.h) to
 * a mapped file of its thread under $IOTWIN_PRELOAD, so that records survive a kill of the job. Space is allocated before it is
 * mapped: a full disk loses records, which are counted, but never ends the job. The rare records of paths and of process life
 * (struct name) are appended to one file per process.
 *
 * Statically linked programs are not recorded, nor calls that libc makes itself (stdio's reads and writes, the dynamic loader).
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "records.h"

enum { FILES = 65536, UNIT = 20480 /* whole pages and whole records */, FIRST_CHUNK = 4 * UNIT, LAST_CHUNK = 64 * UNIT, GET_VERSION = 0x80087601 /* FS_IOC_GETVERSION */ };

/* The file of each descriptor, cached while the descriptor is open. */
struct file { uint64_t inode; uint32_t device, generation, flags, known; };
static struct file files[FILES];

struct chunk { struct slot *slots; size_t count, used, bytes, file_bytes; int changing; unsigned refused; };
static __thread struct chunk chunk __attribute__((tls_model("initial-exec")));
static __thread int own_tid __attribute__((tls_model("initial-exec")));

static char directory[PATH_MAX - 64];
static int own_pid, *same_process; /* the kernel sets *same_process to 0 in the child of every kind of fork */
static int64_t born_ns;            /* start of this program; differs from that of earlier programs with the same pid */
static uint64_t *lost;             /* number of lost records, shared by all processes */

static int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void lose(void)
{
	if (lost)
		__atomic_fetch_add(lost, 1, __ATOMIC_RELAXED);
}

/* A write beyond the process's limit on file sizes would raise a signal and end the job. */
static int may_write_to(size_t end)
{
	struct rlimit limit;
	return syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, NULL, &limit) || end <= limit.rlim_cur;
}

/* ---- names ---- */

static void send_name(struct name *name, const char *text, size_t length)
{
	char path[PATH_MAX];
	struct { u32 header, page; struct name name; } record = {.header = sizeof(*name) + length, .name = *name};
	static const char zeros[8];
	record.name.length = record.name.given_length = length;
	struct iovec parts[] = {{&record, sizeof(record)}, {(void *)text, length}, {(void *)zeros, -length & 7}};
	snprintf(path, sizeof(path), "%s/%d.names", directory, own_pid);
	int fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd < 0 || !may_write_to(syscall(SYS_lseek, fd, 0, SEEK_END) + sizeof(record) + length + sizeof(zeros)) ||
	    syscall(SYS_writev, fd, parts, 3) < 0)
		lose();
	if (fd >= 0)
		syscall(SYS_close, fd);
}

/* Appends a name record. If `text` is NULL, the record contains the name of the thread. */
static void send_life(int type, int parent, int result, const char *text, size_t length)
{
	char comm[16] = "";
	if (!text) {
		prctl(PR_GET_NAME, comm);
		text = comm;
		length = sizeof(comm);
	}
	struct name name = {.time_ns = now_ns(), .type = type, .pid = own_pid, .tid = own_pid, .parent = parent, .result = result};
	send_name(&name, text, length);
}

/* ---- processes and threads ---- */

static void after_fork(void)
{
	if (!same_process || *same_process)
		return;
	int parent = own_pid;
	*same_process = 1;
	own_pid = own_tid = syscall(SYS_getpid);
	born_ns = now_ns();
	memset(&chunk, 0, sizeof(chunk)); /* the parent still writes to its chunk */
	send_life(NAME_FORK, parent, own_pid, NULL, 0);
}

static void ended(int status, void *unused)
{
	after_fork();
	if (same_process)
		send_life(NAME_EXIT, 0, status << 8, NULL, 0);
}

static void __attribute__((constructor)) begin(void)
{
	char path[PATH_MAX], arguments[1024];
	const char *given = getenv("IOTWIN_PRELOAD");
	if (same_process || !given || strlen(given) >= sizeof(directory))
		return;
	strcpy(directory, given);
	own_pid = own_tid = syscall(SYS_getpid);
	born_ns = now_ns();
	snprintf(path, sizeof(path), "%s/lost", directory);
	int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return;
	void *shared = mmap(NULL, sizeof(*lost), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	syscall(SYS_close, fd);
	int *page = (int *)syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED || page == MAP_FAILED || madvise(page, 4096, MADV_WIPEONFORK))
		return;
	lost = shared;
	*page = 1;
	same_process = page;
	pthread_atfork(NULL, NULL, after_fork);
	on_exit(ended, NULL);
	fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	long length = fd < 0 ? 0 : syscall(SYS_read, fd, arguments, sizeof(arguments));
	if (fd >= 0)
		syscall(SYS_close, fd);
	send_life(NAME_EXEC, getppid(), own_pid, arguments, length > 0 ? length : 0);
}

/* ---- records ---- */

static struct slot *next_chunk(void)
{
	char path[PATH_MAX];
	size_t bytes = chunk.bytes ? (chunk.bytes < LAST_CHUNK ? 2 * chunk.bytes : LAST_CHUNK) : FIRST_CHUNK;
	size_t place = chunk.file_bytes;
	if (!own_tid)
		own_tid = syscall(SYS_gettid);
	snprintf(path, sizeof(path), "%s/%d.%d.%ld.events", directory, own_pid, own_tid, (long)born_ns);
	int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd < 0)
		return NULL;
	/* If an ended thread had the same id, append to its records. */
	if (!chunk.slots)
		place = syscall(SYS_lseek, fd, 0, SEEK_END);
	void *mapped = MAP_FAILED;
	if (may_write_to(place + bytes) && !syscall(SYS_fallocate, fd, 0, place, bytes))
		mapped = (void *)syscall(SYS_mmap, NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, place);
	syscall(SYS_close, fd);
	if (mapped == MAP_FAILED)
		return NULL;
	if (chunk.slots)
		syscall(SYS_munmap, chunk.slots, chunk.bytes);
	chunk.slots = mapped;
	chunk.bytes = bytes;
	chunk.file_bytes = place + bytes;
	chunk.count = bytes / sizeof(struct slot);
	chunk.used = 0;
	return mapped;
}

/* Returns room for one record, or NULL if there is none. A signal handler may interrupt at any point. */
static struct slot *reserve(void)
{
	size_t slot = __atomic_fetch_add(&chunk.used, 1, __ATOMIC_RELAXED);
	if (slot < chunk.count)
		return &chunk.slots[slot];
	/* After a failure, try again only for one record in 1024, as allocating takes far longer than recording. */
	if (chunk.changing++ == 0 && (chunk.refused == 0 || chunk.refused % 1024 == 0) && next_chunk()) {
		slot = __atomic_fetch_add(&chunk.used, 1, __ATOMIC_RELAXED);
		chunk.refused = 0;
	}
	if (slot >= chunk.count)
		chunk.refused++;
	chunk.changing--;
	return slot < chunk.count ? &chunk.slots[slot] : NULL;
}

static struct file *identify(int fd)
{
	static struct file none;
	if (fd < 0 || fd >= FILES)
		return &none;
	struct file *file = &files[fd];
	if (__atomic_load_n(&file->known, __ATOMIC_ACQUIRE))
		return file;
	struct stat status;
	int version = 0;
	if (syscall(SYS_newfstatat, fd, "", &status, AT_EMPTY_PATH))
		return &none;
	int flags = syscall(SYS_fcntl, fd, F_GETFL);
	if (S_ISREG(status.st_mode) && syscall(SYS_ioctl, fd, GET_VERSION, &version))
		version = 0;
	file->inode = status.st_ino;
	file->device = major(status.st_dev) << 20 | minor(status.st_dev);
	file->generation = version;
	file->flags = flags_of(status.st_mode, flags);
	__atomic_store_n(&file->known, 1, __ATOMIC_RELEASE);
	return file;
}

static void forget(int fd)
{
	if (fd >= 0 && fd < FILES)
		__atomic_store_n(&files[fd].known, 0, __ATOMIC_RELEASE);
}

static void send_event(int call, int64_t start, int64_t end, int fd, const struct file *file, int64_t offset, uint64_t requested,
		       int64_t result)
{
	struct slot *slot = reserve();
	if (!slot) {
		lose();
		return;
	}
	struct event *event = &slot->event;
	event->start_ns = start;
	event->duration_ns = end - start;
	event->result = result;
	event->offset = offset;
	event->requested = requested;
	event->inode = file->inode;
	event->pid = own_pid;
	event->tid = own_tid;
	event->device = file->device;
	event->generation = file->generation;
	event->fd = fd;
	event->call_flags_cpu = packed_call(call, file->flags, sched_getcpu());
	/* The length is written last: a record without it counts as incomplete. */
	__atomic_store_n(&slot->header, sizeof(*event), __ATOMIC_RELEASE);
}

/* CALL(type, expression) makes and times a call. `value` is its return value, `result` what the kernel returned (-errno). */
#define REAL(name) \
	static typeof(&name) real; \
	if (!real) \
		real = (typeof(&name))dlsym(RTLD_NEXT, #name)
#define CALL(type, expression) \
	if (!same_process) \
		return expression; \
	after_fork(); \
	int64_t start = now_ns(); \
	type value = expression; \
	int64_t end = now_ns(); \
	int saved = errno; \
	int64_t result = (int64_t)value == -1 ? -saved : (int64_t)value
#define DONE \
	errno = saved; \
	return value
#define WRAPPER(type, name, parameters, arguments, sent) \
	type name parameters \
	{ \
		REAL(name); \
		CALL(type, real arguments); \
		sent; \
		DONE; \
	}

/* Values in place of an offset. POSITION: the call uses and advances the descriptor's offset. NONE: the call has no offset. */
enum { POSITION = -2, NONE = -1 };

static void send_transfer(int call, int64_t start, int64_t end, int fd, int64_t offset, uint64_t requested, int64_t result)
{
	struct file *file = identify(fd);
	if (offset == POSITION) {
		offset = has_position(file->flags) ? syscall(SYS_lseek, fd, 0, SEEK_CUR) : NONE;
		if (offset >= 0 && result > 0)
			offset -= result;
	}
	send_event(call, start, end, fd, file, offset, requested, result);
}

static uint64_t vector_bytes(const struct iovec *parts, int count)
{
	uint64_t total = 0;
	for (int i = 0; i < count; i++)
		total += parts[i].iov_len;
	return total;
}

#define TRANSFER(name, number, offset, requested, parameters, arguments) \
	WRAPPER(ssize_t, name, parameters, arguments, send_transfer(number, start, end, fd, offset, requested, result))

TRANSFER(read, SYS_read, POSITION, size, (int fd, void *to, size_t size), (fd, to, size))
TRANSFER(write, SYS_write, POSITION, size, (int fd, const void *from, size_t size), (fd, from, size))
TRANSFER(pread64, SYS_pread64, at, size, (int fd, void *to, size_t size, off_t at), (fd, to, size, at))
TRANSFER(pwrite64, SYS_pwrite64, at, size, (int fd, const void *from, size_t size, off_t at), (fd, from, size, at))
TRANSFER(readv, SYS_readv, POSITION, vector_bytes(parts, count), (int fd, const struct iovec *parts, int count), (fd, parts, count))
TRANSFER(writev, SYS_writev, POSITION, vector_bytes(parts, count), (int fd, const struct iovec *parts, int count), (fd, parts, count))
TRANSFER(preadv64, SYS_preadv, at, vector_bytes(parts, count), (int fd, const struct iovec *parts, int count, off_t at),
	 (fd, parts, count, at))
TRANSFER(pwritev64, SYS_pwritev, at, vector_bytes(parts, count), (int fd, const struct iovec *parts, int count, off_t at),
	 (fd, parts, count, at))
TRANSFER(preadv64v2, SYS_preadv2, at == -1 ? POSITION : at, vector_bytes(parts, count),
	 (int fd, const struct iovec *parts, int count, off_t at, int flags), (fd, parts, count, at, flags))
TRANSFER(pwritev64v2, SYS_pwritev2, at == -1 ? POSITION : at, vector_bytes(parts, count),
	 (int fd, const struct iovec *parts, int count, off_t at, int flags), (fd, parts, count, at, flags))

#define ALIAS(name, of) extern typeof(of) name __attribute__((alias(#of)))
ALIAS(pread, pread64);
ALIAS(pwrite, pwrite64);
ALIAS(preadv, preadv64);
ALIAS(pwritev, pwritev64);
ALIAS(preadv2, preadv64v2);
ALIAS(pwritev2, pwritev64v2);

/* Programs compiled with _FORTIFY_SOURCE call these variants, which check the buffer's size. */
extern void __chk_fail(void) __attribute__((noreturn));
ssize_t __read_chk(int fd, void *to, size_t size, size_t room)
{
	if (size > room)
		__chk_fail();
	return read(fd, to, size);
}

ssize_t __pread64_chk(int fd, void *to, size_t size, off_t at, size_t room)
{
	if (size > room)
		__chk_fail();
	return pread64(fd, to, size, at);
}
ALIAS(__pread_chk, __pread64_chk);

WRAPPER(int, fsync, (int fd), (fd), send_event(SYS_fsync, start, end, fd, identify(fd), NONE, 0, result))
WRAPPER(int, fdatasync, (int fd), (fd), send_event(SYS_fdatasync, start, end, fd, identify(fd), NONE, 0, result))

/* The file is identified before the close, as afterwards the descriptor may be another file's. */
#define CLOSING(name, parameter, number) \
	int name(parameter) \
	{ \
		REAL(name); \
		int fd = number; \
		struct file file = same_process ? *identify(fd) : (struct file){}; \
		forget(fd); \
		CALL(int, real(closing)); \
		send_event(SYS_close, start, end, fd, &file, NONE, 0, result); \
		DONE; \
	}
CLOSING(close, int closing, closing)
CLOSING(fclose, FILE *closing, fileno(closing))

#define FORGETTING(name, parameters, arguments, forgotten) \
	int name parameters \
	{ \
		REAL(name); \
		forgotten; \
		return real arguments; \
	}
FORGETTING(dup2, (int from, int to), (from, to), forget(to))
FORGETTING(dup3, (int from, int to, int flags), (from, to, flags), forget(to))
FORGETTING(closedir, (DIR *directory), (directory), forget(dirfd(directory)))
FORGETTING(close_range, (unsigned first, unsigned last, int flags), (first, last, flags),
	   for (unsigned fd = first; fd <= last && fd < FILES; fd++) forget(fd))

/* Wrapped because F_SETFL changes the flags of a descriptor, which are cached. */
int fcntl64(int fd, int command, ...)
{
	REAL(fcntl64);
	va_list rest;
	va_start(rest, command);
	void *argument = va_arg(rest, void *);
	va_end(rest);
	int result = real(fd, command, argument);
	if (command == F_SETFL)
		forget(fd);
	return result;
}
ALIAS(fcntl, fcntl64);

/* ---- calls that name a path ---- */

static void send_opened(int64_t start, int fd)
{
	char link[64], path[PATH_MAX];
	struct stat status = {};
	forget(fd);
	struct file *file = identify(fd);
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof(path));
	syscall(SYS_newfstatat, fd, "", &status, AT_EMPTY_PATH);
	struct name name = {
		.time_ns = start, .type = NAME_OPENED, .pid = own_pid, .tid = own_tid, .inode = file->inode, .device = file->device,
		.generation = file->generation, .mode = status.st_mode, .size = status.st_size,
	};
	/* The components of the path, leaf first, each ending in NUL, as the eBPF programs write them. */
	char components[PATH_MAX + 1];
	size_t used = 0;
	for (long end = length; end > 0; end--)
		if (path[end - 1] == '/') {
			size_t part = length - end;
			memcpy(components + used, path + end, part);
			components[used + part] = 0;
			used += part + 1;
			length = end - 1;
		}
	send_name(&name, components, used);
}

static void send_given(int64_t start, int directory_fd, const char *given, int64_t result)
{
	char path[2 * PATH_MAX + 2], link[64];
	long length = 0;
	if (!given)
		return;
	if (given[0] != '/') {
		if (directory_fd == AT_FDCWD)
			strcpy(link, "/proc/self/cwd");
		else
			snprintf(link, sizeof(link), "/proc/self/fd/%d", directory_fd);
		length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX);
		length = length < 0 ? 0 : length;
		path[length++] = '/';
	}
	size_t rest = strnlen(given, PATH_MAX);
	memcpy(path + length, given, rest);
	struct name name = {.time_ns = start, .type = NAME_GIVEN, .pid = own_pid, .tid = own_tid, .result = result};
	send_name(&name, path, length + rest);
}

static void send_open(int call, int64_t start, int64_t end, int directory_fd, const char *path, int flags, int64_t result)
{
	if (!own_tid)
		own_tid = syscall(SYS_gettid);
	if (result >= 0)
		send_opened(start, result);
	else
		send_given(start, directory_fd, path, result);
	send_event(call, start, end, result >= 0 ? (int)result : -1, identify(result), NONE, flags, result);
}

#define MODE(flags) \
	mode_t mode = 0; \
	if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) { \
		va_list rest; \
		va_start(rest, flags); \
		mode = va_arg(rest, mode_t); \
		va_end(rest); \
	}

int openat64(int at, const char *path, int flags, ...)
{
	REAL(openat64);
	MODE(flags);
	CALL(int, real(at, path, flags, mode));
	send_open(SYS_openat, start, end, at, path, flags, result);
	DONE;
}
ALIAS(openat, openat64);

int open64(const char *path, int flags, ...)
{
	MODE(flags);
	return openat64(AT_FDCWD, path, flags, mode);
}
ALIAS(open, open64);

int __openat64_2(int at, const char *path, int flags) { return openat64(at, path, flags); }
int __open64_2(const char *path, int flags) { return openat64(AT_FDCWD, path, flags); }
ALIAS(__openat_2, __openat64_2);
ALIAS(__open_2, __open64_2);

WRAPPER(int, creat64, (const char *path, mode_t mode), (path, mode),
	send_open(SYS_creat, start, end, AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, result))
ALIAS(creat, creat64);

static int stdio_flags(const char *mode)
{
	int flags = mode[0] == 'w' ? O_CREAT | O_TRUNC : mode[0] == 'a' ? O_CREAT | O_APPEND : 0;
	return flags | (strchr(mode, '+') ? O_RDWR : mode[0] == 'r' ? O_RDONLY : O_WRONLY);
}

FILE *fopen64(const char *path, const char *mode)
{
	REAL(fopen64);
	CALL(FILE *, real(path, mode));
	result = value ? fileno(value) : -saved;
	send_open(SYS_openat, start, end, AT_FDCWD, path, stdio_flags(mode), result);
	DONE;
}
ALIAS(fopen, fopen64);

#define WITHOUT_FILE(number) send_event(number, start, end, -1, identify(-1), NONE, 0, result)
#define ON_NAMES(name, number, parameters, arguments, sent) \
	WRAPPER(int, name, parameters, arguments, if (!own_tid) own_tid = syscall(SYS_gettid); sent; WITHOUT_FILE(number))
ON_NAMES(unlink, SYS_unlink, (const char *path), (path), send_given(start, AT_FDCWD, path, result))
ON_NAMES(unlinkat, SYS_unlinkat, (int at, const char *path, int flags), (at, path, flags), send_given(start, at, path, result))
ON_NAMES(rename, SYS_rename, (const char *from, const char *to), (from, to), send_given(start, AT_FDCWD, from, result);
	 send_given(start, AT_FDCWD, to, result))
ON_NAMES(renameat, SYS_renameat, (int at, const char *from, int to_at, const char *to), (at, from, to_at, to),
	 send_given(start, at, from, result); send_given(start, to_at, to, result))
ON_NAMES(renameat2, SYS_renameat2, (int at, const char *from, int to_at, const char *to, unsigned flags),
	 (at, from, to_at, to, flags), send_given(start, at, from, result); send_given(start, to_at, to, result))

void *mmap64(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
	if (!same_process || flags & MAP_ANONYMOUS)
		return (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
	after_fork();
	int64_t start = now_ns();
	void *value = (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
	int64_t end = now_ns();
	int saved = errno;
	send_event(SYS_mmap, start, end, fd, identify(fd), offset, length, value == MAP_FAILED ? -saved : (int64_t)value);
	DONE;
}
ALIAS(mmap, mmap64);

/* ---- waiting ---- */

#define WAITING(name, number, parameters, arguments) WRAPPER(int, name, parameters, arguments, WITHOUT_FILE(number))
WAITING(poll, SYS_poll, (struct pollfd *of, nfds_t count, int timeout), (of, count, timeout))
WAITING(ppoll, SYS_ppoll, (struct pollfd *of, nfds_t count, const struct timespec *timeout, const sigset_t *mask),
	(of, count, timeout, mask))
WAITING(select, SYS_pselect6, (int count, fd_set *in, fd_set *out, fd_set *other, struct timeval *timeout),
	(count, in, out, other, timeout))
WAITING(epoll_wait, SYS_epoll_wait, (int fd, struct epoll_event *of, int count, int timeout), (fd, of, count, timeout))
WAITING(epoll_pwait, SYS_epoll_pwait, (int fd, struct epoll_event *of, int count, int timeout, const sigset_t *mask),
	(fd, of, count, timeout, mask))

/* ---- ends of the process without handlers of on_exit ---- */

void _exit(int status)
{
	if (same_process)
		ended(status & 255, NULL);
	for (;;)
		syscall(SYS_exit_group, status);
}
ALIAS(_Exit, _exit);
