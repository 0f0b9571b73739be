/* Writes and reads a file past the page cache, in forked processes, and prints how many bytes it moved. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNIT 65536
enum { PROCESSES = 2, REQUESTS = 16 }; /* of 1 to 4 units each */

int main(int argc, char **argv)
{
	atomic_long *moved = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	long first = argc > 2 ? atol(argv[2]) : 0; /* where in the file, in regions of all that one process moves */
	for (int process = 0; process < PROCESSES; process++) {
		if (fork())
			continue;
		int fd = open(argv[1], O_RDWR | O_DIRECT);
		void *buffer = aligned_alloc(4096, 4 * UNIT);
		off_t place = (first + process) * REQUESTS * 4 * UNIT;
		for (int i = 0; i < REQUESTS; i++, place += 4 * UNIT) {
			size_t size = (i % 4 + 1) * UNIT;
			if (pwrite(fd, buffer, size, place) == (ssize_t)size)
				moved[0] += size;
			if (pread(fd, buffer, size, place) == (ssize_t)size)
				moved[1] += size;
		}
		_exit(0);
	}
	while (wait(NULL) > 0)
		;
	printf("direct_written %ld\ndirect_read %ld\n", atomic_load(&moved[0]), atomic_load(&moved[1]));
	return 0;
}
