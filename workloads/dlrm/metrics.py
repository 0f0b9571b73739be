"""The quality of predicted clicks."""

import numpy as np
from numpy.typing import NDArray


def roc_auc(scores: NDArray[np.float32], labels: NDArray[np.float32]) -> float:
    """Return the area under the ROC curve of `scores` (n,) against `labels` (n,) of 0 and 1; nan if only one label occurs.

    It is the Mann-Whitney statistic: the share of (click, no click) pairs in which the click scores higher, ties counting half.
    """
    _, index, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[index]  # mean rank of equal scores, from 1
    clicks = int(labels.sum())
    others = len(labels) - clicks
    if not clicks or not others:
        return float("nan")
    return float((ranks[labels > 0].sum() - clicks * (clicks + 1) / 2) / (clicks * others))
