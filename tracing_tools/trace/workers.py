"""Work on many traces or parts of them: here, one after the other, or on the workers of a Dask cluster, with equal results."""

import importlib.util
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing import get_context
from typing import Any, Protocol, TypeVar

from common.errors import IotwinError
from common.parallel import in_order
from common.progress import note
from common.safe_path import safe_path
from tracing_tools.trace.reader import Trace

Item = TypeVar("Item")
Result = TypeVar("Result")

LOCAL = "local"
_EVENT_BYTES = 80  # of a decoded event
_CONNECT_S = 15


class Workers(Protocol):
    """Calls a function for each item and gives the results in the items' order, one by one: all may not fit in memory."""

    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item], /) -> Iterator[Result]:
        """Yield the results; both function and items must be picklable."""


def here(function: Callable[[Item], Result], items: Sequence[Item], /) -> Iterator[Result]:
    """Work in this process."""
    return map(function, items)


@contextmanager
def _processes() -> Iterator[Workers]:
    """Yield a worker for each processor of this machine: fresh processes, not forks, as this one may hold threads of Arrow's."""
    number = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(number, get_context("spawn")) as pool:

        def submit(call: Callable[[], Any]) -> Any:
            with safe_path():  # a worker is started with the work that it is needed for
                return pool.submit(call)

        yield lambda function, items: in_order(lambda item: submit(partial(function, item)), items, 2 * number)


@contextmanager
def workers(address: str | None, traces: Sequence[Trace], worth_processes: float = math.inf) -> Iterator[Workers]:
    """Yield the workers at `address` ('HOST:PORT' of a scheduler, LOCAL for a cluster of this machine's processors).

    None means LOCAL for traces larger than memory if Dask is installed, else processes of this machine for traces of
    `worth_processes` events or more in all, else this process. Raises IotwinError when Dask is not
    installed or no scheduler answers. Workers elsewhere must see the traces under the same paths.
    """
    if address is None and _larger_than_memory(traces):
        if importlib.util.find_spec("distributed"):
            address = LOCAL
        else:
            note("the traces are larger than memory; with dask[distributed] installed a cluster could work on them")
    if address is None:
        alone = sum(trace.manifest.events for trace in traces) < worth_processes or len(os.sched_getaffinity(0)) == 1
        with nullcontext(here) if alone else _processes() as each:
            yield each
        return
    distributed = _distributed()
    import logging

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
        # Equal work on a trace that was written anew must not be answered from an earlier result: hence not pure.
        yield lambda function, items: in_order(
            lambda item: client.submit(function, item, pure=False), items, 2 * len(client.nthreads())
        )
    finally:
        client.close()
        if client.cluster is not None:
            client.cluster.close()


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise IotwinError(
            "--dask needs the Python package distributed, which is not installed; try: pip install 'dask[distributed]'"
        ) from None
    return distributed


def _larger_than_memory(traces: Sequence[Trace]) -> bool:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return sum(trace.manifest.events for trace in traces) * _EVENT_BYTES > memory
