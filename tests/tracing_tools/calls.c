/* Makes a known number of calls on one file, from threads, forked children and after an exec, and prints its own counts. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OPEN, CLOSE, READ, WRITE, PREAD, PWRITE, READV, FSYNC, MAP, KINDS };
static const char *names[KINDS] = {"open", "close", "read", "write", "pread64", "pwrite64", "readv", "fsync", "mmap"};
static atomic_long *counts;
static const char *path;
static int rounds;

static void *work(void *unused)
{
	char buffer[8192] = {1};
	for (int i = 0; i < rounds; i++) {
		int fd = open(path, O_RDWR);
		counts[OPEN]++;
		counts[WRITE] += write(fd, buffer, 4096) == 4096;
		counts[PWRITE] += pwrite(fd, buffer, 1000, 5000) == 1000;
		counts[FSYNC] += fsync(fd) == 0;
		lseek(fd, 100, SEEK_SET);
		counts[READ] += read(fd, buffer, 512) >= 0;
		counts[READ] += read(fd, buffer, 512) >= 0;
		counts[PREAD] += pread(fd, buffer, 4096, 1024) >= 0;
		struct iovec parts[2] = {{buffer, 100}, {buffer + 100, 200}};
		counts[READV] += readv(fd, parts, 2) >= 0;
		void *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
		counts[MAP]++;
		munmap(map, 4096);
		counts[CLOSE] += close(fd) == 0;
	}
	return unused;
}

int main(int argc, char **argv)
{
	path = argv[1];
	rounds = atoi(argv[2]);
	int executed = argc > 4;
	if (executed) { /* the counts live on in the file that the first program mapped */
		int fd = open(argv[4], O_RDWR);
		counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		work(NULL);
		return 0;
	}
	int fd = open(argv[3], O_RDWR | O_CREAT | O_TRUNC, 0644);
	if (ftruncate(fd, 4096))
		return 1;
	counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	work(NULL);
	pthread_t threads[2];
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, work, NULL);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < 2; i++)
		if (fork() == 0) {
			work(NULL);
			if (i == 1)
				execl(argv[0], argv[0], path, argv[2], argv[3], argv[3], NULL);
			_exit(0);
		}
	while (wait(NULL) > 0)
		;
	for (int kind = 0; kind < KINDS; kind++)
		printf("%s %ld\n", names[kind], atomic_load(&counts[kind]));
	return 0;
}
