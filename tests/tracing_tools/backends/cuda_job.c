/* Makes a known number of calls of (a stand-in for) CUDA's API: rounds in the main thread, in a second thread and in a forked child. */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct { unsigned x, y, z; } dim3;
typedef struct { dim3 grid, block; size_t shared; void *stream; } configuration;
int cuMemsetD32Async(unsigned long, unsigned, size_t, void *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cudaMemcpy(void *, const void *, size_t, int), cudaMemcpyAsync_ptsz(void *, const void *, size_t, int, void *);
int cudaMemcpy2DAsync(void *, size_t, const void *, size_t, size_t, size_t, int, void *);
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMemset(void *, int, size_t);
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *), cudaLaunchKernelExC(const configuration *, const void *, void **);
int cudaStreamSynchronize(void *), cudaDeviceSynchronize(void);
static int rounds;

static void *work(void *unused)
{
	dim3 grid = {2, 3, 4}, block = {5, 6, 7};
	configuration with = {grid, block, 0, (void *)15};
	for (int i = 0; i < rounds; i++) {
		void *memory = NULL;
		cudaMalloc(&memory, 1000 + i);
		cudaMemcpy(memory, memory, 4096, 1);
		cudaMemcpyAsync_ptsz(memory, memory, 8192, 2, (void *)7);
		cudaMemcpy2DAsync(memory, 64, memory, 64, 48, 10, 3, (void *)8);
		cudaMemset(memory, 0, 100);
		cuMemsetD32Async(0, 0, 25, (void *)9);
		cudaLaunchKernel(NULL, grid, block, NULL, 0, (void *)11);
		cudaLaunchKernelExC(&with, NULL, NULL);
		cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, (void *)13, NULL, NULL);
		cudaStreamSynchronize((void *)11);
		cudaDeviceSynchronize();
		cudaFree(memory);
	}
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	rounds = atoi(argv[1]);
	work(NULL);
	pthread_create(&thread, NULL, work, NULL);
	pthread_join(thread, NULL);
	if (fork() == 0) {
		work(NULL);
		_exit(argc > 9);
	}
	wait(NULL);
	return 0;
}
