"""Which of several processes this one is, as its launcher's environment says."""

import pytest

from iotwin.common.errors import UsageError
from iotwin.common.ranks import launched_by_torchrun


def test_a_rank_is_alone_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert launched_by_torchrun() == (0, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert launched_by_torchrun() == (2, 3)


@pytest.mark.parametrize(("rank", "size"), [("0", "0"), ("3", "3"), ("7", "2")])
def test_a_rank_that_there_cannot_be_is_refused(monkeypatch, rank, size):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(UsageError, match=f"RANK {rank} and WORLD_SIZE {size} name no rank"):
        launched_by_torchrun()
