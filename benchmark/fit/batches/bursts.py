"""Batch boundaries of a process without loaders: its accesses come in bursts, most of one size, with longer gaps between."""

import numpy as np
from numpy.typing import NDArray

_NO_PAUSE_NS = 10_000  # shorter gaps count as this long
_CONTRAST = np.log(3)  # logarithm of the least ratio of gaps between batches to gaps within batches
_THRESHOLDS = 40  # thresholds tried between the shortest and the longest gap, evenly spaced in logarithms
_ENOUGH = 12  # least number of accesses that can show a pattern
_FEWEST, _FEWEST_SOUGHT = 3, 6  # least number of groups of one size; the second if many thresholds are tried
_REGULAR = 0.5  # groups are batches if at least this share of them has the most common size
_CLEARLY = 0.1  # another threshold replaces the guess if its share is larger by this much


def batches_by_pauses(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of the batch of each access. `starts` (ascending), `ends`: ns. Long gaps separate batches."""
    return regular_batches(starts, ends, _between_long_gaps(starts, ends))


def regular_batches(starts: NDArray[np.int64], ends: NDArray[np.int64], guess: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of the batch to which each access (sorted by `starts`) belongs.

    Returns `guess`, unless another threshold yields groups that clearly more often have one common size. On a busy machine, gaps
    alone give a wrong threshold. If groups have no common size, each access is a batch. If there are fewer than a dozen accesses,
    returns `guess`. A few adjacent groups that together have the common size are one batch, in which the process paused.
    """
    gap_logs = np.log(np.maximum(starts[1:] - ends[:-1], _NO_PAUSE_NS))
    if len(starts) < _ENOUGH:
        return guess
    if np.ptp(gap_logs) < _CONTRAST:
        return np.arange(len(starts))
    thresholds = np.linspace(gap_logs.min(), gap_logs.max(), _THRESHOLDS + 2)[1:-1]
    tried = [guess, *(_split(gap_logs, threshold) for threshold in thresholds)]
    shares = np.array([_regularity(guess, _FEWEST), *(_regularity(number, _FEWEST_SOUGHT) for number in tried[1:])])
    best = int(shares.argmax()) if shares.max() > shares[0] + _CLEARLY else 0
    return _joined(tried[best]) if shares[best] >= _REGULAR else np.arange(len(starts))


def _joined(number: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `number` with adjacent smaller groups joined if together they have the most common size.

    Such groups are parts of one batch. Longer rows of small groups are separate batches, such as those of an evaluation.
    """
    sizes = np.bincount(number)
    common = int(np.bincount(sizes).argmax())
    small = sizes < common
    row = np.cumsum(np.append(True, ~(small[1:] & small[:-1]))) - 1
    joins = np.append(False, row[1:] == row[:-1]) & (np.bincount(row, sizes) == common)[row]
    groups: NDArray[np.int64] = np.cumsum(~joins) - 1
    return groups[number]


def _split(gap_logs: NDArray[np.float64], threshold: float) -> NDArray[np.int64]:
    """Return the group of each access: a gap between two accesses separates groups if its logarithm exceeds `threshold`.

    If such gaps are not much longer than the others on average (_CONTRAST), all accesses are one group.
    """
    beyond = gap_logs > threshold
    apart = gap_logs[beyond].mean() - gap_logs[~beyond].mean() >= _CONTRAST
    number: NDArray[np.int64] = np.append(0, np.cumsum(beyond & apart))
    return number


def _regularity(number: NDArray[np.int64], fewest: int) -> float:
    """Return the share of groups with the most common size: among all groups or among all accesses, whichever is fewer.

    Returns 0 if the most common size is one access.
    """
    sizes = np.bincount(number)[:-1]  # the last may be cut short
    found, counts = np.unique(sizes, return_counts=True)
    if len(sizes) == 0 or counts.max() < fewest:
        return 0.0
    size, count = int(found[counts.argmax()]), int(counts.max())
    return min(count / len(sizes), size * count / float(sizes.sum())) if size > 1 else 0.0


def _between_long_gaps(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each access, the index of its group. Long gaps separate groups.

    The threshold is the value that splits the logarithms of the gaps into two sets with the least variance within the sets (Otsu,
    IEEE Trans. SMC 9(1), 1979): gaps within batches, and gaps between them. A single group means that every sample is a batch.
    """
    gap_logs = np.log(np.maximum(starts[1:] - ends[:-1], 1000))
    logs = np.sort(gap_logs)
    left = np.arange(1, len(logs))
    if len(left) == 0:
        return np.arange(len(starts))
    sums = np.cumsum(logs)
    means_left, means_right = sums[:-1] / left, (sums[-1] - sums[:-1]) / (len(logs) - left)
    between = left * (len(logs) - left) * (means_left - means_right) ** 2
    cut = int(between.argmax())
    if means_right[cut] - means_left[cut] < np.log(3):
        return np.arange(len(starts))
    number: NDArray[np.int64] = np.append(0, np.cumsum(gap_logs > (logs[cut] + logs[cut + 1]) / 2))
    return number
