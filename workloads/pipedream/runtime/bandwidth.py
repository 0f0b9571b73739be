"""Measures how fast ranks exchange tensors: from rank 0 to the last rank and back, and by an all-reduce over all ranks.

``python -m iotwin.workloads.pipedream.runtime.bandwidth BACKEND SIZE...`` is one rank, for any launcher that sets the environment
as torchrun does. Rank 0 prints the result as a JSON line.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import distributed

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import scratch_folder
from iotwin.common.ranks import claimed_ports
from iotwin.common.untrusted_files import decode_foreign, read_foreign_end
from iotwin.workloads.common.torch_ranks import TorchRanks, join_ranks
from iotwin.workloads.launch import local_plan

_WARM_UP, _ROUNDS = 2, 15
_MOST_LOG_BYTES = 1 << 20
_LIMIT_S = 300.0


class Exchange(msgspec.Struct):
    """One measurement. `latency_s` is the median time of one transfer or all-reduce of `size_bytes`."""

    size_bytes: int
    bytes_per_s: float
    latency_s: float


class MeasuredRates(msgspec.Struct):
    """All measurements of a run, by ascending size."""

    point_to_point: list[Exchange]
    all_reduce: list[Exchange]


@dataclass(frozen=True)
class BandwidthOptions:
    """The options of a measurement on this machine."""

    ranks: int
    sizes: Sequence[int]
    backend: str = "gloo"

    def check(self) -> None:
        """Raise UsageError if the backend cannot connect `ranks` ranks on this machine."""
        devices = torch.cuda.device_count()
        if self.backend == "nccl" and devices < self.ranks:
            raise UsageError(f"--backend nccl needs a GPU for each of {self.ranks} ranks, and there are {devices}; use gloo")


def measure_bandwidth(options: BandwidthOptions) -> dict[str, Any]:
    """Measure with one process per rank, and return {"backend", "ranks", "point_to_point", "all_reduce", "recommended_b"}.

    `recommended_b` is the rate of the largest transfer from rank to rank, in bytes per second.
    Raises UsageError for bad options, IotwinError if a rank fails.
    """
    options.check()
    words = [__name__, options.backend, *map(str, sorted(set(options.sizes)))]
    with scratch_folder() as folder, claimed_ports(options.ranks) as port:
        ending = local_plan(words, options.ranks, port, folder, _LIMIT_S).run()
        if ending.reason or ending.exit_status:
            raise IotwinError(ending.reason or "a rank failed")
        lines = read_foreign_end(folder / "rank-0.log", _MOST_LOG_BYTES).strip().splitlines()
    found = decode_foreign((lines[-1] if lines else "").encode(), MeasuredRates, "rank-0.log")
    own = {"backend": options.backend, "ranks": options.ranks}
    return own | msgspec.to_builtins(found) | {"recommended_b": found.point_to_point[-1].bytes_per_s}


def run_rank(sizes: Sequence[int], ranks: TorchRanks) -> MeasuredRates:
    """Take part in the measurement of each size as one rank."""
    found = MeasuredRates([], [])
    for size in sizes:
        tensor = torch.zeros(max(1, size // 4), device=ranks.device)
        both_ways_s = _median_s(lambda: there_and_back(tensor, ranks), ranks)  # noqa: B023 - called at once
        found.point_to_point.append(_exchange(tensor.nbytes, both_ways_s / 2, tensor.nbytes))
        reduced_s = _median_s(lambda: distributed.all_reduce(tensor), ranks)  # noqa: B023 - called at once
        # By a ring all-reduce, each rank sends this many bytes.
        sent = 2 * (ranks.world_size - 1) / ranks.world_size * tensor.nbytes
        found.all_reduce.append(_exchange(tensor.nbytes, reduced_s, sent))
    return found


def _exchange(size_bytes: int, seconds: float, sent_bytes: float) -> Exchange:
    return Exchange(size_bytes, sent_bytes / max(seconds, 1e-9), seconds)


def there_and_back(tensor: torch.Tensor, ranks: TorchRanks) -> None:
    """Send a tensor from rank 0 to the last rank and back; other ranks return at once."""
    last = ranks.world_size - 1
    if ranks.rank == 0:
        distributed.send(tensor, last)
        distributed.recv(tensor, last)
    elif ranks.rank == last:
        distributed.recv(tensor, 0)
        distributed.send(tensor, 0)


def _median_s(work: Callable[[], Any], ranks: TorchRanks) -> float:
    """Return the median seconds of `work`, which ranks begin together."""
    times = []
    for _ in range(_WARM_UP + _ROUNDS):
        distributed.barrier()
        begin_s = time.perf_counter()
        work()
        if ranks.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin_s)
    return statistics.median(times[_WARM_UP:])


if __name__ == "__main__":
    torch.set_num_threads(1)
    with join_ranks(gpu=sys.argv[1] == "nccl") as joined:
        measured = run_rank([int(word) for word in sys.argv[2:]], joined)
        joined.sum(0)  # no rank leaves while another one still receives from it
    if joined.rank == 0:
        print(msgspec.json.encode(measured).decode(), flush=True)
