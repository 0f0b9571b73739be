/* A stand-in for libcudart: functions of the names and signatures of CUDA's, that do nothing. Its copy calls the "driver", as the real
 * one does. */
#include <stddef.h>

typedef struct { unsigned x, y, z; } dim3;
typedef struct { dim3 grid, block; size_t shared; void *stream; } configuration;

#define NOTHING __asm__ volatile(""); return 0

int cuMemcpyHtoD_v2(unsigned long to, const void *from, size_t bytes) { NOTHING; }
int cuMemsetD32Async(unsigned long to, unsigned value, size_t count, void *stream) { NOTHING; }
int cuLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
		   void *stream, void **arguments, void **extra) { NOTHING; }
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) { return cuMemcpyHtoD_v2((unsigned long)to, from, bytes) + (kind < 0); }
int cudaMemcpyAsync_ptsz(void *to, const void *from, size_t bytes, int kind, void *stream) { NOTHING; }
int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind, void *stream) { NOTHING; }
int cudaMalloc(void **to, size_t bytes) { NOTHING; }
int cudaFree(void *memory) { NOTHING; }
int cudaMemset(void *to, int value, size_t bytes) { NOTHING; }
int cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream) { NOTHING; }
int cudaLaunchKernelExC(const configuration *with, const void *kernel, void **arguments) { NOTHING; }
int cudaStreamSynchronize(void *stream) { NOTHING; }
int cudaDeviceSynchronize(void) { NOTHING; }
