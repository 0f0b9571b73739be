from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.workloads.unet3d.evaluate import sliding_window_scores, window_starts


@given(window=st.integers(1, 64), extra=st.integers(0, 300), overlap=st.floats(0, 0.95))
def test_windows_cover_the_axis_and_stay_on_it(window, extra, overlap):
    length = window + extra
    starts = window_starts(length, window, overlap)
    assert starts == sorted(set(starts))
    assert starts[0] == 0 and starts[-1] == length - window
    largest_step = max(1, int(window * (1 - overlap)))
    assert all(0 < b - a <= largest_step for a, b in pairwise(starts))


class _Voxelwise(torch.nn.Module):
    """Scores each voxel by its own value, so that windows cannot change the outcome."""

    def forward(self, image):
        return torch.cat((image, -image, 0.5 - image.abs()), 1)


@settings(max_examples=30)
@given(extra=st.tuples(*[st.integers(0, 9)] * 3), overlap=st.sampled_from([0.0, 0.25, 0.5]), at_once=st.integers(1, 5))
def test_windows_together_segment_the_volume(extra, overlap, at_once):
    image = torch.randn(1, 1, *(4 + e for e in extra), generator=torch.Generator().manual_seed(sum(extra)))
    scores = sliding_window_scores(_Voxelwise(), image, (4, 4, 4), overlap, at_once)
    assert torch.equal(scores.argmax(1), _Voxelwise()(image).argmax(1))


def test_windows_are_batched_evenly_up_to_the_limit():
    batches = []

    class Recorder(_Voxelwise):
        def forward(self, image):
            batches.append(len(image))
            return super().forward(image)

    sliding_window_scores(Recorder(), torch.zeros(1, 1, 4, 4, 36), (4, 4, 4), 0.0, 4)
    assert batches == [3, 3, 3]


def test_the_centre_of_a_window_counts_most():
    class Position(torch.nn.Module):
        """Says class 0 for the first window, class 1 for the second."""

        def forward(self, image):
            scores = torch.zeros(len(image), 3, *image.shape[2:])
            for number in range(len(image)):
                scores[number, number] = 10
            return scores

    labels = sliding_window_scores(Position(), torch.zeros(1, 1, 4, 4, 12), (4, 4, 8), 0.5, 2).argmax(1)[0, 0, 0]
    assert labels.tolist() == [0] * 6 + [1] * 6


@pytest.mark.torch
def test_evaluation_leaves_the_network_training(data, tmp_path):
    from iotwin.datagen.layouts import Unet3dLayout
    from iotwin.workloads.common.parts import Parts
    from iotwin.workloads.common.torch_ranks import TorchRanks
    from iotwin.workloads.unet3d.data import evaluation_loader
    from iotwin.workloads.unet3d.evaluate import evaluate
    from iotwin.workloads.unet3d.model import UNet3d
    from tests.workloads.unet3d.conftest import config

    settings_ = config(data, tmp_path)
    device = torch.device("cpu")
    cases = Unet3dLayout.split(Unet3dLayout.discover(data))[1]
    network = UNet3d(4, 2)
    untimed = Parts(False)
    loaders = [evaluation_loader(cases, settings_, TorchRanks(rank, 2, device)) for rank in range(2)]
    halves = [evaluate(network, loader, settings_, device, untimed) for loader in loaders]
    whole = evaluate(network, evaluation_loader(cases, settings_, TorchRanks(0, 1, device)), settings_, device, untimed)
    assert network.training
    assert whole[1] == len(cases) == sum(count for _, count in halves)
    assert whole[0] == pytest.approx(sum(total for total, _ in halves))
    assert 0 <= whole[0] / whole[1] <= 1
