from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.workloads.unet3d.model import CLASSES, UNet3d, level_widths


def test_the_published_size_has_the_published_checkpoint():
    with torch.device("meta"):
        network = UNet3d(base_channels=32, depth=5)
    weights = sum(parameter.numel() for parameter in network.parameters())
    # The published job's file holds last and best, each of weights and momentum, in float32: 499 153 191 bytes.
    assert weights * 4 * 2 * 2 == pytest.approx(499_153_191, rel=1e-3)


@given(base=st.integers(1, 64), depth=st.integers(1, 7))
def test_widths_double_up_to_the_cap(base, depth):
    widths = level_widths(base, depth)
    assert len(widths) == depth + 1 and widths[0] == base
    assert all(b == min(2 * a, 320) for a, b in pairwise(widths))


@settings(max_examples=15)
@given(depth=st.integers(1, 3), multiples=st.tuples(*[st.integers(1, 3)] * 3), batch=st.integers(1, 2))
def test_every_voxel_gets_a_score_per_class(depth, multiples, batch):
    size = [2 * 2**depth * m for m in multiples]
    with torch.inference_mode():
        scores = UNet3d(2, depth)(torch.randn(batch, 1, *size))
    assert scores.shape == (batch, CLASSES, *size)
    assert torch.isfinite(scores).all()


def test_channels_are_normalised_per_instance():
    torch.manual_seed(0)
    network, image = UNet3d(4, 2).eval(), torch.randn(2, 1, 16, 16, 16)
    with torch.inference_mode():
        together, alone = network(image)[:1], network(image[:1])
    # What the other sample of the batch looks like must not matter.
    torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-3)
