"""Fold stretches of traces in this process, in worker processes or on a Dask cluster, with equal results."""

import importlib.util
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing import get_context
from typing import Any, Protocol, TypeVar

from iotwin.common.errors import IotwinError
from iotwin.common.processes.children import safe_path
from iotwin.common.processes.parallel import in_order
from iotwin.common.progress import note
from iotwin.trace_store.reader import Trace

Item = TypeVar("Item")
Result = TypeVar("Result")

LOCAL = "local"
_EVENT_BYTES = 80  # memory that a decoded event takes
_CONNECT_S = 15  # how long to wait for a Dask scheduler


class Workers(Protocol):
    """Calls a function for each item and yields the results one by one, in the order of the items."""

    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item], /) -> Iterator[Result]:
        """Yield function(item) for each of `items`. `function` and `items` must be picklable."""


def in_this_process(function: Callable[[Item], Result], items: Sequence[Item], /) -> Iterator[Result]:
    """Yield function(item) for each of `items`, computed in this process."""
    return map(function, items)


@contextmanager
def _processes() -> Iterator[Workers]:
    """Yield workers: one process per CPU. They are spawned, since a process with threads, as Arrow starts, must not fork."""
    number = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(number, get_context("spawn")) as pool:

        def submit(call: Callable[[], Any]) -> Any:
            with safe_path():  # pool.submit may start a worker
                return pool.submit(call)

        yield lambda function, items: in_order(lambda item: submit(partial(function, item)), items, 2 * number)


@contextmanager
def workers(address: str | None, traces: Sequence[Trace], worth_processes: float = math.inf) -> Iterator[Workers]:
    """Yield the workers at `address`: 'HOST:PORT' of a Dask scheduler, or LOCAL for a cluster on this machine.

    If `address` is None, the traces decide. The choice is LOCAL if they are larger than memory and Dask is installed. Otherwise
    it is worker processes if they have at least `worth_processes` events, else this process. Workers on other machines must find
    the traces at the same paths. Raises IotwinError if Dask is not installed or no scheduler answers.
    """
    if address is None and _larger_than_memory(traces):
        if importlib.util.find_spec("distributed"):
            address = LOCAL
        else:
            note("the traces are larger than memory; with dask[distributed] installed a cluster could work on them")
    if address is None:
        alone = sum(trace.manifest.events for trace in traces) < worth_processes or len(os.sched_getaffinity(0)) == 1
        with nullcontext(in_this_process) if alone else _processes() as each:
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
        cpus = len(os.sched_getaffinity(0))
        client = distributed.Client(
            n_workers=cpus, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", **options
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
        yield lambda function, items: in_order(
            lambda item: client.submit(function, item, pure=False), items, 2 * len(client.nthreads())
        )
    finally:
        client.close()
        if client.cluster is not None:
            client.cluster.close()


def _larger_than_memory(traces: Sequence[Trace]) -> bool:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return sum(trace.manifest.events for trace in traces) * _EVENT_BYTES > memory
