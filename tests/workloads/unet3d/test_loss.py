import numpy as np
import pytest
import torch

from iotwin.workloads.unet3d.loss import dice_cross_entropy, dice_score


def _scores_of(label, confidence=50.0):
    return torch.nn.functional.one_hot(label, 3).movedim(-1, 1).float() * confidence


def test_a_perfect_segmentation_costs_nothing():
    label = torch.randint(0, 3, (2, 8, 8, 8), generator=torch.Generator().manual_seed(1))
    assert float(dice_cross_entropy(_scores_of(label), label)) == pytest.approx(0, abs=1e-4)
    assert dice_score(_scores_of(label)[:1], label[:1]) == pytest.approx(1)


def test_loss_is_the_mean_of_both_parts():
    generator = torch.Generator().manual_seed(2)
    scores, label = torch.randn(2, 3, 4, 4, 4, generator=generator), torch.randint(0, 3, (2, 4, 4, 4), generator=generator)
    p, y = torch.softmax(scores, 1).numpy(), label.numpy()
    cross_entropy = -np.log(np.take_along_axis(p, y[:, None], 1)).mean()
    dice = np.mean([2 * p[n, c][y[n] == c].sum() / (p[n, c].sum() + (y[n] == c).sum()) for n in range(2) for c in (1, 2)])
    assert float(dice_cross_entropy(scores, label)) == pytest.approx((1 - dice + cross_entropy) / 2, rel=1e-4)


def test_score_is_the_overlap_of_sets():
    generator = torch.Generator().manual_seed(3)
    found, label = (torch.randint(0, 3, (1, 6, 6, 6), generator=generator) for _ in range(2))
    f, y = found.numpy(), label.numpy()
    expected = np.mean([2 * ((f == c) & (y == c)).sum() / ((f == c).sum() + (y == c).sum()) for c in (1, 2)])
    assert dice_score(_scores_of(found), label) == pytest.approx(expected, rel=1e-5)


def test_an_absent_class_does_not_spoil_the_score():
    label = torch.ones((1, 4, 4, 4), dtype=torch.int64)
    assert dice_score(_scores_of(label), label) == pytest.approx(1)
