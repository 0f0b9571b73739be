"""Optimal checkpoints for reversing a chain with a fixed number of memory slots (revolve: Griewank and Walther 2000)."""

from functools import cache


@cache
def recomputations(length: int, slots: int) -> int:
    """Return P(l, s), the fewest forward steps that reverse a chain of l = `length` steps if s = `slots` memory slots are free.

    The value at the start of the chain is stored already. If the first checkpoint is after k steps, P(l, s) is the minimum over k
    of k + P(l - k, s - 1) + P(k, s). Without slots, P(l, 0) = l (l - 1) / 2.
    """
    if length <= 1:
        return 0
    if slots == 0:
        return length * (length - 1) // 2
    return min(_with_split(length, slots, split) for split in _splits(length, slots))


def _with_split(length: int, slots: int, split: int) -> int:
    return split + recomputations(length - split, slots - 1) + recomputations(split, slots)


def _splits(length: int, slots: int) -> range:
    """Return the k to try for the minimum of P, which is convex in k and has its minimum between two binomial coefficients."""
    repeats, reach = 0, 1
    # `reach` is C(slots + repeats + 1, repeats), the longest chain to reverse if no step is repeated more than `repeats` times.
    while reach < length:
        repeats += 1
        reach = reach * (slots + 1 + repeats) // repeats
    below = 1
    for step in range(1, repeats):
        below = below * (slots + step) // step
    return range(max(1, min(length - 1, below // 4)), min(length, reach + 1))


def first_split(length: int, slots: int) -> int:
    """Return the position of the first checkpoint of a chain of `length` steps if `slots` memory slots are free."""
    return min(_splits(length, slots), key=lambda split: (_with_split(length, slots, split), split))


def checkpoints_while_reversing(length: int, slots: int) -> list[set[int]]:
    """Return, for each position of a chain, the checkpoints that are stored when the reversal from the end reaches it.

    The last set holds the checkpoints of the forward pass. The start of the chain, position 0, occupies a slot.
    """
    held: list[set[int]] = [set() for _ in range(length)]
    stored: list[int] = []

    def store_between(low: int, high: int) -> None:
        while high - low > 1 and len(stored) < slots:
            low += first_split(high - low, slots - len(stored))
            stored.append(low)

    if length:
        stored.append(0)
        store_between(0, length)
    for position in range(length - 1, -1, -1):
        held[position] = set(stored)
        while stored and stored[-1] >= position:
            stored.pop()
        if stored:
            store_between(stored[-1], position)
    return held
