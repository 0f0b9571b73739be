/* Loads for measuring a tracer. now: print CLOCK_MONOTONIC; getppid N: print the nanoseconds that N calls took; busy PATH SECONDS:
 * two readers and two writers of 4 KiB at a time on files PATH.0 to PATH.3, print how many calls they made.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 4096
#define BLOCKS 4096

static long long now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static long work(const char *path, int number, long long end_ns)
{
	char name[4096], buffer[BLOCK] = {0};
	snprintf(name, sizeof(name), "%s.%d", path, number);
	int fd = open(name, O_RDWR | O_CREAT, 0644);
	long count = 0;
	if (ftruncate(fd, (off_t)BLOCKS * BLOCK))
		return -1;
	for (; now_ns() < end_ns; count++) {
		off_t at = count % BLOCKS * BLOCK;
		if ((number % 2 ? pwrite(fd, buffer, BLOCK, at) : pread(fd, buffer, BLOCK, at)) != BLOCK)
			return -1;
	}
	return count;
}

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "getppid")) {
		long count = atol(argv[2]);
		long long begin = now_ns();
		for (long i = 0; i < count; i++)
			syscall(SYS_getppid);
		printf("%lld\n", now_ns() - begin);
	} else if (argc > 3 && !strcmp(argv[1], "busy")) {
		long *counts = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		long long end_ns = now_ns() + atol(argv[3]) * 1000000000LL;
		for (int i = 0; i < 4; i++)
			if (!fork()) {
				counts[i] = work(argv[2], i, end_ns);
				_exit(counts[i] < 0);
			}
		while (wait(NULL) > 0)
			;
		printf("%ld\n", counts[0] + counts[1] + counts[2] + counts[3]);
	} else {
		printf("%lld\n", now_ns());
	}
	return 0;
}
