"""How a stream without a log takes its turns: the time of a step, whether files give records in turn, and which threads read."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_SHORTEST_STEP_NS = 1_000_000
_FEWEST_GAPS = 8  # fewer fit many periods by chance
_MOST_GAPS = 2000  # looked at for each period; of a long job they are drawn evenly
_PERIODS = 4000  # tried between the shortest and the longest
_COHERENT = 0.9  # mean resultant length (Mardia and Jupp, Directional Statistics) from which gaps are multiples of a period
_AS_COHERENT = 0.03  # less than the best: a multiple of a period that is as good is taken instead
_SAME_PLACE = 0.9  # share of a burst's reads at one offset, from which files of one length are read side by side
_NEARLY_ALL_READS = 0.98


def step_period_ns(starts: NDArray[np.int64]) -> float | None:
    """Return the longest time of which nearly all gaps between reads that start at `starts` are multiples; None when none is.

    Reads of a stream wait for steps to take records, so that however many steps lie between two of them, they are whole ones,
    and at least one.
    """
    gaps = np.diff(np.sort(starts)).astype(np.float64)
    gaps = gaps[gaps >= _SHORTEST_STEP_NS]
    if len(gaps) < _FEWEST_GAPS:
        return None
    periods = np.geomspace(_SHORTEST_STEP_NS, np.median(gaps), _PERIODS)
    some = gaps[:: -(-len(gaps) // _MOST_GAPS)]
    whole = some[None, :] / periods[:, None]
    coherence = np.abs((np.exp(2j * np.pi * whole) * (whole > 0.5)).mean(axis=1))
    if coherence.max() < _COHERENT:
        return None
    about = periods[np.flatnonzero(coherence >= max(_COHERENT, coherence.max() - _AS_COHERENT))[-1]]
    return float(gaps.sum() / np.maximum(np.round(gaps / about), 1).sum())


def without_saving(times: NDArray[np.int64], saved: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Return the times less what was spent on saving before each; `saved`: (start, end), one after the other."""
    if not saved:
        return times
    starts, ends = np.array(saved, np.int64).T
    before: NDArray[np.int64] = (np.clip(times[:, None], starts, ends) - starts).sum(axis=1)
    return times - before


def in_turn(reads: pd.DataFrame, group: NDArray[np.int64], cycle: int) -> bool:
    """Whether `cycle` files give records in turn: each burst after the first reads the same place of as many files.

    Files whose records come in random order, as threads that wait for none deliver them, soon read at times of their own: of
    `cycle` gaps one then holds q (1 - ln q) of the time, q being 1 / `cycle`, as gaps between independent events do.
    """
    later = reads[group > 0]
    if cycle < 2 or len(later) < 2 * cycle:
        return False
    gaps = np.sort(np.diff(later["start_ns"].to_numpy()))
    share = 1 / cycle
    by_chance = share * (1 - np.log(share))
    longest = gaps[-max(round(len(gaps) * share), 1) :].sum() / max(gaps.sum(), 1)
    offsets = later[later["result"] > 0].groupby(group[group > 0][(later["result"] > 0).to_numpy()])["offset"]
    at_one = offsets.agg(lambda places: places.value_counts().iloc[0]).sum() / max(int(offsets.size().sum()), 1)
    return bool(longest > (1 + by_chance) / 2 and at_one >= _SAME_PLACE)


def reading_threads(reads: pd.DataFrame) -> int:
    """Return how many threads make nearly all reads but the first of each file, which is made by the thread that opens it."""
    each = reads.loc[reads["offset"] > 0, "tid"].value_counts().to_numpy()
    return int(np.searchsorted(np.cumsum(each), _NEARLY_ALL_READS * each.sum()) + 1) if len(each) else 0
