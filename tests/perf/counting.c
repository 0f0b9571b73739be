/* Makes `count` preads of one file, each at an offset of its own, and now and then prints a line; ends with status 7 whatever
 * signals it gets. What it has done so far is in the file that it maps: its calls, its signals, whether it has ended.
 *
 *     counting DATA COUNTS count
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static volatile long *done; /* calls, signals, whether all is done */

static void count_signal(int number)
{
	(void)number;
	__atomic_fetch_add(&done[1], 1, __ATOMIC_RELAXED);
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = count_signal, .sa_flags = SA_RESTART};
	struct timespec pause = {.tv_nsec = 500000};
	char buffer[8], line[64];
	int data = open(argv[1], O_RDONLY), counts = open(argv[2], O_RDWR);
	long count = atol(argv[argc - 1]);
	done = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, counts, 0);
	if (data < 0 || done == MAP_FAILED)
		return 1;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
	for (long i = 0; i < count; i++) {
		if (pread(data, buffer, 8, i * 8) != 8)
			return 2;
		done[0] = i + 1;
		if (i % 128 == 0)
			nanosleep(&pause, NULL);
		if (i % 1000 == 0 && write(1, line, snprintf(line, sizeof(line), "%050ld\n", i)) != 51)
			return 3;
	}
	done[2] = 1;
	return 7;
}
