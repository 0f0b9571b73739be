"""Work on a sequence, a few items ahead, with the results in the items' order: by threads, or by whatever else takes work."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result", covariant=True)


class Pending(Protocol[Result]):
    """Work that was begun."""

    def result(self) -> Result:
        """Return what came of it, once it is done."""


def in_order(begin: Callable[[Item], Pending[Result]], items: Iterable[Item], ahead: int) -> Iterator[Result]:
    """Yield what comes of each item in the items' order; at most `ahead` of them are begun and not yet taken."""
    begun: deque[Pending[Result]] = deque()
    for item in items:
        begun.append(begin(item))
        if len(begun) >= ahead:
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield function(item) for each item in the items' order, by as many threads as there are processors.

    For work that Arrow and numpy do. No more items are taken than the threads can work on.
    """
    threads = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(threads) as pool:
        yield from in_order(lambda item: pool.submit(function, item), items, threads + 1)
