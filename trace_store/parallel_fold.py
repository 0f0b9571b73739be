"""Fold stretches of traces in this process, in worker processes or on a Dask cluster, with equal results."""

import ctypes
import math
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing import get_context
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from iotwin.common.errors import IotwinError
from iotwin.common.processes.children import safe_path
from iotwin.common.processes.memory_limit import limit_memory, workers_within_limit
from iotwin.common.processes.parallel import in_order
from iotwin.trace_store.reader import Trace

Item = TypeVar("Item")
Result = TypeVar("Result")

LOCAL = "local"
_CODEC = "zstd"  # compresses results
_CONNECT_S = 15  # how long to wait for a Dask scheduler
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)


class Workers(Protocol):
    """Calls a function for each item and yields the results one by one, in the order of the items."""

    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item], /) -> Iterator[Result]:
        """Yield function(item) for each of `items`. `function` and `items` must be picklable."""


def in_this_process(function: Callable[[Item], Result], items: Sequence[Item], /) -> Iterator[Result]:
    """Yield function(item) for each of `items`, computed in this process."""
    return map(function, items)


def _in_worker(share_bytes: int | None, function: Callable[[Item], Result], item: Item) -> list[tuple[bytes, int]]:
    """Return function(item) in the form that `_unpacked` reads. `share_bytes`: memory for this process; None: half of the free.

    Compressed, summaries take a fifth to a fiftieth of the bytes, since most of their numbers are small or 0. Each array is
    compressed by itself, so that no other copy of a large summary is made.
    """
    limit_memory(share_bytes)
    # Dask starts workers with a threshold for which the C library maps each array anew: that doubles the CPU time of a fold.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries than GNU's lack it
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, 64 << 20)
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    arrays: list[tuple[bytes, int]] = []
    content = pickle.dumps(function(item), 5, buffer_callback=lambda array: arrays.append(_packed(array.raw())))
    return [_packed(content), *arrays]


def _packed(content: bytes | memoryview) -> tuple[bytes, int]:
    return pa.compress(content, _CODEC, asbytes=True), len(content)


def _unpacked(packed: list[tuple[bytes, int]]) -> Any:
    content, *arrays = (pa.decompress(*each, _CODEC) for each in packed)
    return pickle.loads(content, buffers=arrays)  # noqa: S301 - from our own workers


@contextmanager
def _processes(number: int, share_bytes: int) -> Iterator[Workers]:
    """Yield `number` worker processes. They are spawned, since a process with threads, as Arrow starts, must not fork."""
    with ProcessPoolExecutor(number, get_context("spawn")) as pool:

        def submit(call: Callable[[], Any]) -> Any:
            with safe_path():  # pool.submit may start a worker
                return pool.submit(call)

        yield lambda function, items: map(
            _unpacked, in_order(lambda item: submit(partial(_in_worker, share_bytes, function, item)), items, 2 * number)
        )


@contextmanager
def workers(address: str | None, traces: Sequence[Trace], worth_processes: float = math.inf) -> Iterator[Workers]:
    """Yield the workers at `address`: 'HOST:PORT' of a Dask scheduler, or LOCAL for a cluster on this machine.

    If `address` is None, yields worker processes if the traces have at least `worth_processes` events, else this process. On
    this machine, the memory limit bounds the number of workers. Workers on other machines must find the traces at the same
    paths. Raises IotwinError if Dask is not installed or no scheduler answers.
    """
    held_bytes = max((trace.held_bytes for trace in traces), default=0)
    number, share = workers_within_limit(len(os.sched_getaffinity(0)), held_bytes)
    if address is None:
        alone = sum(trace.manifest.events for trace in traces) < worth_processes or number == 1
        with nullcontext(in_this_process) if alone else _processes(number, share) as each:
            yield each
        return
    import logging

    try:
        import distributed
    except ImportError:
        raise IotwinError(
            "--dask needs the Python package distributed, which is not installed; try: pip install 'dask[distributed]'"
        ) from None
    logging.getLogger("distributed").setLevel(logging.ERROR)
    options: dict[str, Any] = {"silence_logs": logging.ERROR, "set_as_default": False}
    if address == LOCAL:
        client = distributed.Client(
            n_workers=number, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", **options
        )
    else:
        try:
            client = distributed.Client(address, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise IotwinError(
                f"no Dask scheduler answers at {address} ({str(error).splitlines()[0]}); start one: dask scheduler"
            ) from None
    try:
        # If pure were True, Dask would reuse an earlier result even if the trace was written anew.
        yield lambda function, items: map(
            _unpacked,
            in_order(
                lambda item: client.submit(_in_worker, share if address == LOCAL else None, function, item, pure=False),
                items,
                2 * len(client.nthreads()),
            ),
        )
    finally:
        client.close()
        if client.cluster is not None:
            client.cluster.close()
