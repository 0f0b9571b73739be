"""The verdict in words: whether two traces are alike or different, or why the comparison is inconclusive."""

from collections.abc import Mapping, Sequence

from iotwin.tracesim.verdict.equivalence import ALIKE, DIFFERENT, Equivalence, unlike_dimension
from iotwin.tracesim.verdict.losses import MOST_LOST

_MOST_SENTENCES = 3  # most sentences in a verdict; the comparison's `differences` has all


def verdict(
    overall: float, floor: float | None, scores: Mapping[str, float], differences: Sequence[str], test: Equivalence
) -> str:
    """Return the verdict on two traces in words.

    `overall` and `scores`, by dimension, are in [0, 1]. `floor` is the lowest overall score between any two runs of the job; None
    if there is only one run. `differences` are sentences, the weightiest first. If `test` is inconclusive, the verdict is
    DIFFERENT only if `unlike_dimension` finds a score too low.
    """
    if test.result == ALIKE:
        return "indistinguishable from a rerun" if floor is not None and overall >= floor else ALIKE
    if test.result == DIFFERENT:
        return f"{DIFFERENT}: {'; '.join([*test.reason.split('; ')[:1], *differences[: _MOST_SENTENCES - 1]])}"
    unlike = unlike_dimension(overall, scores)
    if unlike is None:
        return f"{test.result}: {test.reason}"
    return f"{DIFFERENT}: {'; '.join(differences[:_MOST_SENTENCES]) or f'{unlike} scores {scores[unlike]:.2f}'}"


def withheld_for(lost: float) -> str:
    """Return the verdict if a trace lost the share `lost` of its events, which is more than MOST_LOST."""
    return f"withheld: a trace lost {lost * 100:.2g} % of its events, more than {MOST_LOST * 100:.0f} %; record it again"
