"""Measures how well clicks are predicted."""

import numpy as np
from numpy.typing import NDArray


def roc_auc(scores: NDArray[np.float32], labels: NDArray[np.float32]) -> float:
    """Return the area under the ROC curve. `scores` and `labels` have shape (n,), a label is 0 or 1 (click).

    The result is the share of (click, no click) pairs in which the click has the higher score; equal scores count half (the
    Mann-Whitney statistic). It is nan if all labels are equal.
    """
    _, index, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[index]  # mean rank of equal scores, from 1
    clicks = int(labels.sum())
    others = len(labels) - clicks
    if not clicks or not others:
        return float("nan")
    return float((ranks[labels > 0].sum() - clicks * (clicks + 1) / 2) / (clicks * others))
