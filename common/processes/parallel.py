"""Process the items of a sequence in parallel, a few items ahead, and yield the results in the items' order."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result", covariant=True)


class Pending(Protocol[Result]):
    """Work in progress, such as a Future."""

    def result(self) -> Result:
        """Wait for the result and return it."""


def in_order(begin: Callable[[Item], Pending[Result]], items: Iterable[Item], ahead: int) -> Iterator[Result]:
    """Call `begin` on each item and yield the results in the items' order. At most `ahead` items are in progress at a time."""
    begun: deque[Pending[Result]] = deque()
    for item in items:
        begun.append(begin(item))
        if len(begun) >= ahead:
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield function(item) for each item, in the items' order. One thread per available processor computes them.

    This is faster than a loop if `function` spends its time in Arrow or numpy, without Python's lock.
    """
    threads = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(threads) as pool:
        yield from in_order(lambda item: pool.submit(function, item), items, threads + 1)
