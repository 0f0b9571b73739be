"""The loss for training (soft Dice and cross-entropy), and the score for evaluation (Dice)."""

import torch
from torch import Tensor
from torch.nn import functional

_SMOOTH = 1e-6  # added so that the ratio is 1, not 0 / 0, if neither prediction nor truth contains a class


def _dice(prediction: Tensor, truth: Tensor, sample_axes: tuple[int, ...]) -> Tensor:
    """Return 2|P∩T| / (|P|+|T|) (Dice, 1945) of prediction P and truth T, with sums over `sample_axes`.

    Elements are True or False, or the probabilities of a class.
    """
    overlap = (prediction * truth).sum(sample_axes)
    return (2 * overlap + _SMOOTH) / (prediction.sum(sample_axes) + truth.sum(sample_axes) + _SMOOTH)


def dice_cross_entropy(scores: Tensor, label: Tensor) -> Tensor:
    """Return the mean of soft Dice loss and cross-entropy as a scalar.

    `scores` are logits [N, C, D, H, W], `label` holds class numbers [N, D, H, W] (int64). The Dice loss (Milletari et al., 2016)
    is averaged over samples and foreground classes. The background is left out, since it would outweigh the organs.
    """
    truth = functional.one_hot(label, scores.shape[1]).movedim(-1, 1).float()
    dice = _dice(torch.softmax(scores, 1), truth, (2, 3, 4))[:, 1:]
    return (1 - dice.mean() + functional.cross_entropy(scores, label)) / 2


def dice_score(scores: Tensor, label: Tensor) -> float:
    """Return the Dice score in [0, 1] of one segmentation, averaged over the foreground classes.

    `scores` are logits [1, C, D, H, W], `label` class numbers [1, D, H, W]. A class absent from both has the score 1.
    """
    found = scores.max(1).indices  # the same as argmax, which takes ten times as long on a CPU
    axes = (0, 1, 2, 3)
    return float(torch.stack([_dice(found == number, label == number, axes) for number in range(1, scores.shape[1])]).mean())
