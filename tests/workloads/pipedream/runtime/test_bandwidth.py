"""The bandwidth between gloo ranks: every size is measured, and rates are bytes sent over seconds."""

import json

import pytest
import torch

from iotwin.main import main
from iotwin.workloads.common.torch_ranks import TorchRanks
from iotwin.workloads.pipedream.runtime import bandwidth


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("ranks", [2, 3])
def test_rates_are_what_a_rank_sends_over_the_time_of_an_exchange(capsys, ranks):
    assert main(["pipedream", "bandwidth", "--ranks", str(ranks), "--sizes", "64KiB", "4KiB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ranks"], found["backend"]) == (ranks, "gloo")
    sent = {"point_to_point": 1.0, "all_reduce": 2 * (ranks - 1) / ranks}
    for name, share in sent.items():
        assert [each["size_bytes"] for each in found[name]] == [4096, 65536]
        for each in found[name]:
            assert each["latency_s"] > 0
            assert each["bytes_per_s"] * each["latency_s"] == pytest.approx(share * each["size_bytes"])
    assert found["recommended_b"] == found["point_to_point"][-1]["bytes_per_s"]


def test_a_transfer_takes_half_of_a_way_there_and_back(monkeypatch):
    monkeypatch.setattr(bandwidth, "_median_s", lambda work, ranks: 0.5)
    found = bandwidth.run_rank([4096], TorchRanks(0, 4, torch.device("cpu")))
    assert (found.point_to_point[0].latency_s, found.all_reduce[0].latency_s) == (0.25, 0.5)


def test_nccl_needs_a_gpu_for_each_rank(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert main(["pipedream", "bandwidth", "--backend", "nccl"]) == 2
    assert "needs a GPU for each of 2 ranks, and there are 1" in capsys.readouterr().err
