"""Sets of samples that are read in turns: training, evaluation, training again, by processes that stay."""

import numpy as np
from numpy.typing import NDArray

_FEWEST = 3  # so few samples may come first or last in all passes by chance
_BY_CHANCE = 1e-3  # and more of them with a likelihood of less than this are a set
_WHOLE = 0.9  # a pass over a set reads this share of it


def evaluation_samples(read: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the samples, ascending, of the smaller of two sets that were `read` in turns; none if it is one, or nothing tells.

    One set comes before the other in every pass over both: the order within a set changes, at least of one, and the order of the
    sets does not. A set that is read in the same order each time has no such places within it that differ from its ends.
    """
    samples, index = np.unique(read, return_inverse=True)
    # What was read in part, by a job that was resumed or cut off, hides where later passes, or earlier ones, begin.
    smaller = _smaller(index)
    return samples[np.sort(smaller if len(smaller) else _smaller(index[::-1]))]


def _smaller(index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the samples of the smaller set, in any order, of those read: `index` has no gaps."""
    begins = _passes(index)
    of_pass = np.searchsorted(begins, np.arange(len(index)), side="right") - 1
    order = index[of_pass == np.bincount(of_pass).argmax()]
    nothing = index[:0]
    if len(order) <= index.max():
        return nothing
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    edges = _edges(_in_order(place[index], of_pass))
    if len(edges) != 1:
        return nothing
    parts = order[: edges[0]], order[edges[0] :]
    smaller, larger = sorted(parts, key=len)
    whole = int((np.bincount(of_pass[np.isin(index, larger)]) >= _WHOLE * len(larger)).sum())
    # There are more than (n / m)**m ways to choose m of n, and each pass after the first would have chosen the same.
    by_chance = (len(smaller) / len(order)) ** (len(smaller) * (whole - 1))
    return smaller if whole > 1 and by_chance < _BY_CHANCE else nothing


def _passes(index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where passes begin: at each sample that has come since the last one began."""
    by_sample = np.argsort(index, kind="stable")
    before = np.full(len(index), -1)
    again = np.diff(index[by_sample]) == 0
    before[by_sample[1:][again]] = by_sample[:-1][again]
    latest = np.maximum.accumulate(before)
    begins = [0]
    while (following := int(np.searchsorted(latest, begins[-1]))) < len(index):
        begins.append(following)
    return np.array(begins)


def _in_order(place: NDArray[np.int64], of_pass: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each place but the first whether in every pass all samples of earlier places came before all others."""
    count = int(place.max()) + 1
    latest = np.maximum.accumulate(place + of_pass * count) - of_pass * count
    crossed = np.zeros(count + 1, np.int64)
    np.add.at(crossed, place + 1, 1)
    np.add.at(crossed, latest + 1, -1)
    apart: NDArray[np.bool_] = np.cumsum(crossed)[1:count] == 0
    return apart


def _edges(apart: NDArray[np.bool_]) -> list[int]:
    """Return the places where a set begins, but the first: between samples that change places, or those that keep them."""
    begins = np.append(0, np.flatnonzero(apart) + 1)
    alone = np.diff(np.append(begins, len(apart) + 1)) == 1
    begins = begins[np.append(True, ~(alone[1:] & alone[:-1]))]
    sizes = np.diff(np.append(begins, len(apart) + 1))
    begins = begins[sizes >= _FEWEST]
    return [int(place) for place in begins[1:]]
