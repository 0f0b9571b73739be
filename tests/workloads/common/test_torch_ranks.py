"""What the ranks of a PyTorch job keep, so that gloo's threads need nothing of Python when a process ends."""

import weakref

import pytest
import torch

from iotwin.workloads.common import torch_ranks
from iotwin.workloads.common.torch_ranks import TorchRanks


class Work:
    """The sum of two ranks with equal values, which is there only after `wait`."""

    def __init__(self, total: torch.Tensor, async_op: bool) -> None:
        assert async_op
        self._total = total

    def wait(self) -> None:
        self._total *= 2


def test_the_last_sum_is_kept_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Work]] = []

    def all_reduce(total: torch.Tensor, async_op: bool = False) -> Work:
        made.append(weakref.ref(work := Work(total, async_op)))
        return work

    monkeypatch.setattr(torch_ranks.distributed, "all_reduce", all_reduce)
    ranks = TorchRanks(0, 2, torch.device("cpu"))
    assert [ranks.sum(1.5, 2.0), ranks.sum(-1.0)] == [[3.0, 4.0], [-2.0]]
    assert [work() is None for work in made] == [True, False]
