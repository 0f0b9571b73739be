/* A stand-in for NVIDIA's libnvidia-ml.so.1 with two GPUs: on the first run the processes of $STUB_NVML_PIDS (two numbers, by a comma), the
 * second is a part of a GPU, whose utilisation NVML does not tell. */
#include <stdio.h>
#include <stdlib.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
typedef struct { unsigned gpu, memory; } rates;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned pid; unsigned long long time; unsigned sm, mem, enc, dec; } sample;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process;

static void pids(unsigned out[2]) { sscanf(getenv("STUB_NVML_PIDS") ? getenv("STUB_NVML_PIDS") : "1,1", "%u,%u", &out[0], &out[1]); }
static int number(void *device) { return device == (void *)0x100 ? 0 : 1; }

int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == NOT_FOUND ? "Not Found" : "Not Supported"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = getenv("STUB_NVML_NONE") ? 0 : 2; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(0x100ul * (index + 1)); return SUCCESS; }

int nvmlDeviceGetUtilizationRates(void *device, rates *out)
{
	if (number(device) == 1)
		return NOT_SUPPORTED;
	*out = (rates){87, 40};
	return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, memory *out)
{
	*out = (memory){80ull << 30, 70ull << 30, 10ull << 30};
	return SUCCESS;
}

/* Three samples: two of the first process, of which the newer counts; none after the time asked for: not found, as the driver says. */
int nvmlDeviceGetProcessUtilization(void *device, sample *out, unsigned *count, unsigned long long since)
{
	unsigned on[2];
	if (number(device) == 1 || since >= 3000)
		return NOT_FOUND;
	pids(on);
	if (!out) {
		*count = 3;
		return INSUFFICIENT_SIZE;
	}
	out[0] = (sample){on[0], 3000, 81, 31, 1, 2};
	out[1] = (sample){on[0], 1000, 11, 12, 13, 14};
	out[2] = (sample){on[1], 2000, 6, 5, 0, 0};
	return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process *out)
{
	unsigned on[2];
	if (number(device) == 1) {
		*count = 0;
		return SUCCESS;
	}
	pids(on);
	if (!out) {
		*count = 1;
		return INSUFFICIENT_SIZE;
	}
	*count = 1;
	out[0] = (process){on[0], 6ull << 30, 0, 0};
	return SUCCESS;
}
