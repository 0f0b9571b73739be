"""How many records a streamed file holds, and how many the shuffle buffer: from when files ended and others took their places.

Records are not seen, only files. Each place of the cycle gives records at random turns until its file ends, so the ends of files
tell how fast the steps use records up, and how many the buffer took before. Ends are drawn for a grid of both numbers, and each
pair is weighed by how well it explains the ends seen (a likelihood by simulation: Diggle and Gratton, Journal of the Royal
Statistical Society B 46, 1984).
"""

import numpy as np
from numpy.typing import NDArray

_DRAWS = 200
_SIZES = 24  # of a file, that are tried
_FILLS = np.linspace(-0.25, 1.25, 13)  # files of a place, beyond those it has ended, that may have gone into the buffer
_RATE_ERROR = 0.5  # of the logarithm of the records that a file holds, as the mean rate of ends gives it
_MOST_ENDS = 300  # beyond, the number of the ends tells as much


def records_of_file_and_buffer(
    ended_before: int, later_ends: NDArray[np.float64], taken: float, cycle: int
) -> tuple[float, float] | None:
    """Return (records of a file, records taken before the first step); None when too few or too many files ended to tell.

    `ended_before`: files that ended before the first step. `later_ends`, shape (n,), ascending: records that the steps had taken
    when each later one ended, of `taken` in all. `cycle`: files that give records in turn.
    """
    seen = len(later_ends)
    if not seen or ended_before + seen > _MOST_ENDS:
        return None
    sizes = np.geomspace(max(taken / (seen + cycle), 1), max(taken / max(seen - cycle, 0.5), 2), _SIZES)
    fills = np.maximum(ended_before / cycle + _FILLS, 0.05)
    rng = np.random.default_rng(1)
    misfit = np.array([_misfits(rng, size, fills, ended_before, later_ends, taken, cycle) for size in sizes])
    # Few ends leave much open; the rate at which they came is then the best guess.
    misfit += (np.log(sizes / (taken / seen)) / _RATE_ERROR)[:, None] ** 2
    weight = np.exp((misfit.min() - misfit) / 2)
    by_size = weight.sum(axis=1)
    size = float(np.exp(np.average(np.log(sizes), weights=by_size)))
    nearest = int(np.abs(np.log(sizes / size)).argmin())
    fill = float(np.average(fills, weights=weight[nearest]))
    return size, fill * cycle * size


def _misfits(
    rng: np.random.Generator,
    size: float,
    fills: NDArray[np.float64],
    ended_before: int,
    later_ends: NDArray[np.float64],
    taken: float,
    cycle: int,
) -> list[float]:
    """Squared deviations of what was seen from the mean of the draws, in standard deviations, for each of the `fills`."""
    files = int(np.ceil(fills[-1] + 2 * taken / (cycle * size))) + len(later_ends) + 4
    # A place gives a record at one turn in `cycle`: until its file ends, that many turns of others pass.
    turns = round(size) + rng.negative_binomial(max(round(size), 1), 1 / cycle, (_DRAWS, cycle, files))
    ends = np.sort(np.cumsum(turns, axis=2).reshape(_DRAWS, -1), axis=1)
    found = []
    for fill in fills:
        before = (ends <= fill * cycle * size).sum(axis=1)
        indices = np.minimum(before[:, None] + np.arange(len(later_ends) + 1), ends.shape[1] - 1)
        later = np.take_along_axis(ends, indices, axis=1) - fill * cycle * size
        apart = np.append(later_ends - later[:, :-1].mean(axis=0), max(taken - float(later[:, -1].mean()), 0.0))
        found.append(
            float(((ended_before - before.mean()) / max(before.std(), 0.5)) ** 2)
            + float(((apart / np.maximum(later.std(axis=0), 1.0)) ** 2).sum())
        )
    return found
