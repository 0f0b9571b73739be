"""Profiles a model on several ranks of this machine at once, as a pipeline computes, and measures their exchanges of tensors.

Ranks that compute at the same time share caches and memory, so each layer takes longer than on an idle machine.
``python -m iotwin.workloads.pipedream.profile.on_ranks FOLDER`` is one rank. It reads FOLDER/options.json, and rank 0 writes
FOLDER/graph.txt and FOLDER/profile.json.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import distributed

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import scratch_folder, write_json
from iotwin.common.ranks import claimed_ports
from iotwin.common.untrusted_files import read_foreign_json
from iotwin.workloads.common.torch_ranks import TorchRanks, join_ranks
from iotwin.workloads.launch import local_plan
from iotwin.workloads.pipedream.plan.graph_file import read_graph, write_graph
from iotwin.workloads.pipedream.plan.layer_graph import ExchangeCost
from iotwin.workloads.pipedream.profile.model_profile import ModelProfile, ProfileOptions, profile
from iotwin.workloads.pipedream.runtime.bandwidth import there_and_back

_SMALL, _LARGE = 1 << 10, 4 << 20  # bytes of the exchanged tensors: mostly latency, and mostly copying
_WARM_UP, _ROUNDS = 3, 20
_OPTIONS, _GRAPH, _DOCUMENT = "options.json", "graph.txt", "profile.json"


def profile_on_ranks(options: ProfileOptions, ranks: int) -> ModelProfile:
    """Return the profile that rank 0 of `ranks` measures while all of them compute. Its graph has the cost of an exchange.

    Raises UsageError for a GPU, on which ranks do not compute, and IotwinError if a rank fails.
    """
    if options.device != "cpu":
        raise UsageError(f"--device {options.device}: the ranks of a pipeline compute on CPUs; leave out --ranks")
    with scratch_folder() as folder, claimed_ports(ranks) as port:
        write_json(folder / _OPTIONS, msgspec.to_builtins(options, enc_hook=lambda path: str(path.absolute())))
        ending = local_plan([__name__, str(folder)], ranks, port, folder).run()
        if ending.reason or ending.exit_status:
            raise IotwinError(ending.reason or "a rank failed")
        graph = read_graph(folder / _GRAPH)
        return ModelProfile(replace(graph, name=f"profile of {options.model}"), read_foreign_json(folder / _DOCUMENT))


def _exchange_cost(ranks: TorchRanks) -> ExchangeCost:
    """Return the processor time that this rank, the first or last one, needs to send and receive: gloo's threads included."""

    def mean_s(size_bytes: int) -> float:
        tensor = torch.zeros(size_bytes, dtype=torch.uint8)
        for count in range(_WARM_UP + _ROUNDS):
            if count == _WARM_UP:
                begin_s = time.process_time()
            there_and_back(tensor, ranks)
        return (time.process_time() - begin_s) / _ROUNDS

    small_s, large_s = mean_s(_SMALL), mean_s(_LARGE)
    return ExchangeCost(small_s, (_LARGE - _SMALL) / max(large_s - small_s, 1e-9))


def _path(kind: type, value: Any) -> Any:
    return kind(value)


def _run_rank(folder: Path) -> None:
    options = msgspec.convert(read_foreign_json(folder / _OPTIONS), ProfileOptions, dec_hook=_path)
    with join_ranks(gpu=False) as ranks:
        distributed.barrier()
        found = profile(options if ranks.rank == 0 else replace(options, activations=None))
        distributed.barrier()
        exchange = _exchange_cost(ranks)
        if ranks.rank == 0:
            write_graph(replace(found.graph, exchange=exchange), folder / _GRAPH)
            write_json(folder / _DOCUMENT, found.document)
        ranks.sum(0)  # no rank leaves while another one still receives from it


if __name__ == "__main__":
    _run_rank(Path(sys.argv[1]))
