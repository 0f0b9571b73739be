/* Reads from one cached file with pread, size bytes each, and prints the nanoseconds that `count` of them took. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static long long now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char **argv)
{
	long size = atol(argv[2]), count = atol(argv[3]), warm = 1024;
	char *buffer = malloc(size);
	int fd = open(argv[1], O_RDONLY);
	for (long i = 0; i < warm; i++)
		if (pread(fd, buffer, size, 0) != size)
			return 1;
	long long begin = now_ns();
	for (long i = 0; i < count; i++)
		if (pread(fd, buffer, size, (i & 63) * size) != size)
			return 1;
	printf("%lld\n", now_ns() - begin);
	return 0;
}
