"""The traced calls of CUDA's runtime and driver API, and the positions of their arguments.

Positions count from 1, in the order of the machine's registers and stack; a dim3 passed by value takes two positions. The source
is cuda_runtime_api.h and cuda.h of the CUDA toolkit ("CUDA Runtime API", "CUDA Driver API" at docs.nvidia.com). Other versions
of a function, with the suffixes _v2, _ptds and _ptsz (per-thread default stream), have the same arguments.
"""

from dataclasses import dataclass

from iotwin.trace_store.schema import COPY_DIRECTIONS

STREAM_IN_CONFIGURATION = 255  # value of `stream` if the stream is in the launch configuration, to which argument 1 points
NO_DIRECTION = 0xFFFF


@dataclass(frozen=True)
class CudaCall:
    """A function of CUDA: its kind (one of schema.GPU_KINDS) and the positions of its arguments, 0 for an argument it lacks."""

    name: str
    kind: str
    size: int = 0  # position of the argument for the size, in units of `unit_bytes`
    rows: int = 0  # position of the argument that multiplies the size
    unit_bytes: int = 1
    stream: int = 0
    direction: int = 0  # position of the argument of type cudaMemcpyKind
    fixed_direction: str | None = None


def _copies(name: str, direction: str) -> list[CudaCall]:
    return [
        CudaCall(f"cuMemcpy{name}", "memcpy", size=3, fixed_direction=direction),
        CudaCall(f"cuMemcpy{name}Async", "memcpy", size=3, stream=4, fixed_direction=direction),
    ]


def _sets(bits: int) -> list[CudaCall]:
    unit = bits // 8
    return [
        CudaCall(f"cuMemsetD{bits}", "memset", size=3, unit_bytes=unit),
        CudaCall(f"cuMemsetD{bits}Async", "memset", size=3, unit_bytes=unit, stream=4),
    ]


CUDA_CALLS = (
    CudaCall("cudaLaunchKernel", "launch", stream=8),
    CudaCall("cudaLaunchCooperativeKernel", "launch", stream=8),
    CudaCall("cudaLaunchKernelExC", "launch", stream=STREAM_IN_CONFIGURATION),
    CudaCall("cudaGraphLaunch", "launch", stream=2),
    CudaCall("cudaMemcpy", "memcpy", size=3, direction=4),
    CudaCall("cudaMemcpyAsync", "memcpy", size=3, direction=4, stream=5),
    CudaCall("cudaMemcpy2D", "memcpy", size=5, rows=6, direction=7),
    CudaCall("cudaMemcpy2DAsync", "memcpy", size=5, rows=6, direction=7, stream=8),
    CudaCall("cudaMemcpyPeer", "memcpy", size=5, fixed_direction="peer"),
    CudaCall("cudaMemcpyPeerAsync", "memcpy", size=5, stream=6, fixed_direction="peer"),
    CudaCall("cudaMemset", "memset", size=3),
    CudaCall("cudaMemsetAsync", "memset", size=3, stream=4),
    CudaCall("cudaMalloc", "malloc", size=2),
    CudaCall("cudaMallocAsync", "malloc", size=2, stream=3),
    CudaCall("cudaMallocManaged", "malloc", size=2),
    CudaCall("cudaMallocHost", "malloc", size=2),
    CudaCall("cudaHostAlloc", "malloc", size=2),
    CudaCall("cudaFree", "free"),
    CudaCall("cudaFreeAsync", "free", stream=2),
    CudaCall("cudaFreeHost", "free"),
    CudaCall("cudaDeviceSynchronize", "sync"),
    CudaCall("cudaStreamSynchronize", "sync", stream=1),
    CudaCall("cudaEventSynchronize", "sync"),
    CudaCall("cuLaunchKernel", "launch", stream=9),
    CudaCall("cuLaunchCooperativeKernel", "launch", stream=9),
    CudaCall("cuLaunchKernelEx", "launch", stream=STREAM_IN_CONFIGURATION),
    CudaCall("cuGraphLaunch", "launch", stream=2),
    *_copies("", "default"),
    *_copies("HtoD", "host_to_device"),
    *_copies("DtoH", "device_to_host"),
    *_copies("DtoD", "device_to_device"),
    *_sets(8),
    *_sets(16),
    *_sets(32),
    CudaCall("cuMemAlloc", "malloc", size=2),
    CudaCall("cuMemAllocAsync", "malloc", size=2, stream=3),
    CudaCall("cuMemAllocManaged", "malloc", size=2),
    CudaCall("cuMemAllocHost", "malloc", size=2),
    CudaCall("cuMemHostAlloc", "malloc", size=2),
    CudaCall("cuMemFree", "free"),
    CudaCall("cuMemFreeAsync", "free", stream=2),
    CudaCall("cuMemFreeHost", "free"),
    CudaCall("cuCtxSynchronize", "sync"),
    CudaCall("cuStreamSynchronize", "sync", stream=1),
    CudaCall("cuEventSynchronize", "sync"),
)

_SUFFIXES = ("", "_v2", "_ptds", "_ptsz", "_v2_ptds", "_v2_ptsz")
FUNCTION_OF_SYMBOL = {call.name + suffix: index for index, call in enumerate(CUDA_CALLS) for suffix in _SUFFIXES}


def packed_arguments(call: CudaCall) -> bytes:
    """Return the positions of `call` as the 8 bytes of struct function in tracing_tools/probes/cuda.bpf.c."""
    fixed = 255 if call.fixed_direction is None else COPY_DIRECTIONS.index(call.fixed_direction)
    return bytes([call.size, call.rows, call.unit_bytes, call.stream, call.direction, fixed, 0, 0])
