"""Rank 0 stays until every rank has what it needs."""

import threading

import pytest
from torch import distributed

from iotwin.common.errors import IotwinError
from iotwin.workloads.common.rank_zero_last import announce, wait_for_all
from iotwin.workloads.detrain.script_ranks import ScriptRanks


def test_rank_0_returns_after_all_others_have_come():
    store, returned = distributed.HashStore(), threading.Event()

    def rank_0():
        wait_for_all(store, "left", 0, 3)
        returned.set()

    thread = threading.Thread(target=rank_0)
    thread.start()
    wait_for_all(store, "left", 1, 3)
    wait_for_all(store, "joined", 2, 3)
    assert not returned.wait(0.05)
    announce(store, "left", 2)
    thread.join()
    assert returned.is_set()


@pytest.mark.parametrize("error", [None, SystemExit(0)])
def test_a_rank_that_expects_more_of_an_ended_script_fails(error):
    store = distributed.HashStore()
    first, second = (ScriptRanks(rank, 2, store) for rank in (0, 1))
    thread = threading.Thread(target=first.__exit__, args=(type(error), error, None))
    thread.start()
    with pytest.raises(IotwinError, match="another rank of the script has ended"), second:
        second.from_first(None)
    assert thread.is_alive()
    announce(second._store, "left", 1)
    thread.join()


def test_a_script_that_fails_waits_for_nobody():
    for error in (ValueError(), SystemExit(1)):
        ScriptRanks(0, 2, distributed.HashStore()).__exit__(type(error), error, None)
